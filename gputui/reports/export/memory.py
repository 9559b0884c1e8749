"""What a sink that follows a run remembers between two processes: how far it read, and how far it wrote.

One file beside the run, replaced whole; a lock makes sure that two processes never write the same target.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from gputui.config import PRIVATE_DIR_MODE
from gputui.reports.export.formats import Format
from gputui.reports.export.sink import Position
from gputui.runs import process_lock
from gputui.runs.submission import write_private
from gputui.store.metrics.exported import ExportProgress

FOLDER = "sinks"


@dataclass(frozen=True, slots=True)
class Remembered:
    """``created_at`` is when the run was made, as of the sink's start: the target knows the run by it,
    and a database that was lost and read back from the folders tells another. ``at`` is when something was written
    last; both are UTC unix seconds. ``ended_at``: the run ended then, and everything until then is written."""

    created_at: float
    progress: ExportProgress
    position: Position
    at: float
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class MemoryPlace:
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
        """What its libraries say."""
        return self.run_dir / FOLDER / f"{self.stem}.log"

    def make(self) -> None:
        """Raises OSError, FileNotFoundError if the run's folder is gone."""
        (self.run_dir / FOLDER).mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)

    def take(self, *, is_agents: bool) -> int:
        """Lock it for this process, which an agent started or a person, until the descriptor is closed or the process
        ends. Raises HeldElsewhereError or OSError."""
        return process_lock.take(self.lock, is_agents=is_agents)

    def read(self) -> Remembered | None:
        """What was remembered; None if nothing was, or nothing that can be understood."""
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
        """Replace it whole. Raises OSError."""
        record = {
            "created_at": remembered.created_at,
            "progress": remembered.progress.to_json(),
            "position": dict(remembered.position),
            "at": remembered.at,
            "ended_at": remembered.ended_at,
        }
        write_private(self.position, record)
