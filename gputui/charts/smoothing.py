"""Exponential smoothing whose beginning is not pulled towards zero.

The running sum `s ← w·s + (1 − w)·v` starts at 0 and is divided by `1 − wⁿ`, the weight that n values have put into it
(the bias correction of Adam, Kingma and Ba 2015, section 3). `None`, NaN and infinities are left out: they neither
move the average nor count.
"""

import math


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
