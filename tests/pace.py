"""How long something is held up, on a machine of any pace."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType


class Waited:
    """How long this thread has waited in a `with` block for anything but a processor: for a lock, a process, a disk.

    What a slow or crowded machine adds, computing and standing in line for a processor, does not count.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> Waited:
        self._began = _idle_seconds()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds = _idle_seconds() - self._began


def _idle_seconds() -> float:
    """Time in which this thread neither ran nor could have run, up to a constant."""
    now = time.monotonic()
    return now - busy_seconds("thread-self")


def busy_seconds(process: int | str) -> float:
    """How long a process' main thread has been on a processor or in line for one; 0 where the kernel does not count."""
    try:
        # In nanoseconds, of one processor: Documentation/scheduler/sched-stats.rst.
        running, in_line, _ = map(int, Path(f"/proc/{process}/schedstat").read_text().split())
    except OSError:
        return 0.0
    return (running + in_line) / 1e9
