"""How long what is recorded is kept, and how large it may become: the standard, and what ``record.yaml`` changes."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

DAY_SECONDS = 86400.0
_DURATION = re.compile(r"(\d{1,6}(?:\.\d+)?) ?(h|d|w|y)")
_DURATIONS = {"h": 3600.0, "d": DAY_SECONDS, "w": 7 * DAY_SECONDS, "y": 365 * DAY_SECONDS}
_SIZE = re.compile(r"(\d{1,9}(?:\.\d+)?) ?(MB|GB|TB|MiB|GiB|TiB)")
_SIZES = {"MB": 10**6, "GB": 10**9, "TB": 10**12, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}

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


@dataclass(frozen=True, slots=True)
class RetentionProblem:
    """A mistake: the key (empty: the whole), what is wrong with it, and what was probably meant."""

    key: str
    text: str
    nearest: str | None = None


class RetentionError(ValueError):
    """The settings cannot be used. ``problems`` holds every mistake."""

    def __init__(self, problems: list[RetentionProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(f"{one.key}: {one.text}" for one in problems))


_KEYS = {
    "raw": "raw_seconds",
    "minutes": "minutes_seconds",
    "hours": "hours_seconds",
    "events": "events_seconds",
    "size": "size_bytes",
}
assert set(_KEYS.values()) == {field.name for field in fields(Retention)}


def parse_retention(given: object) -> Retention:
    """The standard with what a mapping changes of it. Raises RetentionError."""
    if not isinstance(given, Mapping):
        raise RetentionError([RetentionProblem("", f"expected a mapping of {', '.join(_KEYS)}")])
    problems: list[RetentionProblem] = []
    changes: dict[str, float | int | None] = {}
    for key, value in given.items():
        if key not in _KEYS:
            nearest = difflib.get_close_matches(str(key), _KEYS, n=1)
            problems.append(RetentionProblem(str(key), "unknown key", nearest[0] if nearest else None))
            continue
        found, problem = _size(value) if key == "size" else _age(value, LEAST_RAW_SECONDS if key == "raw" else 3600.0)
        changes[_KEYS[key]] = found
        if problem is not None:
            problems.append(RetentionProblem(key, problem))
    if problems:
        raise RetentionError(problems)
    made = replace(Retention(), **changes)  # type: ignore[arg-type]
    ages = [math.inf if age is None else age for age in (made.raw_seconds, made.minutes_seconds, made.hours_seconds)]
    if ages != sorted(ages):
        text = "minutes are kept at least as long as raw samples, and hours at least as long as minutes"
        raise RetentionError([RetentionProblem("", text)])
    return made


def _age(value: object, least: float) -> tuple[float | None, str | None]:
    if value is False or value in ("off", "forever"):
        return None, None
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return None, "expected a time such as 36h, 7d, 8w or 5y, or forever"
    seconds = float(match[1]) * _DURATIONS[match[2]]
    return seconds, None if seconds >= least else f"expected {least / 3600:g}h or more"


def _size(value: object) -> tuple[int | None, str | None]:
    if value is False or value in ("off", "unlimited"):
        return None, None
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return None, "expected a size such as 500MB or 4GiB, or unlimited"
    size = round(float(match[1]) * _SIZES[match[2]])
    return size, None if size >= LEAST_BYTES else f"expected {LEAST_BYTES >> 20}MiB or more"


def age_words(seconds: float | None) -> str:
    """``7 days``, ``5 years``, ``36 hours``, ``for ever``."""
    if seconds is None:
        return "for ever"
    for size, word in ((365 * DAY_SECONDS, "year"), (DAY_SECONDS, "day"), (3600.0, "hour")):
        if seconds >= 2 * size or seconds == size:
            return f"{seconds / size:g} {word}{'' if seconds == size else 's'}"
    return f"{seconds / 3600:g} hours"
