"""A moving average over bins, drawn in front of the measured curve.

The average is debiased, so that its beginning is not pulled towards zero: the running sum `s ← w·s + (1 − w)·v` starts
at 0 and is divided by `1 − wⁿ`, the total weight of n values (the bias correction of Adam, Kingma and Ba 2015, section
3). `None`, NaN and infinities are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from gputui.metrics.draw.envelope import Bin


def smooth_bins(bins: Iterable[Bin], weight: float) -> list[Bin]:
    """The debiased exponential average of each bin's mean of first and last value, at the bin's middle.

    Bins without a finite value are skipped. ``weight`` is the weight of the past from bin to bin, from 0 to below 1;
    gaps in the curve do not reset the average.
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
        weight: the weight of the past at each value, from 0 (no smoothing) to below 1.
    """

    def __init__(self, weight: float) -> None:
        if not 0 <= weight < 1:
            raise ValueError(f"smoothing weight must be from 0 to below 1, not {weight}")
        self.weight = weight
        self._sum = 0.0
        self._missing = 1.0

    def push(self, value: float | None) -> float | None:
        """Add a value; returns the average, or `None` for a value that is unknown or not finite."""
        if value is None or not math.isfinite(value):
            return None
        self._sum = self.weight * self._sum + (1 - self.weight) * value
        self._missing *= self.weight
        return self._sum / (1 - self._missing)
