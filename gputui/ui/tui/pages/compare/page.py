"""The page that compares runs: charts with a curve per run, and a table of differences."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partialmethod
from typing import ClassVar

from msgspec.structs import replace
from textual import events
from textual.app import ComposeResult
from textual.message import Message
from textual.widget import Widget

from gputui.core.text import cell_width
from gputui.metrics.curves.model import ChartData, ChartRequest
from gputui.metrics.curves.names import filter_names
from gputui.metrics.draw.parts import Line
from gputui.metrics.draw.viewport import Extent, Viewport
from gputui.store.runs import Run
from gputui.ui.tui.actions import Scope
from gputui.ui.tui.data.snapshot import Interest
from gputui.ui.tui.dialogs.sheet import DiffScreen, SheetScreen
from gputui.ui.tui.layout.chart_settings import SMOOTHINGS, ChartSettings
from gputui.ui.tui.layout.charts import GUTTER, extent_of
from gputui.ui.tui.layout.columns import fit_line, framed, is_boxed, rule
from gputui.ui.tui.layout.moments import right_end
from gputui.ui.tui.layout.run_words import run_colour
from gputui.ui.tui.pages.compare.comparison import (
    MOST_CURVES,
    ComparedRun,
    Comparison,
    compare,
    metric_names,
    param_texts,
)
from gputui.ui.tui.pages.compare.view import (
    HEAD_LINES,
    CompareLook,
    cell_columns,
    compare_head,
    first_shown,
    grid_lines,
    grid_size,
    table_items,
    table_lines,
)
from gputui.ui.tui.widgets.chart_controller import ChartController
from gputui.ui.tui.widgets.line_edit import LineEdit
from gputui.ui.tui.widgets.list_page import ListPage
from gputui.ui.tui.widgets.pane import Pane, SlowPane

LEAST_TABLE_ROWS = 4
_USUAL = "loss"


@dataclass
class CodeCompared(Message):
    """The code of two runs was compared."""

    texts: tuple[str, ...]


class CompareCharts(ChartController):
    """The state of the comparison's charts. ``data`` are those of the runs that lie on the chosen axis; after a change,
    the answer takes a moment. ``is_cut``: the x axis ends with the shortest run."""

    def __init__(self, settings: ChartSettings) -> None:
        super().__init__(settings, lambda _: None)
        self.data: Mapping[str, ChartData] = {}
        self.names: tuple[str, ...] = ()
        self.is_cut = False

    def take(self, compared: Mapping[str, ChartData], run_ids: Sequence[str]) -> None:
        """Take the feed's data by run, and compute the common x axis."""
        axis = self.settings.axis
        self.data = {key: compared[key] for key in run_ids if key in compared and compared[key].frame.axis == axis}
        self.names = metric_names(self.data) or self.names
        self.has_epochs = "epoch" in self.names
        extents = [extent for each in self.data.values() if (extent := extent_of(each)) is not None]
        self.extent = None
        if extents:
            newest = (min if self.is_cut else max)(extent.newest for extent in extents)
            whole = Extent(min(extent.first for extent in extents), newest, extents[0].resolution)
            self.extent = whole.logarithmic() if self.settings.is_log_x else whole


class CompareScreen(ListPage):
    """Charts, and a table of runs; the curve of the run under the cursor is on top."""

    SCOPE: ClassVar[Scope] = "compare"

    def __init__(self, run_ids: Sequence[str], settings: ChartSettings | None = None) -> None:
        super().__init__()
        settings = settings or ChartSettings()
        # Several raw curves over each other are illegible.
        self.charts = CompareCharts(replace(settings, smoothing=settings.smoothing or SMOOTHINGS[1]))
        self.parts = (self.charts,)
        self.table = Comparison.of(run_ids)
        self._is_grid = True
        self._has_colours = False
        self._metrics: tuple[str, ...] = ()
        self._grid = (1, 1)
        self.head = Pane(id="head")
        self.chart = SlowPane(id="charts")
        self.runs = Pane(id="runs")
        self._metric_line: LineEdit | None = None
        self._shown: Sequence[ComparedRun] = ()
        self._frame = 0
        self._place = 0

    def compose(self) -> ComposeResult:
        self.paint()
        yield from (self.head, self.notice, self.chart, self.runs, self.message, self.footer)

    def interest(self) -> Interest:
        charts, settings = self.charts, self.charts.settings
        extent, viewport = charts.extent, charts.viewport
        window = viewport.window(extent) if viewport.span is not None and extent is not None else None
        names = self._metrics or (self.table.metric or _USUAL,)
        request = ChartRequest(names, settings.axis, window, 2 * max(64, charts.columns), settings.smoothing,
                               is_log=settings.is_log_x)  # fmt: skip
        return Interest(compared=self.table.run_ids, charts=request)

    def show_runs(self, run_ids: Sequence[str], cursor: str | None) -> None:
        """Move the cursor to a run; if it is not compared yet, compare ``run_ids`` instead."""
        if cursor is not None and cursor not in self.table.run_ids:
            self.table = Comparison.of(run_ids, self.table.metric)
            self._has_colours = False
        if cursor is not None:
            self.table = replace(self.table, cursor=cursor)

    # --- what is known

    @property
    def run_in_question(self) -> Run | None:
        cursor = self.table.cursor
        return next((each.row.run for each in self._shown if each.run_id == cursor), None)

    # --- drawing

    def draw(self, width: int, height: int) -> None:
        body = max(0, height - 1 - self.draw_frame(width))
        charts, settings = self.charts, self.charts.settings
        self._frame = int(is_boxed(width, height))
        inner = width - 2 * self._frame
        self._give_colours()
        charts.take(self.snapshot.compared, self.table.run_ids)
        data, names, extent = charts.data, charts.names, charts.extent
        if self.table.metric is None and names:
            self.table = replace(self.table, metric=names[0])
        self._shown = compare(self.snapshot.runs, data, self.table, self.snapshot.at)
        self.keep_cursor()
        curve = data[self.table.cursor].curves.get(self.table.metric or "") if self.table.cursor in data else None
        charts.focused_key, charts.bins = self.table.metric, () if curve is None else curve.bins
        window = None if extent is None else charts.viewport.window(extent)
        look = CompareLook(self.table, settings, window, charts.cursor, charts.is_cut)
        self._show_head(look, width)
        rows = min(len(table_items(self._shown, self.table.group)) + HEAD_LINES + self._frame, body // 2)
        rows = min(body, max(LEAST_TABLE_ROWS, rows))
        tall = body - rows
        size = (inner, tall - 2 * self._frame)
        self._grid = columns, down = grid_size(*size, len(names)) if self._is_grid else (1, 1)
        charts.columns = cell_columns(inner, columns)[1]
        place = names.index(self.table.metric) if self.table.metric in names else 0
        first = place // (columns * down) * columns * down
        self._metrics = names[first : first + columns * down]
        title = rule("CHARTS", inner, f"{first + 1}–{first + len(self._metrics)} of {len(names)} metrics")
        curves = tuple(curve for each in data.values() for curve in each.curves.values())

        def drawn() -> list[Line]:
            lines = grid_lines(self._shown, data, self._metrics, look, size, columns)
            return framed(title, lines, width, tall) if self._frame else lines

        # The answer to another request is drawn at once.
        answered = tuple(each.request for each in data.values())
        self.chart.show_when(
            (width, tall, look, self._metrics, answered),
            (*curves, *(each.frame for each in data.values())),
            drawn,
            height=tall,
        )
        table = table_lines(self._shown, self.table, inner, rows - self._frame)
        self.runs.show(framed(table[0], table[1:], width, rows) if self._frame else table, height=rows)

    def _show_head(self, look: CompareLook, width: int) -> None:
        """Show the metric being typed, or what is compared."""
        if (line := self._metric_line) is not None:
            found = filter_names(self.charts.names, line.text)
            note = f" {found.problem or ', '.join(found.names[:4]) or 'no metric matches'} "
            spans = [(" metric ", "title"), *line.spans(max(8, width // 3)), (note, "dim")]
            self.head.show([fit_line(spans, width)])
            return
        end = right_end(self.snapshot.at, self.snapshot.past)
        room = width - sum(cell_width(text) for text, _ in end) - 1
        head = self.with_trail(lambda cells: compare_head(look, cells), room)
        self.head.show([[*head, (" ", "text"), *end]])

    def _give_colours(self) -> None:
        """Give each run its own colour, as soon as the runs are known."""
        known = {row.run.run_id: run_colour(row.run) for row in self.snapshot.runs}
        if not self._has_colours and known.keys() & set(self.table.run_ids):
            self._has_colours = True
            drawn = Comparison.of(self.table.run_ids, colours=known).drawn
            self.table = replace(self.table, drawn=drawn)

    # --- keys

    @property
    def row_ids(self) -> list[str]:
        return [each.run_id for each in self._shown]

    def keep_cursor(self) -> None:
        super().keep_cursor()
        ids = self.row_ids
        self._place = ids.index(self.table.cursor) if self.table.cursor in ids else 0

    def replacement(self, ids: Sequence[str]) -> str:
        """The run that took the place of the removed one."""
        return ids[min(self._place, len(ids) - 1)]

    def do_open(self) -> None:
        run = self.run_in_question
        if run is not None:
            self.shell.open_run(run.run_id)

    def do_back(self) -> None:
        if self.charts.cursor is not None:
            self.charts.cursor = None
        else:
            self.app.pop_screen()

    def do_hide(self) -> None:
        run = self.run_in_question
        if run is None:
            return
        toggled = self.table.toggled(run.run_id)
        if toggled == self.table:
            self.shell.say(f"{MOST_CURVES} curves is the limit: there are no more colours; hide one first.", "warning")
        self.table = toggled

    def do_leave_out(self) -> None:
        run = self.run_in_question
        if run is not None and len(self.table.run_ids) > 1:
            self.table = self.table.without(run.run_id)

    def do_sort(self) -> None:
        self.table = self.table.sorted_next(self._params)

    def do_reverse(self) -> None:
        self.table = replace(self.table, is_reversed=not self.table.is_reversed)

    def do_params(self) -> None:
        """Show all parameters in which the runs differ; a narrow table leaves some out."""
        self.app.push_screen(SheetScreen("Parameters that differ", param_texts(self._shown)))

    def do_code(self) -> None:
        """Show how the code of the run under the cursor differs from the first other run's."""
        run = self.run_in_question
        other = next((each for each in self.table.run_ids if run is not None and each != run.run_id), None)
        if run is None or other is None:
            self.shell.say("There is no other run to compare its code with.")
            return
        runs, run_id = self.shell.workspace.runs, run.run_id

        def work() -> None:
            from gputui.runs.code_diff import CodeUnknownError, run_code_diff
            from gputui.runs.spec import SpecError

            try:
                self.post_message(CodeCompared(tuple(run_code_diff(runs, other, run_id))))
            except (CodeUnknownError, SpecError) as error:
                self.shell.tell(str(error), "warning")

        self.shell.say("Comparing the code…")
        threading.Thread(target=work, name="comparing code", daemon=True).start()

    def on_code_compared(self, message: CodeCompared) -> None:
        self.shell.message = ("", "info")
        self.app.push_screen(DiffScreen("Code", message.texts))

    def do_group(self) -> None:
        if not self._params:
            self.shell.say("These runs were launched with the same parameters.")
        self.table = self.table.grouped_next(self._params)

    @property
    def _params(self) -> tuple[str, ...]:
        return next((tuple(each.params) for each in self._shown), ())

    def do_layout(self) -> None:
        self._is_grid = not self._is_grid

    def do_cut(self) -> None:
        """End the x axis with the shortest run, or with the longest again."""
        self.charts.is_cut = not self.charts.is_cut
        self.charts.viewport, self.charts.cursor = Viewport(), None

    def _turn_metric(self, by: int) -> None:
        if names := self.charts.names:
            metric = self.table.metric
            place = names.index(metric) if metric in names else -by
            self._choose(names[(place + by) % len(names)])

    do_metric_next = partialmethod(_turn_metric, 1)
    do_metric_previous = partialmethod(_turn_metric, -1)

    def _choose(self, metric: str) -> None:
        self.table = replace(self.table, metric=metric)
        self.charts.cursor = None

    # --- the mouse

    def wheel(self, pane: Widget | None, by: int) -> None:
        if pane is self.chart:
            self.charts.zoom(-by)
        elif pane is self.runs:
            self.move(by)
            return
        self.changed()

    def on_click(self, event: events.Click) -> None:
        """In the table, move the cursor to the clicked run, and open it on a double click; in a chart, move the
        crosshair."""
        if event.widget is self.runs:
            items = table_items(self._shown, self.table.group)
            room = max(1, self.runs.size.height - HEAD_LINES - self._frame)
            number = first_shown(self._shown, self.table, room) + event.y - HEAD_LINES
            item = items[number] if event.y >= HEAD_LINES and number < len(items) else None
            if not isinstance(item, ComparedRun):
                return
            self.point_at(item.run_id)
            if event.chain == 2:
                self.shell.perform("open")
        elif event.widget is self.chart:
            self._click_chart(event.x, event.y)
        self.changed()

    def _click_chart(self, x: int, y: int) -> None:
        columns, down = self._grid
        cell, _ = cell_columns(self.chart.size.width - 2 * self._frame, columns)
        x, y = x - self._frame, y - self._frame
        across = min(x // (cell + 1), columns - 1)
        number = y * down // max(1, self.chart.size.height - 2 * self._frame) * columns + across
        if 0 <= number < len(self._metrics):
            self.table = replace(self.table, metric=self._metrics[number])
        # The names at the curves' ends mark the newest place.
        column = min(x - across * (cell + 1) - GUTTER - 2, self.charts.columns - 1)
        self.charts.point_at_column(column, self.charts.columns)

    # --- choosing a metric by its name

    def do_metric_find(self) -> None:
        self._metric_line = LineEdit()

    @property
    def line(self) -> LineEdit | None:
        return self._metric_line

    def type_line(self, line: LineEdit | None, text: str) -> None:
        """Take the typed text; Enter chooses the first metric that matches."""
        self._metric_line = line
        if line is None and text and (found := filter_names(self.charts.names, text)).names:
            self._choose(found.names[0])
