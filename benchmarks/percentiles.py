"""Statistics of a list of measured values."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least ``percent`` of all values do not exceed (nearest rank).

    Raises ValueError when there are none.
    """
    if not values:
        raise ValueError("nothing was measured")
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]
