"""Reduction of series to as many bins as a chart can show, without losing an extreme: a spike of
one point among a million stays a spike, and a NaN stays visible."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

NEIGHBOURS = 16
"""Bins whose usual scatter is taken together: enough for a median, few enough to follow a change."""


@dataclass(slots=True)
class Bin:
    """The values of one stretch of x.

    Attributes:
        first_x: the x of ``first``, else of another point.
        last_x: the x of ``last``, else of another point.
        low: the lowest finite value, None without any.
        high: the highest finite value, None without any.
        first: the finite value that came first, None without any.
        last: the finite value that came last, None without any.
        points: how many values there are, finite or not.
        nan: how many values are not a number.
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


def without_noise(bins: Sequence[Bin]) -> Sequence[Bin]:
    """The bins with noise as a line: in those whose values scatter at most twice as much as is usual around them, the
    extremes give way to one value."""
    calm: list[Bin] = []
    for start in range(0, len(bins), NEIGHBOURS):
        end = min(start + NEIGHBOURS, len(bins))
        noise = 2 * _usual_spread(bins[max(0, end - NEIGHBOURS) : end])
        calm += [_as_line(one_bin, noise) for one_bin in bins[start:end]]
    return calm


def _usual_spread(bins: Iterable[Bin]) -> float:
    """The median of the differences between highest and lowest value; 0 if no bin has finite values."""
    spreads = sorted(
        one_bin.high - one_bin.low for one_bin in bins if one_bin.low is not None and one_bin.high is not None
    )
    if not spreads:
        return 0.0
    return spreads[len(spreads) // 2]


def _as_line(noisy: Bin, noise: float) -> Bin:
    """The bin with one value in place of values that scatter up to ``noise``; itself if they scatter more, or not at
    all."""
    if noisy.low is None or noisy.high is None or not 0 < noisy.high - noisy.low <= noise:
        return noisy
    value = noisy.low / 2 + noisy.high / 2
    if noisy.first == noisy.last and noisy.first is not None:
        # A bin of means, as those of the hardware's history: its first and last value are the mean.
        value = noisy.first
    return replace(noisy, low=value, high=value, first=value, last=value)


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
        target = bins.get(index)
        if target is None:
            target = bins[index] = Bin(x, x)
        target.add(x, value)
    return [bins[index] for index in sorted(bins)]
