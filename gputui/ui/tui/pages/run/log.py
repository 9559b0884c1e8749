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
from gputui.core.units import count
from gputui.metrics.draw.parts import Line
from gputui.metrics.draw.raster import Span
from gputui.runs.log_lines import Level, StopReport, stop_report
from gputui.ui.tui.data.snapshot import LogTail
from gputui.ui.tui.layout.columns import fit_line, rule, without_left
from gputui.ui.tui.widgets.line_edit import LineEdit
from gputui.ui.tui.widgets.pane import Pane

EXPRESSION_MARK = "~"

_STYLES = {Level.INFO: "text", Level.WARNING: "warn", Level.ERROR: "bad"}


class Search(Struct, frozen=True):
    """A search: literal text, case-sensitive only if it has capitals, or a regular expression behind ``~``. ``problem``
    says what is wrong with the expression."""

    text: str = ""
    pattern: re.Pattern[str] | None = None
    problem: str | None = None

    @classmethod
    def of(cls, text: str) -> Search:
        is_expression = text.startswith(EXPRESSION_MARK)
        source = text[len(EXPRESSION_MARK) :] if is_expression else re.escape(text)
        if not source:
            return cls(text)
        try:
            return cls(text, re.compile(source, 0 if text != text.lower() and not is_expression else re.IGNORECASE))
        except (re.error, OverflowError, RecursionError) as error:
            return cls(text, problem=f"not a regular expression: {error}")


class LogView:
    """The visible lines: the followed end or a place scrolled to, a search, warnings only. `update` takes a newer
    tail; the other methods carry out keys."""

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

    @property
    def is_following(self) -> bool:
        return self._below is None

    @property
    def line_numbers(self) -> Sequence[int]:
        return self._shown[max(0, self._end - self.height) : self._end]

    @property
    def lines_below(self) -> int:
        return len(self._shown) - self._end

    @property
    def is_at_top(self) -> bool:
        return self._end <= self.height

    def line(self, number: int) -> tuple[str, Level]:
        place = number - self.tail.first
        level = self.tail.levels[place] if place < len(self.tail.levels) else Level.INFO
        return self.tail.lines[place], Level(level)

    @property
    def _end(self) -> int:
        """The end of the pane among the shown lines; the first screenful is always full."""
        if self._below is None:
            return len(self._shown)
        return min(max(bisect_left(self._shown, self._below), self.height), len(self._shown))

    def update(self, tail: LogTail, height: int) -> None:
        """Take the newest tail for a pane of ``height`` lines."""
        self.height = max(1, height)
        if tail is self.tail:
            return
        before, self.tail = self.tail, tail
        if (before.label, before.source) != (tail.label, tail.source):
            self._below = self.current_hit = None
            self._is_at_beginning = False
        self._find()
        if self._is_at_beginning:
            # Older lines may have been read meanwhile.
            self.to_top()

    def _find(self) -> None:
        first, levels, pattern = self.tail.first, self.tail.levels, self.search.pattern
        self._shown = range(first, first + len(self.tail.lines))
        if self.is_grave_only:
            self._shown = [first + at for at, level in enumerate(levels) if level >= Level.WARNING]
        if pattern is None:
            self.hits, self.current_hit = [], None
        else:
            self.hits = [number for number in self._shown if pattern.search(self.tail.lines[number - first])]

    def follow(self) -> None:
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
        is_end = end >= len(self._shown)
        self._below = None if is_end else self._shown[max(end, min(self.height, len(self._shown) - 1))]

    def only_grave(self) -> None:
        """Toggle between all lines, and warnings and errors only; the place is kept."""
        self.is_grave_only = not self.is_grave_only
        self._find()

    def to_traceback(self) -> bool:
        """Show the newest block of error lines from its beginning; False if there is none."""
        levels = self.tail.levels
        end = levels.rfind(Level.ERROR)
        if end < 0:
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
        numbers = self.line_numbers
        if self.current_hit is None:
            place = bisect_right(self.hits, numbers[-1] if numbers else self.hits[-1]) - (by < 0)
        else:
            find = bisect_left if by < 0 else bisect_right
            place = find(self.hits, self.current_hit) - (by < 0)
        self.current_hit = self.hits[place % len(self.hits)]
        if self.current_hit not in numbers:
            self._show_end_at(bisect_left(self._shown, self.current_hit) + self.height // 2 + 1)

    @property
    def hits_text(self) -> str:
        """``3 of 12``, ``not found``, or what is wrong with the search."""
        if self.search.problem is not None or not self.search.text:
            return clean(self.search.problem or "")
        if not self.hits:
            return "not found"
        number = "" if self.current_hit is None else f"{count(bisect_left(self.hits, self.current_hit) + 1)} of "
        return number + count(len(self.hits))


# --- drawing


def log_lines(
    view: LogView,
    edit: LineEdit | None,
    width: int,
    height: int,
    *,
    is_focused: bool = False,
    was_stopped: bool = False,
) -> list[Line]:
    """A heading or the search being typed, and the visible lines. If the attempt ``was_stopped``, the traceback by
    which its launcher reports that is not shown as an error."""
    if height < 1:
        return []
    tail = view.tail
    report = stop_report(tail.lines) if was_stopped else None
    if edit is None:
        title, style = f"LOG {tail.label or ''}".rstrip(), "tab" if is_focused else "title"
        lines = [rule(title, width, ", ".join(_notes(view, report)), style=style)]
    else:
        note = f" {view.hits_text} "
        spans = edit.spans(max(8, width - 9 - len(note)))
        lines = [fit_line([(" search ", "title"), *spans, (note, "dim")], width)]
    numbers, problem = view.line_numbers, tail.problem
    if problem is None and not numbers:
        problem = (
            "No warning and no error so far; w shows all lines." if tail.lines else "Nothing has been written yet."
        )
    if problem is not None:
        return [*lines, fit_line([("  " + clean(problem), "dim")], width)][:height]
    harmless = range(0) if report is None else range(tail.first + report.first, tail.first + report.last + 1)
    for number in numbers:
        text, level = view.line(number)
        mark: Span = ("▸", "cursor") if number == view.current_hit else (" ", "text")
        marked = _marked(text, view.search.pattern, "dim" if number in harmless else _STYLES[level])
        if view.left:
            rest = without_left(marked, view.left + 1)
            marked = [("…" if rest else "", "dim"), *rest]
        lines.append(fit_line([mark, *marked], width))
    return lines[:height]


def _notes(view: LogView, report: StopReport | None) -> list[str]:
    words = [] if report is None else [f"{report.exception}: how the launcher reports the stop"]
    if view.left:
        words.append(f"from column {count(view.left + 1)}")
    if view.search.text:
        words.append(f"/{clean(view.search.text)}: {view.hits_text}")
    if view.is_grave_only:
        words.append("warnings and errors only")
    if view.is_at_top and not view.tail.is_whole and not view.is_following:
        words.append("older lines: gputui logs")
    if view.tail.past_note:
        words.append(view.tail.past_note)
    return [*words, "following" if view.is_following else f"{count(view.lines_below)} lines below, f follows"]


def _marked(text: str, pattern: re.Pattern[str] | None, style: str) -> list[Span]:
    found: list[Span] = []
    at = 0
    for match in pattern.finditer(text) if pattern is not None else ():
        if match.end() > match.start():
            found += [(text[at : match.start()], style), (match.group(), "selected")]
            at = match.end()
    return [*found, (text[at:], style)]


class RunLog:
    """The state and the pane of the log. ``label`` and ``is_deep`` are its request to the feed; ``warn`` shows a
    sentence."""

    def __init__(self, warn: Callable[[str], object]) -> None:
        self._warn = warn
        self.pane = Pane(id="log")
        self.view = LogView()
        self.label: str | None = None
        self.is_deep = False
        self.edit: LineEdit | None = None
        self._to_try: list[str | None] = []
        self._room = 2

    def lines(
        self, tail: LogTail, width: int, height: int, *, is_focused: bool = False, was_stopped: bool = False
    ) -> list[Line]:
        self._room = max(2, width - 1)
        self.view.update(tail, height - 1)
        if self._to_try and (tail.label == self.label or self.label is None):
            # This log has a traceback to show, or the next one is tried.
            self._to_try = [] if self.view.to_traceback() else self._to_try[1:]
            if self._to_try:
                self.label = self._to_try[0]
        if tail.lines and len(tail.lines) < height - 1 and not tail.is_whole:
            # Progress bars take many bytes and few lines: older lines must fill the pane.
            self.is_deep = True
        return log_lines(self.view, self.edit, width, height, is_focused=is_focused, was_stopped=was_stopped)

    def _choose(self, by: int) -> None:
        """Show the next log, or the previous one with -1: of a rank, stream or earlier attempt."""
        labels, here = self.view.tail.labels, self.view.tail.label
        if all(each == here for each in labels):
            self._warn("No other log holds anything yet.")
            return
        place = labels.index(here) if here in labels else -by
        self.show(labels[(place + by) % len(labels)])

    do_log_next = partialmethod(_choose, 1)
    do_log_previous = partialmethod(_choose, -1)

    def show(self, label: str) -> None:
        self.label = label
        self.is_deep = False

    def show_traceback(self, labels: Sequence[str], rank: int | None) -> None:
        """Show the newest traceback: of the logs with these labels, first those of ``rank``, then those of other ranks;
        a launcher's own traceback only says that a rank has failed."""
        preferred = [name for name in (f"rank {rank} stderr", f"rank {rank}") if name in labels]
        ranks = [name for name in labels if name.startswith("rank ") and " of attempt " not in name]
        ranks.sort(key=lambda name: not name.endswith(" stderr"))
        self._to_try = list(dict.fromkeys([*preferred, *ranks, *labels, None]))
        self.label = self._to_try[0]
        self.is_deep = False

    def scroll(self, by: int) -> None:
        """Scroll by lines; at the upper end, request older lines."""
        self.view.scroll(by)
        if by < 0 and self.view.is_at_top:
            self.is_deep = True

    def sideways(self, by: int) -> None:
        """Scroll half a pane to the left (-1) or right (1)."""
        self.view.sideways(by * (self._room // 2), self._room)

    def scroll_page(self, by: int) -> None:
        self.scroll(by * max(1, self.view.height - 1))

    def scroll_to(self, *, end: bool) -> None:
        if end:
            self.view.follow()
        else:
            self.is_deep = True
            self.view.to_top()

    def search(self, edit: LineEdit | None, text: str) -> None:
        """Search the whole log that is kept."""
        self.edit = edit
        if text:
            self.is_deep = True
        if text != self.view.search.text:
            self.view.look_for(text)

    def _go_to_hit(self, by: int) -> None:
        if not self.view.search.text:
            self._warn("Nothing is searched for yet: go to the log with 3, then /.")
        self.view.next_hit(by)

    do_hit_next = partialmethod(_go_to_hit, 1)
    do_hit_previous = partialmethod(_go_to_hit, -1)

    def do_grave_only(self) -> None:
        self.view.only_grave()

    @property
    def text(self) -> str:
        """Text for copying: the line of the current hit, else all visible lines."""
        if self.view.current_hit is not None:
            return self.view.line(self.view.current_hit)[0]
        return "\n".join(self.view.line(number)[0] for number in self.view.line_numbers)
