"""Scales of an axis: from a value to its place, and ends at round values."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from msgspec import Struct

from gputui.metrics.draw.bins import Bin
from gputui.metrics.draw.ticks import LARGEST, ROUNDING, round_steps

AxisKind = Literal["linear", "log"]

_ENDS: Final = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0)


class LinearScale(Struct, frozen=True):
    """An axis with equal distances for equal differences; `high` must be above `low`."""

    low: float
    high: float

    def place(self, value: float) -> float | None:
        """0 at `low`, 1 at `high`, beyond them outside; `None` for a value that this axis cannot
        hold."""
        # Halves first: the difference of two finite numbers may not be finite.
        return (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)


class LogScale(Struct, frozen=True):
    """An axis with equal distances for equal ratios; both ends are positive and `high` is above
    `low`."""

    low: float
    high: float

    def place(self, value: float) -> float | None:
        if value <= 0:
            return None
        start = math.log10(self.low)
        return (math.log10(value) - start) / (math.log10(self.high) - start)


Scale = LinearScale | LogScale


def value_scale(low: float | None, high: float | None, kind: AxisKind = "linear") -> Scale:
    """A scale that holds all values from `low` to `high`, with room around a constant; from 0 to 1
    with nothing to show. For a logarithmic axis both must be positive (see `log_bounds`)."""
    if low is None or high is None:
        return LinearScale(0.0, 1.0)
    if kind == "log":
        if low == high or math.log10(high) == math.log10(low):
            low = max(low / 2, 5e-324)
            high = min(high * 2, sys.float_info.max)
        return LogScale(low, high)
    if high - low <= ROUNDING * max(abs(low), abs(high)):
        # From 0 to twice the constant, where that can be divided.
        space = abs(low)
        if space < 1e-300:
            space = 1.0
        low = max(low - space, -sys.float_info.max)
        high = min(high + space, sys.float_info.max)
    if not high / 2 - low / 2 > 0:
        return LinearScale(0.0, 1.0)
    return LinearScale(low, high)


def bounds(bins: Sequence[Bin]) -> tuple[float | None, float | None]:
    """Lowest and highest finite value of some bins."""
    lows = [one_bin.low for one_bin in bins if one_bin.low is not None]
    highs = [one_bin.high for one_bin in bins if one_bin.high is not None]
    return min(lows, default=None), max(highs, default=None)


def x_bounds(bins: Iterable[Bin]) -> tuple[float, float]:
    """Ends of an x axis that holds these bins, the right one a round number that seldom changes as
    they grow."""
    xs = [x for one_bin in bins for x in (one_bin.first_x, one_bin.last_x)]
    start = min(xs, default=0.0)
    end = max(xs, default=1.0)
    # A series that begins near zero, as seen from its end, is shown from zero.
    if 0 <= start <= 0.1 * end:
        start = 0.0
    return start, stable_end(end)


def log_bounds(bins: Iterable[Bin]) -> tuple[float | None, float | None]:
    """Lowest and highest positive value of some bins; `None` twice where none is positive."""
    positive = [
        value
        for one_bin in bins
        for value in (one_bin.low, one_bin.high, one_bin.first, one_bin.last)
        if value is not None and value > 0
    ]
    if positive:
        return (min(positive), max(positive))
    return (None, None)


def round_outward(low: float, high: float, kind: AxisKind = "linear") -> tuple[float, float]:
    """Ends of a value axis moved outwards to round values, which hold still while the extremes
    wander a little."""
    if kind == "log":
        start = max((value for value in _round_values(low) if 0 < value <= low), default=low)
        end = min((value for value in _round_values(high) if high <= value < math.inf), default=high)
        a_decade_on = min(start * 10, LARGEST)
        return start, max(end, a_decade_on)
    step = next(iter(round_steps(high / 4 - low / 4)), 0.0)
    if not step or not math.isfinite(low / step) or not math.isfinite(high / step):
        return low, high
    start = math.floor(low / step + ROUNDING) * step
    end = math.ceil(high / step - ROUNDING) * step
    is_finite = math.isfinite(start) and math.isfinite(end)
    if not is_finite or start > low or high > end:
        return low, high
    return min(float(f"{start:.12g}"), low), max(float(f"{end:.12g}"), high)


def _round_values(value: float) -> list[float]:
    """1, 2, 5 and 10 times the power of ten at or below a positive value."""
    power = 10.0 ** math.floor(math.log10(value))
    return [factor * power for factor in (1, 2, 5, 10)]


def stable_end(value: float) -> float:
    """A round number at or above a positive `value`: an axis that ends there seldom changes while
    its series grows."""
    if not value > 0 or math.isinf(value):
        return value
    power = 10.0 ** math.floor(math.log10(value))
    for step in _ENDS:
        if value <= step * power * (1 + ROUNDING):
            return step * power
    return 10 * power
