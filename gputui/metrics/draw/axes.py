"""Axes: ticks at round values, their labels, and the room that they take."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice, pairwise
from typing import Final, Literal

from msgspec import Struct

from gputui.core.units import short_number
from gputui.metrics.draw.bins import Bin

_UNITS: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_STEPS: Final = (1.0, 2.0, 2.5, 5.0)
_EVEN_STEPS: Final = (1.0, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
_WHOLE: Final = ("1", "2", "2.5", "3", "4", "5")
_TIME_STEPS_SECONDS: Final = tuple(
    float(seconds)
    for seconds in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
)
_LOG_TIMES_SECONDS: Final = (
    (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 18000, 36000, 86400, 172800, 432000, 864000, 2592000),
    (1, 10, 60, 600, 3600, 36000, 86400, 864000),
    (1, 60, 3600, 86400),
)
"""Times for a logarithmic axis, the closest first."""


def linear_ticks(low: float, high: float, most: int) -> list[float]:
    """At most `most` ascending multiples of 1, 2, 2.5 or 5 times a power of ten from `low` to
    `high`, both included."""
    if most < 1 or not high > low or not math.isfinite(high - low):
        if most >= 1 and low == high:
            return [low]
        return []
    candidates: list[list[float]] = []
    # One tick tells no scale; a closer step may fit where the ends lie between its multiples.
    for divisor in (most, most + 1):
        steps = (_multiples(low, high, step) for step in round_steps((high - low) / divisor))
        candidates.append(next((ticks for ticks in steps if len(ticks) <= most), []))
        if len(candidates[0]) >= min(2, most):
            break
    return max(candidates, key=len)


def whole_ticks(low: float, high: float, most: int) -> list[float]:
    """At most `most` ascending ticks with one at each end, if there are round ones; else those of
    `linear_ticks`."""
    for count in range(most - 1, 1, -1):
        step = float(f"{(high - low) / count:.12g}")
        if 0 < step < math.inf and f"{step:.12e}".split("e")[0].rstrip("0.") in _WHOLE and not (low / step) % 1:
            return [float(f"{low + number * step:.12g}") for number in range(count + 1)]
    return linear_ticks(low, high, most)


RowTicks = tuple[tuple[int, float], ...]
"""Ticks of a value axis as (row from the bottom, value)."""


@lru_cache(256)
def even_ticks(
    low: float, high: float, rows: int, most: int, *, is_low_fixed: bool = False, is_high_fixed: bool = False
) -> tuple[float, float, RowTicks]:
    """Ends of a linear axis of `rows` rows, at or beyond `low` and `high`, and its ticks: two to
    `most` of them, all equally many rows apart. A tick is a round value wherever an end is free to
    move, between two fixed ends one that few digits write."""
    ends = ((0, low), (rows - 1, high))
    # Steps between are multiples and shares of the whole.
    if rows < 2 or not math.isfinite((high - low) * 100) or not high - low > 1e-300:
        return low, high, ends[:rows]
    if is_high_fixed:
        for count in range(min(most, rows) - 1, 1, -1):
            step = (high - low) / count
            if (rows - 1) % count == 0 and float(f"{step:.2g}") == float(f"{step:.12g}"):
                return low, high, tuple((row * (rows - 1) // count, low + row * step) for row in range(count + 1))
        return low, high, ends

    def waste(axis: tuple[float, float, RowTicks]) -> float:
        """The room that no value uses; a third label and usual steps are worth some."""
        start, end, ticks = axis
        step = ticks[1][1] - ticks[0][1]
        wasted = (end - start) / (high - low) - 0.01 * len(ticks)
        if len(ticks) == 2 < most:
            wasted += 0.25
        if len(ticks) > 2 and f"{step:.1e}"[0] in "368":
            wasted += 0.2
        return wasted

    start, end, ticks = min(
        (axis for axis in _even_axes(low, high, rows, is_low_fixed=is_low_fixed) if 2 <= len(axis[2]) <= most),
        key=waste,
        default=(low, high, ends),
    )
    return min(start, low), max(end, high), ticks


def _even_axes(low: float, high: float, rows: int, *, is_low_fixed: bool) -> Iterator[tuple[float, float, RowTicks]]:
    """Linear axes that hold `low` to `high`, as ends and ticks at multiples of a round step."""
    for apart in range(1, rows):
        for step in islice(round_steps((high - low) / (rows - 1) * apart, _EVEN_STEPS), 4):
            in_row = step / apart
            first = math.floor(low / in_row + 1e-9)
            start = first * in_row
            end = (first + rows - 1) * in_row
            if is_low_fixed and abs(start - low) > 1e-9 * max(abs(low), in_row):
                continue
            if math.isfinite(end - start) and end >= high - 1e-9 * in_row:
                places = [row for row in range(rows) if (first + row) % apart == 0]
                ticks = tuple((row, float(f"{(first + row) // apart * step:.12g}")) for row in places)
                if len({value for _, value in ticks}) > 1:
                    yield start, end, ticks


def time_ticks(low_seconds: float, high_seconds: float, most: int) -> list[float]:
    """At most `most` ascending ticks at seconds, minutes, hours or days that a clock would show."""
    if most < 1 or not high_seconds > low_seconds:
        return []
    if high_seconds - low_seconds < most:
        return linear_ticks(low_seconds, high_seconds, most)
    for step in _TIME_STEPS_SECONDS:
        if (high_seconds - low_seconds) / step <= most + 1:
            ticks = _multiples(low_seconds, high_seconds, step)
            if len(ticks) <= most:
                return ticks
    return [86400 * day for day in linear_ticks(low_seconds / 86400, high_seconds / 86400, most)]


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """At most `most` ascending ticks of a logarithmic axis: powers of ten, or with 2 and 5 where
    there is room; within less than a decade, those of a linear one."""
    if most < 1 or not 0 < low < high:
        return []
    first = math.floor(math.log10(low))
    last = math.ceil(math.log10(high))
    stride = max(1, math.ceil((last - first) / most))

    def ticks_of(factors: Sequence[int], stride: int) -> list[float]:
        # A tick at the very edge may differ from it by rounding.
        start = low * (1 - 1e-9)
        end = min(high * (1 + 1e-9), 1.7e308)
        powers = [power for power in range(first, last + 1) if power % stride == 0]
        values = (float(f"{factor}e{power}") for power in powers for factor in factors)
        return [value for value in values if start <= value <= end]

    if last - first <= most:
        for factors in ((1, 2, 5), (1, 3), (1,)):
            ticks = ticks_of(factors, 1)
            if 2 <= len(ticks) <= most:
                return ticks
    ticks = ticks_of((1,), stride)
    if len(ticks) >= min(2, most):
        return ticks[:most]
    return linear_ticks(low * (1 - 1e-9), min(high * (1 + 1e-9), 1.7e308), most)


def log_time_ticks(low_seconds: float, high_seconds: float, most: int) -> list[float]:
    """At most `most` ascending ticks of a logarithmic axis at times that a clock would show."""
    if most < 1 or not 0 < low_seconds < high_seconds:
        return []
    for seconds in _LOG_TIMES_SECONDS:
        ticks = [float(tick) for tick in seconds if low_seconds <= tick <= high_seconds]
        if 2 <= len(ticks) <= most:
            return ticks
    return log_ticks(low_seconds, high_seconds, most)


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """Short labels, all different, for ascending ticks; those of equally distant ones have the same
    unit and decimals: "0", "2k", "4k" or "0.25", "0.50"."""
    labels = _even_labels(ticks) or [short_number(tick) for tick in ticks]
    if len(set(labels)) == len(labels):
        return labels
    # Ticks that differ beyond three digits are written out as far as they differ.
    for digits in range(4, 18):
        labels = [f"{tick:.{digits}g}" for tick in ticks]
        if len(set(labels)) == len(labels):
            break
    return labels


def _even_labels(ticks: Sequence[float]) -> list[str]:
    """Labels with one unit and number of decimals; none if the ticks are not equally distant, or
    need more than four decimals."""
    largest = max(map(abs, ticks), default=0.0)
    step = largest
    if len(ticks) > 1:
        step = (ticks[-1] - ticks[0]) / (len(ticks) - 1)
    if not 0 < largest < 1e15 or any(abs(b - a - step) > 1e-6 * step for a, b in pairwise(ticks)):
        return []
    power = math.floor(math.log10(largest) + 1e-9)
    units = [*((unit, suffix) for unit, suffix in _UNITS if largest >= unit), (1.0, "")]
    if power < -4:
        units = [(10.0**power, f"e{power}")]
    for unit, suffix in units:
        most_decimals = 4 if unit <= 1 else 0
        for decimals in range(most_decimals + 1):
            if all(abs(round(tick / unit, decimals) - tick / unit) * unit < 1e-3 * step for tick in ticks):
                return [_label(tick, unit, decimals, suffix) for tick in ticks]
    return []


def _label(tick: float, unit: float, decimals: int, suffix: str) -> str:
    if not tick:
        return "0"
    return f"{tick / unit:.{decimals}f}{suffix}"


def time_labels(ticks_seconds: Sequence[float]) -> list[str]:
    """Labels for ticks of elapsed time: "40s", "1:30", "2h", "2h30", "3d", finer where ticks lie
    closer."""
    labels = [_elapsed(tick) for tick in ticks_seconds]
    if len(set(labels)) == len(labels):
        return labels
    return tick_labels(ticks_seconds)


def time_text(seconds: float) -> str:
    """A time in the form of `time_labels`, from an hour on in whole minutes."""
    unit = 60 if abs(seconds) >= 3600 else 1
    return _elapsed(round(seconds / unit) * unit)


def _elapsed(seconds: float) -> str:
    sign = "-" if seconds < 0 else ""
    seconds = abs(seconds)
    whole = round(seconds)
    if seconds < 60 and abs(seconds - whole) > 1e-9:
        return f"{sign}{short_number(seconds)}s"
    if whole < 60:
        if whole:
            return f"{sign}{whole}s"
        return "0"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    days, day_hours = divmod(hours, 24)
    match bool(hours), bool(minutes), bool(rest):
        case True, _, True:
            return f"{sign}{hours}:{minutes:02d}:{rest:02d}"
        case False, _, True:
            return f"{sign}{minutes}:{rest:02d}"
        case True, True, _:
            return f"{sign}{hours}h{minutes:02d}"
        case False, _, _:
            return f"{sign}{minutes}m"
    if days and day_hours:
        return f"{sign}{days}d{day_hours}h"
    if days:
        return f"{sign}{days}d"
    return f"{sign}{hours}h"


def round_steps(smallest: float, factors: Sequence[float] = _STEPS) -> Iterable[float]:
    """Round steps from about `smallest` upwards: these factors times a power of ten."""
    exponent = -323
    if smallest > 0:
        exponent = math.floor(math.log10(smallest))
    for power in range(exponent, exponent + 4):
        for step in factors:
            value = float(f"{step}e{power}")
            if value >= smallest * (1 - 1e-9) and value > 0:
                yield value


def _multiples(low: float, high: float, step: float) -> list[float]:
    """Multiples of `step` from `low` to `high`; none where they cannot be distinguished."""
    if not math.isfinite(low / step) or not math.isfinite(high / step):
        return []
    slack = 1e-9
    first = math.ceil(low / step - slack)
    last = math.floor(high / step + slack)
    if last - first > 10_000 or (last > first and float(first) * step == float(first + 1) * step):
        return []
    ticks = (min(max(number * step, low), high) for number in range(first, last + 1))
    # Multiples of a decimal step are written as the decimal they mean: 3 × 0.1 is 0.3.
    return list(dict.fromkeys(float(f"{tick:.15g}") for tick in ticks))


AxisKind = Literal["linear", "log"]

_NEARLY_EQUAL: Final = 1e-9
"""Values that differ by no more than this share are one value and what rounding made of it."""

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
    if high - low <= _NEARLY_EQUAL * max(abs(low), abs(high)):
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
        powers = (10.0 ** math.floor(math.log10(value)) for value in (low, high))
        below, above = ([factor * power for factor in (1, 2, 5, 10)] for power in powers)
        start = max((tick for tick in below if 0 < tick <= low), default=low)
        return start, max(
            min((tick for tick in above if high <= tick < math.inf), default=high), min(start * 10, 1.7e308)
        )
    step = next(iter(round_steps(high / 4 - low / 4)), 0.0)
    if not step or not math.isfinite(low / step) or not math.isfinite(high / step):
        return low, high
    start = math.floor(low / step + 1e-9) * step
    end = math.ceil(high / step - 1e-9) * step
    if not (math.isfinite(start) and math.isfinite(end) and start <= low and high <= end):
        return low, high
    return min(float(f"{start:.12g}"), low), max(float(f"{end:.12g}"), high)


def stable_end(value: float) -> float:
    """A round number at or above a positive `value`: an axis that ends there seldom changes while
    its series grows."""
    if not value > 0 or math.isinf(value):
        return value
    power = 10.0 ** math.floor(math.log10(value))
    for step in _ENDS:
        if value <= step * power * (1 + 1e-9):
            return step * power
    return 10 * power
