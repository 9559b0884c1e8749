"""The lines of a log that are in view, and the search among them.

Lines are known by their numbers, so that the visible ones keep their place while the log grows.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from msgspec import Struct

from gputui.core.text import clean
from gputui.core.units import count
from gputui.metrics.draw.parts import Span
from gputui.ui.views.snapshot import LogTail

EXPRESSION_MARK = "~"

_BEFORE_ALL = -(1 << 62)
"""A number before that of any line."""


class LogView:
    """The lines in view: the end of the log, or what was scrolled to.

    Attributes:
        width: the cells of a line.
        height: how many lines there is room for.
        listed: the numbers of the lines that are shown if there is room.
        first_column: the first column in view.
        _below: the number of the line below the visible ones; None shows the end.
    """

    def __init__(self) -> None:
        self.width = 2
        self.height = 1
        self.listed: Sequence[int] = range(0)
        self.first_column = 0
        self._below: int | None = None

    @property
    def _end(self) -> int:
        """The index of the end of the visible lines; the first screenful is always full."""
        if self._below is None:
            return len(self.listed)
        return min(max(bisect_left(self.listed, self._below), self.height), len(self.listed))

    @property
    def numbers(self) -> Sequence[int]:
        """The numbers of the visible lines."""
        return self.listed[max(0, self._end - self.height) : self._end]

    @property
    def follows_end(self) -> bool:
        """Return whether new lines come into view."""
        return self._below is None

    @property
    def is_at_beginning(self) -> bool:
        """Return whether the first line is in view."""
        return self._end <= self.height

    @property
    def count_below(self) -> int:
        """How many lines are below the visible ones."""
        return len(self.listed) - self._end

    def follow(self) -> None:
        """Show the end from now on."""
        self._below = None

    def scroll(self, by: int) -> None:
        """Scroll by lines; negative is up."""
        if self.listed:
            self._show_end_at(self._end + by)

    def show_beginning(self) -> None:
        """Show the beginning, also once older lines are known."""
        self._below = None
        if len(self.listed) > self.height:
            self._below = _BEFORE_ALL

    def show_from(self, index: int) -> None:
        """Show the line at this index first, as far as enough lines follow."""
        self._show_end_at(index + self.height)

    def show_around(self, number: int) -> None:
        """Show a line in the middle."""
        self._show_end_at(bisect_left(self.listed, number) + self.height // 2 + 1)

    def _show_end_at(self, end: int) -> None:
        if end >= len(self.listed):
            self._below = None
        else:
            self._below = self.listed[max(end, min(self.height, len(self.listed) - 1))]

    def sideways(self, by: int, longest: int) -> None:
        """Scroll half a pane to the left (-1) or right (1), to the end of the ``longest`` line in view."""
        self.first_column = max(0, min(self.first_column + by * (self.width // 2), longest - self.width))


class SearchPattern(Struct, frozen=True):
    """What is searched for.

    Attributes:
        text: as typed, case-sensitive only if it has capitals; or a regular expression behind ``~``.
        pattern: None for an empty or an invalid search.
        problem: what is wrong with the expression.
    """

    text: str = ""
    pattern: re.Pattern[str] | None = None
    problem: str | None = None

    @classmethod
    def of(cls, text: str) -> SearchPattern:
        """The pattern of a typed text."""
        source = re.escape(text)
        flags = re.IGNORECASE
        if text.startswith(EXPRESSION_MARK):
            source = text.removeprefix(EXPRESSION_MARK)
        elif text != text.lower():
            flags = re.NOFLAG
        if not source:
            return cls(text)
        try:
            return cls(text, re.compile(source, flags))
        except (re.error, OverflowError, RecursionError) as error:
            return cls(text, problem=f"not a regular expression: {error}")


class LogSearch:
    """A search in the log, and its hits.

    Attributes:
        hits: the numbers of the lines that match.
        current: the number of the hit that was last gone to; None before.
    """

    def __init__(self) -> None:
        self.pattern = SearchPattern()
        self.hits: list[int] = []
        self.current: int | None = None

    @property
    def text(self) -> str:
        """What is searched for, as typed; "" for nothing."""
        return self.pattern.text

    def look_for(self, text: str) -> None:
        """Search for another text."""
        self.pattern = SearchPattern.of(text)
        self.current = None

    def find(self, tail: LogTail, listed: Sequence[int]) -> None:
        """Find the hits among the listed lines."""
        pattern = self.pattern.pattern
        self.hits = []
        if pattern is not None:
            self.hits = [number for number in listed if pattern.search(tail.lines[number - tail.first])]
        if self.current not in self.hits:
            self.current = None

    def go(self, by: int, visible: Sequence[int]) -> int | None:
        """Go to the next hit, or the previous one with -1, wrapping around; first to that nearest to the end of the
        visible lines. Returns its line; None without hits."""
        if not self.hits:
            return None
        if self.current is not None and by < 0:
            index = bisect_left(self.hits, self.current)
        elif self.current is not None:
            index = bisect_right(self.hits, self.current)
        elif visible:
            index = bisect_right(self.hits, visible[-1])
        else:
            index = len(self.hits)
        if by < 0:
            index -= 1
        self.current = self.hits[index % len(self.hits)]
        return self.current

    @property
    def words(self) -> str:
        """``match 3 of 12``, ``12 found``, ``not found``, or what is wrong with the search."""
        if self.pattern.problem is not None or not self.text:
            return clean(self.pattern.problem or "")
        if not self.hits:
            return "not found"
        if self.current is None:
            return f"{count(len(self.hits))} found"
        position = bisect_left(self.hits, self.current) + 1
        return f"match {count(position)} of {count(len(self.hits))}"

    def marked(self, text: str, style: str) -> list[Span]:
        """A line with what the search matches in it marked."""
        if self.pattern.pattern is None:
            return [(text, style)]
        spans: list[Span] = []
        end = 0
        for match in self.pattern.pattern.finditer(text):
            if match.group():
                spans += [(text[end : match.start()], style), (match.group(), "selected")]
                end = match.end()
        return [*spans, (text[end:], style)]
