"""A time of the past as a person types it: ``03:12``, ``-1h30m``, ``2026-11-20 03:12``."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, tzinfo

EXAMPLES = "03:12, -20m, -1h30m, -2d, 2026-11-20, 2026-11-20 03:12"

SPAN = re.compile(r"(?:\d+(?:\.\d+)?\s*[smhdw]\s*)+", re.IGNORECASE)
_PART = re.compile(r"([\d.]+)\s*([smhdw])")
_CLOCK = re.compile(r"(\d{1,2}):\d{2}(?::\d{2})?")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


class TypedTimeError(ValueError):
    """The text is no moment of the past; the message says why, and gives an example."""


def parse_moment(text: str, now: float, zone: tzinfo | None = None) -> float:
    """The moment in UTC unix seconds: the newest time of day, one in ISO 8601, or one before ``now``.
    ``zone`` is that of the text, by default the machine's. Raises TypedTimeError."""
    typed = text.strip()
    try:
        if typed.startswith("-") and SPAN.fullmatch(typed[1:].strip()):
            seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(typed.lower()))
            return datetime.fromtimestamp(now - seconds, zone).timestamp()
        clock = _CLOCK.fullmatch(typed)
        if clock is None:
            at = _in_zone(datetime.fromisoformat(typed), zone)
        else:
            today = datetime.fromtimestamp(now, zone).date()
            shown = datetime.fromisoformat(f"{today} {clock[1]:0>2}{typed[len(clock[1]) :]}")
            at = _in_zone(shown, zone)
            at = at if at <= now else _in_zone(shown - timedelta(days=1), zone)
    except (ValueError, OverflowError, OSError):
        raise TypedTimeError(f"{typed!r} is not a time; type one such as {EXAMPLES}") from None
    if at > now:
        raise TypedTimeError(f"{typed} is still to come")
    return at


def _in_zone(shown: datetime, zone: tzinfo | None) -> float:
    return (shown if shown.tzinfo is not None else shown.replace(tzinfo=zone)).timestamp()
