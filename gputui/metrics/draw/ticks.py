"""Ticks of an axis at round values, and their labels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice, pairwise
from typing import Final, NamedTuple

from gputui.core.units import short_number

LARGEST: Final = 1.7e308
"""No tick lies beyond: nearly the largest float, so that a step further is finite."""
ROUNDING: Final = 1e-9
"""Values that differ by no more than this share are one value and what rounding made of it."""

_SMALLEST_SPAN: Final = 1e-300  # shares of a smaller one are not all different floats
_STEPS_TRIED: Final = 4  # of so many rows between two ticks; larger steps leave most rows unused
_MOST_MULTIPLES: Final = 10_000  # more than any chart has room for: the step is far too small
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
    if most >= 1 and low == high:
        return [low]
    if most < 1 or not high > low or not math.isfinite(high - low):
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
        digits, _, _ = f"{step:.12e}".partition("e")
        if 0 < step < math.inf and digits.rstrip("0.") in _WHOLE and not (low / step) % 1:
            return [float(f"{low + number * step:.12g}") for number in range(count + 1)]
    return linear_ticks(low, high, most)


class EvenAxis(NamedTuple):
    """A linear value axis with ticks that are equally many rows apart.

    Attributes:
        low: the value at its lower end.
        high: the value at its upper end.
        ticks: pairs of a row, counted from the bottom, and the value there.
    """

    low: float
    high: float
    ticks: tuple[tuple[int, float], ...]

    @property
    def step(self) -> float:
        """The difference of neighbouring ticks."""
        (_, first), (_, second), *_ = self.ticks
        return second - first


@lru_cache(256)
def even_axis(
    low: float, high: float, rows: int, most: int, *, is_low_fixed: bool = False, is_high_fixed: bool = False
) -> EvenAxis:
    """A linear axis of `rows` rows with ends at or beyond `low` and `high`, and two to `most` ticks. A tick is a round
    value wherever an end is free to move, between two fixed ends one that few digits write."""
    ends = EvenAxis(low, high, ((0, low), (rows - 1, high)))
    # Steps between are multiples and shares of the whole.
    is_divisible = math.isfinite((high - low) * 100) and high - low > _SMALLEST_SPAN
    if rows < 2 or not is_divisible:
        return ends._replace(ticks=ends.ticks[:rows])
    if is_high_fixed:
        return _evenly_divided(ends, rows, most) or ends
    axes = [axis for axis in _axes_with_round_steps(ends, rows, is_low_fixed=is_low_fixed) if len(axis.ticks) <= most]
    if not axes:
        return ends
    axis = min(axes, key=lambda axis: _drawback(axis, high - low, most))
    return EvenAxis(min(axis.low, low), max(axis.high, high), axis.ticks)


def _evenly_divided(ends: EvenAxis, rows: int, most: int) -> EvenAxis | None:
    """The axis with as many ticks as the rows allow at values of two digits; None if they allow none but the ends."""
    for count in range(min(most, rows) - 1, 1, -1):
        step = (ends.high - ends.low) / count
        has_two_digits = float(f"{step:.2g}") == float(f"{step:.12g}")
        if (rows - 1) % count == 0 and has_two_digits:
            apart = (rows - 1) // count
            return ends._replace(ticks=tuple((row * apart, ends.low + row * step) for row in range(count + 1)))
    return None


def _drawback(axis: EvenAxis, span: float, most: int) -> float:
    """What is wrong with an axis: the room that no value uses, in spans; a third tick and usual steps are worth some
    of it."""
    drawback = (axis.high - axis.low) / span - 0.01 * len(axis.ticks)
    if len(axis.ticks) == 2 < most:
        drawback += 0.25
    if len(axis.ticks) > 2 and f"{axis.step:.1e}"[0] in "368":
        drawback += 0.2
    return drawback


def _axes_with_round_steps(ends: EvenAxis, rows: int, *, is_low_fixed: bool) -> Iterator[EvenAxis]:
    """Axes that hold the values between two ends, with at least two ticks, all at multiples of a round step."""
    for apart in range(1, rows):
        steps = round_steps((ends.high - ends.low) / (rows - 1) * apart, _EVEN_STEPS)
        for step in islice(steps, _STEPS_TRIED):
            value_of_row = step / apart
            first = math.floor(ends.low / value_of_row + ROUNDING)
            low = first * value_of_row
            high = (first + rows - 1) * value_of_row
            is_moved = abs(low - ends.low) > ROUNDING * max(abs(ends.low), value_of_row)
            holds_high = math.isfinite(high - low) and high >= ends.high - ROUNDING * value_of_row
            if not holds_high or (is_low_fixed and is_moved):
                continue
            tick_rows = [row for row in range(rows) if (first + row) % apart == 0]
            ticks = tuple((row, float(f"{(first + row) // apart * step:.12g}")) for row in tick_rows)
            if len({value for _, value in ticks}) > 1:
                yield EvenAxis(low, high, ticks)


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

    # A tick at the very edge may differ from it by rounding.
    start = low * (1 - ROUNDING)
    end = min(high * (1 + ROUNDING), LARGEST)

    def ticks_of(factors: Sequence[int], stride: int) -> list[float]:
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
    return linear_ticks(start, end, most)


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
            if value >= smallest * (1 - ROUNDING) and value > 0:
                yield value


def _multiples(low: float, high: float, step: float) -> list[float]:
    """Multiples of `step` from `low` to `high`; none where they cannot be distinguished."""
    if not math.isfinite(low / step) or not math.isfinite(high / step):
        return []
    first = math.ceil(low / step - ROUNDING)
    last = math.floor(high / step + ROUNDING)
    are_equal = last > first and float(first) * step == float(first + 1) * step
    if are_equal or last - first > _MOST_MULTIPLES:
        return []
    ticks = (min(max(number * step, low), high) for number in range(first, last + 1))
    # Multiples of a decimal step are written as the decimal they mean: 3 × 0.1 is 0.3.
    return list(dict.fromkeys(float(f"{tick:.15g}") for tick in ticks))
