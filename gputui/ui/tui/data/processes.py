"""Reading processes from procfs, in the feed's thread, while the page of processes is open."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from gputui.core.config import Workspace
from gputui.runs.processes import HostProcess, ProcessTable
from gputui.store.hardware import GpuView

AGAIN_SECONDS = 1.8
"""Least time between two reads: every second snapshot of a screen with one snapshot per second."""


class ProcessReader:
    """Reads processes, at most every `AGAIN_SECONDS`."""

    def __init__(self, workspace: Workspace, clock: Callable[[], float] = time.monotonic) -> None:
        self._table = ProcessTable(workspace.runs)
        self._clock = clock
        self._read_at = float("-inf")
        self._newest: Mapping[int, HostProcess] = {}

    def read(self, gpus: Sequence[GpuView]) -> Mapping[int, HostProcess]:
        """The processes of our runs and the visible ones on these GPUs, by PID."""
        now = self._clock()
        # The first reading knows no load yet: the second follows with the next snapshot.
        has_load = any(each.cpu_percent is not None for each in self._newest.values())
        if not has_load or now - self._read_at >= AGAIN_SECONDS:
            self._read_at = now
            listed = (each for gpu in gpus for each in gpu.processes or ())
            visible = (each.pid for each in listed if each.start_ticks is not None)
            self._newest = self._table.read(visible)
        return self._newest
