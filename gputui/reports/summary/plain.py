"""Numbers as JSON knows them."""

from __future__ import annotations

import math

DIGITS = 9
"""Significant digits; none of these figures is known more exactly."""


def number(value: float | None) -> float | int | None:
    """A number of a report, None if it is unknown or not finite."""
    if value is None or not math.isfinite(value):
        return None
    if isinstance(value, int) or value == 0:
        return value
    return round(value, max(0, DIGITS - 1 - math.floor(math.log10(abs(value)))))
