"""The log of a run's page: which log, which of its lines, and how they are drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partialmethod

from gputui.core.text import cell_width, clean
from gputui.core.units import count, count_of
from gputui.metrics.draw.parts import Line, Span
from gputui.runs.log_lines import Level, StopReport, stop_report
from gputui.ui.tui.data.log_tail import OF_ATTEMPT
from gputui.ui.tui.layout.columns import fit_line, rule, skip_cells
from gputui.ui.tui.layout.lists import next_choice
from gputui.ui.tui.pages.run.log_view import LogSearch, LogView
from gputui.ui.tui.widgets.line_edit import LineEdit
from gputui.ui.views.snapshot import LogTail

_STYLES = {Level.INFO: "text", Level.WARNING: "warn", Level.ERROR: "bad"}


class RunLog:
    """The log in view, its search, and the choice among logs.

    Attributes:
        label: the log to request from the feed; None for the most useful one.
        is_deep: whether to request older lines, too.
        edit: the search that is being typed.
        tail: the newest lines.
        lacks_traceback: whether a traceback was searched for in vain.
        _is_grave_only: whether only warnings and errors are shown.
        _to_try: the logs to search for a traceback; the first is the one requested.
        _traceback_label: the log whose traceback was last shown; None before.
    """

    def __init__(self, say: Callable[[str], object], reveal: Callable[[], object]) -> None:
        self.label: str | None = None
        self.is_deep = False
        self.edit: LineEdit | None = None
        self.tail = LogTail()
        self.window = LogView()
        self.search = LogSearch()
        self.lacks_traceback = False
        self._say = say
        self._reveal = reveal
        self._is_grave_only = False
        self._to_try: list[str | None] = []
        self._traceback_label: str | None = None

    def line(self, number: int) -> tuple[str, Level]:
        """The text and the level of a line."""
        index = number - self.tail.first
        if index >= len(self.tail.levels):
            return self.tail.lines[index], Level.INFO
        return self.tail.lines[index], Level(self.tail.levels[index])

    @property
    def text(self) -> str:
        """Text for copying: the line of the current hit, else all visible lines."""
        if self.search.current is not None:
            return self.line(self.search.current)[0]
        return "\n".join(self.line(number)[0] for number in self.window.numbers)

    def update(self, tail: LogTail, width: int, height: int) -> None:
        """Take the newest tail for a pane of this many cells and lines."""
        self.window.width = max(2, width - 1)
        self.window.height = max(1, height)
        if tail is not self.tail:
            if (tail.label, tail.source) != (self.tail.label, self.tail.source):
                self.window.follow()
                self.search.current = None
            self.tail = tail
            self.lacks_traceback = False
            self._list_lines()
        if self._to_try and (tail.label == self.label or self.label is None):
            self._try_traceback()
        # Progress bars take many bytes and few lines: older lines must fill the pane.
        self.is_deep |= bool(tail.lines) and len(tail.lines) < height and not tail.is_whole

    def _list_lines(self) -> None:
        """List the lines to show, and find those that the search matches."""
        first = self.tail.first
        if self._is_grave_only:
            levels = enumerate(self.tail.levels, first)
            self.window.listed = [number for number, level in levels if level >= Level.WARNING]
        else:
            self.window.listed = range(first, first + len(self.tail.lines))
        self.search.find(self.tail, self.window.listed)

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

    # --- the traceback

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

    def _try_traceback(self) -> None:
        """Show the traceback of this log, or request the next log that may have one."""
        start = self._traceback_start()
        if start is None:
            self._to_try = self._to_try[1:]
            self.lacks_traceback = not self._to_try
            if self._to_try:
                self.label = self._to_try[0]
            return
        self._to_try = []
        self.lacks_traceback = False
        self._is_grave_only = False
        self._traceback_label = self.tail.label
        self._list_lines()
        self.window.first_column = 0
        self.window.show_from(start)

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
        if start is None or self._traceback_label is None or self._traceback_label != self.tail.label:
            return False
        return self.window.first_column == 0 and self.tail.first + start in self.window.numbers

    # --- which lines

    def scroll(self, by: int) -> None:
        """Scroll by lines, negative is up; at the upper end, request older lines."""
        self.window.scroll(by)
        if by < 0 and self.window.is_at_beginning:
            self.is_deep = True

    def scroll_page(self, by: int) -> None:
        """Scroll by screenfuls."""
        self.scroll(by * max(1, self.window.height - 1))

    def scroll_to(self, *, end: bool) -> None:
        """Show the end, or the beginning, also once older lines were read."""
        self.window.first_column = 0
        if end:
            self.window.follow()
        else:
            self.is_deep = True
            self.window.show_beginning()

    def sideways(self, by: int) -> None:
        """Scroll half a pane to the left (-1) or right (1), to the end of the longest line."""
        longest = max((cell_width(self.line(number)[0]) for number in self.window.numbers), default=0)
        self.window.sideways(by, longest)

    def do_grave_only(self) -> None:
        self._reveal()
        self._is_grave_only = not self._is_grave_only
        self._list_lines()

    # --- the search

    def look_for(self, edit: LineEdit | None, text: str) -> None:
        """Search the whole log that is kept, and show the hit nearest to the pane's end."""
        self.edit = edit
        self.is_deep |= bool(text)
        if text != self.search.text:
            self.search.look_for(text)
            self.search.find(self.tail, self.window.listed)
            self._go_to_hit(-1)

    def _next_hit(self, by: int) -> None:
        self._reveal()
        if not self.search.text:
            self._say("Nothing is searched for yet: / searches the log.")
        elif not self.search.hits:
            self._say("No line matches the search.")
        self._go_to_hit(by)

    do_hit_next = partialmethod(_next_hit, 1)
    do_hit_previous = partialmethod(_next_hit, -1)

    def _go_to_hit(self, by: int) -> None:
        """Go to the next hit, or the previous one with -1, wrapping around."""
        visible = self.window.numbers
        hit = self.search.go(by, visible)
        if hit is not None and hit not in visible:
            self.window.show_around(hit)

    # --- drawing

    def lines(self, width: int, *, style: str, is_live: bool, was_stopped: bool = False) -> list[Line]:
        """A heading or the search, and the visible lines.

        Args:
            width: the cells of a line.
            style: the style of the heading.
            is_live: whether the log may grow.
            was_stopped: whether a person stopped the attempt; its launcher's report of that is dim.
        """
        report = stop_report(self.tail.lines) if was_stopped else None
        if self.edit is None:
            head = self._heading(width, style, self._notes(report, is_live=is_live))
        else:
            head = self._search_line(width, self.edit)
        problem = self._problem()
        if problem is not None:
            return [head, fit_line([("  " + clean(problem), "dim")], width)]
        harmless = range(0)
        if report is not None:
            harmless = range(self.tail.first + report.first, self.tail.first + report.last + 1)
        lines = [head]
        for number in self.window.numbers:
            spans = self._line_spans(number, is_harmless=number in harmless)
            lines.append(fit_line(spans, width))
        return lines

    def _heading(self, width: int, style: str, notes: Sequence[str]) -> Line:
        title = f"LOG {self.tail.label or ''}".rstrip()
        return rule(title, width, notes=[(note, "dim") for note in notes], style=style)

    def _search_line(self, width: int, edit: LineEdit) -> Line:
        """The search that is being typed, and its result."""
        note = f" {self.search.words} "
        spans = edit.spans(max(8, width - 9 - len(note)))
        return fit_line([(" search ", "title"), *spans, (note, "dim")], width)

    def _problem(self) -> str | None:
        """A sentence in place of the lines if there is none."""
        if self.tail.problem is not None or self.window.numbers:
            return self.tail.problem
        if self.tail.lines:
            return "No warning and no error; w shows all lines."
        return "Nothing has been written yet."

    def _line_spans(self, number: int, *, is_harmless: bool) -> list[Span]:
        text, level = self.line(number)
        style = "dim" if is_harmless else _STYLES[level]
        spans = self.search.marked(text, style)
        if self.window.first_column:
            spans = skip_cells(spans, self.window.first_column + 1)
            if spans:
                spans.insert(0, ("…", "dim"))
        mark: Span = ("▸", "cursor") if number == self.search.current else (" ", "text")
        return [mark, *spans]

    def _notes(self, report: StopReport | None, *, is_live: bool) -> list[str]:
        window = self.window
        notes = []
        if report is not None:
            notes.append(f"{report.exception}: how the launcher reports the stop")
        if self.lacks_traceback:
            notes.append("no traceback")
        if window.first_column:
            notes.append(f"from column {count(window.first_column + 1)}")
        if self.search.text:
            notes.append(f"search {clean(self.search.text)}: {self.search.words}")
        if self._is_grave_only:
            line_count = count_of(len(self.tail.lines), "line")
            notes.append(f"warnings and errors: {count(len(window.listed))} of {line_count}")
        if not window.follows_end and window.is_at_beginning and not self.tail.is_whole:
            notes.append("older lines: gputui logs")
        if self.tail.past_note:
            notes.append(self.tail.past_note)
        is_growing = is_live and OF_ATTEMPT not in (self.tail.label or "")
        if not window.follows_end:
            goal = "follows" if is_growing else "to the end"
            notes.append(f"{count_of(window.count_below, 'line')} below, f {goal}")
        elif is_growing:
            notes.append("following")
        return notes
