"""How long what is recorded is kept, and how large it may become: the standard, and what ``record.yaml`` may change."""

from __future__ import annotations

from dataclasses import dataclass

DAY_SECONDS = 86400.0

# An hour's samples are put together once it is over.
LEAST_RAW_SECONDS = 2 * 3600.0
RAW_SECONDS = 2 * DAY_SECONDS
LEAST_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Retention:
    """Ages in seconds; ``events_seconds`` is that of alerts that are over and of events. ``size_bytes`` bounds what the
    whole database uses, by deleting the oldest samples first, then the oldest minutes. None: kept for ever, or not
    bounded."""

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
