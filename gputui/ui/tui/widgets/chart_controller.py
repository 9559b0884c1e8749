"""The state of a page's charts and the actions on it: axes, window, smoothing, crosshair."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partialmethod

from msgspec.structs import replace

from gputui.metrics.curves.model import AXES
from gputui.metrics.draw.envelope import Bin
from gputui.metrics.draw.viewport import Extent, Viewport, stepped
from gputui.ui.tui.layout.chart_settings import SMOOTHINGS, ChartSettings, after


class ChartController:
    """Holds the settings, the window (``viewport``) and the crosshair (``cursor``, an x), and carries out actions on
    them. ``set_up`` is called with changed settings. The page sets the other attributes when it draws its charts.

    Attributes:
        columns: the width of the focused chart, in cells.
        extent: the whole x axis; None while there are no data for the chosen axis.
        has_epochs: whether the metrics include epochs.
        focused_key: the focused chart.
        bins: the curve that the crosshair steps along.
    """

    def __init__(self, settings: ChartSettings, set_up: Callable[[ChartSettings], object]) -> None:
        self.settings = settings
        self._set_up = set_up
        self.viewport = Viewport()
        self.cursor: float | None = None
        self.columns = 80
        self.extent: Extent | None = None
        self.has_epochs = False
        self.focused_key: str | None = None
        self.bins: Sequence[Bin] = ()

    # --- the crosshair

    def move_cursor(self, by: int) -> None:
        """Move the crosshair to the next measured place, at least one column further."""
        extent = self.extent
        if extent is None:
            return
        start, end = self.viewport.window(extent)
        if self.cursor is None:
            self.cursor = min(extent.newest, end) if by < 0 else max(extent.first, start)
            return
        beside = extent.beside(self.cursor, (start, end), by / self.columns)
        bins = self.bins
        self.point_at(stepped(bins, self.cursor, by, abs(beside - self.cursor)) if bins else beside)

    do_cursor_left = partialmethod(move_cursor, -1)
    do_cursor_right = partialmethod(move_cursor, 1)

    def point_at(self, x: float) -> None:
        """Move the crosshair to ``x``, and the window if ``x`` lies outside."""
        if (extent := self.extent) is not None:
            self.cursor = min(max(x, extent.first), extent.newest)
            self.viewport = self.viewport.holding(extent, self.cursor)

    def point_at_column(self, column: int, columns: int) -> None:
        """Move the crosshair to a column of a chart of ``columns``."""
        extent = self.extent
        if extent is not None and 0 <= column < columns:
            self.point_at(extent.between(self.viewport.window(extent), (column + 0.5) / columns))

    def zoom(self, by: int) -> None:
        """Zoom in with 1, out with -1, around the crosshair if there is one."""
        if (extent := self.extent) is not None:
            move = self.viewport.zoomed_in if by > 0 else self.viewport.zoomed_out
            self.viewport = move(extent, self.cursor)

    do_zoom_in = partialmethod(zoom, 1)
    do_zoom_out = partialmethod(zoom, -1)

    # --- actions

    def change(self, settings: ChartSettings) -> None:
        self.settings = settings
        self._set_up(settings)

    def _smooth(self, by: int) -> None:
        self.change(replace(self.settings, smoothing=after(SMOOTHINGS, self.settings.smoothing, by)))

    do_smoothing_next = partialmethod(_smooth, 1)
    do_smoothing_previous = partialmethod(_smooth, -1)

    def do_log_axis(self) -> None:
        if (key := self.focused_key) is not None:
            self.change(replace(self.settings, logs=self.settings.logs ^ {key}))

    def do_x_axis(self) -> None:
        """Choose the next axis that the metrics have, and reset window and crosshair."""
        axes = [axis for axis in AXES if axis != "epoch" or self.has_epochs]
        self.viewport, self.cursor = Viewport(), None
        self.change(replace(self.settings, axis=after(axes, self.settings.axis)))

    def do_log_x_axis(self) -> None:
        """Toggle the logarithmic x axis, and reset window and crosshair."""
        self.viewport, self.cursor = Viewport(), None
        self.change(replace(self.settings, is_log_x=not self.settings.is_log_x))

    def _pan(self, by: int) -> None:
        if (extent := self.extent) is not None:
            self.viewport = self.viewport.panned(extent, by)

    do_pan_left = partialmethod(_pan, -1)
    do_pan_right = partialmethod(_pan, 1)

    def do_zoom_all(self) -> None:
        self.viewport = Viewport()
