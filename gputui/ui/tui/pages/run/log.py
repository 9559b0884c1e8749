"""The log of a run's page: which log, which of its lines, and how they are drawn.

Lines are known by their numbers, so that the visible ones keep their place while the log grows.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import partialmethod

from msgspec import Struct

from gputui.core.text import cell_width, clean
from gputui.core.units import count, count_of
from gputui.metrics.draw.parts import Line, Span
from gputui.runs.log_lines import Level, StopReport, stop_report
from gputui.ui.tui.data.log_tail import OF_ATTEMPT
from gputui.ui.tui.layout.columns import fit_line, rule, skip_cells
from gputui.ui.tui.layout.lists import next_choice
from gputui.ui.tui.widgets.line_edit import LineEdit
from gputui.ui.views.snapshot import LogTail

EXPRESSION_MARK = "~"

_STYLES = {Level.INFO: "text", Level.WARNING: "warn", Level.ERROR: "bad"}
_BEFORE_ALL = -(1 << 62)


class Search(Struct, frozen=True):
    """A search in the log.

    Attributes:
        text: what is searched for, case-sensitive only if it has capitals; or a regular expression behind ``~``.
        pattern: None for an empty or an invalid search.
        problem: what is wrong with the expression.
    """

    text: str = ""
    pattern: re.Pattern[str] | None = None
    problem: str | None = None

    @classmethod
    def of(cls, text: str) -> Search:
        """The search for a typed text."""
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


class RunLog:
    """The visible lines of a log: its end or what was scrolled to, a search, warnings only.

    Attributes:
        label, is_deep: its request to the feed.
        edit: the search that is being typed.
        tail: the newest lines.
        hits: the numbers of the lines that the search matches.
        first_column: the first one in view.
        lacks_traceback: the search for a traceback ended here, in vain.
    """

    def __init__(self, say: Callable[[str], object], reveal: Callable[[], object]) -> None:
        self.label: str | None = None
        self.is_deep = False
        self.edit: LineEdit | None = None
        self.tail = LogTail()
        self.search = Search()
        self.hits: list[int] = []
        self.current_hit: int | None = None
        self.first_column = 0
        self.lacks_traceback = False
        self._say = say
        self._reveal = reveal
        self._is_grave_only = False
        self._size = 2, 1
        # The numbers of the lines that are shown if there is room: all, or those of warnings and errors.
        self._listed: list[int] | range = range(0)
        # The number of the line below the visible ones; None shows the end.
        self._below: int | None = None
        self._to_try: list[str | None] = []
        self._traceback_label: str | None = None

    @property
    def _end(self) -> int:
        """The end of the visible lines among the listed ones; the first screenful is always full."""
        if self._below is None:
            return len(self._listed)
        return min(max(bisect_left(self._listed, self._below), self._size[1]), len(self._listed))

    @property
    def numbers(self) -> Sequence[int]:
        """The numbers of the visible lines."""
        return self._listed[max(0, self._end - self._size[1]) : self._end]

    def line(self, number: int) -> tuple[str, Level]:
        """The text and the level of a line."""
        index = number - self.tail.first
        if index >= len(self.tail.levels):
            return self.tail.lines[index], Level.INFO
        return self.tail.lines[index], Level(self.tail.levels[index])

    @property
    def text(self) -> str:
        """Text for copying: the line of the current hit, else all visible lines."""
        if self.current_hit is not None:
            return self.line(self.current_hit)[0]
        return "\n".join(self.line(number)[0] for number in self.numbers)

    def update(self, tail: LogTail, width: int, height: int) -> None:
        """Take the newest tail for a pane of this many cells and lines."""
        self._size = max(2, width - 1), max(1, height)
        if tail is not self.tail:
            if (tail.label, tail.source) != (self.tail.label, self.tail.source):
                self._below = self.current_hit = None
            self.tail = tail
            self.lacks_traceback = False
            self._find()
        if self._to_try and (tail.label == self.label or self.label is None):
            # This log has a traceback to show, or the next one is tried.
            if self._show_traceback():
                self._to_try = []
                self.lacks_traceback = False
            else:
                self._to_try = self._to_try[1:]
                self.lacks_traceback = not self._to_try
            if self._to_try:
                self.label = self._to_try[0]
        # Progress bars take many bytes and few lines: older lines must fill the pane.
        self.is_deep |= bool(tail.lines) and len(tail.lines) < height and not tail.is_whole

    def _find(self) -> None:
        first = self.tail.first
        levels = self.tail.levels
        pattern = self.search.pattern
        self._listed = range(first, first + len(self.tail.lines))
        if self._is_grave_only:
            self._listed = [first + at for at, level in enumerate(levels) if level >= Level.WARNING]
        if pattern is None:
            self.hits = []
            self.current_hit = None
        else:
            self.hits = [number for number in self._listed if pattern.search(self.tail.lines[number - first])]

    # --- which log

    def _choose(self, by: int) -> None:
        """Show the next log, or the previous one with -1: of a rank, stream or earlier attempt."""
        self._reveal()
        labels = self.tail.labels
        current = self.tail.label
        if all(label == current for label in labels):
            self._say("There is no other log.")
        elif current in labels:
            self.show(next_choice(labels, current, by))
        else:
            self.show(labels[0])

    do_log_next = partialmethod(_choose, 1)
    do_log_previous = partialmethod(_choose, -1)

    def show(self, label: str | None) -> None:
        """Show another log; the most useful one for None."""
        self.label = label
        self.is_deep = False
        self._to_try = []

    def show_traceback(self, labels: Sequence[str], rank: int | None) -> None:
        """Show the newest traceback of ``rank``, else of any, a launcher's only if no rank has a log;
        without one, the end of what that rank printed."""
        logs = [name for name in labels if OF_ATTEMPT not in name]
        logs = [name for name in logs if name.startswith("rank ")] or logs
        logs = [name for name in logs if name in (f"rank {rank}", f"rank {rank} stderr")] or logs
        errors = [name for name in logs if name.endswith(" stderr")]
        outputs = [name for name in logs if name not in errors]
        to_try: list[str | None] = [*errors, *reversed(outputs)] or [None]
        self.show(to_try[0])
        self._to_try = to_try

    def _show_traceback(self) -> bool:
        """Show the newest block of error lines from its beginning; False if there is none."""
        start = self._traceback_start()
        if start is None:
            return False
        self._is_grave_only = False
        self.first_column = 0
        self._traceback_label = self.tail.label
        self._find()
        self._show_end_at(start + self._size[1])
        return True

    def _traceback_start(self) -> int | None:
        """The index of the first line of the newest block of error lines; None if there is none."""
        levels = self.tail.levels
        start = levels.rfind(Level.ERROR)
        if start < 0:
            return None
        while start > 0 and levels[start - 1] == Level.ERROR:
            start -= 1
        return start

    @property
    def is_on_traceback(self) -> bool:
        """True if the beginning of the traceback that was last shown is in view."""
        start = self._traceback_start()
        is_same_log = self._traceback_label is not None and self._traceback_label == self.tail.label
        return is_same_log and start is not None and self.first_column == 0 and self.tail.first + start in self.numbers

    # --- which lines

    def _show_end_at(self, end: int) -> None:
        if end >= len(self._listed):
            self._below = None
        else:
            self._below = self._listed[max(end, min(self._size[1], len(self._listed) - 1))]

    def scroll(self, by: int) -> None:
        """Scroll by lines, negative is up; at the upper end, request older lines."""
        if self._listed:
            self._show_end_at(self._end + by)
        if by < 0 and self._end <= self._size[1]:
            self.is_deep = True

    def scroll_page(self, by: int) -> None:
        """Scroll by screenfuls."""
        self.scroll(by * max(1, self._size[1] - 1))

    def scroll_to(self, *, end: bool) -> None:
        """Show the end, or the beginning, also once older lines were read."""
        self.first_column = 0
        self._below = None
        if not end:
            self.is_deep = True
            if len(self._listed) > self._size[1]:
                self._below = _BEFORE_ALL

    def sideways(self, by: int) -> None:
        """Scroll half a pane to the left (-1) or right (1), to the end of the longest line."""
        width = self._size[0]
        longest = max((cell_width(self.line(number)[0]) for number in self.numbers), default=0)
        self.first_column = max(0, min(self.first_column + by * (width // 2), longest - width))

    def do_grave_only(self) -> None:
        self._reveal()
        self._is_grave_only = not self._is_grave_only
        self._find()

    # --- the search

    def look_for(self, edit: LineEdit | None, text: str) -> None:
        """Search the whole log that is kept, and show the hit nearest to the pane's end."""
        self.edit = edit
        self.is_deep |= bool(text)
        if text != self.search.text:
            self.search = Search.of(text)
            self.current_hit = None
            self._find()
            self._go_to_hit(-1)

    def _next_hit(self, by: int) -> None:
        self._reveal()
        if not self.search.text:
            self._say("Nothing is searched for yet: / searches the log.")
        elif not self.hits:
            self._say("No line matches the search.")
        self._go_to_hit(by)

    do_hit_next = partialmethod(_next_hit, 1)
    do_hit_previous = partialmethod(_next_hit, -1)

    def _go_to_hit(self, by: int) -> None:
        """Go to the next hit, or the previous one with -1, wrapping around."""
        if not self.hits:
            return
        numbers = self.numbers
        if self.current_hit is not None and by < 0:
            index = bisect_left(self.hits, self.current_hit)
        elif self.current_hit is not None:
            index = bisect_right(self.hits, self.current_hit)
        elif numbers:
            index = bisect_right(self.hits, numbers[-1])
        else:
            index = len(self.hits)
        if by < 0:
            index -= 1
        self.current_hit = self.hits[index % len(self.hits)]
        if self.current_hit not in numbers:
            self._show_end_at(bisect_left(self._listed, self.current_hit) + self._size[1] // 2 + 1)

    @property
    def hits_text(self) -> str:
        """``match 3 of 12``, ``12 found``, ``not found``, or what is wrong with the search."""
        if self.search.problem is not None or not self.search.text:
            return clean(self.search.problem or "")
        if not self.hits:
            return "not found"
        if self.current_hit is None:
            return f"{count(len(self.hits))} found"
        number = bisect_left(self.hits, self.current_hit) + 1
        return f"match {count(number)} of {count(len(self.hits))}"

    # --- drawing

    def lines(self, width: int, *, style: str, is_live: bool, was_stopped: bool = False) -> list[Line]:
        """A heading or the search, and the visible lines.

        Args:
            style: that of the heading.
            is_live: whether the log may grow.
            was_stopped: whether a person stopped the attempt; its launcher's report of that is dim.
        """
        tail = self.tail
        report = None
        harmless = range(0)
        if was_stopped and (report := stop_report(tail.lines)) is not None:
            harmless = range(tail.first + report.first, tail.first + report.last + 1)
        if self.edit is None:
            notes = [(note, "dim") for note in self._notes(report, is_live=is_live)]
            lines = [rule(f"LOG {tail.label or ''}".rstrip(), width, notes=notes, style=style)]
        else:
            note = f" {self.hits_text} "
            spans = self.edit.spans(max(8, width - 9 - len(note)))
            lines = [fit_line([(" search ", "title"), *spans, (note, "dim")], width)]
        numbers = self.numbers
        problem = tail.problem
        if problem is None and not numbers:
            problem = "No warning and no error; w shows all lines." if tail.lines else "Nothing has been written yet."
        if problem is not None:
            return [*lines, fit_line([("  " + clean(problem), "dim")], width)]
        for number in numbers:
            text, level = self.line(number)
            style = "dim" if number in harmless else _STYLES[level]
            spans = self._with_hits(text, style)
            if self.first_column:
                spans = skip_cells(spans, self.first_column + 1)
                if spans:
                    spans.insert(0, ("…", "dim"))
            mark: Span = ("▸", "cursor") if number == self.current_hit else (" ", "text")
            lines.append(fit_line([mark, *spans], width))
        return lines

    def _notes(self, report: StopReport | None, *, is_live: bool) -> list[str]:
        notes = []
        if report is not None:
            notes.append(f"{report.exception}: how the launcher reports the stop")
        below = len(self._listed) - self._end
        is_growing = is_live and OF_ATTEMPT not in (self.tail.label or "")
        if self.lacks_traceback:
            notes.append("no traceback")
        if self.first_column:
            notes.append(f"from column {count(self.first_column + 1)}")
        if self.search.text:
            notes.append(f"search {clean(self.search.text)}: {self.hits_text}")
        if self._is_grave_only:
            notes.append(f"warnings and errors: {count(len(self._listed))} of {count_of(len(self.tail.lines), 'line')}")
        if self._below is not None and self._end <= self._size[1] and not self.tail.is_whole:
            notes.append("older lines: gputui logs")
        if self.tail.past_note:
            notes.append(self.tail.past_note)
        if self._below is not None:
            goal = "follows" if is_growing else "to the end"
            notes.append(f"{count_of(below, 'line')} below, f {goal}")
        elif is_growing:
            notes.append("following")
        return notes

    def _with_hits(self, text: str, style: str) -> list[Span]:
        """A line with what the search found in it marked."""
        if self.search.pattern is None:
            return [(text, style)]
        spans: list[Span] = []
        at = 0
        for match in self.search.pattern.finditer(text):
            if match.end() > match.start():
                spans += [(text[at : match.start()], style), (match.group(), "selected")]
                at = match.end()
        return [*spans, (text[at:], style)]
