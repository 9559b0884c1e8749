"""The overview: the machine, the runs and the events on one page."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from msgspec.structs import replace
from textual import events
from textual.widget import Widget

from gputui.metrics.draw.parts import Line
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


class OverviewPanes:
    """The widgets of the overview, from above.

    Attributes:
        lower: the place of processes and events.
    """

    def __init__(self) -> None:
        self.alerts = Pane(id="alerts")
        self.gpus = Pane(id="gpus")
        self.runs = Pane(id="runs")
        self.charts = Pane(id="charts")
        self.processes = Pane(id="processes")
        self.events = Pane(id="events")
        self.lower = Area(self.processes, self.events, id="lower")
        self._is_beside = False

    def place_lower(self, width: int, rows: Rows) -> tuple[int, int]:
        """Place processes and events below each other or side by side; returns their widths."""
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
            self.lower.styles.layout = layout
        self.lower.styles.height = height
        self.processes.styles.width = process_width
        self.events.styles.width = event_width
        return process_width, event_width


class OverviewScreen(OverviewCursor):
    """GPUs, host, runs and events below each other. Actions apply to the GPU, run or event under the cursor.

    Attributes:
        panes: the widgets below the head.
        is_folded: whether charts stand in place of the GPUs' rows.
        _charts: draws the charts of GPUs.
        _grid: where the GPUs were drawn.
    """

    SCOPE: ClassVar[Scope] = "overview"
    ORDERS = ORDERS

    def __init__(self, *, is_folded: bool = False, order: str = "") -> None:
        super().__init__()
        panes = OverviewPanes()
        self.panes = panes
        self.body = (panes.alerts, panes.gpus, panes.runs, panes.charts, panes.lower)
        self.is_folded = is_folded
        self._charts = GpuCharts()
        self.table = RunsState(order=order_named(ORDERS, order).name)
        self._grid = GpuGrid(1, 0, 0)

    @property
    def crumb(self) -> str:
        return "gputui"

    # --- drawing

    def draw(self, width: int, height: int) -> None:
        snapshot = self.snapshot
        self.keep_cursor()
        is_framed = is_boxed(width, height)
        head = self._head_lines(width, height)
        self.head.show(head)
        strip = alert_strip(snapshot, width, self.key_words)
        strips = [] if strip is None else [strip]
        self.panes.alerts.show(strips)
        passing = self.draw_frame(width) - 1 + len(strips)
        needs = self._needs(width, height)
        rows = share_rows(width, height - len(head) - 1 - passing, needs, is_framed=is_framed, passing=passing)
        self._draw_gpus(width, rows.gpus, is_framed)
        self._draw_runs(width, rows.runs, is_framed)
        self.panes.charts.draw(lambda: self._charts.lines(snapshot, width, rows.charts), height=rows.charts)
        self._draw_lower(width, rows, is_framed)

    def _head_lines(self, width: int, height: int) -> list[Line]:
        app = self.shell
        head = head_line(
            self.snapshot, width, app.host_name, demo=app.is_demo, readonly=app.is_readonly, keys=self.key_words
        )
        if app.is_demo and self.snapshot.past is None and height >= DEMO_LINE_HEIGHT:
            return [head, demo_line(self.snapshot, width)]
        return [head]

    def _needs(self, width: int, height: int) -> AreaNeeds:
        """The rows that each area could fill on a page of this size."""
        gpus = self.snapshot.gpus
        foreign = [sum(process.run_id is None for process in gpu.processes) for gpu in gpus if gpu.processes]
        return AreaNeeds(
            gpus=lambda most: self._gpu_height(width, height, most),
            runs=len(self.entries),
            processes=sum(len(gpu.processes or ()) for gpu in gpus),
            others=sum(foreign),
            # The row of a GPU shows one of them.
            hidden=sum(number - 1 for number in foreign if number),
            events=len(event_rows(self.snapshot, width)),
            has_charts=bool(gpus) and not self.is_folded,
        )

    def _gpu_height(self, width: int, height: int, most: int) -> int:
        if self.is_folded and self.snapshot.gpus:
            return min(most, max(FOLDED_LEAST, min(FOLDED_MOST, height // FOLDED_SHARE)))
        return gpu_height(self.snapshot, width - 2 * is_boxed(width, height), most)

    def _draw_gpus(self, width: int, height: int, is_framed: bool) -> None:
        snapshot = self.snapshot
        if self.is_folded and snapshot.gpus:
            totals = rule("GPUS", width, figures=gpu_figures(snapshot))
            self.panes.gpus.draw(lambda: [totals, *self._charts.lines(snapshot, width, height - 1)], height=height)
            return
        cursor = None
        if self.focused_section == "gpus":
            cursor = self.gpu_cursor
        self._grid = gpu_grid(snapshot, width - 2 * is_framed, height, self.gpu_top, cursor)
        top = self._grid.top
        self.gpu_top = top
        self.panes.gpus.draw(
            lambda: gpu_panel(snapshot, width, height, cursor, top, is_framed=is_framed), height=height
        )

    def _draw_runs(self, width: int, height: int, is_framed: bool) -> None:
        # Without a frame there is a heading.
        frame = 2 if is_framed else 1
        room = height - frame
        self.scroll_to_cursor(room)
        self.page_rows = room - 1
        panel = partial(runs_panel, self.entries, self.table, self.snapshot)
        self.panes.runs.draw(
            lambda: self.with_filter(draw_panel(panel, width, height, is_framed=is_framed), width), height=height
        )

    def _draw_lower(self, width: int, rows: Rows, is_framed: bool) -> None:
        """Draw processes and events."""
        panes = self.panes
        process_width, event_width = panes.place_lower(width, rows)
        processes = partial(process_panel, self.snapshot)
        panes.processes.draw(
            lambda: draw_panel(processes, process_width, rows.processes, is_framed=is_framed), height=rows.processes
        )
        news = partial(events_panel, self.snapshot, cursor=self._current_event)
        has_frame = is_framed and rows.events > 2
        panes.events.draw(lambda: draw_panel(news, event_width, rows.events, is_framed=has_frame), height=rows.events)

    @property
    def _current_event(self) -> int | None:
        if self.focused_section == "events":
            return self.event_cursor
        return None

    # --- the mouse

    def wheel(self, pane: Widget | None, by: int) -> None:
        """Move the cursor in the section under the pointer."""
        panes = self.panes
        sections: dict[Widget | None, Section] = {panes.gpus: "gpus", panes.runs: "runs", panes.events: "events"}
        section = sections.get(pane)
        if section is not None:
            self.focus_on(section)
            self.move(by)

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the clicked GPU, run or event; a double click opens it. The alert strip opens its page."""
        panes = self.panes
        if event.widget is panes.alerts:
            self.shell.perform("alerts")
            return
        if event.widget is panes.processes:
            self.shell.perform("processes")
            return
        if event.widget is panes.gpus and not self.is_folded:
            is_hit = self._click_gpu(event.x, event.y)
        elif event.widget is panes.runs:
            is_hit = self._click_run(event.y)
        elif event.widget is panes.events:
            is_hit = self._click_event(event.y)
        else:
            return
        if is_hit and event.chain == 2:
            self.shell.perform("open")
        if is_hit:
            self.changed()

    def _click_gpu(self, x: int, y: int) -> bool:
        """Move the cursor to the GPU at a cell; False if none is there."""
        gpus = self.snapshot.gpus
        index = self._grid.index_at(x, y, self.app.size.width)
        if not 0 <= index < len(gpus):
            return False
        self.focused_section = "gpus"
        self.gpu_cursor = gpus[index].uuid
        return True

    def _click_run(self, y: int) -> bool:
        """Move the cursor to the run in a line; False if none is there."""
        entries = self.entries[self.table.top :]
        if not 0 < y <= len(entries):
            return False
        self.focused_section = "runs"
        self.point_at(entry_id(entries[y - 1]))
        return True

    def _click_event(self, y: int) -> bool:
        """Move the cursor to the event in a line; False if none is there."""
        frame = is_boxed(*self.app.size)
        size = self.panes.events.size
        rows = event_rows(self.snapshot, size.width - 2 * frame, size.height - frame, self._current_event)
        if not 1 <= y <= len(rows) or (clicked := rows[y - 1].event) is None:
            return False
        self.focused_section = "events"
        self.event_cursor = clicked.event_id
        return True

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
