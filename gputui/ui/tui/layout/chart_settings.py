"""The settings of a run's charts as immutable values: layout, axis, smoothing, pins, filter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar, get_args

from msgspec import Struct
from msgspec.structs import replace

from gputui.metrics.curves.model import AXES, Axis
from gputui.ui.tui.settings import Settings

Layout = Literal["grid", "two", "one"]

LAYOUTS: tuple[Layout, ...] = get_args(Layout)
SMOOTHINGS = (0.0, 0.6, 0.8, 0.9, 0.97, 0.99)
"""Weights of the moving average that one key steps through."""


class ChartSettings(Struct, frozen=True):
    """The settings of the charts of one run."""

    layout: Layout = "grid"
    axis: Axis = "step"
    smoothing: float = 0.0
    pins: tuple[str, ...] = ()
    logs: frozenset[str] = frozenset()
    """Charts with a logarithmic value axis."""
    is_log_x: bool = False
    """Whether the axis that all charts share is logarithmic."""
    by_rank: frozenset[str] = frozenset()
    """Charts with a curve for each rank."""
    filter_text: str = ""

    def with_pin(self, name: str) -> ChartSettings:
        pins = tuple(pin for pin in self.pins if pin != name)
        return replace(self, pins=pins if len(pins) < len(self.pins) else (*pins, name))


T = TypeVar("T")


def after(choices: Sequence[T], chosen: T, by: int = 1) -> T:
    """The choice ``by`` places after ``chosen``, wrapping around."""
    place = choices.index(chosen) if chosen in choices else 0
    return choices[(place + by) % len(choices)]


def from_kept(settings: Settings) -> ChartSettings:
    """The chart settings of the settings file; invalid ones get their default."""
    usual = ChartSettings(pins=settings.pins)
    layout = next((each for each in LAYOUTS if each == settings.chart_layout), usual.layout)
    axis = next((each for each in AXES if each == settings.chart_axis), usual.axis)
    smoothing = next((each for each in SMOOTHINGS if f"{each:g}" == settings.chart_smoothing), usual.smoothing)
    return replace(usual, layout=layout, axis=axis, smoothing=smoothing)


def to_keep(settings: ChartSettings) -> dict[str, Any]:
    """The settings to keep for the next start, by the names of `tui.settings.Settings`."""
    return {
        "chart_layout": settings.layout,
        "chart_axis": settings.axis,
        "chart_smoothing": f"{settings.smoothing:g}",
        "pins": settings.pins,
    }


class ChartMemory:
    """The settings of each run's charts while the program runs. A run starts with those used last, but with linear
    axes. ``keep`` stores settings for the next start."""

    def __init__(self, usual: ChartSettings, keep: Callable[[ChartSettings], object]) -> None:
        self.usual = usual
        self._keep = keep
        self._known: dict[str, ChartSettings] = {}

    def of(self, run_id: str) -> ChartSettings:
        return self._known.get(run_id, self.usual)

    def keep(self, run_id: str, settings: ChartSettings) -> None:
        self._known[run_id] = settings
        usual = replace(settings, logs=frozenset(), is_log_x=False, by_rank=frozenset(), filter_text="")
        if usual != self.usual:
            self.usual = usual
            self._keep(usual)
