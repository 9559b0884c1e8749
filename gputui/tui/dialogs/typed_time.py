"""A time as a person types it, in the local zone: ``03:12``, ``yesterday 3:12``, ``-20m``, ``2026-11-20 03:12``.

The result is always in the past: a time of day is the last one. A time that the clocks skipped is refused; one that
they showed twice is the later one that has passed.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta, tzinfo

EXAMPLES = "03:12, 3:12am, yesterday 3:12, mon 3:12, 2026-11-20 03:12, -20m, -1h30m"

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_UNIT_NAMES = ("seconds", "minutes", "hours", "days", "weeks", "secs", "mins", "hrs")
_WEEK = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")

_AGO = re.compile(r"-\s*(.+)|(.+?)\s+ago")
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)\s*")
_CLOCK = re.compile(r"(\d{1,2})(?::(\d{2})(?::(\d{2})(\.\d+)?)?)?\s*(am|pm)?")
_DATE = re.compile(r"(?:(\d{4})-)?(\d{1,2})-(\d{1,2})(?:[t ]\s*([^z]+)(z)?)?")


class TypedTimeError(ValueError):
    """The text is no moment of the past; the message says why, and gives an example."""


def parse_moment(text: str, now: float, zone: tzinfo | None = None) -> float:
    """The moment in UTC unix seconds. ``zone`` is that of the text, by default the machine's. Raises TypedTimeError."""
    typed = " ".join(text.lower().split())
    today = _local(now, zone).date()
    if typed in ("", "now"):
        if typed:
            return now
        raise TypedTimeError(f"type a time, such as {EXAMPLES}")
    if (ago := _AGO.fullmatch(typed)) is not None:
        at = now - _span(ago[1] or ago[2], text)
    elif (dated := _DATE.fullmatch(typed)) is not None:
        at = _dated(dated, today, now, text, UTC if dated[5] else zone)
    else:
        word, _, rest = typed.partition(" ")
        days_ago = _days_ago(word, today)
        if days_ago is None:
            # A time of day without a day: today's if it has passed, else yesterday's.
            at = _moment(today, _clock(typed, text), now, text, zone)
            if at > now:
                at = _moment(today - timedelta(days=1), _clock(typed, text), now, text, zone)
        else:
            at = _moment(today - timedelta(days=days_ago), _clock(rest, text) if rest else time(), now, text, zone)
            if at > now and days_ago == 0 and word != "today":
                at = _moment(today - timedelta(days=7), _clock(rest, text), now, text, zone)
    if at > now:
        raise TypedTimeError(f"{text.strip()} is still to come")
    return at


def _span(text: str, typed: str) -> float:
    """``20m``, ``1h30m``, ``2 days`` in seconds."""
    seconds, place = 0.0, 0
    while place < len(text):
        part = _PART.match(text, place)
        unit = None
        if part is not None and (part[2] in _UNITS or any(part[2] in (name, name[:-1]) for name in _UNIT_NAMES)):
            unit = _UNITS[part[2][0]]
        if part is None or unit is None:
            raise TypedTimeError(f"{typed.strip()!r} is no stretch of time; -20m, -1h30m and -2d are")
        seconds += float(part[1]) * unit
        place = part.end()
    return seconds


def _days_ago(word: str, today: date) -> int | None:
    """How many days ago ``yesterday``, ``today`` or a day of the week was; None for another word."""
    if word in ("today", "yesterday"):
        return 0 if word == "today" else 1
    day = next((number for number, name in enumerate(_WEEK) if len(word) >= 3 and name.startswith(word)), None)
    return None if day is None else (today.weekday() - day) % 7


def _clock(text: str, typed: str) -> time:
    """``3:12``, ``03:12:44``, ``3am``."""
    found = _CLOCK.fullmatch(text.strip())
    if found is None or (found[2] is None and found[5] is None):
        raise TypedTimeError(f"{typed.strip()!r} is not a time; try {EXAMPLES}")
    hour, minute, second = int(found[1]), int(found[2] or 0), int(found[3] or 0)
    if found[5] is not None:
        if not 1 <= hour <= 12:
            raise TypedTimeError(f"{typed.strip()!r} is not a time of day; with am and pm hours go from 1 to 12")
        hour = hour % 12 + (12 if found[5] == "pm" else 0)
    try:
        return time(hour, minute, second, int(float(found[4] or 0) * 1e6))
    except ValueError:
        raise TypedTimeError(f"{typed.strip()!r} is not a time of day") from None


def _dated(found: re.Match[str], today: date, now: float, typed: str, zone: tzinfo | None) -> float:
    clock = _clock(found[4], typed) if found[4] else time()
    try:
        day = date(int(found[1] or today.year), int(found[2]), int(found[3]))
        if found[1] is None and day > today:
            day = day.replace(year=today.year - 1)
    except ValueError:
        raise TypedTimeError(f"{typed.strip()!r} is no day of the calendar") from None
    return _moment(day, clock, now, typed, zone)


def _moment(day: date, clock: time, now: float, typed: str, zone: tzinfo | None) -> float:
    """The moment at which the clocks showed this; of two, the later one that has passed."""
    shown = datetime.combine(day, clock)
    try:
        # Without a zone, a naive datetime is one of the machine's zone.
        both = sorted({shown.replace(fold=fold, tzinfo=zone).timestamp() for fold in (0, 1)})
    except (OverflowError, OSError, ValueError):
        raise TypedTimeError(f"{typed.strip()!r} is out of range") from None
    real = [at for at in both if _local(at, zone).replace(tzinfo=None, fold=0) == shown]
    if not real:
        raise TypedTimeError(f"{shown:%H:%M} did not exist on {day:%d %b %Y}: the clocks were put forward")
    return max((at for at in real if at <= now), default=real[0])


def _local(at: float, zone: tzinfo | None) -> datetime:
    return datetime.fromtimestamp(at, zone)
