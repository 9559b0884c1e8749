"""How the charts of a page are looked at, and the actions that change it: axes, window, smoothing, crosshair."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gputui.charts.envelope import Bin
from gputui.charts.viewport import Extent, Viewport, stepped
from gputui.tui.layout.chart_settings import ChartSettings


class ChartController:
    """Holds the settings, the window (``viewport``) and the crosshair (``cursor``, a place on the x axis), and carries
    out the actions on them. ``set_up`` is called with settings that an action has changed.

    A page's own controller gives what is known of its curves.
    """

    columns = 80
    """Cells across the chart in focus."""

    def __init__(self, settings: ChartSettings, set_up: Callable[[ChartSettings], object]) -> None:
        self.settings = settings
        self._set_up = set_up
        self.viewport = Viewport()
        self.cursor: float | None = None

    # --- what a page knows

    @property
    def extent(self) -> Extent | None:
        """The whole x axis; None while nothing lies on the axis that was chosen: the answer to a new one takes a
        moment."""
        raise NotImplementedError

    @property
    def has_epochs(self) -> bool:
        """Whether the metrics tell epochs."""
        raise NotImplementedError

    @property
    def focused_key(self) -> str | None:
        """The chart that keys act on."""
        raise NotImplementedError

    @property
    def bins(self) -> Sequence[Bin]:
        """The curve along which the crosshair steps."""
        raise NotImplementedError

    # --- the crosshair

    def move_cursor(self, by: int) -> None:
        """To the next place where something was measured, at least a column further."""
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

    def point_at(self, x: float) -> None:
        """Put the crosshair at a place of the axis."""
        raise NotImplementedError

    def point_at_column(self, column: int, columns: int) -> None:
        """Put the crosshair into one of so many columns of a chart."""
        extent = self.extent
        if extent is not None and 0 <= column < columns:
            self.point_at(extent.between(self.viewport.window(extent), (column + 0.5) / columns))

    def zoom(self, by: int) -> None:
        """Closer with 1, further away with -1; around the crosshair where there is one."""
        if (extent := self.extent) is not None:
            move = self.viewport.zoomed_in if by > 0 else self.viewport.zoomed_out
            self.viewport = move(extent, self.cursor)

    # --- actions

    def change(self, settings: ChartSettings) -> None:
        """Show the charts by other settings."""
        self.settings = settings
        self._set_up(settings)

    def do_smoothing_next(self) -> None:
        self.change(self.settings.with_smoothing(1))

    def do_smoothing_previous(self) -> None:
        self.change(self.settings.with_smoothing(-1))

    def do_log_axis(self) -> None:
        if (key := self.focused_key) is not None:
            self.change(self.settings.with_log(key))

    def do_x_axis(self) -> None:
        """The next axis that the metrics know; the window and the crosshair belong to the old one."""
        has_epochs = self.has_epochs
        settings = self.settings.with_next_axis()
        if settings.axis == "epoch" and not has_epochs:
            settings = settings.with_next_axis()
        self.viewport, self.cursor = Viewport(), None
        self.change(settings)

    def do_log_x_axis(self) -> None:
        """A logarithmic x axis, or a linear one; the window belongs to the old one, the crosshair stays."""
        self.viewport = Viewport()
        self.change(self.settings.with_log_x())
        if self.cursor is not None:
            self.point_at(self.cursor)

    def do_cursor_left(self) -> None:
        self.move_cursor(-1)

    def do_cursor_right(self) -> None:
        self.move_cursor(1)

    def do_pan_left(self) -> None:
        self._pan(-1)

    def do_pan_right(self) -> None:
        self._pan(1)

    def _pan(self, by: int) -> None:
        if (extent := self.extent) is not None:
            self.viewport = self.viewport.panned(extent, by)

    def do_zoom_in(self) -> None:
        self.zoom(1)

    def do_zoom_out(self) -> None:
        self.zoom(-1)

    def do_zoom_all(self) -> None:
        self.viewport = Viewport()
