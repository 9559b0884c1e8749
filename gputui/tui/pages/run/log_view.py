"""Which lines of a log are looked at: the end that is followed or a place scrolled to, a search, the grave ones only.

Lines are known by their numbers, so that what is read stays in its place while the log grows.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from gputui.charts.cells import cell_width
from gputui.runs.log_levels import Level
from gputui.tui.data.snapshot import LogTail

EXPRESSION_MARK = "~"


@dataclass(frozen=True, slots=True)
class Search:
    """What is searched for: words as they are, whatever their case unless they have capitals; after ``~`` a regular
    expression. ``problem`` says why there is nothing to find."""

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
    """The state of the log's pane. `update` takes in a newer tail; every other method is a key."""

    def __init__(self) -> None:
        self.tail = LogTail()
        self.search = Search()
        self.is_grave_only = False
        self.hits: list[int] = []
        """Numbers of the lines that the search found, among those shown."""
        self.current_hit: int | None = None
        self.height = 1
        self.left = 0
        """Cells of each line that lie left of the pane."""
        self._is_at_beginning = False
        self._below: int | None = None
        self._shown: list[int] | range = range(0)

    # --- what is there

    @property
    def is_following(self) -> bool:
        return self._below is None

    @property
    def shown(self) -> Sequence[int]:
        """Numbers of the lines that may be looked at."""
        return self._shown

    @property
    def line_numbers(self) -> Sequence[int]:
        """Numbers of the lines in the pane now."""
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
        """A line and how grave it is."""
        place = number - self.tail.first
        level = self.tail.levels[place] if place < len(self.tail.levels) else Level.INFO
        return self.tail.lines[place], Level(level)

    @property
    def _end(self) -> int:
        """Where the pane ends among the lines shown; the first screenful is never cut off above."""
        if self._below is None:
            return len(self._shown)
        return min(max(bisect_left(self._shown, self._below), self.height), len(self._shown))

    # --- what changes it

    def update(self, tail: LogTail, height: int) -> None:
        """Take in what the log holds now; ``height`` is how many lines the pane has."""
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
        # The last line known may have been an unfinished one.
        self._find(max(known_end - 1, tail.first) if goes_on else None)
        if self._is_at_beginning:
            # Older lines were read meanwhile.
            self.to_top()

    def _find(self, since: int | None = None) -> None:
        """Compute again which lines are shown and which are hits; ``since`` a number what is before it is known."""
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
        """Show the end and go on with it."""
        self._below = None
        self._is_at_beginning = False
        self.left = 0

    def to_top(self) -> None:
        """Show the beginning of what is read, and of what will be read of older lines."""
        self.left = 0
        if self._shown:
            self._show_end_at(self.height)
            self._is_at_beginning = True

    def scroll(self, by: int) -> None:
        """Move by lines, up is negative; at the end it follows again."""
        if self._shown:
            self._show_end_at(self._end + by)

    def sideways(self, by: int, width: int) -> None:
        """Move by cells, left is negative, until the longest line in the pane, ``width`` cells wide, ends in it."""
        longest = max((cell_width(self.line(number)[0]) for number in self.line_numbers), default=0)
        self.left = max(0, min(self.left + by, longest - width))

    def _show_end_at(self, end: int) -> None:
        self._is_at_beginning = False
        if end >= len(self._shown):
            self._below = None
        else:
            self._below = self._shown[max(end, min(self.height, len(self._shown) - 1))]

    def only_grave(self) -> None:
        """Only warnings and worse, or all lines again; what is read stays in the pane."""
        self.is_grave_only = not self.is_grave_only
        self._find()

    def to_traceback(self) -> bool:
        """Show the newest stretch of lines that are errors, from its first line on; False where there is none."""
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
        """Search again; the hit nearest to the pane's end is shown."""
        self.search = Search.of(text)
        self.current_hit = None
        self._find()
        self.next_hit(-1)

    def next_hit(self, by: int) -> None:
        """Go to the next hit below, or above with -1, around the ends."""
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
        """Which hit is shown, counted from 1."""
        return None if self.current_hit is None else bisect_left(self.hits, self.current_hit) + 1


def _within(numbers: Sequence[int], start: int, end: int) -> list[int]:
    return list(numbers[bisect_left(numbers, start) : bisect_left(numbers, end)])
