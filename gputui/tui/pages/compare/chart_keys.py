"""What keys do to the chart of the compare page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gputui.charts.envelope import Bin
from gputui.charts.viewport import Extent, Viewport, stepped
from gputui.curves.model import ChartData
from gputui.tui.layout.chart_settings import ChartSettings
from gputui.tui.layout.charts import extent_of
from gputui.tui.pages.compare.comparison import Comparison
from gputui.tui.widgets.page import ActionScreen


class CompareChartKeys(ActionScreen):
    """The comparison as far as keys change its chart: axes, window, smoothing and the crosshair."""

    def __init__(self, comparison: Comparison, settings: ChartSettings) -> None:
        super().__init__()
        self.comparison = comparison
        self.settings = settings
        self.viewport = Viewport()
        self.cursor: float | None = None
        self._names: tuple[str, ...] = ()
        self._columns = 80

    @property
    def data(self) -> Mapping[str, ChartData]:
        """The answers that lie on the axis that was chosen; those to a new one take a moment."""
        compared = self.snapshot.compared
        return {
            run_id: compared[run_id]
            for run_id in self.comparison.run_ids
            if run_id in compared and compared[run_id].frame.axis == self.settings.axis
        }

    @property
    def extent(self) -> Extent | None:
        """The x axis of all runs together."""
        extents = [extent for each in self.data.values() if (extent := extent_of(each)) is not None]
        if not extents:
            return None
        whole = Extent(
            min(extent.first for extent in extents),
            max(extent.newest for extent in extents),
            extents[0].resolution,
        )
        return whole.logarithmic() if self.settings.is_log_x else whole

    # --- keys

    def do_smoothing_next(self) -> None:
        self.settings = self.settings.with_smoothing(1)

    def do_smoothing_previous(self) -> None:
        self.settings = self.settings.with_smoothing(-1)

    def do_log_axis(self) -> None:
        if self.comparison.metric is not None:
            self.settings = self.settings.with_log(self.comparison.metric)

    def do_log_x_axis(self) -> None:
        """Another scale of the axis; the window belongs to the old one, the crosshair stays."""
        self.settings = self.settings.with_log_x()
        self.viewport = Viewport()
        if self.cursor is not None and (extent := self.extent) is not None:
            self.cursor = min(max(self.cursor, extent.first), extent.newest)

    def do_x_axis(self) -> None:
        """The next axis; the window and the crosshair belong to the old one."""
        self.settings = self.settings.with_next_axis()
        if self.settings.axis == "epoch" and "epoch" not in self._names:
            self.settings = self.settings.with_next_axis()
        self.viewport, self.cursor = Viewport(), None

    def do_zoom_in(self) -> None:
        if (extent := self.extent) is not None:
            self.viewport = self.viewport.zoomed_in(extent, self.cursor)

    def do_zoom_out(self) -> None:
        if (extent := self.extent) is not None:
            self.viewport = self.viewport.zoomed_out(extent, self.cursor)

    def do_zoom_all(self) -> None:
        self.viewport = Viewport()

    def do_pan_left(self) -> None:
        self._pan(-1)

    def do_pan_right(self) -> None:
        self._pan(1)

    def _pan(self, by: int) -> None:
        if (extent := self.extent) is not None:
            self.viewport = self.viewport.panned(extent, by)

    def do_cursor_left(self) -> None:
        self._move_crosshair(-1)

    def do_cursor_right(self) -> None:
        self._move_crosshair(1)

    def _move_crosshair(self, by: int) -> None:
        """To the next place where the run under the table's cursor was measured, at least a column further."""
        extent = self.extent
        if extent is None:
            return
        start, end = self.viewport.window(extent)
        if self.cursor is None:
            self.cursor = min(extent.newest, end) if by < 0 else max(extent.first, start)
            return
        beside = extent.beside(self.cursor, (start, end), by / self._columns)
        bins = self._current_bins()
        moved = stepped(bins, self.cursor, by, abs(beside - self.cursor)) if bins else beside
        self.cursor = min(max(moved, max(extent.first, start)), min(extent.newest, end))

    def point_at_column(self, column: int) -> None:
        """Put the crosshair into a column of the chart."""
        extent = self.extent
        if extent is not None and 0 <= column < self._columns:
            x = extent.between(self.viewport.window(extent), (column + 0.5) / self._columns)
            self.cursor = min(max(x, extent.first), extent.newest)

    def _current_bins(self) -> Sequence[Bin]:
        run = self.run_in_question
        data = self.data.get(run.run_id) if run is not None else None
        curve = data.curves.get(self.comparison.metric or "") if data is not None else None
        return curve.bins if curve is not None else ()
