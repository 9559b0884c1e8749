"""What a recovering run waits for besides time: cool GPUs, room on the disk, old checkpoints to be gone.

What is waited for is a row, so that an agent that was killed is followed by one that waits on.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gputui.agent.recorder import Recorder
from gputui.charts import units
from gputui.config import Workspace
from gputui.recovery.checkpoints import candidates, survey
from gputui.runs import next_attempt, repository
from gputui.runs.places import checkpoint_directory
from gputui.runs.repository import RunRecord

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
_CHECKSUM_SUFFIX = ".sha256"


@dataclass(frozen=True, slots=True)
class Closed:
    """The run waits, and for what; ``is_final``: it waited in vain, and cannot go on."""

    why: str
    is_final: bool = False


@dataclass(slots=True)
class Gates:
    """The gates of all recovering runs. ``wake`` makes the loop turn, from any thread."""

    connection: sqlite3.Connection
    workspace: Workspace
    recorder: Recorder
    wall: Callable[[], float]
    wake: Callable[[], None]
    pruning: dict[str, Pruning] = field(default_factory=dict)

    def look(self, run: RunRecord) -> Closed | None:
        """Why the run must still wait, or None when it may start. Raises sqlite3.Error."""
        wanted = next_attempt.get(self.connection, run.run_id)
        waited = self.wall() - wanted.since
        left = list(wanted.gates)
        while left:
            gate = left[0]
            why = self._closed(run, gate)
            late = waited >= float(gate.get("limit_seconds", 0.0))
            if why is not None and not late:
                return Closed(f"waits {why}")
            if why is not None:
                if gate.get("kind") == "disk":
                    return Closed(f"waited in vain {why}", is_final=True)
                repository.add_event(
                    self.connection,
                    f"waited in vain {why}; going on",
                    now=self.wall(),
                    severity="warning",
                    run_id=run.run_id,
                )
            left.pop(0)
            next_attempt.set_gates(self.connection, run.run_id, left)
        return None

    def _closed(self, run: RunRecord, gate: Mapping[str, Any]) -> str | None:
        match gate.get("kind"):
            case "cool":
                return self._hot(run, float(gate["margin_celsius"]))
            case "disk":
                return self._no_room(run, int(gate["bytes_needed"]))
            case "prune":
                return self._not_pruned(run, int(gate["keep"]))
        return None

    def _hot(self, run: RunRecord, margin_celsius: float) -> str | None:
        facts = self.recorder.facts
        leased = [uuid for uuid, holder in repository.leases(self.connection).items() if holder == run.run_id]
        for uuid in leased:
            sample, limit = self.recorder.fast.get(uuid), None
            if uuid in facts:
                limit = facts[uuid].temperature_slowdown_celsius
            if sample is None:
                # An agent that has just begun has read nothing yet.
                return f"for a reading of {uuid}"
            # What cannot be measured cannot be waited for.
            if sample.temperature_celsius is None or limit is None:
                continue
            if sample.temperature_celsius > limit - margin_celsius:
                below = limit - margin_celsius
                return (
                    f"for GPU {facts[uuid].index} to cool to {below:.0f} °C (now {sample.temperature_celsius:.0f} °C)"
                )
        return None

    def _no_room(self, run: RunRecord, needed: int) -> str | None:
        folder = self._checkpoints(run)
        if folder is None:
            return None
        try:
            status = os.statvfs(folder)
        except OSError as error:
            return f"for {folder}: {error.strerror}"
        free = status.f_bavail * status.f_frsize
        if free >= needed:
            return None
        return f"for {units.bytes_text(needed)} on the disk of {folder} ({units.bytes_text(free)} free)"

    def _not_pruned(self, run: RunRecord, keep: int) -> str | None:
        folder = self._checkpoints(run)
        if folder is None or run.spec.checkpoints is None:
            return None
        job = self.pruning.get(run.run_id)
        if job is None:
            job = Pruning(folder, run.spec.checkpoints.pattern, keep, run.resume_from, self.wake)
            self.pruning[run.run_id] = job
        if not job.is_over:
            return "for old checkpoints to be removed"
        del self.pruning[run.run_id]
        text = f"removed {len(job.removed)} old checkpoints" if job.error is None else f"cannot prune: {job.error}"
        severity = "info" if job.error is None else "warning"
        repository.add_event(self.connection, text, now=self.wall(), severity=severity, run_id=run.run_id)
        return None

    def _checkpoints(self, run: RunRecord) -> Path | None:
        return checkpoint_directory(run.spec, self.workspace.run_dir(run.run_id))


class Pruning:
    """One removal under way, in a thread: what is kept is validated first, whatever its size."""

    def __init__(
        self, folder: Path, pattern: str, keep: int, resume_from: str | None, wake: Callable[[], None]
    ) -> None:
        self.removed: list[Path] = []
        self.error: str | None = None
        self._args = (folder, pattern, keep, resume_from)
        self._wake = wake
        self._thread = threading.Thread(target=self._run, name=f"prune-{folder}", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.removed = prune(*self._args)
        except OSError as error:
            self.error = str(error)
        finally:
            self._wake()


def prune(folder: Path, pattern: str, keep: int, resume_from: str | None = None) -> list[Path]:
    """Remove the checkpoints that are older than the ``keep`` newest valid ones; nothing where there are fewer. Names
    without a step (best.pt, last.pt) stay, and so does the one that the run goes on from.

    Raises OSError with some of them left.
    """
    kept = survey(folder, pattern, wanted=keep)
    if sum(info.valid for info in kept) < keep:
        return []
    newer = {info.path for info in kept}
    removed = []
    for path in candidates(folder, pattern):
        if path in newer or str(path) == resume_from or repository.step_in_name(str(path)) is None:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
        path.with_name(path.name + _CHECKSUM_SUFFIX).unlink(missing_ok=True)
        removed.append(path)
    return removed
