"""The compare page: one metric of several runs over each other, and the table of what they differ in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType

from gputui.charts.cells import cell_width
from gputui.charts.envelope import Bin
from gputui.charts.viewport import Extent, Viewport, stepped
from gputui.curves.model import ChartData, ChartRequest
from gputui.curves.names import filter_names
from gputui.store.views import RunView
from gputui.tui.actions import Scope
from gputui.tui.chart_settings import ChartSettings
from gputui.tui.comparing import ComparedRun, Comparison, compare, group_next, in_order, metric_names
from gputui.tui.editing import LineEdit
from gputui.tui.reading import Interest
from gputui.tui.render.charts import GUTTER, extent_of
from gputui.tui.render.columns import fit_line
from gputui.tui.render.compare import CompareLook, compare_head, overlay_lines, table_lines
from gputui.tui.render.moments import right_end
from gputui.tui.screens.base import ActionScreen, bindings_for
from gputui.tui.snapshot import RunRow
from gputui.tui.widgets.pane import Pane
from gputui.tui.widgets.slow_pane import SlowPane

LEAST_TABLE_ROWS = 4
_USUAL = "loss"


class CompareScreen(ActionScreen):
    """Runs beside each other. There is one cursor: it stands on a run of the table, whose curve lies on top."""

    SCOPE: ClassVar[Scope] = "compare"
    BINDINGS: ClassVar[list[BindingType]] = bindings_for("compare")

    def __init__(self, run_ids: Sequence[str], settings: ChartSettings | None = None) -> None:
        super().__init__()
        self.head = Pane(id="head")
        self.chart = SlowPane(id="charts")
        self.runs = Pane(id="runs")
        self.comparison = Comparison(tuple(run_ids))
        self.settings = settings or ChartSettings()
        self.viewport = Viewport()
        self.cursor: float | None = None
        self.edit: LineEdit | None = None
        self._shown: Sequence[ComparedRun] = ()
        self._names: tuple[str, ...] = ()
        self._columns = 80

    def compose(self) -> ComposeResult:
        self.paint()
        yield self.head
        yield self.notice
        yield self.chart
        yield self.runs
        yield self.message
        yield self.footer

    def on_mount(self) -> None:
        self._look()

    def on_unmount(self) -> None:
        feed = self.gputui.feed
        if feed.interest.compared == self.comparison.run_ids:
            feed.look_at(Interest(alerts=feed.interest.alerts))

    def _look(self) -> None:
        """Tell the feed what is looked at here, unless something else lies above."""
        if not self.is_current:
            return
        names = tuple(dict.fromkeys([self.comparison.metric or _USUAL]))
        extent = self._extent
        window = self.viewport.window(extent) if self.viewport.span is not None and extent is not None else None
        self.gputui.feed.look_at(
            Interest(
                alerts=self.gputui.feed.interest.alerts,
                compared=self.comparison.run_ids,
                charts=ChartRequest(
                    names, self.settings.axis, window, 2 * max(64, self._columns), self.settings.smoothing
                ),
            )
        )

    # --- what is known

    @property
    def _data(self) -> Mapping[str, ChartData]:
        """The answers that lie on the axis that was chosen; those to a new one take a moment."""
        compared = self.snapshot.compared
        return {
            run_id: compared[run_id]
            for run_id in self.comparison.run_ids
            if run_id in compared and compared[run_id].frame.axis == self.settings.axis
        }

    @property
    def _rows(self) -> Sequence[RunRow]:
        return self.snapshot.runs

    @property
    def _extent(self) -> Extent | None:
        """The x axis of all runs together."""
        extents = [extent for each in self._data.values() if (extent := extent_of(each)) is not None]
        if not extents:
            return None
        return Extent(
            min(extent.first for extent in extents),
            max(extent.newest for extent in extents),
            extents[0].resolution,
        )

    @property
    def run_in_question(self) -> RunView | None:
        place = self.comparison.cursor
        return self._shown[place].row.run if place < len(self._shown) else None

    # --- drawing

    def draw(self, width: int, height: int) -> None:
        body = max(0, height - 1 - self.draw_frame(width))
        self._columns = max(20, width - GUTTER - 2)
        data = self._data
        self._names = metric_names(data) or self._names
        if self.comparison.metric is None and self._names:
            self.comparison = replace(self.comparison, metric=self._names[0])
        groups = compare(self._rows, data, self.comparison, self.snapshot.at)
        self._shown = in_order(groups)
        extent = self._extent
        window = None if extent is None else self.viewport.window(extent)
        look = CompareLook(
            self.settings.axis, window, self.cursor, self.settings.smoothing,
            (self.comparison.metric or "") in self.settings.logs,
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
        if self.is_mounted:
            self._look()

    # --- keys

    def _move(self, by: int) -> None:
        last = max(0, len(self._shown) - 1)
        self.comparison = replace(self.comparison, cursor=min(max(self.comparison.cursor + by, 0), last))

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
            self.gputui.open_run(run.run_id)

    def do_compare_back(self) -> None:
        if self.cursor is not None:
            self.cursor = None
        else:
            self.gputui.pop_screen()

    def do_hide(self) -> None:
        run = self.run_in_question
        if run is not None:
            self.comparison = self.comparison.toggled(run.run_id)

    def do_leave_out(self) -> None:
        run = self.run_in_question
        if run is not None and len(self.comparison.run_ids) > 1:
            self.comparison = self.comparison.without(run.run_id)

    def do_order(self) -> None:
        self._keep_cursor(self.comparison.sorted_next())

    def do_reverse(self) -> None:
        self._keep_cursor(replace(self.comparison, is_reversed=not self.comparison.is_reversed))

    def do_group(self) -> None:
        found = group_next(self.comparison, self._rows)
        if found.group is None and self.comparison.group is None:
            self.gputui.say("These runs were launched with the same parameters.")
        self._keep_cursor(found)

    def _keep_cursor(self, comparison: Comparison) -> None:
        """Another order; the cursor stays on its run."""
        run = self.run_in_question
        shown = in_order(compare(self._rows, self._data, comparison, self.snapshot.at))
        ids = [each.row.run.run_id for each in shown]
        place = ids.index(run.run_id) if run is not None and run.run_id in ids else 0
        self.comparison = replace(comparison, cursor=place)

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

    def do_smoothing_next(self) -> None:
        self.settings = self.settings.with_smoothing(1)

    def do_smoothing_previous(self) -> None:
        self.settings = self.settings.with_smoothing(-1)

    def do_log_axis(self) -> None:
        if self.comparison.metric is not None:
            self.settings = self.settings.with_log(self.comparison.metric)

    def do_x_axis(self) -> None:
        """The next axis; the window and the crosshair belong to the old one."""
        self.settings = self.settings.with_next_axis()
        if self.settings.axis == "epoch" and "epoch" not in self._names:
            self.settings = self.settings.with_next_axis()
        self.viewport, self.cursor = Viewport(), None

    def do_zoom_in(self) -> None:
        if (extent := self._extent) is not None:
            self.viewport = self.viewport.zoomed_in(extent, self.cursor)

    def do_zoom_out(self) -> None:
        if (extent := self._extent) is not None:
            self.viewport = self.viewport.zoomed_out(extent, self.cursor)

    def do_zoom_all(self) -> None:
        self.viewport = Viewport()

    def do_pan_left(self) -> None:
        self._pan(-1)

    def do_pan_right(self) -> None:
        self._pan(1)

    def _pan(self, by: int) -> None:
        if (extent := self._extent) is not None:
            self.viewport = self.viewport.panned(extent, by)

    def do_cursor_left(self) -> None:
        self._move_crosshair(-1)

    def do_cursor_right(self) -> None:
        self._move_crosshair(1)

    def _move_crosshair(self, by: int) -> None:
        """To the next place where the run under the table's cursor was measured, at least a column further."""
        extent = self._extent
        if extent is None:
            return
        start, end = self.viewport.window(extent)
        if self.cursor is None:
            self.cursor = min(extent.newest, end) if by < 0 else max(extent.first, start)
            return
        least = (end - start) / self._columns
        bins = self._current_bins()
        moved = stepped(bins, self.cursor, by, least) if bins else self.cursor + by * least
        self.cursor = min(max(moved, max(extent.first, start)), min(extent.newest, end))

    def _current_bins(self) -> Sequence[Bin]:
        run = self.run_in_question
        data = self._data.get(run.run_id) if run is not None else None
        curve = data.curves.get(self.comparison.metric or "") if data is not None else None
        return curve.bins if curve is not None else ()

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
        self.paint()

    def on_paste(self, event: events.Paste) -> None:
        if self.edit is not None:
            self.edit = self.edit.insert(event.text)
            event.stop()
            self.paint()
