"""Lines of a rewritten file that were already stored from an earlier version of it, wherever they are now.

From the first rewrite on, the store lists the marks of all lines stored from any version of a file. Marks in the list
but not in the part of the file that was read are expected: a line with an expected mark is not stored again. A line
that a file has twice is expected twice. Files that are only appended to have no list.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence

from gputui.metrics.batch import SourceState
from gputui.metrics.marks import LISTED_LINES, KnownMarks, unpacked


class EarlierLines:
    """The expected lines of one source, as counts by mark. ``known`` returns the marks of the file's lines, ``listed``
    the newest of the list. Cached for one state; for another it is read from the store."""

    def __init__(self, known: KnownMarks, listed: Callable[[], bytes]) -> None:
        self._known = known
        self._listed = listed
        self._state: SourceState | None = None
        self._expected: Counter[int] | None = None

    def has_list(self, state: SourceState) -> bool:
        """Whether lines stored after ``state`` must be added to the list. Raises sqlite3.Error."""
        return self._at(state) is not None

    def new_ones(self, state: SourceState, marks: Sequence[int]) -> list[bool]:
        """Which of the next lines after ``state``, by their marks, are new. `advance_to` must follow."""
        expected = self._at(state)
        if not expected or not marks:
            return [True] * len(marks)
        # If the batch is not committed, the next call reads the store again.
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

    def advance_to(self, state: SourceState) -> None:
        """Note that the last answer is valid for ``state``."""
        self._state = state

    def drop(self, state: SourceState, after: SourceState) -> array[int]:
        """The file has other lines after those that ``after`` counts. Returns the marks to add to the list. Raises
        sqlite3.Error."""
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
        # Larger than the list: read it again, which bounds the size.
        self._state = after if expected is None or len(expected) <= 2 * LISTED_LINES else None
        return added

    def forget(self, after: SourceState) -> None:
        """Expect no lines after ``after``: its list is empty."""
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
        """The marks of the file's newest lines, from the number ``start`` on."""
        first = max(start, total - LISTED_LINES)
        return unpacked(self._known(first, total - first))
