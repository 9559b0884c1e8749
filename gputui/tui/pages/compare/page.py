"""The compare page: one metric of several runs over each other, and the table of what they differ in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widget import Widget

from gputui.charts.cells import cell_width
from gputui.curves.model import ChartRequest
from gputui.curves.names import filter_names
from gputui.store.runs import Run
from gputui.tui.actions import Scope
from gputui.tui.data.snapshot import Interest
from gputui.tui.dialogs.sheet import SheetScreen
from gputui.tui.layout.chart_settings import ChartSettings
from gputui.tui.layout.charts import GUTTER
from gputui.tui.layout.columns import fit_line
from gputui.tui.layout.moments import right_end
from gputui.tui.pages.compare.chart_keys import CompareChartKeys
from gputui.tui.pages.compare.comparison import (
    MOST_CURVES,
    ComparedRun,
    Comparison,
    Group,
    compare,
    group_next,
    in_order,
    metric_names,
    param_texts,
)
from gputui.tui.pages.compare.view import CompareLook, compare_head, overlay_lines, run_at, table_lines
from gputui.tui.widgets.cursor import moved
from gputui.tui.widgets.line_edit import LineEdit
from gputui.tui.widgets.page import bindings_for
from gputui.tui.widgets.pane import Pane
from gputui.tui.widgets.slow_pane import SlowPane

LEAST_TABLE_ROWS = 4
_USUAL = "loss"


class CompareScreen(CompareChartKeys):
    """Runs beside each other. There is one cursor: it stands on a run of the table, whose curve lies on top."""

    SCOPE: ClassVar[Scope] = "compare"
    BINDINGS: ClassVar[list[BindingType]] = bindings_for("compare")

    def __init__(self, run_ids: Sequence[str], settings: ChartSettings | None = None) -> None:
        super().__init__(Comparison.of(run_ids), settings or ChartSettings())
        self.head = Pane(id="head")
        self.chart = SlowPane(id="charts")
        self.runs = Pane(id="runs")
        self.edit: LineEdit | None = None
        self._shown: Sequence[ComparedRun] = ()
        self._groups: Sequence[Group] = ()
        self._place = 0

    def compose(self) -> ComposeResult:
        self.paint()
        yield self.head
        yield self.notice
        yield self.chart
        yield self.runs
        yield self.message
        yield self.footer

    def interest(self) -> Interest:
        extent = self.extent
        window = self.viewport.window(extent) if self.viewport.span is not None and extent is not None else None
        names = (self.comparison.metric or _USUAL,)
        settings = self.settings
        request = ChartRequest(names, settings.axis, window, 2 * max(64, self._columns), settings.smoothing,
                               is_log=settings.is_log_x)  # fmt: skip
        return Interest(compared=self.comparison.run_ids, charts=request)

    def show_runs(self, run_ids: Sequence[str], cursor: str | None) -> None:
        """Put the cursor on a run; where it is not among those compared, compare these instead."""
        if cursor is not None and cursor not in self.comparison.run_ids:
            self.comparison = Comparison.of(run_ids, self.comparison.metric)
        if cursor is not None:
            self.comparison = replace(self.comparison, cursor=cursor)

    # --- what is known

    @property
    def run_in_question(self) -> Run | None:
        cursor = self.comparison.cursor
        return next((each.row.run for each in self._shown if each.row.run.run_id == cursor), None)

    # --- drawing

    def draw(self, width: int, height: int) -> None:
        body = max(0, height - 1 - self.draw_frame(width))
        self._columns = max(20, width - GUTTER - 2)
        data = self.data
        self._names = metric_names(data) or self._names
        if self.comparison.metric is None and self._names:
            self.comparison = replace(self.comparison, metric=self._names[0])
        groups = compare(self.snapshot.runs, data, self.comparison, self.snapshot.at)
        self._groups = groups
        self._shown = in_order(groups)
        self._keep_cursor()
        extent = self.extent
        window = None if extent is None else self.viewport.window(extent)
        look = CompareLook(
            self.settings.axis, window, self.cursor, self.settings.smoothing,
            (self.comparison.metric or "") in self.settings.logs, self.settings.is_log_x,
        )  # fmt: skip
        if self.edit is None:
            past = self.snapshot.past
            end = right_end(self.snapshot.at, past) if past is not None else []
            room = width - sum(cell_width(text) for text, _ in end)
            self.head.show([[*compare_head(self.comparison, look, len(self._names), room), *end]])
        else:
            found = filter_names(self._names, self.edit.text)
            note = f" {found.problem or ', '.join(found.names[:4]) or 'no metric matches'} "
            spans = self.edit.spans(max(8, width // 3))
            self.head.show([fit_line([(" metric ", "title"), *spans, (note, "dim")], width)])
        rows = min(len(self._shown) + sum(group.value is not None for group in groups) + 2, body // 2)
        rows = min(body, max(LEAST_TABLE_ROWS, rows))
        chart_height = body - rows
        curves = tuple(curve for each in data.values() for curve in each.curves.values())
        self.chart.show_when(
            (width, chart_height, look, self.comparison),
            (*curves, *(each.frame for each in data.values())),
            lambda: overlay_lines(self._shown, data, self.comparison, look, width, chart_height),
            height=chart_height,
        )
        self.runs.show(table_lines(groups, self.comparison, width, rows), height=rows)

    # --- keys

    def _keep_cursor(self) -> None:
        """The cursor stays on its run, wherever that moves; when it is gone, on the one that took its place."""
        ids = [each.row.run.run_id for each in self._shown]
        if self.comparison.cursor in ids:
            self._place = ids.index(self.comparison.cursor)
        else:
            self._place = max(0, min(self._place, len(ids) - 1))
            self.comparison = replace(self.comparison, cursor=ids[self._place] if ids else None)

    def _move(self, by: int) -> None:
        ids = [each.row.run.run_id for each in self._shown]
        self.comparison = replace(self.comparison, cursor=moved(ids, self.comparison.cursor, by))

    def do_up(self) -> None:
        self._move(-1)

    def do_down(self) -> None:
        self._move(1)

    def do_first(self) -> None:
        self._move(-len(self._shown))

    def do_last(self) -> None:
        self._move(len(self._shown))

    def do_compare_open(self) -> None:
        run = self.run_in_question
        if run is not None:
            self.shell.open_run(run.run_id)

    def do_compare_back(self) -> None:
        if self.cursor is not None:
            self.cursor = None
        else:
            self.app.pop_screen()

    def do_hide(self) -> None:
        run = self.run_in_question
        if run is None:
            return
        toggled = self.comparison.toggled(run.run_id)
        if toggled == self.comparison:
            self.shell.say(f"{MOST_CURVES} curves are shown, and more cannot be told apart; hide one first.", "warning")
        self.comparison = toggled

    def do_leave_out(self) -> None:
        run = self.run_in_question
        if run is not None and len(self.comparison.run_ids) > 1:
            self.comparison = self.comparison.without(run.run_id)

    def do_order(self) -> None:
        params = next((tuple(each.params) for each in self._shown), ())
        self.comparison = self.comparison.sorted_next(params)

    def do_reverse(self) -> None:
        self.comparison = replace(self.comparison, is_reversed=not self.comparison.is_reversed)

    def do_params(self) -> None:
        """All that the runs differ in, however narrow the table is."""
        texts = param_texts(self.snapshot.runs, self.comparison)
        self.app.push_screen(SheetScreen("What the runs differ in", texts))

    def do_group(self) -> None:
        found = group_next(self.comparison, self.snapshot.runs)
        if found.group is None and self.comparison.group is None:
            self.shell.say("These runs were launched with the same parameters.")
        self.comparison = found

    def do_metric_next(self) -> None:
        self._turn_metric(1)

    def do_metric_previous(self) -> None:
        self._turn_metric(-1)

    def _turn_metric(self, by: int) -> None:
        if self._names:
            metric = self.comparison.metric
            place = self._names.index(metric) if metric in self._names else -by
            self._choose(self._names[(place + by) % len(self._names)])

    def _choose(self, metric: str) -> None:
        self.comparison = replace(self.comparison, metric=metric)
        self.cursor = None

    # --- the mouse

    def wheel(self, pane: Widget | None, by: int) -> None:
        """Over the chart it zooms, over the table it moves the cursor."""
        if pane is self.chart:
            (self.do_zoom_out if by > 0 else self.do_zoom_in)()
        elif pane is self.runs:
            self._move(by)
        self.changed()

    def on_click(self, event: events.Click) -> None:
        """A click in the table chooses a run, a second one opens it; one in the chart puts the crosshair there."""
        if event.widget is self.runs:
            run_id = run_at(self._groups, self.comparison, self.runs.size.height, event.y)
            if run_id is None:
                return
            self.comparison = replace(self.comparison, cursor=run_id)
            if event.chain == 2:
                self.shell.perform("compare_open")
        elif event.widget is self.chart:
            self.point_at_column(event.x - GUTTER - 2)
        self.changed()

    # --- choosing a metric by its name

    def do_metric_find(self) -> None:
        self.edit = LineEdit()

    def on_key(self, event: events.Key) -> None:
        """While a name is typed, keys are text; Enter takes the first metric that matches."""
        edit = self.edit
        if edit is None:
            return
        if event.key == "enter":
            found = filter_names(self._names, edit.text)
            self.edit = None
            if found.names and edit.text:
                self._choose(found.names[0])
        elif event.key == "escape":
            self.edit = None
        elif (pressed := edit.press(event.key)) is not None:
            self.edit = pressed
        elif event.character is not None and event.is_printable:
            self.edit = edit.insert(event.character)
        else:
            return
        event.stop()
        event.prevent_default()
        self.changed()

    def on_paste(self, event: events.Paste) -> None:
        if self.edit is not None:
            self.edit = self.edit.insert(event.text)
            event.stop()
            self.changed()
