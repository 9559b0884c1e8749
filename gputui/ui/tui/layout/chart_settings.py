"""Settings of charts as one immutable value: layout, axes, window, crosshair, pins, filter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from msgspec import Struct
from msgspec.structs import replace

from gputui.metrics.curves.model import Axis
from gputui.metrics.draw.viewport import Viewport
from gputui.ui.tui.settings import Layout, Settings

LAYOUTS: tuple[Layout, ...] = get_args(Layout)
SMOOTHINGS = (0.0, 0.6, 0.8, 0.9, 0.97, 0.99)
"""Weights of the moving average that one key steps through."""


class ChartView(Struct, frozen=True):
    """The settings of a page's charts.

    Attributes:
        logs: charts with a logarithmic value axis.
        by_rank: charts with a curve for each rank.
        is_cut: whether the x axis of several runs ends with the shortest.
        cursor: the x of the crosshair.
        focus: the chosen chart; None for the first.
    """

    layout: Layout = "grid"
    axis: Axis = "step"
    smoothing: float = 0.0
    pins: tuple[str, ...] = ()
    logs: frozenset[str] = frozenset()
    is_log_x: bool = False
    by_rank: frozenset[str] = frozenset()
    filter_text: str = ""
    is_cut: bool = False
    viewport: Viewport = Viewport()
    cursor: float | None = None
    focus: str | None = None

    def rescaled(self, **changes: Any) -> ChartView:
        """The view over another x axis, on which window and crosshair have no place."""
        return replace(self, viewport=Viewport(), cursor=None, **changes)


def from_settings(settings: Settings) -> ChartView:
    """The view of the settings file."""
    return ChartView(settings.chart_layout, settings.chart_axis, settings.chart_smoothing, settings.pins)


def to_settings(view: ChartView) -> dict[str, Any]:
    """Settings to keep for the next start, by the names of `tui.settings.Settings`."""
    return {
        "chart_layout": view.layout,
        "chart_axis": view.axis,
        "chart_smoothing": view.smoothing,
        "pins": view.pins,
    }


class ChartMemory:
    """The view of each run's charts while the program runs.

    Attributes:
        usual: the layout, axis, smoothing and pins that were used last, with which a run starts.
    """

    def __init__(self, usual: ChartView, keep: Callable[[ChartView], object]) -> None:
        self.usual = usual
        self._keep = keep
        self._known: dict[str, ChartView] = {}

    def of(self, run_id: str) -> ChartView:
        """The view when the page of a run opens, without the crosshair of an earlier visit."""
        return replace(self._known.get(run_id, self.usual), cursor=None)

    def keep(self, run_id: str, view: ChartView) -> None:
        """Keep the view of a run, and what is usual for the next start of the program."""
        self._known[run_id] = view
        usual = ChartView(view.layout, view.axis, view.smoothing, view.pins)
        if usual != self.usual:
            self.usual = usual
            self._keep(usual)
