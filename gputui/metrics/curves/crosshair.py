"""The values of curves at one place of the axis."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from msgspec import Struct

from gputui.metrics.draw.envelope import Bin


class ValueAt(Struct, frozen=True):
    """The value measured nearest to the crosshair, and the extremes of its bin.

    ``value`` is NaN or infinite if nothing finite was measured there; ``value`` and ``x`` are None for an empty curve.
    """

    x: float | None = None
    value: float | None = None
    low: float | None = None
    high: float | None = None


def values_at(curves: Iterable[Sequence[Bin]], position: float) -> list[ValueAt]:
    """For each curve, given as bins in order of x, its value nearest to ``position``."""
    return [_value_at(bins, position) for bins in curves]


def _value_at(bins: Sequence[Bin], position: float) -> ValueAt:
    if not bins:
        return ValueAt()
    place = bisect_left(bins, position, key=lambda each: each.last_x)
    near = bins[max(0, place - 1) : place + 1]
    found = min(near, key=lambda each: max(each.first_x - position, position - each.last_x, 0.0))
    if found.first is None or found.last is None:
        infinity = math.inf if found.positive_infinite >= found.negative_infinite else -math.inf
        return ValueAt(found.first_x, math.nan if found.nan else infinity)
    at_start = abs(position - found.first_x) < abs(position - found.last_x)
    x, value = (found.first_x, found.first) if at_start else (found.last_x, found.last)
    return ValueAt(x, value, found.low, found.high)
