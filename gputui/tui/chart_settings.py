"""How a run's charts are looked at: layout, axis, smoothing, pins, filter. Values; every key gives a new one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar, get_args

from gputui.curves.model import AXES, Axis

Layout = Literal["grid", "two", "one"]

LAYOUTS: tuple[Layout, ...] = get_args(Layout)
SMOOTHINGS = (0.0, 0.6, 0.8, 0.9, 0.97, 0.99)
"""Weights of the moving average that one key steps through."""


@dataclass(frozen=True, slots=True)
class ChartSettings:
    """What a person chose for the charts of one run; kept while the program runs."""

    layout: Layout = "grid"
    axis: Axis = "step"
    smoothing: float = 0.0
    pins: tuple[str, ...] = ()
    logs: frozenset[str] = frozenset()
    """Charts with a logarithmic value axis."""
    filter_text: str = ""

    def with_next_layout(self) -> ChartSettings:
        return replace(self, layout=_after(LAYOUTS, self.layout, 1))

    def with_next_axis(self) -> ChartSettings:
        return replace(self, axis=_after(AXES, self.axis, 1))

    def with_smoothing(self, by: int) -> ChartSettings:
        return replace(self, smoothing=_after(SMOOTHINGS, self.smoothing, by))

    def with_pin(self, name: str) -> ChartSettings:
        """Pinned, or no longer."""
        pins = tuple(pin for pin in self.pins if pin != name)
        return replace(self, pins=pins if len(pins) < len(self.pins) else (*pins, name))

    def with_log(self, name: str) -> ChartSettings:
        """On a logarithmic axis, or on a linear one again."""
        return replace(self, logs=self.logs ^ {name})


T = TypeVar("T")


def _after(choices: Sequence[T], chosen: T, by: int) -> T:
    """The choice that many further, around the end."""
    place = choices.index(chosen) if chosen in choices else 0
    return choices[(place + by) % len(choices)]


class ChartMemory:
    """The settings of each run's charts while the program runs. A run that was not looked at begins as ``usual``."""

    def __init__(self, usual: ChartSettings | None = None) -> None:
        self.usual = usual or ChartSettings()
        self._known: dict[str, ChartSettings] = {}

    def of(self, run_id: str) -> ChartSettings:
        return self._known.get(run_id, self.usual)

    def keep(self, run_id: str, settings: ChartSettings) -> None:
        self._known[run_id] = settings
