"""The page of a run: charts, ranks, log, timeline and parameters. Keys act on the focused section."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, partialmethod
from typing import ClassVar, Literal, get_args

from msgspec.structs import replace
from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widget import Widget

from gputui.core.text import clean
from gputui.metrics.draw.parts import Line
from gputui.store.metrics.intake import intake_words
from gputui.store.runs import Run
from gputui.ui.tui.actions import Context, Scope
from gputui.ui.tui.data.snapshot import Interest, Moment, RunPage
from gputui.ui.tui.layout.chart_settings import ChartMemory, ChartSettings
from gputui.ui.tui.layout.columns import fit_line
from gputui.ui.tui.pages.run import chart_files
from gputui.ui.tui.pages.run.chart_pane import RunCharts
from gputui.ui.tui.pages.run.failure import banner_lines, fatal_incident
from gputui.ui.tui.pages.run.head import labels_line, run_head
from gputui.ui.tui.pages.run.log_pane import RunLog
from gputui.ui.tui.pages.run.sections import Sections, section_lines, side_heights
from gputui.ui.tui.widgets.line_edit import LineEdit
from gputui.ui.tui.widgets.page import ActionScreen, Choice, Copyable
from gputui.ui.tui.widgets.pane import Pane

WIDE = 120
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
        self.ranks = Pane(id="ranks")
        self.story = Pane(id="story")
        self.params = Pane(id="params")
        self.side = Vertical(self.params, self.ranks, self.story, id="side")
        self.middle = Horizontal(self.charts.pane, self.log_part.beside, self.side, id="middle")
        self.is_maximised = False
        self.checkpoint_to_check: str | None = None
        self._memory = memory
        self._was_read = False
        self._has_sought_cause = False
        self._scrolled: dict[str, int] = dict.fromkeys(SECTIONS, 0)
        self._rooms: dict[Section, int] = {}

    def _keep_charts(self, settings: ChartSettings) -> None:
        self.section = "charts"
        self._memory.keep(self.run_id, settings)

    def compose(self) -> ComposeResult:
        self.paint()
        yield from (self.head, self.labels, self.banner, self.notice, self.tabs, self.middle, self.log_part.below)
        yield from (self.message, self.footer)

    def on_screen_resume(self) -> None:
        """The page above may have shown another run; this one is not gone while it is being read again."""
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

    def _sections(self, page: RunPage) -> Sections:
        return Sections(page, self.snapshot.gpus, self.snapshot.at, self.section, dict(self._scrolled))

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
        if not self._was_read and self._has_only_log(page):
            self.section = "log"
        if page.run.state != "failed":
            self._has_sought_cause = False
        elif not self._has_sought_cause:
            self._has_sought_cause = True
            self._show_traceback(page)
        self._was_read = True
        self.head.show(
            [self.with_trail(lambda room: run_head(page, snapshot.gpus, snapshot.at, room, snapshot.past), width)]
        )
        labels = labels_line(page.run, width)
        self.labels.fit([] if labels is None else [labels])
        banner = banner_lines(page, self.context(), width)
        self.banner.fit(banner)
        around += len(banner) + (labels is not None)
        is_wide = width >= WIDE and not self.is_maximised
        self.tabs.fit([] if is_wide else [self._tabs_line(width)])
        body = max(0, height - around - (0 if is_wide else 1))
        self.charts.is_maximised = self.is_maximised
        if is_wide:
            self._draw_wide(page, width, body)
        else:
            self._draw_section(page, width, body)

    def _draw_wide(self, page: RunPage, width: int, height: int) -> None:
        is_log_beside = self._has_only_log(page) and self.section != "charts"
        log_height = 0 if is_log_beside else max(5, height // 4)
        upper = height - log_height
        left = charts_width(width)
        side = width - left - 1
        self._place(upper, left + 1, side, log_height, is_log_beside=is_log_beside)
        if is_log_beside:
            self._draw_log(page, left, upper)
        else:
            self.charts.draw(page, self.snapshot.gpus, left, upper, is_focused=self.section == "charts")
        sections = self._sections(page)
        inner = side - 2
        heights = side_heights(sections, inner, upper)
        for name, pane in self._side_panes():
            room = self._rooms[name] = heights[name]
            lines = section_lines(sections, name, inner, room, is_titled=True)
            edge = ("│ ", "rule")
            pane.show([[edge, *(lines[y] if y < len(lines) else [])] for y in range(room)], height=room)
        if not is_log_beside:
            self._draw_log(page, width, log_height)

    def _draw_section(self, page: RunPage, width: int, height: int) -> None:
        section = self.section
        is_log, is_charts = section == "log", section == "charts"
        self._place(
            0 if is_log else height, width if is_charts else 0, 0 if is_charts else width, height if is_log else 0
        )
        self._rooms = {section: height}
        sections = self._sections(page)
        for name, pane in self._side_panes():
            if name == section:
                pane.show(section_lines(sections, name, width, height, is_titled=False), height=height)
            else:
                pane.fit([])
        if is_charts:
            self.charts.draw(page, self.snapshot.gpus, width, height, is_focused=True)
        if is_log:
            self._draw_log(page, width, height)

    def _side_panes(self) -> tuple[tuple[Section, Pane], ...]:
        return ("params", self.params), ("ranks", self.ranks), ("story", self.story)

    @staticmethod
    def _has_only_log(page: RunPage) -> bool:
        """Whether the run failed without a metric, so that the log is more useful than empty charts."""
        return page.run.state == "failed" and not page.metric_names

    def _place(
        self, upper: int, charts_width: int, side_width: int, log_height: int, *, is_log_beside: bool = False
    ) -> None:
        """Set the sizes of all parts; those of size 0 are hidden. ``is_log_beside``: the log replaces the charts."""
        log = self.log_part
        self.middle.display = upper > 0
        self.middle.styles.height = upper
        self.charts.pane.display = charts_width > 0 and not is_log_beside
        self.charts.pane.styles.width = charts_width
        log.beside.display = is_log_beside
        log.beside.styles.width = charts_width
        log.pane = log.beside if is_log_beside else log.below
        self.side.display = side_width > 0
        self.side.styles.width = side_width
        log.below.display = log_height > 0
        log.below.set_height(log_height)

    def _draw_log(self, page: RunPage, width: int, height: int) -> None:
        is_focused = self.section == "log" and width >= WIDE
        stopped = (attempt.number for attempt in page.attempts if attempt.state == "stopped")
        was_stopped = any(f"/attempts/{number}/" in page.log.source for number in stopped)
        self.log_part.draw(page.log, width, height, is_focused=is_focused, was_stopped=was_stopped)

    def _tabs_line(self, width: int) -> Line:
        spans = [(" ", "text")]
        for number, section in enumerate(SECTIONS, 1):
            current = section == self.section
            spans.append((f"{number} {_NAMES[section]}", "tab" if current else "dim"))
            spans.append(("   ", "text"))
        return fit_line(spans, width)

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
        panes: dict[Widget | None, Section] = {
            self.charts.pane: "charts", self.log_part.below: "log", self.log_part.beside: "log",
            self.ranks: "ranks", self.story: "story", self.params: "params",
        }  # fmt: skip
        return panes.get(pane)

    def wheel(self, pane: Widget | None, by: int) -> None:
        """Scroll the section under the pointer, focused or not; zoom the charts."""
        section = self._section_of(pane)
        if section == "charts":
            self.charts.zoom(-by)
        elif section is not None:
            self._scroll(by, section)
        self.changed()

    def on_click(self, event: events.Click) -> None:
        """Focus the clicked section, and in the charts the chart and the place."""
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

    def _scroll(self, by: int, section: Section | None = None) -> None:
        """Scroll the focused section, or ``section``, by lines."""
        section = section or self.section
        if section == "charts":
            self.charts.move_focus(by)
        elif section == "log":
            self.log_part.scroll(by)
        elif self.page is not None:
            most = self._sections(self.page).most_offset(section, self._inner_width, self._rooms.get(section, 1))
            # The timeline is read from its end.
            moved = self._scrolled[section] + (-by if section == "story" else by)
            self._scrolled[section] = min(max(0, moved), most)

    do_up = partialmethod(_scroll, -1)
    do_down = partialmethod(_scroll, 1)

    @property
    def _inner_width(self) -> int:
        width = self.app.size.width
        return width - charts_width(width) - 3 if width >= WIDE and not self.is_maximised else width

    def _scroll_page(self, by: int) -> None:
        if self.section == "charts":
            self.charts.turn_page(by)
        elif self.section == "log":
            self.log_part.scroll(by * max(1, self.log_part.view.height - 1))
        else:
            self._scroll(by * max(1, self._rooms.get(self.section, 1) - 2))

    do_page_up = partialmethod(_scroll_page, -1)
    do_page_down = partialmethod(_scroll_page, 1)

    def do_beginning(self) -> None:
        if self.section == "charts":
            self.charts.move_to_end(of_data=False)
        elif self.section == "log":
            self.log_part.to_top()
        else:
            self._scroll(-(1 << 20))

    def do_follow(self) -> None:
        if self.section == "charts":
            self.charts.move_to_end(of_data=True)
        elif self.section == "log":
            self.log_part.view.follow()
        else:
            self._scroll(1 << 20)

    # --- actions: charts, the log and the checkpoints

    def do_cursor_left(self) -> None:
        if self.section == "log":
            self.log_part.sideways(-1)
        else:
            self.charts.do_cursor_left()

    def do_cursor_right(self) -> None:
        if self.section == "log":
            self.log_part.sideways(1)
        else:
            self.charts.do_cursor_right()

    def do_by_rank(self) -> None:
        why_not = self.charts.why_not_by_rank(len(self.page.progress.ranks) if self.page else 0)
        if why_not is not None:
            self.shell.say(why_not)
        elif (focus := self.charts.focus) is not None:
            self.charts.change(self.charts.settings.with_ranks(focus.key))

    def do_time_type(self) -> None:
        """Show the moment of the crosshair; without one, ask for the moment."""
        at = self.charts.cursor_at
        if at is None:
            self.shell.type_moment()
        else:
            self.shell.look_back(Moment(at))

    def do_export(self) -> None:
        file = self.charts.file(self.shell.workspace.run_dir(self.run_id), self.run_id)
        if file is None:
            self.shell.say("There is no chart to write yet.", "warning")
        else:
            self.shell.work(partial(chart_files.write, file), "The chart cannot be written")

    def do_traceback(self) -> None:
        self.section = "log"
        if self.page is not None:
            self._show_traceback(self.page)

    def _show_traceback(self, page: RunPage) -> None:
        incident = fatal_incident(page)
        self.log_part.show_traceback(page.log.labels, incident.rank if incident is not None else None)

    def do_check(self) -> None:
        page = self.page
        if page is not None and page.checkpoints is not None and page.checkpoints.newest:
            self.checkpoint_to_check = page.checkpoints.newest[0].name
            self.section = "params"


def charts_width(width: int) -> int:
    """Cells of the charts on a screen of this width; the cell beside them stays free."""
    return width if width < WIDE else width - min(96, width * 9 // 20) - 1
