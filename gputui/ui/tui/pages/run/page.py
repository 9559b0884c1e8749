"""The page of a run: charts, ranks, log, timeline, parameters. Keys act on the focused one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial, partialmethod
from typing import ClassVar

from msgspec.structs import replace
from textual import events
from textual.app import ComposeResult
from textual.widget import Widget

from gputui.core.text import clean
from gputui.core.units import count_of
from gputui.metrics.curves.model import ChartData, Frame
from gputui.metrics.draw.parts import Line, Span
from gputui.metrics.progress import Progress
from gputui.store.metrics.intake import intake_words
from gputui.store.runs import Run
from gputui.ui.tui.actions import Context, Scope
from gputui.ui.tui.layout.chart_settings import ChartMemory, ChartView
from gputui.ui.tui.layout.charts import ChartedRun, ChartLook
from gputui.ui.tui.layout.columns import box, draw_panel, fill_height, fit_line, is_boxed, rule
from gputui.ui.tui.pages.run.arrangement import (
    BESIDE,
    NOTHING,
    SECTIONS,
    WIDE,
    Arranger,
    RunPanes,
    Section,
    Size,
)
from gputui.ui.tui.pages.run.chart_files import chart_drawing, file_name, write_chart
from gputui.ui.tui.pages.run.head import banner_lines, fatal_failure, labels_line, run_head
from gputui.ui.tui.pages.run.log import RunLog
from gputui.ui.tui.pages.run.sections import SideSection, SideView, side_sections
from gputui.ui.tui.widgets.chart_pane import Charts
from gputui.ui.tui.widgets.line_edit import LineEdit
from gputui.ui.tui.widgets.page import ActionScreen, Choice, Copyable
from gputui.ui.views.metric_words import HARDWARE
from gputui.ui.views.snapshot import Interest, Moment, RunPage

_NAMES = {"story": "timeline", "params": "parameters"}


class RunScreen(ActionScreen):
    """The page of one run. Narrow screens show one section at a time, wide ones all.

    Attributes:
        section: the section that has the keyboard.
        is_maximised: whether the focused section alone is shown.
        checkpoint_to_check: the checkpoint whose content to check; None for none.
        _was_read: whether the run was there once.
        _has_sought_cause: whether the traceback of the failed run was shown once.
        _progress: the progress in the head, which is that at the end of the curves.
        _beside: what is in view of each section beside the charts.
        _scrollable: what the arrow keys move in each section.
    """

    SCOPE: ClassVar[Scope] = "run"

    def __init__(self, run_id: str, memory: ChartMemory) -> None:
        super().__init__()
        self.run_id = run_id
        self.section: Section = "charts"
        self.charts = Charts(memory.of(run_id), self._keep_view, lambda text: self.shell.say(text))
        self.log_part = RunLog(lambda text: self.shell.say(text), self.do_section_log)
        self.parts = (self.charts, self.log_part)
        self.panes = RunPanes(self.charts.pane)
        self.is_maximised = False
        self.checkpoint_to_check: str | None = None
        self._memory = memory
        self._was_read = False
        self._has_sought_cause = False
        self._progress = Progress()
        self._beside = {name: SideView() for name in BESIDE}
        self._scrollable: Mapping[Section, Charts | RunLog | SideView] = {
            "charts": self.charts, "log": self.log_part, **self._beside
        }  # fmt: skip

    def _keep_view(self, view: ChartView) -> None:
        self.section = "charts"
        self._memory.keep(self.run_id, view)

    def compose(self) -> ComposeResult:
        self.paint()
        panes = self.panes
        yield from (self.head, panes.labels, panes.banner, self.notice, panes.tabs)
        yield from (panes.middle, panes.sections["log"], self.message, self.footer)

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
        """Reasons why the charts stay empty or end early although the run writes metrics."""
        if self.page is None or self.page.intake is None:
            return []
        intake = self.page.intake
        if intake.accepted and not intake.short_of:
            return []
        text = intake_words(intake)
        if text is None:
            return []
        return [text]

    def context(self) -> Context:
        lacks_traceback = self.log_part.lacks_traceback
        return replace(super().context(), section=self.section, lacks_traceback=lacks_traceback)

    @property
    def crumb(self) -> str:
        return clean(self.run_id)

    @property
    def page(self) -> RunPage | None:
        """The data of the run; None until it was read, or if it is gone."""
        page = self.snapshot.page
        if page is not None and page.run.run_id == self.run_id:
            return page
        return None

    @property
    def run_in_question(self) -> Run | None:
        if self.page:
            return self.page.run
        return None

    # --- drawing

    def draw(self, width: int, height: int) -> None:
        page = self.page
        around = 1 + self.draw_frame(width)
        if page is None:
            self._draw_missing(width)
            return
        self._was_read = True
        self._seek_cause(page)
        labels = labels_line(page.run, width)
        banner = banner_lines(page, self.context(), width)
        is_wide = width >= WIDE and not self.is_maximised
        tabs = [] if is_wide else [self._tabs_line(width)]
        self.panes.labels.show(labels)
        self.panes.banner.show(banner)
        self.panes.tabs.show(tabs)
        body = Size(width, max(0, height - around - len(labels) - len(banner) - len(tabs)))
        self._draw_sections(page, body, is_wide=is_wide, is_framed=is_boxed(width, height))
        self._draw_head(page, width)

    def _seek_cause(self, page: RunPage) -> None:
        """Show the traceback of a run once it has failed."""
        if page.run.state != "failed":
            self._has_sought_cause = False
        elif not self._has_sought_cause:
            self._has_sought_cause = True
            self.do_traceback()

    def _draw_sections(self, page: RunPage, body: Size, *, is_wide: bool, is_framed: bool) -> None:
        # A frame, or on a wide page the line at the left of a section.
        frame = 2 if is_framed else int(is_wide)
        arranger = Arranger(page, self.section, frame, partial(self._side_sections, page))
        arrangement = arranger.all(body) if is_wide else arranger.alone(body)
        self.panes.place(arrangement)
        for name, size in arrangement.sizes.items():
            pane = self.panes.sections[name]
            if name == "charts":
                self._draw_charts(page, size, is_framed=is_framed)
            elif name == "log":
                log = partial(self._log_lines, page)
                pane.draw(partial(draw_panel, log, *size, is_framed=is_framed), height=size.height)
            else:
                section = arrangement.sections[name]
                pane.draw(partial(self._section_lines, name, section, size, frame), height=size.height)
        if "charts" not in arrangement.sizes or not self.charts.pane.is_behind:
            self._progress = page.progress

    def _draw_head(self, page: RunPage, width: int) -> None:
        snapshot = self.snapshot
        drawn = replace(page, progress=self._progress)
        moment = snapshot.past, self.key_words
        self.head.show(
            [self.with_trail(lambda room: run_head(drawn, snapshot.gpus, snapshot.at, room, *moment), width)]
        )

    def _draw_missing(self, width: int) -> None:
        """Draw the page of a run that was not read."""
        state = "is gone" if self._was_read else "reading…"
        if self.snapshot.past is not None:
            state = "did not exist yet"
        self.head.show([fit_line([(f" {clean(self.run_id)}", "title"), (f" · {state}", "dim")], width)])
        self.panes.labels.clear()
        self.panes.banner.clear()
        self.panes.place(NOTHING)

    def _tabs_line(self, width: int) -> Line:
        line: Line = [(" ", "text")]
        for number, name in enumerate(SECTIONS, 1):
            style = "tab" if name == self.section else "dim"
            line.append((f"{number} {_NAMES.get(name, name)}   ", style))
        return fit_line(line, width)

    def _side_sections(self, page: RunPage, width: int, opened: set[str]) -> Mapping[str, SideSection]:
        snapshot = self.snapshot
        return side_sections(page, snapshot.gpus, snapshot.at, width, opened=opened, is_past=snapshot.past is not None)

    def _draw_charts(self, page: RunPage, size: Size, *, is_framed: bool) -> None:
        charts = self.charts
        run = page.run
        view = charts.view
        notes: list[Span] = []
        has_step = bool(page.progress.step) or any(attempt.last_step for attempt in page.attempts)
        if view.axis in ("step", "epoch") and not has_step:
            # On these axes nothing has a place before the first step.
            view = replace(view, axis="time")
            note = "no step known" if run.state.is_over else "no step yet"
            notes.append((note, "dim"))
        if page.intake is not None and page.intake.rejected:
            notes.append((f"{count_of(page.intake.rejected, 'line')} could not be used", "warn"))
        data = page.charts or ChartData(charts.request, Frame(charts.request.axis))
        look = ChartLook(
            view,
            (ChartedRun(data),),
            {gpu.uuid: gpu.index for gpu in self.snapshot.gpus},
            frozenset(number for number, rank in page.progress.ranks.items() if rank.is_slow),
        )
        hardware = [key for key in HARDWARE if run.gpus or key.startswith("host/")]
        charts.is_maximised = self.is_maximised
        charts.choose(data.names or page.metric_names, hardware, run.roles)
        charts.draw(look, size, notes, is_focused=self.section == "charts", is_framed=is_framed)

    def _log_lines(self, page: RunPage, width: int, height: int) -> list[Line]:
        log = self.log_part
        stopped = [attempt.number for attempt in page.attempts if attempt.state == "stopped"]
        log.update(page.log, width, height - 1)
        return log.lines(
            width,
            style=self._title_style("log"),
            is_live=not page.run.state.is_over and self.snapshot.past is None,
            was_stopped=any(f"/attempts/{number}/" in page.log.source for number in stopped),
        )

    def _section_lines(self, name: Section, section: SideSection, size: Size, frame: int) -> list[Line]:
        """A section in a frame, behind a line at its left, or in a narrow terminal alone."""
        width, height = size
        if frame:
            width -= 2
        title = rule(section.title, width, style=self._title_style(name))
        lines = [fit_line(line, width) for line in self._beside[name].visible(section, width, height - frame)]
        if frame == 2:
            return box(fill_height([title, *lines], width, height - 1), size.width)
        if frame:
            edge: Line = [("│ ", "rule")]
            return [[*edge, *line] for line in (title, *lines)][:height]
        return lines

    def _title_style(self, section: Section) -> str:
        if section == self.section:
            return "tab"
        return "title"

    # --- typing

    @property
    def line(self) -> LineEdit | None:
        """The filter of the charts or the search in the log that is being typed."""
        return self.charts.edit or self.log_part.edit

    def type_line(self, line: LineEdit | None, text: str) -> None:
        if self.charts.edit is None:
            self.log_part.look_for(line, text)
        else:
            self.charts.filter_to(line, text)

    # --- the mouse

    def wheel(self, pane: Widget | None, by: int) -> None:
        """Scroll the section under the pointer, focused or not; zoom the charts."""
        if pane is self.charts.pane:
            self.charts.zoom(-by)
        for name in (*BESIDE, "log"):
            if pane is self.panes.sections[name]:
                self._scrollable[name].scroll(by)
        self.changed()

    def on_click(self, event: events.Click) -> None:
        section = next((name for name in SECTIONS if event.widget is self.panes.sections[name]), None)
        if section is not None:
            self.section = section
            if section == "charts":
                self.charts.click(event.x, event.y)
            self.changed()

    def copyable(self) -> Sequence[Copyable]:
        texts: list[Copyable] = []
        if self.section == "log" and self.log_part.text:
            texts.append(Copyable("the log", self.log_part.text))
        elif self.section == "charts" and self.charts.view.cursor is not None:
            head = self.charts.pane.text.partition("\n")[0].strip("╭╮─ ")
            texts.append(Copyable("what is at the crosshair", head))
        return [*texts, *super().copyable()]

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
        self.charts.filter_to(None, name)
        self.changed()

    # --- actions: the page

    def do_back(self) -> None:
        """Leave the full page, else the crosshair, the search or the filter, else the page."""
        if self._is_enlarged:
            self.is_maximised = False
        elif self.section == "log" and self.log_part.search.text:
            self.log_part.look_for(None, "")
        elif self.section != "charts" or not self.charts.clear():
            self.app.pop_screen()

    def _step_section(self, by: int) -> None:
        self.section = SECTIONS[(SECTIONS.index(self.section) + by) % len(SECTIONS)]

    do_section_next = partialmethod(_step_section, 1)
    do_section_previous = partialmethod(_step_section, -1)

    def _focus(self, section: Section) -> None:
        self.section = section

    do_section_charts = partialmethod(_focus, "charts")
    do_section_ranks = partialmethod(_focus, "ranks")
    do_section_log = partialmethod(_focus, "log")
    do_section_story = partialmethod(_focus, "story")
    do_section_params = partialmethod(_focus, "params")

    def do_maximise(self) -> None:
        self.is_maximised = not self._is_enlarged
        if self.is_maximised and not self._is_enlarged:
            self.is_maximised = False
            self.shell.say("This section has the full page already.")

    @property
    def _is_enlarged(self) -> bool:
        """True if the section in focus has more room: narrow screens show one at a time."""
        return self.is_maximised and (self.section == "charts" or self.app.size.width >= WIDE)

    def do_find(self) -> None:
        if self.section == "log":
            self.log_part.edit = LineEdit.at_end(self.log_part.search.text)
        else:
            self.section = "charts"
            self.charts.edit = LineEdit.at_end(self.charts.view.filter_text)

    # --- actions: the focused section

    def _scroll(self, by: int) -> None:
        self._scrollable[self.section].scroll(by)

    do_up = partialmethod(_scroll, -1)
    do_down = partialmethod(_scroll, 1)

    def _scroll_page(self, by: int) -> None:
        self._scrollable[self.section].scroll_page(by)

    do_page_up = partialmethod(_scroll_page, -1)
    do_page_down = partialmethod(_scroll_page, 1)

    def _to_end(self, *, is_end: bool) -> None:
        self._scrollable[self.section].scroll_to(end=is_end)

    do_beginning = partialmethod(_to_end, is_end=False)
    do_follow = partialmethod(_to_end, is_end=True)

    def _sideways(self, by: int) -> None:
        part = self.log_part if self.section == "log" else self.charts
        part.sideways(by)

    do_cursor_left = partialmethod(_sideways, -1)
    do_cursor_right = partialmethod(_sideways, 1)

    # --- actions: a moment, a chart as files, the cause, a checkpoint

    def do_time_type(self) -> None:
        cursor = self.charts.view.cursor
        if cursor is not None and (at := self.charts.look.data.frame.moment_at(cursor)) is not None:
            self.shell.look_back(Moment(at))
        else:
            self.shell.do_time_type()

    def do_export(self) -> None:
        panel = self.charts.focus
        look = self.charts.look
        if panel is None:
            self.shell.say("There is no chart to write yet.", "warning")
            return
        folder = self.shell.workspace.run_dir(self.run_id) / "charts"
        name = f"{file_name(panel.key)}-{look.view.axis}"
        drawing = chart_drawing(self.run_id, panel, look)
        self.in_thread(partial(write_chart, drawing, folder, name), lambda report: self.shell.say(*report))

    def do_traceback(self) -> None:
        if self.section == "log" and self.log_part.is_on_traceback:
            self.shell.say("The traceback is in view already.", "refusal")
            return
        self.section = "log"
        if (page := self.page) is not None:
            fatal = fatal_failure(page)
            rank = None if fatal is None else fatal.incident.rank
            self.log_part.show_traceback(page.log.labels, rank)

    def do_check(self) -> None:
        page = self.page
        if page is not None and page.checkpoints is not None and page.checkpoints.newest:
            self.checkpoint_to_check = page.checkpoints.newest[0].name
            self.section = "params"
        else:
            self.shell.say("There is no checkpoint to verify.", "warning")
