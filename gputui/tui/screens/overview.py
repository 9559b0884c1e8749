"""The overview: is the machine fine, is the training fine, what happened."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType

from gputui.store.views import EventView, GpuView, RunView
from gputui.tui.actions import Context, Scope
from gputui.tui.comparing import MOST_RUNS
from gputui.tui.overview_focus import Focus, Section, kept, moved, next_section
from gputui.tui.render.alerts import alert_strip
from gputui.tui.render.gpu_cards import card_grid, card_lines
from gputui.tui.render.gpus import Pointed, first_shown, gpu_height, gpu_lines
from gputui.tui.render.overview import Rows, share_rows
from gputui.tui.render.run_order import in_order, matching, next_order, order_named
from gputui.tui.render.runs import RunsState, events_lines, runs_lines, surroundings
from gputui.tui.render.strips import aggregate_charts, aggregate_line, head_line, host_line
from gputui.tui.screens.base import bindings_for
from gputui.tui.screens.compare import CompareScreen
from gputui.tui.screens.filtering import FilterScreen
from gputui.tui.screens.machine_actions import MachineActions
from gputui.tui.snapshot import RunRow
from gputui.tui.widgets.pane import Pane
from gputui.tui.widgets.slow_pane import SlowPane


class OverviewScreen(FilterScreen, MachineActions):
    """GPUs, host, runs and events below each other. The cursor stands on a GPU, a run or an event; what an action is
    about follows from it."""

    SCOPE: ClassVar[Scope] = "overview"
    BINDINGS: ClassVar[list[BindingType]] = bindings_for("overview")

    def __init__(self, *, is_folded: bool = False, order: str = "") -> None:
        super().__init__()
        self.head = Pane(id="head")
        self.alerts = Pane(id="alerts")
        self.aggregate = Pane(id="aggregate")
        self.gpus = Pane(id="gpus")
        self.trends = SlowPane(id="trends")
        self.cards = SlowPane(id="cards")
        self.host = Pane(id="host")
        self.runs = Pane(id="runs")
        self.happened = Pane(id="events")
        self.is_folded = is_folded
        self.table = RunsState(order=order_named(order).name)
        self.focus_at = Focus()
        self._awaited: str | None = None
        self._sorted: tuple[object, str, str, list[RunRow]] = (None, "", "", [])

    def compose(self) -> ComposeResult:
        self.paint()
        yield self.head
        yield self.notice
        yield self.alerts
        yield self.aggregate
        yield self.gpus
        yield self.trends
        yield self.cards
        yield self.host
        yield self.runs
        yield self.happened
        yield self.message
        yield self.footer

    # --- drawing

    def draw(self, width: int, height: int) -> None:
        app, snapshot = self.gputui, self.snapshot
        self._keep_cursor()
        focus = self.focus_at
        self.head.show([head_line(snapshot, width, app.host_name, demo=app.is_demo, readonly=app.is_readonly)])
        strip = alert_strip(snapshot.alerts, snapshot.at, width)
        self.alerts.show([] if strip is None else [strip], height=0 if strip is None else 1)
        around = 1 + self.draw_frame(width) + (strip is not None)
        count = len(snapshot.gpus)
        rows = share_rows(
            height - around,
            gpus=lambda most: gpu_height(snapshot, width, most),
            cards=lambda most: grid.height * grid.down if (grid := card_grid(count, width, most)) else 0,
            runs=len(self.shown_rows),
            events=len(snapshot.events),
            has_gpus=bool(count),
            is_folded=self.is_folded,
        )
        self.aggregate.show([aggregate_line(snapshot, width)] if rows.aggregate else [], height=rows.aggregate)
        pointed = Pointed(focus.gpu if focus.section == "gpus" else None, self._gpu_top(rows, width))
        self.gpus.show(gpu_lines(snapshot, width, rows.gpus, pointed) if rows.gpus else [], height=rows.gpus)
        self.trends.show_when(
            (width, rows.trends),
            (snapshot.gpu_history,),
            lambda: aggregate_charts(snapshot, width, rows.trends) if rows.trends else [],
            height=rows.trends,
        )
        self._draw_cards(width, rows.cards)
        self.host.show([host_line(snapshot, width)] if rows.host else [], height=rows.host)
        self._scroll(rows)
        lines = runs_lines(self.shown_rows, self.table, surroundings(snapshot), width, rows.runs)
        self.runs.show(self.with_filter(lines, width), height=rows.runs)
        event = focus.event if focus.section == "events" else None
        self.happened.show(events_lines(snapshot.events, snapshot.at, width, rows.events, event), height=rows.events)

    def _draw_cards(self, width: int, height: int) -> None:
        snapshot = self.snapshot
        grid = card_grid(len(snapshot.gpus), width, height)
        sitting = tuple((gpu.uuid, gpu.state, gpu.run_id, gpu.rank) for gpu in snapshot.gpus) if grid else ()
        self.cards.show_when(
            (width, height, sitting),
            (snapshot.gpu_history,),
            lambda: card_lines(snapshot, width, grid) if grid else [],
            height=height,
        )

    # --- the cursor

    @property
    def shown_rows(self) -> list[RunRow]:
        """The runs that match the filter, in their order."""
        runs, table = self.snapshot.runs, self.table
        if self._sorted[0] is not runs or self._sorted[1:3] != (table.filter_text, table.order):
            found = in_order(matching(runs, table.filter_text), table.order)
            self._sorted = (runs, table.filter_text, table.order, found)
        return self._sorted[3]

    @property
    def marked_runs(self) -> tuple[str, ...]:
        """The runs marked for a comparison, in the order of the table; runs that were removed are not among them."""
        return tuple(row.run.run_id for row in self.snapshot.runs if row.run.run_id in self.table.marked)

    @property
    def gpu_in_question(self) -> GpuView | None:
        """The GPU under the cursor, or the one that the run under it has."""
        gpus = self.snapshot.gpus
        if self.focus_at.section == "gpus":
            return next((gpu for gpu in gpus if gpu.uuid == self.focus_at.gpu), None)
        run = self.run_in_question
        return next((gpu for gpu in gpus if run is not None and gpu.run_id == run.run_id), next(iter(gpus), None))

    @property
    def event_in_question(self) -> EventView | None:
        """The event under the cursor."""
        return next((event for event in self.snapshot.events if event.event_id == self.focus_at.event), None)

    @property
    def run_in_question(self) -> RunView | None:
        """The run under the cursor, or the one that the GPU or the event under it is about."""
        section, wanted = self.focus_at.section, self.table.cursor
        if section == "gpus":
            gpu = self.gpu_in_question
            wanted = gpu.run_id if gpu else None
        elif section == "events":
            event = self.event_in_question
            wanted = event.run_id if event else None
        rows = self.shown_rows if section == "runs" else self.snapshot.runs
        return next((row.run for row in rows if row.run.run_id == wanted), None)

    def context(self) -> Context:
        held = self.snapshot.machine
        return replace(
            super().context(),
            section=self.focus_at.section,
            gpu=self.gpu_in_question,
            quarantined=frozenset(held.quarantined),
            is_paused=held.queue_pause is not None,
        )

    def _keep_cursor(self) -> None:
        """The cursor stays on its run, wherever that moves; when it is gone, on the first. So with GPUs and events."""
        ids = [row.run.run_id for row in self.shown_rows]
        if self._awaited in ids:
            self.table = replace(self.table, cursor=self._awaited)
            self._awaited = None
        elif self.table.cursor not in ids:
            self.table = replace(self.table, cursor=ids[0] if ids else None)
        snapshot, focus = self.snapshot, self.focus_at
        section = focus.section if focus.section in self._filled() else "runs"
        event = focus.event
        if event is not None and all(each.event_id != event for each in snapshot.events):
            event = snapshot.events[0].event_id if snapshot.events else None
        gpu = kept([gpu.uuid for gpu in snapshot.gpus], focus.gpu)
        self.focus_at = replace(focus, section=section, gpu=gpu, event=event)
        if self.table.is_focused != (section == "runs"):
            self.table = replace(self.table, is_focused=section == "runs")

    def _filled(self) -> list[Section]:
        """The sections that a cursor can stand in now."""
        filled: list[Section] = ["runs"]
        if self.snapshot.gpus and not self.is_folded:
            filled.append("gpus")
        if self.snapshot.events:
            filled.append("events")
        return filled

    def point_at(self, run_id: str) -> None:
        """Put the cursor on a run as soon as it is there."""
        self._awaited = run_id
        self.focus_at = replace(self.focus_at, section="runs")
        self.paint()

    def _scroll(self, rows: Rows) -> None:
        ids = [row.run.run_id for row in self.shown_rows]
        room = max(1, rows.runs - 1)
        place = ids.index(self.table.cursor) if self.table.cursor in ids else 0
        top = min(self.table.top, place, max(0, len(ids) - room))
        self.table = replace(self.table, top=max(top, place - room + 1))

    def _gpu_top(self, rows: Rows, width: int) -> int:
        uuids = [gpu.uuid for gpu in self.snapshot.gpus]
        place = uuids.index(self.focus_at.gpu) if self.focus_at.gpu in uuids else 0
        top = first_shown(len(uuids), place, self.focus_at.gpu_top, rows.gpus, width)
        self.focus_at = replace(self.focus_at, gpu_top=top)
        return top

    def move(self, by: int) -> None:
        snapshot, focus = self.snapshot, self.focus_at
        if focus.section == "gpus":
            self.focus_at = replace(focus, gpu=moved([gpu.uuid for gpu in snapshot.gpus], focus.gpu, by))
        elif focus.section == "events":
            ids = [event.event_id for event in snapshot.events]
            self.focus_at = replace(focus, event=moved(ids, focus.event, by, len(ids) - 1))
        else:
            cursor = moved([row.run.run_id for row in self.shown_rows], self.table.cursor, by)
            self.table = replace(self.table, cursor=cursor)
        self.paint()

    def do_up(self) -> None:
        self.move(-1)

    def do_down(self) -> None:
        self.move(1)

    def do_first(self) -> None:
        self.move(-self._many())

    def do_last(self) -> None:
        self.move(self._many())

    def do_page_above(self) -> None:
        self.move(-max(1, self.runs.size.height - 2))

    def do_page_below(self) -> None:
        self.move(max(1, self.runs.size.height - 2))

    def _many(self) -> int:
        return len(self.snapshot.runs) + len(self.snapshot.gpus) + len(self.snapshot.events)

    def do_focus_next(self) -> None:
        self._focus(1)

    def do_focus_previous(self) -> None:
        self._focus(-1)

    def _focus(self, by: int) -> None:
        focus = self.focus_at
        section = next_section(focus.section, by, self._filled())
        event = focus.event
        if section == "events" and event is None and self.snapshot.events:
            event = self.snapshot.events[-1].event_id
        self.focus_at = replace(focus, section=section, event=event if section == "events" else None)
        self.paint()

    def on_click(self, event: events.Click) -> None:
        """A click chooses a run, a second one opens it; one on the strip of alerts opens their page."""
        if event.widget is self.alerts:
            self.gputui.do_alerts()
            return
        row = self.table.top + event.y - 1
        if event.widget is self.runs and event.y > 0 and row < len(self.shown_rows):
            self.focus_at = replace(self.focus_at, section="runs")
            self.table = replace(self.table, cursor=self.shown_rows[row].run.run_id)
            if event.chain == 2:
                self.do_open()
            self.paint()

    # --- actions

    def do_fold(self) -> None:
        self.is_folded = not self.is_folded
        self.gputui.change(fold=self.is_folded)

    def do_open(self) -> None:
        """The page of what the cursor stands on."""
        if self.focus_at.section == "gpus":
            self.do_gpu_detail()
        elif (run := self.run_in_question) is not None:
            self.gputui.open_run(run.run_id)

    def do_gpu_detail(self) -> None:
        gpu = self.gpu_in_question
        if gpu is not None:
            self.gputui.open_gpu(gpu.uuid)

    def do_compare(self) -> None:
        """The marked runs; with fewer than two marked, the run under the cursor with the newest of its profile."""
        run = self.run_in_question
        chosen = self.marked_runs
        if len(chosen) < 2 and run is not None:
            alike = [row.run.run_id for row in self.snapshot.runs if row.run.profile == run.profile]
            chosen = tuple(dict.fromkeys([run.run_id, *chosen, *alike]))
        if len(chosen) > MOST_RUNS:
            self.gputui.say(f"The first {MOST_RUNS} of {len(chosen)} runs; more curves cannot be told apart.")
        self.gputui.push_screen(CompareScreen(chosen[:MOST_RUNS], self.gputui.chart_memory.usual))

    def do_mark(self) -> None:
        run = self.run_in_question
        if run is not None:
            self.table = replace(self.table, marked=self.table.marked ^ {run.run_id})
            if self.focus_at.section == "runs":
                self.move(1)

    def do_sort(self) -> None:
        self.table = replace(self.table, order=next_order(self.table.order).name, top=0)
        self.gputui.change(sort=self.table.order)

    @property
    def filter_text(self) -> str:
        return self.table.filter_text

    def set_filter(self, text: str) -> None:
        self.table = replace(self.table, filter_text=text, top=0)
        self.focus_at = replace(self.focus_at, section="runs")
