"""Reading processes from procfs, in the feed's thread, while the page of processes is open."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from gputui.core.config import Workspace
from gputui.runs.processes import ProcessTable
from gputui.store.hardware import GpuView
from gputui.ui.tui.data.snapshot import ProcessSet

AGAIN_SECONDS = 1.8
"""Least time between two reads: every second snapshot of a screen with one snapshot per second."""


class ProcessReader:
    """Reads processes and CPU cores, at most every `AGAIN_SECONDS`."""

    def __init__(self, workspace: Workspace, clock: Callable[[], float] = time.monotonic) -> None:
        self._table = ProcessTable(workspace.runs)
        self._clock = clock
        self._read_at = float("-inf")
        self._newest: ProcessSet | None = None
        self._cores = 0

    def read(self, gpus: Sequence[GpuView]) -> ProcessSet:
        """The processes on these GPUs and of our runs."""
        import psutil  # not needed by screens that never show the page

        now, newest = self._clock(), self._newest
        # The first reading knows no load yet: the second follows with the next snapshot.
        if newest is None or not newest.core_percents or now - self._read_at >= AGAIN_SECONDS:
            self._read_at = now
            listed = (process for gpu in gpus for process in gpu.processes or ())
            hosts = self._table.read(each.pid for each in listed if each.start_ticks is not None)
            percents = psutil.cpu_percent(percpu=True)
            # Loads are since the reading before, and cores may come and go.
            newest = self._newest = ProcessSet(hosts, tuple(percents) if len(percents) == self._cores else ())
            self._cores = len(percents)
        return newest
