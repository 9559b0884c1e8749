"""The page of a run: charts, ranks, log, timeline, parameters. Keys act on the focused one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, partialmethod
from typing import ClassVar, Literal, get_args

from msgspec.structs import replace
from textual import events
from textual.app import ComposeResult
from textual.containers import Container, Horizontal
from textual.widget import Widget

from gputui.core.text import clean
from gputui.metrics.draw.parts import Line
from gputui.store.metrics.intake import intake_words
from gputui.store.runs import Run
from gputui.ui.tui.actions import Context, Scope
from gputui.ui.tui.data.snapshot import Interest, Moment, RunPage
from gputui.ui.tui.layout.chart_settings import ChartMemory, ChartSettings
from gputui.ui.tui.layout.columns import BOX_FROM_WIDTH, fit_line, framed, is_boxed, rule
from gputui.ui.tui.pages.run.chart_pane import ChartFile, RunCharts, write_chart
from gputui.ui.tui.pages.run.head import banner_lines, fatal_incident, labels_line, run_head
from gputui.ui.tui.pages.run.log import RunLog
from gputui.ui.tui.pages.run.sections import SideSection, share_lines, side_sections
from gputui.ui.tui.widgets.line_edit import LineEdit
from gputui.ui.tui.widgets.page import ActionScreen, Choice, Copyable
from gputui.ui.tui.widgets.pane import Pane

WIDE = BOX_FROM_WIDTH
"""Least width of a page with all sections side by side."""

Section = Literal["charts", "ranks", "log", "story", "params"]
SECTIONS: tuple[Section, ...] = get_args(Section)

_NAMES: dict[Section, str] = {
    "charts": "charts",
    "ranks": "ranks",
    "log": "log",
    "story": "timeline",
    "params": "parameters",
}


class RunScreen(ActionScreen):
    """The page of one run. Narrow screens show one section at a time, wide ones all."""

    SCOPE: ClassVar[Scope] = "run"

    def __init__(self, run_id: str, memory: ChartMemory) -> None:
        super().__init__()
        self.run_id = run_id
        self.section: Section = "charts"
        self.charts = RunCharts(memory.of(run_id), self._keep_charts)
        self.log_part = RunLog(lambda text: self.shell.say(text, "warning"))
        self.parts = (self.charts, self.log_part)
        self.head = Pane(id="head")
        self.labels = Pane(id="run-labels")
        self.banner = Pane(id="banner")
        self.tabs = Pane(id="tabs")
        self.beside = {name: Pane(id=name) for name in ("params", "ranks", "story")}
        self.side = Container(*self.beside.values(), id="side")
        self.middle = Horizontal(self.charts.pane, self.side, id="middle")
        self.is_maximised = False
        self.checkpoint_to_check: str | None = None
        self._memory = memory
        self._was_read = False
        self._has_sought_cause = False
        self._has_charts = True
        self._scrolled: dict[str, int] = dict.fromkeys(SECTIONS, 0)
        self._drawn: dict[str, tuple[SideSection, int]] = {}
        """The sections drawn last, with their lines' room."""

    def _keep_charts(self, settings: ChartSettings) -> None:
        self.section = "charts"
        self._memory.keep(self.run_id, settings)

    def compose(self) -> ComposeResult:
        self.paint()
        yield from (self.head, self.labels, self.banner, self.notice, self.tabs, self.middle, self.log_part.pane)
        yield from (self.message, self.footer)

    def on_screen_resume(self) -> None:
        """The page above may have shown another run: this one is not gone but read again."""
        if self.is_mounted and self.page is None:
            self._was_read = False
        super().on_screen_resume()

    def interest(self) -> Interest:
        log = self.log_part
        return Interest(
            self.run_id,
            log.label,
            is_log_deep=log.is_deep,
            checkpoint_to_check=self.checkpoint_to_check,
            charts=self.charts.request,
        )

    def warnings(self) -> Sequence[str]:
        """Why the charts stay empty or end early although the run writes metrics, if they do."""
        known = self.page.intake if self.page is not None else None
        text = None if known is None or (known.taken and not known.short_of) else intake_words(known)
        return [] if text is None else [text]

    def context(self) -> Context:
        return replace(super().context(), section=self.section)

    @property
    def crumb(self) -> str:
        return clean(self.run_id)

    @property
    def page(self) -> RunPage | None:
        """The data of the run; None until it was read, or if it is gone."""
        page = self.snapshot.page
        return page if page is not None and page.run.run_id == self.run_id else None

    @property
    def run_in_question(self) -> Run | None:
        return self.page.run if self.page else None

    # --- drawing

    def draw(self, width: int, height: int) -> None:
        page, snapshot = self.page, self.snapshot
        around = 1 + self.draw_frame(width)
        if page is None:
            state = "is gone" if self._was_read else "reading…"
            if snapshot.past is not None:
                state = "did not exist yet"
            self.head.show([fit_line([(f" {clean(self.run_id)}", "title"), (f" · {state}", "dim")], width)])
            self.labels.clear()
            self.banner.clear()
            self._place(0, 0, 0, 0)
            self.charts.prepare(charts_width(width))
            return
        self._was_read = True
        if page.run.state != "failed":
            self._has_sought_cause = False
        elif not self._has_sought_cause:
            self._has_sought_cause = True
            self.do_traceback()
        self.head.show(
            [self.with_trail(lambda room: run_head(page, snapshot.gpus, snapshot.at, room, snapshot.past), width)]
        )
        labels = labels_line(page.run, width)
        self.labels.fit([] if labels is None else [labels])
        banner = banner_lines(page, self.context(), width)
        self.banner.fit(banner)
        around += len(banner) + (labels is not None)
        is_wide, is_framed = width >= WIDE and not self.is_maximised, is_boxed(width, height)
        tabs = [
            span
            for number, name in enumerate(SECTIONS, 1)
            for span in ((f"{number} {_NAMES[name]}", "tab" if name == self.section else "dim"), ("   ", "text"))
        ]
        self.tabs.fit([] if is_wide else [fit_line([(" ", "text"), *tabs], width)])
        body = max(0, height - around - (not is_wide))
        self.charts.is_maximised = self.is_maximised
        if is_wide:
            self._draw_wide(page, width, body, is_framed=is_framed)
        else:
            self._draw_section(page, width, body, is_framed=is_framed)

    def _draw_wide(self, page: RunPage, width: int, height: int, *, is_framed: bool) -> None:
        """Charts and the other sections side by side, the log below. Without charts, the log gets their room."""
        is_live = page.run.state in ("starting", "running", "recovering")
        has_charts = bool(page.metric_names) or is_live or self.section == "charts"
        left = charts_width(width) if has_charts else 0
        shown = [name for name in self.beside if has_charts or name in ("params", "story", self.section)]
        side = (width - left) // (1 if has_charts else len(shown))
        inner = side - 2
        sections = self._sections(page, inner, {self.section})
        frame = 2 if is_framed else 1
        wanted = {name: each.height + frame for name, each in sections.items()}
        log_height = max(5 + frame, height // 4)
        if self.section == "log":
            log_height = max(log_height, min(height // 2, len(page.log.lines) + frame))
        if not has_charts:
            log_height = max(log_height, height - max(wanted.values()), height * 3 // 5)
        upper = max(0, height - log_height)
        if has_charts:
            # What is left out elsewhere is shown where there is room.
            opened = self._sections(page, inner, {*sections})
            if sum(each.height + frame for each in opened.values()) <= upper:
                sections, wanted = opened, {name: each.height + frame for name, each in opened.items()}
        rooms = share_lines(wanted, self.section, upper) if has_charts else dict.fromkeys(sections, upper)
        self._place(upper, left, width - left, log_height)
        if has_charts:
            is_focused = self.section == "charts"
            self.charts.draw(page, self.snapshot.gpus, (left, upper), is_focused=is_focused, is_framed=is_framed)
        if has_charts != self._has_charts:
            # Textual lays everything out again whenever this is set.
            self._has_charts = has_charts
            self.side.styles.layout = "vertical" if has_charts else "horizontal"
        self._drawn.clear()
        for name, pane in self.beside.items():
            pane.display = name in shown
            cells = side if has_charts or name != shown[-1] else width - side * (len(shown) - 1)
            pane.styles.width = cells
            self._show_beside(name, sections[name], cells, rooms[name], is_framed=is_framed)
        self._draw_log(page, width, log_height, is_framed=is_framed)

    def _show_beside(self, name: str, section: SideSection, width: int, height: int, *, is_framed: bool) -> None:
        """Show a section under its title, in a frame or behind a line."""
        inner, room = width - 2, height - 1 - is_framed
        self._drawn[name] = section, room
        title = rule(section.title, inner, style="tab" if name == self.section else "title")
        lines = [fit_line(line, inner) for line in section.shown(inner, room, self._scrolled[name])]
        plain: list[Line] = [[("│ ", "rule"), *line] for line in (title, *lines)]
        self.beside[name].show(framed(title, lines, width, height) if is_framed else plain[:height], height=height)

    def _draw_section(self, page: RunPage, width: int, height: int, *, is_framed: bool) -> None:
        section, is_log, is_charts = self.section, self.section == "log", self.section == "charts"
        upper = 0 if is_log else height
        self._place(upper, width if is_charts else 0, 0 if is_charts or is_log else width, height - upper)
        self._drawn.clear()
        for name, pane in self.beside.items():
            pane.display, pane.styles.width = name == section, width
            if name == section and is_framed:
                found = self._sections(page, width - 2, {section})[name]
                self._show_beside(name, found, width, height, is_framed=True)
            elif name == section:
                found = self._sections(page, width, {section})[name]
                self._drawn[name] = found, height
                pane.show(found.shown(width, height, self._scrolled[name]), height=height)
        if is_charts:
            self.charts.draw(page, self.snapshot.gpus, (width, height), is_focused=True, is_framed=is_framed)
        if is_log:
            self._draw_log(page, width, height, is_framed=is_framed)

    def _sections(self, page: RunPage, width: int, opened: set[str]) -> dict[str, SideSection]:
        snapshot = self.snapshot
        return side_sections(page, snapshot.gpus, snapshot.at, width, opened=opened, is_past=snapshot.past is not None)

    def _draw_log(self, page: RunPage, width: int, height: int, *, is_framed: bool) -> None:
        is_focused = self.section == "log" and width >= WIDE
        stopped = (attempt.number for attempt in page.attempts if attempt.state == "stopped")
        was_stopped = any(f"/attempts/{number}/" in page.log.source for number in stopped)
        inner = (width - 2, height - 1) if is_framed else (width, height)
        lines = self.log_part.lines(page.log, *inner, is_focused=is_focused, was_stopped=was_stopped)
        self.log_part.pane.show(framed(lines[0], lines[1:], width, height) if is_framed else lines, height=height)

    def _place(self, upper: int, charts_width: int, side_width: int, log_height: int) -> None:
        self.middle.display = upper > 0
        self.middle.styles.height = upper
        self.charts.pane.display = charts_width > 0
        self.charts.pane.styles.width = charts_width
        self.side.display = side_width > 0
        self.side.styles.width = side_width
        self.log_part.pane.display = log_height > 0
        self.log_part.pane.set_height(log_height)

    # --- typing

    @property
    def line(self) -> LineEdit | None:
        """The filter of the charts or the search in the log that is being typed."""
        return self.charts.edit or self.log_part.edit

    def type_line(self, line: LineEdit | None, text: str) -> None:
        if self.charts.edit is not None:
            self.charts.filter_to(line, text)
        else:
            self.log_part.search(line, text)

    # --- the mouse

    def _section_of(self, pane: Widget | None) -> Section | None:
        return next((name for name in SECTIONS if pane is not None and pane.id == name), None)

    def wheel(self, pane: Widget | None, by: int) -> None:
        """Scroll the section under the pointer, focused or not; zoom the charts."""
        section = self._section_of(pane)
        if section == "charts":
            self.charts.zoom(-by)
        elif section is not None:
            focused, self.section = self.section, section
            self._scroll(by)
            self.section = focused
        self.changed()

    def on_click(self, event: events.Click) -> None:
        section = self._section_of(event.widget)
        if section is not None:
            self.section = section
            if section == "charts":
                self.charts.click(event.x, event.y)
            self.changed()

    def copyable(self) -> Sequence[Copyable]:
        own: list[Copyable] = []
        if self.section == "log" and self.log_part.text:
            own.append(Copyable("the log", self.log_part.text))
        elif self.section == "charts" and self.charts.cursor is not None:
            own.append(Copyable("what is at the crosshair", self.charts.head_text))
        return [*own, *super().copyable()]

    def choices(self) -> Sequence[Choice]:
        page = self.page
        if page is None:
            return []
        charts = [Choice(f"Chart {name}", "metric", partial(self._show_metric, name)) for name in page.metric_names]
        return [*charts, *(Choice(f"Log {name}", "log", partial(self._show_log, name)) for name in page.log.labels)]

    def _show_log(self, label: str) -> None:
        self.section = "log"
        self.log_part.show(label)
        self.changed()

    def _show_metric(self, name: str) -> None:
        self.section = "charts"
        self.charts.filter_to(None, name)
        self.changed()

    # --- actions: the page

    def do_back(self) -> None:
        """Leave the whole-page view, else remove the crosshair, the search or the filter, else leave the page."""
        if self.is_maximised:
            self.is_maximised = False
        elif self.section == "charts" and self.charts.cursor is not None:
            self.charts.cursor = None
        elif self.section == "log" and self.log_part.view.search.text:
            self.log_part.search(None, "")
        elif self.section == "charts" and self.charts.settings.filter_text:
            self.charts.filter_to(None, "")
        else:
            self.app.pop_screen()

    def _turn_section(self, by: int) -> None:
        self.section = SECTIONS[(SECTIONS.index(self.section) + by) % len(SECTIONS)]

    do_section_next = partialmethod(_turn_section, 1)
    do_section_previous = partialmethod(_turn_section, -1)

    def _focus(self, section: Section) -> None:
        self.section = section

    do_section_charts = partialmethod(_focus, "charts")
    do_section_ranks = partialmethod(_focus, "ranks")
    do_section_log = partialmethod(_focus, "log")
    do_section_story = partialmethod(_focus, "story")
    do_section_params = partialmethod(_focus, "params")

    def do_maximise(self) -> None:
        self.is_maximised = not self.is_maximised

    def do_find(self) -> None:
        if self.section == "log":
            self.log_part.edit = LineEdit.at_end(self.log_part.view.search.text)
        else:
            self.section = "charts"
            self.charts.edit = LineEdit.at_end(self.charts.settings.filter_text)

    @property
    def _part(self) -> RunCharts | RunLog | None:
        """The part that keys act on; None for the other sections, which only scroll."""
        return self.charts if self.section == "charts" else self.log_part if self.section == "log" else None

    def _scroll(self, by: int) -> None:
        if (part := self._part) is not None:
            part.scroll(by)
        elif self.section in self._drawn:
            drawn, room = self._drawn[self.section]
            # The timeline is read from its end.
            moved = self._scrolled[self.section] + (-by if drawn.is_from_end else by)
            self._scrolled[self.section] = min(max(0, moved), drawn.most_offset(room))

    do_up = partialmethod(_scroll, -1)
    do_down = partialmethod(_scroll, 1)

    def _scroll_page(self, by: int) -> None:
        if (part := self._part) is not None:
            part.scroll_page(by)
        elif self.section in self._drawn:
            self._scroll(by * max(1, self._drawn[self.section][1] - 2))

    do_page_up = partialmethod(_scroll_page, -1)
    do_page_down = partialmethod(_scroll_page, 1)

    def _to_end(self, *, is_end: bool) -> None:
        if (part := self._part) is not None:
            part.scroll_to(end=is_end)
        else:
            self._scroll(1 << 20 if is_end else -(1 << 20))

    do_beginning = partialmethod(_to_end, is_end=False)
    do_follow = partialmethod(_to_end, is_end=True)

    # --- actions: charts, the log and the checkpoints

    def _sideways(self, by: int) -> None:
        (self._part or self.charts).sideways(by)

    do_cursor_left = partialmethod(_sideways, -1)
    do_cursor_right = partialmethod(_sideways, 1)

    def do_by_rank(self) -> None:
        why_not = self.charts.why_not_by_rank(len(self.page.progress.ranks) if self.page else 0)
        if why_not is not None:
            self.shell.say(why_not)
        elif (focus := self.charts.focus) is not None:
            settings = self.charts.settings
            self.charts.change(replace(settings, by_rank=settings.by_rank ^ {focus.key}))

    def do_time_type(self) -> None:
        at = self.charts.cursor_at
        if at is None:
            self.shell.do_time_type()
        else:
            self.shell.look_back(Moment(at))

    def do_export(self) -> None:
        file = self.charts.file(self.shell.workspace.run_dir(self.run_id), self.run_id)
        if file is None:
            self.shell.say("There is no chart to write yet.", "warning")
        else:
            self.in_thread(lambda: _written(file), lambda told: self.shell.say(*told))

    def do_traceback(self) -> None:
        self.section = "log"
        if (page := self.page) is not None:
            incident = fatal_incident(page)
            self.log_part.show_traceback(page.log.labels, incident.rank if incident is not None else None)

    def do_check(self) -> None:
        page = self.page
        if page is not None and page.checkpoints is not None and page.checkpoints.newest:
            self.checkpoint_to_check = page.checkpoints.newest[0].name
            self.section = "params"
        else:
            self.shell.say("There is no checkpoint to verify.", "warning")


def _written(file: ChartFile) -> tuple[str, str]:
    """A sentence about the written chart, and its kind."""
    try:
        return write_chart(file), "info"
    except OSError as error:
        return f"The chart cannot be written: {error.strerror or error}.", "error"


def charts_width(width: int) -> int:
    """Cells of the charts on a screen of this width."""
    return width if width < WIDE else width - min(96, width * 9 // 20)
