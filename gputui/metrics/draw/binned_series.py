"""A series that grows, in a bounded number of bins."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gputui.metrics.draw.bins import Bin


class GroupLayout(NamedTuple):
    """Which bins are joined, and how.

    Attributes:
        start: the lower end of the window in x.
        end: the upper end of the window in x.
        size: how many neighbouring bins make a group; groups lie at multiples of it.
    """

    start: float
    end: float
    size: int


class BinGroups:
    """Groups of neighbouring bins. From one call of `join` to the next, it keeps those in which nothing changed."""

    def __init__(self) -> None:
        self._layout: GroupLayout | None = None
        # By number, in order. All bins before _changed_from are as they were when these were made.
        self._groups: dict[int, Bin] = {}
        self._changed_from = 0

    def change(self, index: int) -> None:
        """Take note of a change in the bin with this index."""
        self._changed_from = min(self._changed_from, index)

    def forget(self) -> None:
        """Take note of a change in all bins."""
        self._layout = None

    def join(self, bins: Mapping[int, Bin], indices: range, layout: GroupLayout) -> list[Bin]:
        """The groups of the bins with these indices, in order. They must not be changed."""
        if layout != self._layout:
            self._layout = layout
            self._groups = {}
            self._changed_from = indices.start
        changed_group = self._changed_from // layout.size
        self._groups = {number: group for number, group in self._groups.items() if number < changed_group}
        for index in range(max(indices.start, changed_group * layout.size), indices.stop):
            added = bins.get(index)
            if added is None:
                continue
            group = self._groups.get(index // layout.size)
            if group is None:
                self._groups[index // layout.size] = added.copy()
            else:
                group.merge(added)
        self._changed_from = indices.stop
        return list(self._groups.values())


@dataclass(slots=True)
class BinnedSeries:
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
    _groups: BinGroups = field(default_factory=BinGroups, init=False)

    def __post_init__(self) -> None:
        self._width = self.resolution

    def add(self, x: float, value: float) -> None:
        """Add a point, finite or not."""
        index = self._make_room(x)
        if index is None:
            return
        target = self._bins.get(index)
        if target is None:
            target = self._bins[index] = Bin(x, x)
        target.add(x, value)
        self._groups.change(index)

    def add_bin(self, reduced: Bin) -> None:
        """Add a bin at the place of its first value. The caller must not use the bin afterwards."""
        index = self._make_room(reduced.first_x)
        if index is None:
            return
        target = self._bins.setdefault(index, reduced)
        if target is not reduced:
            target.merge(reduced)
        self._groups.change(index)

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
        return self._groups.join(self._bins, range(first, last + 1), GroupLayout(start, end, size))

    def _make_room(self, x: float) -> int | None:
        """The index of the bin at `x`, after making the bins wide enough for it; None if x has no place."""
        if not math.isfinite(x) or (self.is_log and x <= 0):
            return None
        place = math.log10(x) if self.is_log else x
        while math.isinf(place / self._width):
            self._double_width()
        index = math.floor(place / self._width)
        if not self._bins:
            self._lowest = index
            self._highest = index
        while max(index, self._highest) - min(index, self._lowest) >= self.capacity:
            self._double_width()
            index = math.floor(place / self._width)
        self._lowest = min(index, self._lowest)
        self._highest = max(index, self._highest)
        return index

    def _double_width(self) -> None:
        merged: dict[int, Bin] = {}
        for index in sorted(self._bins):
            target = merged.setdefault(index // 2, self._bins[index])
            if target is not self._bins[index]:
                target.merge(self._bins[index])
        self._bins = merged
        self._groups.forget()
        self._width *= 2
        self._lowest //= 2
        self._highest //= 2


def _decade(x: float) -> float:
    if x > 0:
        return math.log10(x)
    return -math.inf
