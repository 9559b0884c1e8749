"""The charts of a run's page: their actions, and the request to the feed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partialmethod
from pathlib import Path

from msgspec.structs import replace

from gputui.metrics.curves.model import Axis, ChartData, ChartRequest, Frame, HardwareField
from gputui.metrics.draw.envelope import Bin
from gputui.metrics.draw.parts import Line
from gputui.metrics.draw.viewport import Extent, Viewport
from gputui.store.hardware import GpuView
from gputui.ui.tui.data.snapshot import RunPage
from gputui.ui.tui.layout.chart_settings import ChartSettings
from gputui.ui.tui.layout.charts import GUTTER, ChartLook, extent_of, grid_lines, is_by_rank, next_marker, plot_columns
from gputui.ui.tui.layout.columns import fit_line
from gputui.ui.tui.layout.panels import USUAL, Panel, PanelPlace, Panels, panels, places
from gputui.ui.tui.pages.run.chart_files import ChartFile, chart_file
from gputui.ui.tui.pages.run.charts_head import chart_head, filter_head
from gputui.ui.tui.widgets.chart_controller import ChartController
from gputui.ui.tui.widgets.line_edit import LineEdit
from gputui.ui.tui.widgets.pane import SlowPane

AT_CROSSHAIR: tuple[HardwareField, ...] = ("utilization", "power", "temperature")
"""Fields read while there is a crosshair, shown by a chart or not."""

_BINS_STEP = 128


class RunCharts(ChartController):
    """The state and the pane of a run's charts. ``request`` is what they need from the feed."""

    def __init__(self, settings: ChartSettings, set_up: Callable[[ChartSettings], object]) -> None:
        super().__init__(settings, set_up)
        self.pane = SlowPane(id="charts")
        self.edit: LineEdit | None = None
        self.is_maximised = False
        self.request = ChartRequest(names=USUAL, axis=settings.axis, smoothing=settings.smoothing,
                                    hardware=("utilization",))  # fmt: skip
        # The first chart until another one is chosen: that of the loss may come later than those of the hardware.
        self._focus: str | None = None
        self._is_focus_chosen = False
        self._data: ChartData | None = None
        self._look: ChartLook | None = None
        self._panels = Panels((), 0)
        self._visible: Sequence[Panel] = ()
        self._places: Sequence[PanelPlace] = ()
        self._window = (0.0, 1.0)
        self._unused_lines = 0
        self._has_step = True
        self._is_over = False

    # --- drawing

    def prepare(self, width: int) -> None:
        """Request as many bins as fit into this width, before anything is known of the run."""
        self.request = replace(self.request, bins=_bins_for(width))

    def draw(self, page: RunPage, gpus: Sequence[GpuView], width: int, height: int, *, is_focused: bool) -> None:
        """Draw the known data, and update the request."""
        self._unused_lines = page.intake.rejected if page.intake is not None else 0
        self._is_over = page.run.state.is_over
        self._note_steps(page)
        data = self._data = page.charts or ChartData(self.request, Frame(self.request.axis))
        has_gpus = bool(page.run.gpus)
        self._panels = panels(data.names or page.metric_names, self.settings, has_gpus=has_gpus)
        self._choose_visible(width, height - 1)
        self.request = self._wanted(width, has_gpus=has_gpus)
        look = ChartLook(
            self.settings,
            self._window,
            self.cursor if self._is_on_axis else None,
            self._focus if is_focused and len(self._visible) > 1 else None,
            {gpu.uuid: gpu.index for gpu in gpus},
            frozenset(number for number, rank in page.progress.ranks.items() if rank.is_slow),
        )
        self._look = look
        shown = {panel.key for panel in self._visible}
        looked_at = (look.settings, look.window, look.cursor, look.focus, look.slow_ranks, self.edit, self._visible)
        self.pane.show_when(
            (width, height, page.run.gpus, looked_at, data.request, self._is_over),
            (
                self._unused_lines,
                data.markers,
                data.hardware,
                *(data.curves[name] for name in data.curves if name in shown),
                *data.ranked.values(),
            ),
            lambda: self._lines(data, look, width, height),
            height=height,
        )

    def _note_steps(self, page: RunPage) -> None:
        """Learn whether there are metrics of a step; the first changes the axis, so that the window starts over."""
        charts, former = page.charts, self._axis
        if page.metric_names and (page.progress.step or any(attempt.last_step for attempt in page.attempts)):
            self._has_step = True
        elif charts is None:
            self._has_step = page.run.state.is_over
        elif charts.frame.axis in ("step", "epoch"):
            self._has_step = bool(charts.frame.end)
        if self._axis != former:
            self.viewport, self.cursor = Viewport(), None

    def _choose_visible(self, width: int, height: int) -> None:
        """Choose the screenful of charts that holds the focused one."""
        shown = self._panels.shown
        keys = [panel.key for panel in shown]
        if self._focus not in keys or not self._is_focus_chosen:
            self._focus = keys[0] if keys else None
        at = keys.index(self._focus) if self._focus is not None else 0
        layout = "one" if self.is_maximised else self.settings.layout
        at_once = max(1, len(places(len(shown), width, height, layout)))
        if layout == "one":
            at_once = 1
        elif layout == "two":
            at_once = min(2, at_once)
        first = at // at_once * at_once
        self._places = places(min(at_once, len(shown) - first), width, height, layout)
        self._visible = shown[first : first + len(self._places)]
        place = next(
            (place for panel, place in zip(self._visible, self._places, strict=True) if panel.key == self._focus), None
        )
        self.columns = max(8, plot_columns(place.width, place.height) if place else 72)
        extent = self._extent
        viewport = self.viewport if self._is_on_axis else Viewport()
        self._window = (0.0, 1.0) if extent is None else viewport.window(extent)

    def _wanted(self, width: int, *, has_gpus: bool) -> ChartRequest:
        extent = self._extent
        window = None
        if self.viewport.span is not None and extent is not None and self._is_on_axis:
            window = self.viewport.window(extent)
        fields = [panel.field for panel in self._visible if panel.field is not None]
        if self.cursor is not None and has_gpus:
            fields += [field for field in AT_CROSSHAIR if field not in fields]
        return ChartRequest(
            # Until the run's own names are known, the usual ones are requested.
            names=tuple(panel.key for panel in self._visible if panel.field is None) if self._panels.shown else USUAL,
            axis=self._axis,
            window=window,
            bins=_bins_for(width),
            smoothing=self.settings.smoothing,
            hardware=tuple(fields),
            is_log=self.settings.is_log_x,
            ranked=tuple(panel.key for panel in self._visible if is_by_rank(panel, self._data, self.settings)),
        )

    def _lines(self, data: ChartData, look: ChartLook, width: int, height: int) -> list[Line]:
        if self.edit is not None:
            head = filter_head(self.edit, self._panels, width)
        else:
            head = chart_head(
                data, self._panels, look, self._visible, width, unused_lines=self._unused_lines, is_over=self._is_over
            )
        if not self._visible:
            text = "No metric matches the filter; esc clears it." if self.settings.filter_text else "No metric yet."
            return [head, fit_line([("  " + text, "dim")], width)][:height]
        return [head, *grid_lines(self._visible, self._places, data, look, width, height - 1)]

    # --- what is there

    @property
    def _axis(self) -> Axis:
        """The chosen axis; before the first step, time instead of steps and epochs, on which nothing has a place."""
        is_too_early = not self._has_step and self.settings.axis in ("step", "epoch")
        return "time" if is_too_early else self.settings.axis

    @property
    def _is_on_axis(self) -> bool:
        """Whether the data lie on the axis; after a change, the answer takes a moment."""
        return self._data is not None and self._data.frame.axis == self._axis

    @property
    def extent(self) -> Extent | None:
        return self._extent if self._is_on_axis else None

    @property
    def has_epochs(self) -> bool:
        return self._data is None or "epoch" in self._data.names

    @property
    def focused_key(self) -> str | None:
        return None if self.focus is None else self.focus.key

    @property
    def _extent(self) -> Extent | None:
        return None if self._data is None else extent_of(self._data, is_log=self.settings.is_log_x)

    @property
    def focus(self) -> Panel | None:
        """The focused chart."""
        return next((panel for panel in self._panels.shown if panel.key == self._focus), None)

    def why_not_by_rank(self, ranks: int) -> str | None:
        """Why the focused chart cannot be drawn by rank; None if it can."""
        panel = self.focus
        if panel is None or self._data is None:
            return "There is no chart yet."
        if panel.field is not None:
            return "Charts of the hardware show each GPU already."
        if ranks < 2:
            return "This run has one rank, and its curve is what you see."
        if panel.key not in self._data.rank_names:
            names = [name for name in self._data.names if name in self._data.rank_names]
            ranked = ", ".join(names[:4]) or "nothing of their own"
            return f"Only one rank reports {panel.title}; several report {ranked}."
        return None

    @property
    def head_text(self) -> str:
        """The line above the charts, for copying: the values at the crosshair."""
        return self.pane.text.partition("\n")[0].strip()

    # --- the crosshair

    def point_at(self, x: float) -> None:
        """Move the crosshair to ``x``, and the window if ``x`` lies outside."""
        extent = self.extent
        if extent is None:
            return
        self.cursor = min(max(x, extent.first), extent.newest)
        self.viewport = self.viewport.holding(extent, self.cursor)

    @property
    def cursor_at(self) -> float | None:
        """The moment under the crosshair, in UTC unix seconds."""
        if self.cursor is None or self._data is None or not self._is_on_axis:
            return None
        return self._data.frame.moment_at(self.cursor)

    def _move_to_marker(self, by: int) -> None:
        """Move the crosshair to the next marker, or the previous one with -1."""
        if self._data is not None and self._is_on_axis:
            found = next_marker(self._data.markers, self.cursor, by)
            if found is not None:
                self.point_at(found.x)

    do_marker_previous = partialmethod(_move_to_marker, -1)
    do_marker_next = partialmethod(_move_to_marker, 1)

    def move_to_end(self, *, of_data: bool) -> None:
        """Remove the crosshair and follow the newest values; or, if not ``of_data``, move it to the first place."""
        extent = self.extent
        if of_data or extent is None:
            self.cursor = None
            self.viewport = replace(self.viewport, end=None)
        else:
            self.point_at(extent.first)

    @property
    def bins(self) -> Sequence[Bin]:
        """The curve of the focused chart, or if that has none, the first curve."""
        if self._data is None:
            return ()
        curve = self._data.curves.get(self._focus or "")
        if curve is not None and curve.bins:
            return curve.bins
        return next((each.bins for each in self._data.curves.values() if each.bins), ())

    # --- the settings

    def do_layout(self) -> None:
        self.change(self.settings.with_next_layout())

    def do_pin(self) -> None:
        if (key := self.focused_key) is not None:
            self.change(self.settings.with_pin(key))

    def move_focus(self, by: int) -> None:
        keys = [panel.key for panel in self._panels.shown]
        if keys and self._focus in keys:
            self._is_focus_chosen = True
            self._focus = keys[min(max(keys.index(self._focus) + by, 0), len(keys) - 1)]

    def turn_page(self, by: int) -> None:
        self.move_focus(by * max(1, len(self._places)))

    def filter_to(self, edit: LineEdit | None, text: str) -> None:
        self.edit = edit
        self.change(replace(self.settings, filter_text=text))

    def file(self, folder: Path, run_id: str) -> ChartFile | None:
        """The focused chart, to be written; None if there is none."""
        panel = self.focus
        if panel is None or self._data is None or self._look is None:
            return None
        return chart_file(folder, run_id, panel, self._data, self._look)

    def click(self, x: int, y: int) -> None:
        """Focus the clicked chart, and move the crosshair there."""
        for panel, place in zip(self._visible, self._places, strict=False):
            column = x - place.left - GUTTER - 2
            if 0 <= y - 1 - place.top < place.height and 0 <= x - place.left < place.width:
                self._focus, self._is_focus_chosen = panel.key, True
                self.point_at_column(column, plot_columns(place.width, place.height))


def _bins_for(width: int) -> int:
    """Two bins per column, in steps, so that a terminal that is being resized does not request with every cell."""
    return -(-2 * width // _BINS_STEP) * _BINS_STEP
