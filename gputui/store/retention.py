"""Limits of the recorded history by age and size: the defaults of ``record.yaml``."""

from __future__ import annotations

from msgspec import Struct

DAY_SECONDS = 86400.0

# Samples are needed until their hour is over and rolled up.
LEAST_RAW_SECONDS = 2 * 3600.0
RAW_SECONDS = 2 * DAY_SECONDS
LEAST_BYTES = 16 << 20


class Retention(Struct, frozen=True):
    """Maximum ages in seconds; ``events_seconds`` applies to events and cleared alerts. ``size_bytes`` limits the
    database by deleting the oldest samples, then the oldest minutes. None: no limit."""

    raw_seconds: float | None = RAW_SECONDS
    minutes_seconds: float | None = 90 * DAY_SECONDS
    hours_seconds: float | None = None
    events_seconds: float | None = 365 * DAY_SECONDS
    size_bytes: int | None = 4 << 30


def age_words(seconds: float | None) -> str:
    """``7 days``, ``5 years``, ``36 hours``, ``for ever``."""
    if seconds is None:
        return "for ever"
    for size, word in ((365 * DAY_SECONDS, "year"), (DAY_SECONDS, "day"), (3600.0, "hour")):
        if seconds >= 2 * size or seconds == size:
            return f"{seconds / size:g} {word}{'' if seconds == size else 's'}"
    return f"{seconds / 3600:g} hours"
