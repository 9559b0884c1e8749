"""The stored progress of a sink: how far it has read and written.

It is one file in the run's folder, replaced as a whole. A lock keeps two processes from writing one target.
"""

from __future__ import annotations

import json
from pathlib import Path

from msgspec import Struct

from gputui.core.config import PRIVATE_DIR_MODE
from gputui.reports.export.formats import Format
from gputui.reports.export.sink import Position
from gputui.runs import identity
from gputui.runs.submission import write_private
from gputui.store.metrics.exported import ExportProgress

FOLDER = "sinks"


class Remembered(Struct, frozen=True):
    """The progress of a sink. ``created_at`` is the creation of the run when the sink started: the target knows the run
    by it, and it changes if a lost database is rebuilt from the folders. ``at`` is the last write. ``ended_at``: the
    run ended then, and everything until then is written. Times are UTC unix seconds."""

    created_at: float
    progress: ExportProgress
    position: Position
    at: float
    ended_at: float | None = None


class MemoryPlace(Struct, frozen=True):
    """The files of one sink of one run."""

    run_dir: Path
    stem: str

    @classmethod
    def of(cls, run_dir: Path, name: Format, key: str) -> MemoryPlace:
        return cls(run_dir, f"{name}-{key[:8]}")

    @property
    def position(self) -> Path:
        return self.run_dir / FOLDER / f"{self.stem}.json"

    @property
    def lock(self) -> Path:
        return self.run_dir / FOLDER / f"{self.stem}.lock"

    @property
    def log(self) -> Path:
        """The output of its libraries."""
        return self.run_dir / FOLDER / f"{self.stem}.log"

    def make(self) -> None:
        """Create the folder. Raises OSError, FileNotFoundError if the run's folder is gone."""
        (self.run_dir / FOLDER).mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)

    def take(self, *, is_agents: bool) -> int:
        """Lock it for this process, which an agent or a person started, until the descriptor is closed or the process
        ends. Raises HeldElsewhereError or OSError."""
        return identity.take(self.lock, is_agents=is_agents)

    def read(self) -> Remembered | None:
        """The stored progress; None if there is none or it is invalid."""
        try:
            data = json.loads(self.position.read_text("utf-8"))
            ended_at = data["ended_at"]
            return Remembered(
                float(data["created_at"]),
                ExportProgress.from_json(data["progress"]),
                dict(data["position"]),
                float(data["at"]),
                None if ended_at is None else float(ended_at),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def write(self, remembered: Remembered) -> None:
        """Store the progress. Raises OSError."""
        record = {
            "created_at": remembered.created_at,
            "progress": remembered.progress.to_json(),
            "position": dict(remembered.position),
            "at": remembered.at,
            "ended_at": remembered.ended_at,
        }
        write_private(self.position, record)
