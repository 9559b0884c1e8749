"""From values to places on an axis: scales, and ends at round values."""

import math
import sys
from collections.abc import Iterable
from typing import Final, Literal, Protocol

from msgspec import Struct

from gputui.metrics.draw.envelope import Bin
from gputui.metrics.draw.ticks import round_steps

AxisKind = Literal["linear", "log"]

_NEARLY_EQUAL: Final = 1e-9
"""Values that differ by no more than this share are one value and what rounding made of it."""

_ENDS: Final = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)


class Scale(Protocol):
    """Where a value lies between the two ends of an axis."""

    @property
    def low(self) -> float:
        """The value at the axis' beginning."""

    @property
    def high(self) -> float:
        """The value at its end."""

    def place(self, value: float) -> float | None:
        """0 at `low`, 1 at `high`, beyond them outside; `None` for a value that this axis cannot hold."""


class LinearScale(Struct, frozen=True):
    """An axis with equal distances for equal differences; `high` must be above `low`."""

    low: float
    high: float

    def place(self, value: float) -> float | None:
        # Halves first: the difference of two finite numbers may not be finite.
        return (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)


class LogScale(Struct, frozen=True):
    """An axis with equal distances for equal ratios; both ends are positive and `high` is above `low`."""

    low: float
    high: float

    def place(self, value: float) -> float | None:
        if value <= 0:
            return None
        start = math.log10(self.low)
        return (math.log10(value) - start) / (math.log10(self.high) - start)


def value_scale(low: float | None, high: float | None, kind: AxisKind = "linear") -> Scale:
    """A scale that holds all values from `low` to `high`, with room around a constant.

    For a logarithmic axis both must be positive (see `log_bounds`). With nothing to show it goes from 0 to 1.
    """
    if low is None or high is None:
        return LinearScale(0.0, 1.0)
    if kind == "log":
        if low == high or math.log10(high) == math.log10(low):
            low, high = max(low / 2, 5e-324), min(high * 2, sys.float_info.max)
        return LogScale(low, high)
    if high - low <= _NEARLY_EQUAL * max(abs(low), abs(high)):
        space = abs(low) * 0.1 or 1.0
        low, high = max(low - space, -sys.float_info.max), min(high + space, sys.float_info.max)
    if not high / 2 - low / 2 > 0:
        return LinearScale(0.0, 1.0)
    return LinearScale(low, high)


def bounds(bins: Iterable[Bin]) -> tuple[float | None, float | None]:
    """Lowest and highest finite value of some bins."""
    lows: list[float] = []
    highs: list[float] = []
    for each in bins:
        if each.low is not None and each.high is not None:
            lows.append(each.low)
            highs.append(each.high)
    return (min(lows), max(highs)) if lows else (None, None)


def x_bounds(bins: Iterable[Bin]) -> tuple[float, float]:
    """Ends of an x axis that holds these bins, the right one a round number that seldom changes as they grow."""
    xs = [x for each in bins for x in (each.first_x, each.last_x)]
    start, end = min(xs, default=0.0), max(xs, default=1.0)
    # A series that begins near zero, as seen from its end, is shown from zero.
    return 0.0 if 0 <= start <= 0.1 * end else start, stable_end(end)


def log_bounds(bins: Iterable[Bin]) -> tuple[float | None, float | None]:
    """Lowest and highest positive value known of some bins; `None` twice where nothing is positive.

    Of a bin that reaches from below zero to above only what it names is known: its first, last and highest value.
    """
    positive = [
        value
        for each in bins
        for value in (each.low, each.high, each.first, each.last)
        if value is not None and value > 0
    ]
    return (min(positive), max(positive)) if positive else (None, None)


def round_outward(low: float, high: float, kind: AxisKind = "linear") -> tuple[float, float]:
    """Ends of a value axis moved outwards to round values.

    They hold still while the extremes wander a little, so that a chart is not redrawn for each new point.
    """
    if kind == "log":
        start = _log_floor(low)
        return start, max(_log_ceiling(high), min(start * 10, 1.7e308))
    step = next(iter(round_steps(high / 4 - low / 4)), 0.0)
    if not step or not math.isfinite(low / step) or not math.isfinite(high / step):
        return low, high
    start, end = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    if not (math.isfinite(start) and math.isfinite(end) and start <= low and high <= end):
        return low, high
    start, end = min(float(f"{start:.12g}"), low), max(float(f"{end:.12g}"), high)
    return start, end


def stable_end(value: float) -> float:
    """A round number at or above a positive `value`.

    An axis that ends there changes only now and then while its series grows, so that a chart seldom has to be drawn
    again from edge to edge.
    """
    if not value > 0 or math.isinf(value):
        return value
    power = 10.0 ** math.floor(math.log10(value))
    for step in _ENDS:
        if value <= step * power * (1 + 1e-9):
            return step * power
    return 10 * power


def _log_floor(value: float) -> float:
    """The largest of 1, 2 or 5 times a power of ten at or below a positive `value`."""
    exponent = math.floor(math.log10(value))
    fitting = [found for factor in (1, 2, 5) if 0 < (found := float(f"{factor}e{exponent}")) <= value]
    return fitting[-1] if fitting else value


def _log_ceiling(value: float) -> float:
    """The smallest of 1, 2 or 5 times a power of ten at or above a positive `value`."""
    exponent = math.floor(math.log10(value))
    for factor in (1, 2, 5, 10):
        if value <= (found := float(f"{factor}e{exponent}")) < math.inf:
            return found
    return value
