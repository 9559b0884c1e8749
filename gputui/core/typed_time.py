"""A time as a person types it: of the past ``03:12``, ``-1h30m``, ``2026-11-20 03:12``, to come ``22:00``,
``in 2h``."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, tzinfo

from gputui.core.yaml_forms.quantities import parse_duration

COMING = "22:00, in 2h, in 1h30m, 2026-12-01 22:00"
EXAMPLES = "03:12, -20m, -1h30m, -2d, 2026-11-20, 2026-11-20 03:12"

_CLOCK = re.compile(r"(\d{1,2}):\d{2}(?::\d{2})?")


class TypedTimeError(ValueError):
    """The text is no such moment; the message says why, and gives an example."""


def parse_moment(text: str, now: float, zone: tzinfo | None = None) -> float:
    """The moment in UTC unix seconds: the newest time of day, one in ISO 8601, or one before now. Raises
    TypedTimeError.

    Args:
        zone: That of the text, None for the machine's.
    """
    typed = text.strip()
    span = (-1, typed[1:]) if typed.startswith("-") else None
    at = _moment(typed, now, zone, span, EXAMPLES)
    if _CLOCK.fullmatch(typed) is not None and at > now:
        at = _moment(typed, now, zone, span=None, examples=EXAMPLES, days=-1)
    if at > now:
        raise TypedTimeError(f"{typed} is still to come")
    return at


def parse_begin(text: str, now: float, zone: tzinfo | None = None) -> float:
    """As `parse_moment`, a moment to come: the next time of day, one in ISO 8601, or one after ``now``."""
    typed = text.strip()
    span = (1, typed[2:]) if typed.startswith("in ") else None
    at = _moment(typed, now, zone, span, COMING)
    if _CLOCK.fullmatch(typed) is not None and at <= now:
        at = _moment(typed, now, zone, span=None, examples=COMING, days=1)
    if at <= now:
        raise TypedTimeError(f"{typed} is over")
    return at


def _moment(
    typed: str, now: float, zone: tzinfo | None, span: tuple[int, str] | None, examples: str, *, days: int = 0
) -> float:
    """A moment: a span before (-1) or after (1) ``now``, a time of day, ``days`` from today, or one in ISO 8601."""
    try:
        if span is not None and (seconds := parse_duration(span[1])) is not None:
            return datetime.fromtimestamp(now + span[0] * seconds, zone).timestamp()
        clock = _CLOCK.fullmatch(typed)
        if clock is None:
            return _in_zone(datetime.fromisoformat(typed), zone)
        today = datetime.fromtimestamp(now, zone).date()
        moment = datetime.fromisoformat(f"{today} {clock[1]:0>2}{typed[len(clock[1]) :]}")
        return _in_zone(moment + timedelta(days=days), zone)
    except (ValueError, OverflowError, OSError):
        raise TypedTimeError(f"{typed!r} is not a time; type one such as {examples}") from None


def _in_zone(moment: datetime, zone: tzinfo | None) -> float:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone)
    return moment.timestamp()
