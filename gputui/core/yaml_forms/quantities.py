"""Numbers, and sizes of memory and disks and durations with units."""

from __future__ import annotations

import math
import re
from typing import TypeGuard

_BYTES: dict[str, int] = {
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgtp", start=1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgtp", start=1)},
}
_DAY = 86400.0
_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": _DAY, "w": 7 * _DAY, "y": 365 * _DAY}
_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?([A-Za-z]{1,3})")
_SPAN = r"([0-9]{1,9}(?:\.[0-9]+)?)\s*(s|min|m|h|d|w|y)\s*"
_SPANS = re.compile(_SPAN, re.IGNORECASE)
_DURATION = re.compile(f"(?:{_SPAN})+", re.IGNORECASE)

SIZE_PATTERN = r"^[0-9]{1,12}(\.[0-9]{1,6})? ?([kKmMgGtTpP][iI]?)?[bB]$"
"""The pattern of sizes for JSON Schema."""

DURATION_PATTERN = r"^\s*([0-9]{1,9}(\.[0-9]+)?\s*([sSmMhHdDwWyY]|[mM][iI][nN])\s*)+$"
"""The pattern of durations for JSON Schema."""


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a finite number that a float can hold."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def parse_size(text: str) -> int | None:
    """``10GiB``, ``1.5 GB`` or ``500MB`` in bytes; None if invalid."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or match.group(2).lower() not in _BYTES:
        return None
    return round(float(match.group(1)) * _BYTES[match.group(2).lower()])


def parse_duration(text: str) -> float | None:
    """``90s``, ``5 min``, ``1h30m``, ``2d``, ``1.5w`` or ``5y`` in seconds; None if invalid."""
    if _DURATION.fullmatch(text.strip()) is None:
        return None
    return sum(float(number) * _SECONDS[unit.lower()] for number, unit in _SPANS.findall(text))
