"""The times at which the lines of an output were first read: it is read again once the form of its lines is known."""

from __future__ import annotations

from bisect import bisect_right

# Of more, every other one is left out, but not the newest.
_MOST_MARKS = 512


class Arrivals:
    """Up to where a file had been read at which times, as far as this agent has read it."""

    def __init__(self) -> None:
        self._inode: int | None = None
        self._ends: list[int] = []
        self._times: list[float] = []

    def note(self, inode: int | None, end: int, at: float) -> None:
        """Note that a file was read up to byte ``end`` at a time (UTC unix seconds)."""
        if inode != self._inode:
            self._inode = inode
            self._ends = []
            self._times = []
        if self._ends and end <= self._ends[-1]:
            return
        self._ends.append(end)
        self._times.append(at)
        if len(self._ends) > _MOST_MARKS:
            self._ends = self._ends[::2]
            self._times = self._times[::2]

    def at(self, offset: int) -> float | None:
        """The time at which the line at a byte offset was first read; None if it was not."""
        index = bisect_right(self._ends, offset)
        if index < len(self._times):
            return self._times[index]
        return None
