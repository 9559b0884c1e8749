"""Reduction of series to as many bins as a chart can show, without losing an extreme: a spike of
one point among a million stays a spike, and a NaN stays visible."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Bin:
    """The values of one stretch of x. `first_x` and `last_x` are the x of the first and last finite
    point in order of arrival, else of another. `low`, `high`, `first` and `last` are `None` without
    a finite value. `gap_before`: the curve is broken before this bin."""

    first_x: float
    last_x: float
    low: float | None = None
    high: float | None = None
    first: float | None = None
    last: float | None = None
    points: int = 0
    nan: int = 0
    positive_infinite: int = 0
    negative_infinite: int = 0
    gap_before: bool = False

    @property
    def non_finite(self) -> int:
        """How many values were NaN or infinite."""
        return self.nan + self.positive_infinite + self.negative_infinite

    def copy(self) -> Bin:
        return Bin(
            self.first_x, self.last_x, self.low, self.high, self.first, self.last, self.points, self.nan,
            self.positive_infinite, self.negative_infinite, self.gap_before,
        )  # fmt: skip

    def add(self, x: float, value: float) -> None:
        """Add a value, finite or not."""
        self.points += 1
        if not math.isfinite(value):
            if value != value:
                self.nan += 1
            elif value > 0:
                self.positive_infinite += 1
            else:
                self.negative_infinite += 1
            return
        if self.low is None or self.high is None:
            self.low = self.high = self.first = value
            self.first_x = x
        elif value < self.low:
            self.low = value
        elif value > self.high:
            self.high = value
        self.last = value
        self.last_x = x

    def merge(self, later: Bin) -> None:
        """Add the bin that follows this one in x."""
        self.points += later.points
        self.nan += later.nan
        self.positive_infinite += later.positive_infinite
        self.negative_infinite += later.negative_infinite
        if later.low is None or later.high is None:
            return
        if self.low is None or self.high is None:
            self.low, self.high, self.first = later.low, later.high, later.first
            self.first_x = later.first_x
        else:
            self.low = min(self.low, later.low)
            self.high = max(self.high, later.high)
        self.last = later.last
        self.last_x = later.last_x


@dataclass(slots=True)
class Buckets:
    """A growing series in at most `capacity` (2 or more) bins of equal width in x, or in the
    decimal logarithm of x.

    Bins lie at multiples of their width. When a point would make more than `capacity` of them, the
    width doubles and pairs merge. x may jump back: a redone stretch then shows both passes'
    extremes. `resolution` is the smallest width, in decades if `is_log`. Points whose x has no
    place are left out.
    """

    resolution: float = 1.0
    capacity: int = 2048
    is_log: bool = False
    _width: float = field(default=1.0, init=False)
    _bins: dict[int, Bin] = field(default_factory=dict, init=False)
    _lowest: int = field(default=0, init=False)
    _highest: int = field(default=0, init=False)
    # The bins that `bins` has not returned yet, so that they may be changed in place.
    _own: set[int] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._width = self.resolution

    def add(self, x: float, value: float) -> None:
        """Add a point, finite or not."""
        index = self._index(x)
        if index is None:
            return
        found = self._bins.get(index)
        if found is None or index not in self._own:
            found = self._bins[index] = Bin(x, x) if found is None else found.copy()
            self._own.add(index)
        found.add(x, value)

    def add_bin(self, reduced: Bin) -> None:
        """Add a bin at the place of its first value. The caller must not use the bin afterwards."""
        index = self._index(reduced.first_x)
        if index is None:
            return
        found = self._bins.get(index)
        if found is not None:
            found = found.copy()
            found.merge(reduced)
        self._bins[index] = found or reduced
        self._own.add(index)

    def bins(self) -> list[Bin]:
        """The series in order of x. The bins must not be changed; new points change copies."""
        self._own.clear()
        return [self._bins[index] for index in sorted(self._bins)]

    def _index(self, x: float) -> int | None:
        """The index of the bin at `x`, after widening the bins until it fits; None if x has no
        place."""
        if not math.isfinite(x) or (self.is_log and x <= 0):
            return None
        place = math.log10(x) if self.is_log else x
        while math.isinf(place / self._width):
            self._double()
        index = math.floor(place / self._width)
        if not self._bins:
            self._lowest = self._highest = index
        while max(index, self._highest) - min(index, self._lowest) >= self.capacity:
            self._double()
            index = math.floor(place / self._width)
        self._lowest, self._highest = min(index, self._lowest), max(index, self._highest)
        return index

    def _double(self) -> None:
        merged: dict[int, Bin] = {}
        for index in sorted(self._bins):
            target = merged.get(index // 2)
            if target is None:
                merged[index // 2] = self._bins[index].copy()
            else:
                target.merge(self._bins[index])
        self._bins, self._own = merged, set(merged)
        self._width *= 2
        self._lowest //= 2
        self._highest //= 2


def reduce(points: Iterable[tuple[float, float]], limit: int) -> list[Bin]:
    """A whole series as at most `limit` bins of equal width in x, in order of x. Points whose x is
    not finite are left out."""
    known = [(x, value) for x, value in points if math.isfinite(x)]
    if not known or limit < 1:
        return []
    start = min(x for x, _ in known)
    # Halves keep the span of any two finite numbers finite.
    half_span = max(x for x, _ in known) / 2 - start / 2
    bins: dict[int, Bin] = {}
    for x, value in known:
        index = min(int((x / 2 - start / 2) / half_span * limit), limit - 1) if half_span > 0 else 0
        found = bins.get(index)
        if found is None:
            found = bins[index] = Bin(x, x)
        found.add(x, value)
    return [bins[index] for index in sorted(bins)]
