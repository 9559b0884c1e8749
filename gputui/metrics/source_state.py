"""How far a source of metrics has been read, whose lines they are, and when they were first read."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from gputui.store.metrics.stored_lines import FilePosition

# Behind every attempt at one place.
_ANY_ATTEMPT = 2**63

# Of more, every other one is left out, but not the newest.
_MOST_MARKS = 512


class SourceState(Struct, frozen=True):
    """The read position of a source: the committed columns of ``metric_sources``.

    Attributes:
        inode: The file's inode, None before the first read.
        generation: Counts the files, and the versions of a file, that were read.
        byte_offset: The position in this version; in entries of a Hugging Face history.
        skipping: It is within an over-long line.
        fingerprint: Identifies the bytes before ``byte_offset``, see `gputui.metrics.files`; None if nothing was read.
        first_generation: Generations before it are other files.
    """

    inode: int | None = None
    generation: int = 0
    byte_offset: int = 0
    skipping: bool = False
    fingerprint: str | None = None
    first_generation: int = 0

    @property
    def position(self) -> FilePosition:
        return self.generation, self.byte_offset

    @property
    def read_part(self) -> tuple[int, str | None]:
        """The length and the fingerprint of what was read."""
        return self.byte_offset, self.fingerprint


class Boundary(NamedTuple):
    """The start of an attempt's lines."""

    generation: int
    byte_offset: int
    attempt: int


def owner(boundaries: Sequence[Boundary], position: FilePosition) -> tuple[int | None, FilePosition, int | None]:
    """Find the attempt of the line at a position.

    Args:
        boundaries: Sorted.

    Returns:
        Its number (None before the first), where its lines begin, and the offset in the same generation at which the
        next attempt's begin, None if there is none.
    """
    index = bisect_right(boundaries, (*position, _ANY_ATTEMPT))
    end = None
    if index < len(boundaries) and boundaries[index].generation == position[0]:
        end = boundaries[index].byte_offset
    if not index:
        return None, position, end
    return boundaries[index - 1].attempt, boundaries[index - 1][:2], end


class Arrivals:
    """Up to where a file had been read at which times, as far as this agent has read it.

    An output is read again once the form of its lines is known, and its lines did not arrive then.
    """

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
