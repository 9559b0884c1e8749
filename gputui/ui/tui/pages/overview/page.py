"""The overview: the machine, the runs and the events on one page."""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace
from textual import events
from textual.app import ComposeResult
from textual.widget import Widget

from gputui.ui.tui.actions import Scope
from gputui.ui.tui.layout.alerts import alert_strip
from gputui.ui.tui.layout.strips import (
    aggregate_charts,
    aggregate_heads,
    aggregate_line,
    demo_line,
    host_line,
    study_strip,
)
from gputui.ui.tui.pages.overview.areas import share_rows
from gputui.ui.tui.pages.overview.events import event_rows, events_lines
from gputui.ui.tui.pages.overview.gpu_cards import busy_gpus, card_grid, card_lines
from gputui.ui.tui.pages.overview.gpus import GpuCursor, gpu_height, gpu_lines, row_at
from gputui.ui.tui.pages.overview.run_order import ORDERS, RunOrder, next_order, order_named, order_of_letter
from gputui.ui.tui.pages.overview.runs import RowContext, RunsState, runs_lines
from gputui.ui.tui.pages.overview.selection import OverviewCursor, Section
from gputui.ui.tui.widgets.pane import Pane, SlowPane


class OverviewScreen(OverviewCursor):
    """GPUs, host, runs and events below each other. Actions apply to the GPU, run or event under the cursor."""

    SCOPE: ClassVar[Scope] = "overview"

    def __init__(self, *, is_folded: bool = False, order: str = "") -> None:
        super().__init__()
        self.head = Pane(id="head")
        self.alerts = Pane(id="alerts")
        self.aggregate = Pane(id="aggregate")
        self.gpus = Pane(id="gpus")
        self.trend_heads = Pane(id="trend-heads")
        self.trends = SlowPane(id="trends")
        self.cards = SlowPane(id="cards")
        self.host = Pane(id="host")
        self.studies = Pane(id="studies")
        self.runs = Pane(id="runs")
        self.events = Pane(id="events")
        self.is_folded = is_folded
        self.table = RunsState(order=order_named(order).name)
        self._awaits_letter = False

    @property
    def crumb(self) -> str:
        return "gputui"

    def compose(self) -> ComposeResult:
        self.paint()
        yield from (self.head, self.notice, self.alerts)
        yield from (self.aggregate, self.gpus, self.trend_heads, self.trends, self.cards, self.host)
        yield from (self.studies, self.runs, self.events, self.message, self.footer)

    # --- drawing

    def draw(self, width: int, height: int) -> None:
        snapshot = self.snapshot
        self.keep_cursor()
        focus = self.focus_at
        head = [self.machine_head(width)]
        head += [demo_line(snapshot, width)] if self.shell.is_demo and snapshot.past is None else []
        self.head.fit(head)
        strip = alert_strip(snapshot.alerts, snapshot.at, width)
        self.alerts.fit([] if strip is None else [strip])
        studies = study_strip(snapshot.studies, width)
        self.studies.fit(studies)
        passing = self.draw_frame(width) - 1 + (strip is not None)
        around = len(head) + 1 + passing + len(studies)
        cards = len(busy_gpus(snapshot))
        rows = share_rows(
            height - around,
            gpus=lambda most: gpu_height(snapshot, width, most),
            cards=lambda most: grid.height * grid.down if (grid := card_grid(cards, width, most)) else 0,
            runs=len(self.shown_rows),
            events=len(event_rows(snapshot.events, snapshot.at)),
            has_gpus=bool(snapshot.gpus),
            is_folded=self.is_folded,
            passing=passing,
        )
        self.aggregate.fit([aggregate_line(snapshot, width)] if rows.aggregate else [])
        cursor = GpuCursor(focus.gpu if focus.section == "gpus" else None, self.scroll_gpus(rows, width))
        self.gpus.show(gpu_lines(snapshot, width, rows.gpus, cursor) if rows.gpus else [], height=rows.gpus)
        heads, room = ([aggregate_heads(snapshot, width)], rows.trends - 1) if rows.trends else ([], 0)
        self.trend_heads.fit(heads)
        self.trends.show_when(
            (width, room),
            (snapshot.gpu_history,),
            lambda: aggregate_charts(snapshot, width, room) if room else [],
            height=room,
        )
        self._draw_cards(width, rows.cards)
        self.host.fit([host_line(snapshot, width)] if rows.host else [])
        for pane in (self.runs, self.events):
            pane.set_space_above(rows.air // 2)
        self.scroll_to_cursor(rows.runs - 1)
        self.page_rows = rows.runs - 2
        lines = runs_lines(self.shown_rows, self.table, RowContext.of(snapshot, self.folded_trials), width, rows.runs)
        self.runs.show(self.with_filter(lines, width), height=rows.runs)
        lines = events_lines(snapshot.events, snapshot.at, width, rows.events, self._current_event)
        self.events.show(lines, height=rows.events)

    def _draw_cards(self, width: int, height: int) -> None:
        snapshot = self.snapshot
        busy = busy_gpus(snapshot)
        grid = card_grid(len(busy), width, height)
        occupants = tuple((gpu.uuid, gpu.state, gpu.run_ids, gpu.rank) for gpu in busy) if grid else ()
        self.cards.show_when(
            (width, height, occupants),
            (snapshot.gpu_history,),
            lambda: card_lines(snapshot, width, grid) if grid else [],
            height=height,
        )

    @property
    def _current_event(self) -> int | None:
        return self.focus_at.event if self.focus_at.section == "events" else None

    # --- the mouse

    def wheel(self, pane: Widget | None, by: int) -> None:
        """The cursor moves in the section under the pointer."""
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
        snapshot, width = self.snapshot, self.app.size.width
        row = self.table.top + event.y - 1
        if event.widget is self.gpus:
            gpus = len(snapshot.gpus)
            index = row_at(gpus, width, self.gpus.size.height, self.focus_at.gpu_top, event.x, event.y)
            if index is None:
                return
            self.focus_at = replace(self.focus_at, section="gpus", gpu=snapshot.gpus[index].uuid)
        elif event.widget is self.runs and event.y > 0 and row < len(self.shown_rows):
            self.focus_at = replace(self.focus_at, section="runs")
            self.point_at(self.shown_rows[row].run.run_id)
        elif event.widget is self.events:
            rows = event_rows(snapshot.events, snapshot.at, self.events.size.height, self._current_event)
            if not 1 <= event.y <= len(rows) or isinstance(clicked := rows[event.y - 1], str):
                return
            self.focus_at = replace(self.focus_at, section="events", event=clicked.event_id)
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
        run, study_id = self.run_in_question, self.study_in_question
        if study_id is not None:
            self.shell.open_study(study_id)
        elif self.focus_at.section == "gpus" or run is None:
            self.do_gpu_detail()
        else:
            self.shell.open_run(run.run_id)

    def do_gpu_detail(self) -> None:
        gpu = self.gpu_in_question
        if gpu is not None:
            self.shell.open_gpu(gpu.uuid)

    def do_compare(self) -> None:
        """Compare the marked runs; if fewer than two, the run under the cursor with the newest of its profile."""
        self.shell.compare(self.run_in_question, self.marked_runs)

    def do_mark(self) -> None:
        run = self.run_in_question
        if run is not None:
            self.table = replace(self.table, marked=self.table.marked ^ {run.run_id})
            if self.focus_at.section == "runs":
                self.move(1)

    def do_sort(self) -> None:
        """Sort by the next order; the following key may choose one by its letter."""
        self._sort(next_order(self.table.order))
        self._awaits_letter = True
        letters = " · ".join(f"{order.letter} {order.words.removeprefix('by ') or order.name}" for order in ORDERS)
        self.shell.say(f"A letter chooses the order: {letters}")

    def _sort(self, order: RunOrder) -> None:
        self.table = replace(self.table, order=order.name, top=0)
        self.shell.change(sort=order.name)
        self.changed()

    def take_key(self, event: events.Key) -> bool:
        awaits, self._awaits_letter = self._awaits_letter, False
        order = order_of_letter(event.key) if awaits and self.line is None else None
        if order is None:
            return super().take_key(event)
        self.shell.say("")
        self._sort(order)
        return True

    def set_filter(self, text: str) -> None:
        super().set_filter(text)
        self.focus_at = replace(self.focus_at, section="runs")
