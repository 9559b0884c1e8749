"""The sizes of runs that are over: each folder is measured once, so that lists of runs are quick."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from gputui.agent.context import AgentContext
from gputui.agent.jobs import JobKey, Purpose
from gputui.runs.disk_use import folder_bytes
from gputui.runs.repository import set_size, unmeasured_runs

LOOK_SECONDS = 5.0
RUNS_AT_ONCE = 20
# Hundreds of thousands of files on a disk that is busy with checkpoints.
FOLDER_SECONDS = 120.0


@dataclass(slots=True)
class RunSizes:
    """Measures the folders of runs that are over. ``unreadable`` are the ends of those that could not be."""

    context: AgentContext
    next_at: float = 0.0
    unreadable: set[tuple[str, float]] = field(default_factory=set)

    def turn(self, now: float) -> None:
        """Store what was measured, and look for more; ``now`` is monotonic. Raises sqlite3.Error."""
        if now < self.next_at:
            return
        ends = [end for end in unmeasured_runs(self.context.connection) if end not in self.unreadable]
        if not ends:
            self.next_at = now + LOOK_SECONDS
            return
        work, most_seconds = partial(self._measure, ends[:RUNS_AT_ONCE]), RUNS_AT_ONCE * FOLDER_SECONDS
        job = self.context.jobs.ask(JobKey(Purpose.RUN_SIZES), work, deadline_seconds=most_seconds)
        if job is None:
            return
        for end, size_bytes in job.result():
            if size_bytes is None:
                self.unreadable.add(end)
            else:
                set_size(self.context.connection, *end, size_bytes)

    def _measure(self, ends: Sequence[tuple[str, float]]) -> list[tuple[tuple[str, float], int | None]]:
        folder = self.context.workspace.run_dir
        return [(end, folder_bytes(folder(end[0]), FOLDER_SECONDS)) for end in ends]
