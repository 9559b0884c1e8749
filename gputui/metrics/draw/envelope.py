"""Reduction of series to as many bins as a chart can show, without losing an extreme: a spike of
one point among a million stays a spike, and a NaN stays visible."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace


@dataclass(slots=True)
class Bin:
    """The values of one stretch of x.

    Attributes:
        first_x, last_x: the x of the first and last finite point in order of arrival, else of another.
        low, high, first, last: None without a finite value.
        points, nan, positive_infinite, negative_infinite: numbers of values.
        gap_before: the curve is broken before this bin.
    """

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
        """The number of values that were NaN or infinite."""
        return self.nan + self.positive_infinite + self.negative_infinite

    def copy(self) -> Bin:
        return replace(self)

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
            self.low = later.low
            self.high = later.high
            self.first = later.first
            self.first_x = later.first_x
        else:
            self.low = min(self.low, later.low)
            self.high = max(self.high, later.high)
        self.last = later.last
        self.last_x = later.last_x


class _Groups:
    """Bins joined in groups of neighbours, of which those that did not change are kept for the next time.

    Attributes:
        layout: the window and the bins of a group; None before the first time.
        groups: each group's number and its bin, in order.
        changed_from: the index of the first bin that changed since.
    """

    def __init__(self) -> None:
        self.layout: tuple[float, float, int] | None = None
        self.groups: list[tuple[int, Bin]] = []
        self.changed_from = 0

    def join(self, bins: Mapping[int, Bin], indices: range, layout: tuple[float, float, int]) -> list[Bin]:
        """The bins of some indices in groups, each at a multiple of its size."""
        first = indices.start
        size = layout[2]
        if layout != self.layout:
            self.layout = layout
            self.groups.clear()
            self.changed_from = first
        changed_group = max(self.changed_from, first) // size
        while self.groups and self.groups[-1][0] >= changed_group:
            self.groups.pop()
        if self.groups:
            first = max(first, (self.groups[-1][0] + 1) * size)
        for index in range(first, indices.stop):
            bucket = bins.get(index)
            if bucket is None:
                continue
            if self.groups and self.groups[-1][0] == index // size:
                self.groups[-1][1].merge(bucket)
            else:
                self.groups.append((index // size, bucket.copy()))
        self.changed_from = indices.stop
        return [group for _, group in self.groups]


@dataclass(slots=True)
class Buckets:
    """A growing series in at most `capacity` (2 or more) bins of equal width in x, or in the
    decimal logarithm of x.

    Bins lie at multiples of their width. When a point would make more than `capacity` of them, the
    width doubles and pairs merge. x may jump back: a redone stretch then shows both passes'
    extremes. Points whose x has no place are left out.

    Attributes:
        resolution: the smallest width, in decades if `is_log`.
        capacity: the most bins.
        is_log: bins are equally wide in the logarithm of x.
    """

    resolution: float = 1.0
    capacity: int = 2048
    is_log: bool = False
    _width: float = field(default=1.0, init=False)
    _bins: dict[int, Bin] = field(default_factory=dict, init=False)
    _lowest: int = field(default=0, init=False)
    _highest: int = field(default=0, init=False)
    _groups: _Groups = field(default_factory=_Groups, init=False)

    def __post_init__(self) -> None:
        self._width = self.resolution

    def add(self, x: float, value: float) -> None:
        """Add a point, finite or not."""
        index = self._index(x)
        if index is None:
            return
        bucket = self._bins.get(index)
        if bucket is None:
            bucket = self._bins[index] = Bin(x, x)
        bucket.add(x, value)

    def add_bin(self, reduced: Bin) -> None:
        """Add a bin at the place of its first value. The caller must not use the bin afterwards."""
        index = self._index(reduced.first_x)
        if index is None:
            return
        bucket = self._bins.setdefault(index, reduced)
        if bucket is not reduced:
            bucket.merge(reduced)

    def bins(self, limit: int, start: float = -math.inf, end: float = math.inf) -> list[Bin]:
        """The series between two x as at most `limit` (2 or more) bins in order of x; those across
        an end are included whole. They must not be changed: unchanged ones are returned again."""
        if limit < 2 or not self._bins or end < start:
            return []
        if self.is_log:
            start = _decade(start)
            end = _decade(end)
        first = self._lowest
        last = self._highest
        if start != -math.inf:
            first = max(first, math.floor(start / self._width))
        if end != math.inf:
            last = min(last, math.floor(end / self._width))
        # Groups lie at multiples of their size, so that they do not change as the run grows. Two of
        # them always suffice, one would not: no size puts what lies left and right of zero into the
        # same group.
        size = 1
        while last // size - first // size >= limit:
            size *= 2
        return self._groups.join(self._bins, range(first, last + 1), (start, end, size))

    def _index(self, x: float) -> int | None:
        """The index of the bin at `x`, after making room for it; None if x has no place."""
        if not math.isfinite(x) or (self.is_log and x <= 0):
            return None
        place = math.log10(x) if self.is_log else x
        while math.isinf(place / self._width):
            self._double()
        index = math.floor(place / self._width)
        if not self._bins:
            self._lowest = index
            self._highest = index
        elif not self._lowest <= index <= self._highest:
            while max(index, self._highest) - min(index, self._lowest) >= self.capacity:
                self._double()
                index = math.floor(place / self._width)
            self._lowest = min(index, self._lowest)
            self._highest = max(index, self._highest)
        if index < self._groups.changed_from:
            self._groups.changed_from = index
        return index

    def _double(self) -> None:
        merged: dict[int, Bin] = {}
        for index in sorted(self._bins):
            target = merged.setdefault(index // 2, self._bins[index])
            if target is not self._bins[index]:
                target.merge(self._bins[index])
        self._bins = merged
        self._groups.layout = None
        self._width *= 2
        self._lowest //= 2
        self._highest //= 2


def _decade(x: float) -> float:
    if x > 0:
        return math.log10(x)
    return -math.inf


_NEIGHBOURS = 16
"""Bins whose usual scatter is taken together: enough for a median, few enough to follow a change."""


def without_noise(bins: Sequence[Bin]) -> Sequence[Bin]:
    """The bins with noise as a line: one whose values scatter at most twice as much as is usual
    around it is drawn at their middle, or at the mean of a bin that has its mean as first and last value."""
    calm: list[Bin] = []
    for start in range(0, len(bins), _NEIGHBOURS):
        some = bins[start : start + _NEIGHBOURS]
        around = bins[max(0, start + len(some) - _NEIGHBOURS) : start + len(some)]
        ends = ((bucket.low, bucket.high) for bucket in around)
        spreads = sorted(high - low for low, high in ends if low is not None and high is not None)
        most = 0.0
        if spreads:
            most = 2 * spreads[len(spreads) // 2]
        for bucket in some:
            if bucket.low is None or bucket.high is None or not 0 < bucket.high - bucket.low <= most:
                calm.append(bucket)
                continue
            line = bucket.copy()
            middle = bucket.low / 2 + bucket.high / 2
            if bucket.first is not None and bucket.first == bucket.last:
                middle = bucket.first
            line.low = line.high = line.first = line.last = middle
            calm.append(line)
    return calm


def reduce(points: Iterable[tuple[float, float]], limit: int) -> list[Bin]:
    """A whole series as at most `limit` bins of equal width in x, in order of x. Points whose x is
    not finite are left out."""
    placed = [(x, value) for x, value in points if math.isfinite(x)]
    if not placed or limit < 1:
        return []
    start = min(x for x, _ in placed)
    # Halves keep the span of any two finite numbers finite.
    half_span = max(x for x, _ in placed) / 2 - start / 2
    bins: dict[int, Bin] = {}
    for x, value in placed:
        index = 0
        if half_span > 0:
            index = min(int((x / 2 - start / 2) / half_span * limit), limit - 1)
        bucket = bins.get(index)
        if bucket is None:
            bucket = bins[index] = Bin(x, x)
        bucket.add(x, value)
    return [bins[index] for index in sorted(bins)]
