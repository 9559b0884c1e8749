"""The visible lines of a log: its followed end or a place scrolled to, a search, warnings only.

Lines are known by their numbers, so that the visible ones keep their place while the log grows.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from msgspec import Struct

from gputui.core.text import cell_width
from gputui.runs.log_lines import Level
from gputui.ui.tui.data.snapshot import LogTail

EXPRESSION_MARK = "~"


class Search(Struct, frozen=True):
    """A search: literal text, case-sensitive only if it has capitals, or a regular expression behind ``~``. ``problem``
    says what is wrong with the expression."""

    text: str = ""
    pattern: re.Pattern[str] | None = None
    problem: str | None = None

    @classmethod
    def of(cls, text: str) -> Search:
        if not text:
            return cls()
        is_expression = text.startswith(EXPRESSION_MARK)
        source = text[len(EXPRESSION_MARK) :] if is_expression else re.escape(text)
        if not source:
            return cls(text)
        try:
            return cls(text, re.compile(source, 0 if text != text.lower() and not is_expression else re.IGNORECASE))
        except (re.error, OverflowError, RecursionError) as error:
            return cls(text, problem=f"not a regular expression: {error}")


class LogView:
    """The state of the log's pane. `update` takes a newer tail; the other methods carry out keys."""

    def __init__(self) -> None:
        self.tail = LogTail()
        self.search = Search()
        self.is_grave_only = False
        self.hits: list[int] = []
        """Numbers of the shown lines that match the search."""
        self.current_hit: int | None = None
        self.height = 1
        self.left = 0
        """Cells of each line that are scrolled out to the left."""
        self._is_at_beginning = False
        self._below: int | None = None
        self._shown: list[int] | range = range(0)

    # --- what is there

    @property
    def is_following(self) -> bool:
        return self._below is None

    @property
    def shown(self) -> Sequence[int]:
        """Numbers of the lines that pass the filter."""
        return self._shown

    @property
    def line_numbers(self) -> Sequence[int]:
        """Numbers of the visible lines."""
        end = self._end
        return self._shown[max(0, end - self.height) : end]

    @property
    def lines_below(self) -> int:
        """How many lines lie below the pane."""
        return len(self._shown) - self._end

    @property
    def is_at_top(self) -> bool:
        return self._end <= self.height

    def line(self, number: int) -> tuple[str, Level]:
        """A line and its level."""
        place = number - self.tail.first
        level = self.tail.levels[place] if place < len(self.tail.levels) else Level.INFO
        return self.tail.lines[place], Level(level)

    @property
    def _end(self) -> int:
        """The end of the pane as an index of `shown`; the first screenful is always full."""
        if self._below is None:
            return len(self._shown)
        return min(max(bisect_left(self._shown, self._below), self.height), len(self._shown))

    # --- what changes it

    def update(self, tail: LogTail, height: int) -> None:
        """Take the newest tail for a pane of ``height`` lines."""
        self.height = max(1, height)
        if tail is self.tail:
            return
        before, self.tail = self.tail, tail
        known_end = before.first + len(before.lines)
        is_same = (before.label, before.source) == (tail.label, tail.source)
        goes_on = is_same and before.first <= tail.first <= known_end and bool(before.lines)
        if not is_same:
            self._below = self.current_hit = None
            self._is_at_beginning = False
        # The last known line may have been unfinished.
        self._find(max(known_end - 1, tail.first) if goes_on else None)
        if self._is_at_beginning:
            # Older lines may have been read meanwhile.
            self.to_top()

    def _find(self, since: int | None = None) -> None:
        """Compute the shown lines and the hits; results for lines before number ``since`` are kept."""
        tail = self.tail
        end = tail.first + len(tail.lines)
        if not self.is_grave_only:
            self._shown = range(tail.first, end)
        else:
            kept = [] if since is None or isinstance(self._shown, range) else _within(self._shown, tail.first, since)
            start = tail.first if since is None or isinstance(self._shown, range) else since
            levels = tail.levels
            self._shown = kept + [n for n in range(start, end) if levels[n - tail.first] >= Level.WARNING]
        pattern = self.search.pattern
        if pattern is None:
            self.hits, self.current_hit = [], None
            return
        kept = [] if since is None else _within(self.hits, tail.first, since)
        new = self._shown[bisect_left(self._shown, since) :] if since is not None else self._shown
        self.hits = kept + [n for n in new if pattern.search(tail.lines[n - tail.first])]

    def follow(self) -> None:
        """Show the end of the log, and follow it."""
        self._below = None
        self._is_at_beginning = False
        self.left = 0

    def to_top(self) -> None:
        """Show the beginning, also once older lines were read."""
        self.left = 0
        if self._shown:
            self._show_end_at(self.height)
            self._is_at_beginning = True

    def scroll(self, by: int) -> None:
        """Scroll by lines, negative is up. At the end, follow again."""
        if self._shown:
            self._show_end_at(self._end + by)

    def sideways(self, by: int, width: int) -> None:
        """Scroll by cells, negative is left, up to the end of the longest line in a pane of ``width`` cells."""
        longest = max((cell_width(self.line(number)[0]) for number in self.line_numbers), default=0)
        self.left = max(0, min(self.left + by, longest - width))

    def _show_end_at(self, end: int) -> None:
        self._is_at_beginning = False
        if end >= len(self._shown):
            self._below = None
        else:
            self._below = self._shown[max(end, min(self.height, len(self._shown) - 1))]

    def only_grave(self) -> None:
        """Toggle between all lines, and warnings and errors only; the place is kept."""
        self.is_grave_only = not self.is_grave_only
        self._find()

    def to_traceback(self) -> bool:
        """Show the newest block of error lines from its beginning; False if there is none."""
        levels = self.tail.levels
        end = next((place for place in range(len(levels) - 1, -1, -1) if levels[place] == Level.ERROR), None)
        if end is None:
            return False
        start = end
        while start and levels[start - 1] == Level.ERROR:
            start -= 1
        if self.is_grave_only:
            self.only_grave()
        self.left = 0
        self._show_end_at(start + self.height)
        return True

    def look_for(self, text: str) -> None:
        """Search for ``text``, and show the hit nearest to the pane's end."""
        self.search = Search.of(text)
        self.current_hit = None
        self._find()
        self.next_hit(-1)

    def next_hit(self, by: int) -> None:
        """Go to the next hit, or the previous one with -1, wrapping around."""
        if not self.hits:
            return
        if self.current_hit is None:
            numbers = self.line_numbers
            last = numbers[-1] if numbers else self.hits[-1]
            place = bisect_right(self.hits, last) - 1 if by < 0 else bisect_right(self.hits, last)
        elif by < 0:
            place = bisect_left(self.hits, self.current_hit) - 1
        else:
            place = bisect_right(self.hits, self.current_hit)
        self.current_hit = self.hits[place % len(self.hits)]
        if self.current_hit not in self.line_numbers:
            self._show_end_at(bisect_left(self._shown, self.current_hit) + self.height // 2 + 1)

    @property
    def hit_place(self) -> int | None:
        """The number of the current hit, from 1."""
        return None if self.current_hit is None else bisect_left(self.hits, self.current_hit) + 1


def _within(numbers: Sequence[int], start: int, end: int) -> list[int]:
    return list(numbers[bisect_left(numbers, start) : bisect_left(numbers, end)])
