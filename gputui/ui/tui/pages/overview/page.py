"""The overview: the machine, the runs and the events on one page."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from msgspec.structs import replace
from textual import events
from textual.widget import Widget

from gputui.ui.tui.actions import Scope
from gputui.ui.tui.layout.columns import draw_panel, is_boxed, rule
from gputui.ui.tui.layout.lists import RowOrder, order_named
from gputui.ui.tui.layout.strips import alert_strip, demo_line, gpu_figures, head_line
from gputui.ui.tui.pages.overview.areas import AreaNeeds, Rows, share_rows
from gputui.ui.tui.pages.overview.charts import GpuCharts
from gputui.ui.tui.pages.overview.events import event_rows, events_panel
from gputui.ui.tui.pages.overview.gpus import GpuGrid, gpu_grid, gpu_height, gpu_panel
from gputui.ui.tui.pages.overview.run_order import ORDERS, entry_id
from gputui.ui.tui.pages.overview.runs import RunsState, runs_panel
from gputui.ui.tui.pages.overview.selection import OverviewCursor, Section
from gputui.ui.tui.pages.processes.view import process_panel
from gputui.ui.tui.widgets.pane import Area, Pane
from gputui.ui.views.snapshot import RunRow

DEMO_LINE_HEIGHT = 20
"""Least height of a page with the demo's hint."""

FOLDED_LEAST = 7
FOLDED_MOST = 13
FOLDED_SHARE = 3
"""Lines of the charts in place of the GPUs' rows, and the share (1/n) of the page that they take."""


class OverviewScreen(OverviewCursor):
    """GPUs, host, runs and events below each other. Actions apply to the GPU, run or event under the cursor."""

    SCOPE: ClassVar[Scope] = "overview"
    ORDERS = ORDERS

    def __init__(self, *, is_folded: bool = False, order: str = "") -> None:
        super().__init__()
        self.alerts = Pane(id="alerts")
        self.gpus = Pane(id="gpus")
        self.runs = Pane(id="runs")
        self.charts = Pane(id="charts")
        self.processes = Pane(id="processes")
        self.events = Pane(id="events")
        self.lower = Area(self.processes, self.events, id="lower")
        self.body = (self.alerts, self.gpus, self.runs, self.charts, self.lower)
        self.is_folded = is_folded
        self._charts = GpuCharts()
        self.table = RunsState(order=order_named(ORDERS, order).name)
        self._grid = GpuGrid(1, 0, 0)
        self._is_beside = False

    @property
    def crumb(self) -> str:
        return "gputui"

    # --- drawing

    def draw(self, width: int, height: int) -> None:
        snapshot = self.snapshot
        self.keep_cursor()
        is_framed = is_boxed(width, height)
        app = self.shell
        head = [
            head_line(snapshot, width, app.host_name, demo=app.is_demo, readonly=app.is_readonly, keys=self.key_words)
        ]
        if self.shell.is_demo and snapshot.past is None and height >= DEMO_LINE_HEIGHT:
            head.append(demo_line(snapshot, width))
        self.head.show(head)
        strip = alert_strip(snapshot, width, self.key_words)
        strips = [] if strip is None else [strip]
        self.alerts.show(strips)
        passing = self.draw_frame(width) - 1 + len(strips)
        foreign = [sum(process.run_id is None for process in gpu.processes) for gpu in snapshot.gpus if gpu.processes]
        needs = AreaNeeds(
            lambda most: self._gpu_height(width, height, most),
            len(self.entries),
            sum(len(gpu.processes or ()) for gpu in snapshot.gpus),
            others=sum(foreign),
            hidden=sum(number - 1 for number in foreign if number),
            events=len(event_rows(snapshot, width)),
            has_charts=bool(snapshot.gpus) and not self.is_folded,
        )
        rows = share_rows(width, height - len(head) - 1 - passing, needs, is_framed=is_framed, passing=passing)
        self._draw_gpus(width, rows.gpus, is_framed)
        frame = 2 if is_framed else 1
        self.scroll_to_cursor(rows.runs - frame)
        self.page_rows = rows.runs - frame - 1
        runs = partial(runs_panel, self.entries, self.table, snapshot)
        self.runs.draw(
            lambda: self.with_filter(draw_panel(runs, width, rows.runs, is_framed=is_framed), width), height=rows.runs
        )
        self.charts.draw(lambda: self._charts.lines(snapshot, width, rows.charts), height=rows.charts)
        self._draw_lower(width, rows, is_framed)

    def _gpu_height(self, width: int, height: int, most: int) -> int:
        if self.is_folded and self.snapshot.gpus:
            return min(most, max(FOLDED_LEAST, min(FOLDED_MOST, height // FOLDED_SHARE)))
        return gpu_height(self.snapshot, width - 2 * is_boxed(width, height), most)

    def _draw_gpus(self, width: int, height: int, is_framed: bool) -> None:
        snapshot = self.snapshot
        if self.is_folded and snapshot.gpus:
            totals = rule("GPUS", width, figures=gpu_figures(snapshot))
            self.gpus.draw(lambda: [totals, *self._charts.lines(snapshot, width, height - 1)], height=height)
            return
        cursor = None
        if self.focused_section == "gpus":
            cursor = self.gpu_cursor
        self._grid = gpu_grid(snapshot, width - 2 * is_framed, height, self.gpu_top, cursor)
        top = self._grid.top
        self.gpu_top = top
        self.gpus.draw(lambda: gpu_panel(snapshot, width, height, cursor, top, is_framed=is_framed), height=height)

    def _draw_lower(self, width: int, rows: Rows, is_framed: bool) -> None:
        """Processes and events, below each other or side by side."""
        snapshot = self.snapshot
        styles = self.lower.styles
        process_width = width if rows.processes else 0
        event_width = width
        height = rows.events + rows.processes
        layout = "vertical"
        if rows.is_beside:
            process_width = width // 2
            event_width = width - process_width
            height = rows.events
            layout = "horizontal"
        if rows.is_beside != self._is_beside:
            # Textual lays out again even for the same layout.
            self._is_beside = rows.is_beside
            styles.layout = layout
        styles.height = height
        self.processes.styles.width = process_width
        self.events.styles.width = event_width
        draw_processes = partial(process_panel, snapshot)
        draw_events = partial(events_panel, snapshot, cursor=self._current_event)
        has_frame = is_framed and rows.events > 2
        self.processes.draw(
            lambda: draw_panel(draw_processes, process_width, rows.processes, is_framed=is_framed),
            height=rows.processes,
        )
        self.events.draw(
            lambda: draw_panel(draw_events, event_width, rows.events, is_framed=has_frame), height=rows.events
        )

    @property
    def _current_event(self) -> int | None:
        if self.focused_section == "events":
            return self.event_cursor
        return None

    # --- the mouse

    def wheel(self, pane: Widget | None, by: int) -> None:
        """Move the cursor in the section under the pointer."""
        sections: dict[Widget | None, Section] = {self.gpus: "gpus", self.runs: "runs", self.events: "events"}
        section = sections.get(pane)
        if section is not None:
            self.focus_on(section)
            self.move(by)

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the clicked GPU, run or event; a double click opens it. The alert strip opens its page."""
        if event.widget is self.alerts:
            self.shell.perform("alerts")
            return
        snapshot = self.snapshot
        width = self.app.size.width
        top = self.table.top
        entries = self.entries
        gpus = snapshot.gpus
        if event.widget is self.gpus and not self.is_folded:
            index = self._grid.index_at(event.x, event.y, width)
            if not 0 <= index < len(gpus):
                return
            self.focused_section = "gpus"
            self.gpu_cursor = gpus[index].uuid
        elif event.widget is self.runs and 0 < event.y <= len(entries) - top:
            self.focused_section = "runs"
            self.point_at(entry_id(entries[top + event.y - 1]))
        elif event.widget is self.events:
            frame = is_boxed(*self.app.size)
            size = self.events.size
            rows = event_rows(snapshot, size.width - 2 * frame, size.height - frame, self._current_event)
            if not 1 <= event.y <= len(rows) or (clicked := rows[event.y - 1].event) is None:
                return
            self.focused_section = "events"
            self.event_cursor = clicked.event_id
        elif event.widget is self.processes:
            self.shell.perform("processes")
            return
        else:
            return
        if event.chain == 2:
            self.shell.perform("open")
        self.changed()

    # --- actions

    def do_fold(self) -> None:
        self.is_folded = not self.is_folded
        self.shell.change(fold=self.is_folded)

    def do_open(self) -> None:
        """Open the page of the GPU, run or study under the cursor."""
        run = self.run_in_question
        study_id = self.study_in_question
        if study_id is not None:
            self.shell.open_study(study_id)
        elif self.focused_section == "gpus" or run is None:
            self.do_gpu_detail()
        else:
            self.shell.open_run(run.run_id)

    def do_gpu_detail(self) -> None:
        gpu = self.gpu_in_question
        if gpu is not None:
            self.shell.open_gpu(gpu.uuid)

    def do_compare(self) -> None:
        """Compare the marked runs; if fewer than two, that one, the run under the cursor, and the newest like them."""
        self.shell.compare(self.run_in_question, [run.run_id for run in self.marked_runs])

    def do_mark(self) -> None:
        run = self.run_in_question
        if run is not None:
            self.table = replace(self.table, marked=self.table.marked ^ {run.run_id})
            if self.focused_section == "runs":
                self.move(1)

    def do_unmark(self) -> None:
        self.table = replace(self.table, marked=frozenset())

    def sort_by(self, order: RowOrder[RunRow]) -> None:
        super().sort_by(order)
        self.shell.change(sort=order.name)

    def set_filter(self, text: str) -> None:
        super().set_filter(text)
        self.focused_section = "runs"
