"""The overview: is the machine fine, is the training fine, what happened."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType

from gputui.charts.chart import Line
from gputui.store.views import RunView
from gputui.tui.actions import Scope
from gputui.tui.editing import LineEdit
from gputui.tui.render.alerts import alert_strip
from gputui.tui.render.columns import fit_line
from gputui.tui.render.gpus import gpu_lines, no_gpu_height
from gputui.tui.render.overview import Rows, share_rows
from gputui.tui.render.runs import RunsState, events_lines, matching, runs_lines
from gputui.tui.render.strips import aggregate_charts, aggregate_line, head_line, host_line
from gputui.tui.screens.base import ActionScreen, bindings_for
from gputui.tui.snapshot import RunRow
from gputui.tui.widgets.pane import Pane
from gputui.tui.widgets.slow_pane import SlowPane


class OverviewScreen(ActionScreen):
    """GPUs, host, runs and events below each other. There is one cursor: it stands on a run."""

    SCOPE: ClassVar[Scope] = "overview"
    BINDINGS: ClassVar[list[BindingType]] = bindings_for("overview")

    def __init__(self) -> None:
        super().__init__()
        self.head = Pane(id="head")
        self.alerts = Pane(id="alerts")
        self.aggregate = Pane(id="aggregate")
        self.gpus = Pane(id="gpus")
        self.trends = SlowPane(id="trends")
        self.host = Pane(id="host")
        self.runs = Pane(id="runs")
        self.happened = Pane(id="events")
        self.is_folded = False
        self.table = RunsState()
        self.filter_edit: LineEdit | None = None
        self._awaited: str | None = None

    def compose(self) -> ComposeResult:
        self.paint()
        yield self.head
        yield self.notice
        yield self.alerts
        yield self.aggregate
        yield self.gpus
        yield self.trends
        yield self.host
        yield self.runs
        yield self.happened
        yield self.message
        yield self.footer

    # --- drawing

    def draw(self, width: int, height: int) -> None:
        app, snapshot = self.gputui, self.snapshot
        self._keep_cursor()
        self.head.show([head_line(snapshot, width, app.host_name, demo=app.is_demo, readonly=app.is_readonly)])
        strip = alert_strip(snapshot.alerts, snapshot.at, width)
        self.alerts.show([] if strip is None else [strip], height=0 if strip is None else 1)
        around = 1 + self.draw_frame(width) + (strip is not None)
        has_gpus = bool(snapshot.gpus)
        rows = share_rows(
            height - around,
            gpus=len(snapshot.gpus) if has_gpus else no_gpu_height(snapshot, width),
            runs=len(self.shown_rows),
            events=len(snapshot.events),
            has_gpus=has_gpus,
            is_folded=self.is_folded,
        )
        self.aggregate.show([aggregate_line(snapshot, width)] if rows.aggregate else [], height=rows.aggregate)
        self.gpus.show(gpu_lines(snapshot, width, rows.gpus) if rows.gpus else [], height=rows.gpus)
        self.trends.show_when(
            (width, rows.trends),
            (snapshot.gpu_history,),
            lambda: aggregate_charts(snapshot, width, rows.trends) if rows.trends else [],
            height=rows.trends,
        )
        self.host.show([host_line(snapshot, width)] if rows.host else [], height=rows.host)
        self._scroll(rows)
        self.runs.show(self._runs_lines(width, rows.runs), height=rows.runs)
        self.happened.show(events_lines(snapshot.events, snapshot.at, width, rows.events), height=rows.events)

    def _runs_lines(self, width: int, height: int) -> list[Line]:
        lines = runs_lines(self.shown_rows, self.table, self.snapshot.at, width, height)
        if self.filter_edit is not None and lines:
            lines[0] = fit_line([(" filter ", "title"), *self.filter_edit.spans(max(8, width - 9))], width)
        return lines

    # --- the cursor

    @property
    def shown_rows(self) -> list[RunRow]:
        """The runs that match the filter."""
        return matching(self.snapshot.runs, self.table.filter_text)

    @property
    def run_in_question(self) -> RunView | None:
        for row in self.shown_rows:
            if row.run.run_id == self.table.cursor:
                return row.run
        return None

    def _keep_cursor(self) -> None:
        """The cursor stays on its run, wherever that moves; when it is gone, on the first."""
        ids = [row.run.run_id for row in self.shown_rows]
        if self._awaited in ids:
            self.table = replace(self.table, cursor=self._awaited)
            self._awaited = None
        elif self.table.cursor not in ids:
            self.table = replace(self.table, cursor=ids[0] if ids else None)

    def point_at(self, run_id: str) -> None:
        """Put the cursor on a run as soon as it is there."""
        self._awaited = run_id
        self.paint()

    def _scroll(self, rows: Rows) -> None:
        ids = [row.run.run_id for row in self.shown_rows]
        room = max(1, rows.runs - 1)
        place = ids.index(self.table.cursor) if self.table.cursor in ids else 0
        top = min(self.table.top, place, max(0, len(ids) - room))
        self.table = replace(self.table, top=max(top, place - room + 1))

    def _move(self, by: int) -> None:
        ids = [row.run.run_id for row in self.shown_rows]
        if ids:
            place = ids.index(self.table.cursor) if self.table.cursor in ids else 0
            self.table = replace(self.table, cursor=ids[min(max(place + by, 0), len(ids) - 1)])
            self.paint()

    def do_up(self) -> None:
        self._move(-1)

    def do_down(self) -> None:
        self._move(1)

    def do_first(self) -> None:
        self._move(-len(self.snapshot.runs))

    def do_last(self) -> None:
        self._move(len(self.snapshot.runs))

    def on_click(self, event: events.Click) -> None:
        """A click chooses a run, a second one opens it; one on the strip of alerts opens their page."""
        if event.widget is self.alerts:
            self.gputui.do_alerts()
            return
        row = self.table.top + event.y - 1
        if event.widget is self.runs and event.y > 0 and row < len(self.shown_rows):
            self.table = replace(self.table, cursor=self.shown_rows[row].run.run_id)
            if event.chain == 2:
                self.do_open()
            self.paint()

    # --- actions

    def do_fold(self) -> None:
        self.is_folded = not self.is_folded
        self.paint()

    def do_open(self) -> None:
        if self.table.cursor is not None:
            self.gputui.open_run(self.table.cursor)

    def do_filter(self) -> None:
        self.filter_edit = LineEdit.at_end(self.table.filter_text)
        self.paint()

    def on_key(self, event: events.Key) -> None:
        """While the filter is typed, keys are text; otherwise escape clears it."""
        edit = self.filter_edit
        if edit is None:
            if event.key == "escape" and self.table.filter_text:
                event.stop()
                self._filter("")
            return
        if event.key == "enter":
            self.filter_edit = None
        elif event.key == "escape":
            self.filter_edit = None
            self._filter("")
        elif event.key in ("up", "down"):
            self._move(-1 if event.key == "up" else 1)
        elif (pressed := edit.press(event.key)) is not None:
            self._filter_to(pressed)
        elif event.character is not None and event.is_printable:
            self._filter_to(edit.insert(event.character))
        else:
            return
        event.stop()
        self.paint()

    def on_paste(self, event: events.Paste) -> None:
        if self.filter_edit is not None:
            self._filter_to(self.filter_edit.insert(event.text))
            event.stop()
            self.paint()

    def _filter_to(self, edit: LineEdit) -> None:
        self.filter_edit = edit
        self._filter(edit.text)

    def _filter(self, text: str) -> None:
        self.table = replace(self.table, filter_text=text, top=0)
        self.paint()
