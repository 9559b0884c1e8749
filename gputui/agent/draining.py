"""Between an attempt and the next on the same GPUs: their memory must be back, and no process of the run left."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gputui.agent.recorder import Recorder
from gputui.runs import repository
from gputui.runs.identity import marked_processes

# A GPU counts as released when its used memory is back to what it was before the attempt, within this margin
# (other processes come and go), or after the deadline.
RELEASED_WITHIN_BYTES = 512 << 20
DEADLINE_SECONDS = 15.0


@dataclass(slots=True)
class _Entry:
    baseline_bytes: Mapping[str, int | None]
    ended_at: float
    deadline: float


@dataclass(slots=True)
class Draining:
    """The GPUs of attempts that have ended. A run that is over gives its leases back when they are drained; one that
    recovers keeps them."""

    connection: sqlite3.Connection
    runs: Path
    recorder: Recorder
    wall: Callable[[], float]
    clock: Callable[[], float]
    entries: dict[str, _Entry] = field(default_factory=dict)

    def begin(self, run_id: str, baseline_bytes: Mapping[str, int | None]) -> None:
        """``baseline_bytes``: the used memory of each GPU before the attempt, None where it is not known."""
        if baseline_bytes:
            self.entries[run_id] = _Entry(baseline_bytes, self.wall(), self.clock() + DEADLINE_SECONDS)

    def uuids(self) -> set[str]:
        """The GPUs on which nothing may start yet."""
        return {uuid for entry in self.entries.values() for uuid in entry.baseline_bytes}

    def turn(self) -> bool:
        """Let go of what is drained; True when something was. Raises sqlite3.Error."""
        done = False
        for run_id, entry in list(self.entries.items()):
            late = self.clock() > entry.deadline
            if not late and not self._memory_is_back(entry):
                continue
            if marked_processes(self.runs / run_id):
                # Whoever still holds a GPU keeps it, however long that takes.
                entry.deadline = self.clock() + DEADLINE_SECONDS
                entry.ended_at = self.wall()
                continue
            run = repository.get_run(self.connection, run_id)
            if run is None or run.state.is_over:
                repository.release_leases(self.connection, run_id)
            del self.entries[run_id]
            done = True
        return done

    def _memory_is_back(self, entry: _Entry) -> bool:
        if self.recorder.fast_at <= entry.ended_at:
            return False
        for uuid, baseline in entry.baseline_bytes.items():
            sample = self.recorder.fast.get(uuid)
            if sample is None or sample.memory_used_bytes is None or baseline is None:
                continue
            if sample.memory_used_bytes > baseline + RELEASED_WITHIN_BYTES:
                return False
        return True
