"""Which lines of a rewritten file were stored from an earlier version of it, wherever they are in the new one.

From the first time on that a file is rewritten, the store lists the marks of all lines that were stored from any
version of it. What is in the list and not in the file, as far as it was read, is expected: a line of the file that is
expected is not stored again. A line that a file has twice is expected twice. Nothing of this concerns a file that is
only appended to.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence

from gputui.metrics.batch import SourceState
from gputui.metrics.marks import LISTED_LINES, KnownMarks, unpacked


class EarlierLines:
    """The expected lines of one source: so many of each mark. ``known`` answers the marks of the file's lines,
    ``listed`` the newest of the list. Kept for one state; for another it is read from the store."""

    def __init__(self, known: KnownMarks, listed: Callable[[], bytes]) -> None:
        self._known = known
        self._listed = listed
        self._state: SourceState | None = None
        self._expected: Counter[int] | None = None

    def are_listed(self, state: SourceState) -> bool:
        """Whether the lines that are stored after ``state`` are to be added to the list. Raises sqlite3.Error."""
        return self._at(state) is not None

    def new_ones(self, state: SourceState, marks: Sequence[int]) -> list[bool]:
        """Which of the next lines after ``state``, by their marks, are to be stored. `go_to` must follow."""
        expected = self._at(state)
        if not expected or not marks:
            return [True] * len(marks)
        # Should the batch not be committed, the next look reads the store again.
        self._state = None
        are_new = []
        for mark in marks:
            left = expected.get(mark)
            are_new.append(left is None)
            if left == 1:
                del expected[mark]
            elif left is not None:
                expected[mark] = left - 1
        return are_new

    def go_to(self, state: SourceState) -> None:
        """What was answered last is true of ``state``."""
        self._state = state

    def drop(self, state: SourceState, after: SourceState) -> array[int]:
        """The file has other lines behind those that ``after`` counts. Answers what is to be added to the list.
        Raises sqlite3.Error."""
        total, kept = state.mark_count or 0, after.mark_count or 0
        expected = self._at(state)
        dropped = self._file_lines(total, kept)
        added = array("I")
        if expected is None:
            added = self._file_lines(total)
            expected = Counter(dropped) if added else None
        else:
            expected.update(dropped)
        self._expected = expected
        # What grows beyond the list is read from it again, and is bounded by that.
        self._state = after if expected is None or len(expected) <= 2 * LISTED_LINES else None
        return added

    def forget(self, after: SourceState) -> None:
        """None is expected after ``after``: the list is empty by then."""
        self._state, self._expected = after, None

    def _at(self, state: SourceState) -> Counter[int] | None:
        """The expected lines; None if there is no list."""
        if state.mark_count is None or not state.generation:
            return None
        if self._state != state:
            listed = unpacked(self._listed())
            self._expected = Counter(listed) - Counter(self._file_lines(state.mark_count)) if listed else None
            self._state = state
        return self._expected

    def _file_lines(self, total: int, start: int = 0) -> array[int]:
        """The marks of the file's newest lines, none before the one with the number ``start``."""
        first = max(start, total - LISTED_LINES)
        return unpacked(self._known(first, total - first))
