"""A moving average over bins, for drawing in front of what was measured.

Its beginning is not pulled towards zero: the running sum `s ← w·s + (1 − w)·v` starts at 0 and is divided by `1 − wⁿ`,
the weight that n values have put into it (the bias correction of Adam, Kingma and Ba 2015, section 3). `None`, NaN and
infinities are left out: they neither move the average nor count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from gputui.charts.envelope import Bin


def smooth_bins(bins: Iterable[Bin], weight: float) -> list[Bin]:
    """The debiased exponential average after each bin's mean of first and last value, as a place in each bin's middle.

    A bin without a finite value neither moves the average nor gets one; the curve goes on behind it. ``weight`` is how
    much of the past is kept from bin to bin, from 0 to below 1; a gap in the curve does not forget.
    """
    average = DebiasedEma(weight)
    smoothed = []
    for each in bins:
        if each.first is None or each.last is None:
            continue
        value = average.push(each.first / 2 + each.last / 2)
        if value is not None:
            middle = each.first_x / 2 + each.last_x / 2
            smoothed.append(Bin(middle, middle, value, value, value, value, each.points, gap_before=each.gap_before))
    return smoothed


class DebiasedEma:
    """A debiased exponential moving average, one value at a time.

    Args:
        weight: how much of the past is kept with each value, from 0 (no smoothing) to below 1.
    """

    def __init__(self, weight: float) -> None:
        if not 0 <= weight < 1:
            raise ValueError(f"smoothing weight must be from 0 to below 1, not {weight}")
        self.weight = weight
        self._sum = 0.0
        self._missing = 1.0

    def push(self, value: float | None) -> float | None:
        """Take in a value; returns the average, or `None` for a value that is unknown or not finite."""
        if value is None or not math.isfinite(value):
            return None
        self._sum = self.weight * self._sum + (1 - self.weight) * value
        self._missing *= self.weight
        return self._sum / (1 - self._missing)
