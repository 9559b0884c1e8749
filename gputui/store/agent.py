"""The agent, as it describes itself in the store; the extent of the record and its limits."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from gputui.core.units import bytes_text, iso
from gputui.store.database import used_space
from gputui.store.rollups import bounds, first_sample
from gputui.store.rows import records

DAY_SECONDS = 86400.0

# Samples are needed until their hour is over and rolled up.
LEAST_RAW_SECONDS = 2 * 3600.0
RAW_SECONDS = 2 * DAY_SECONDS
LEAST_BYTES = 16 << 20  # an empty database with its indexes and a few hours of one GPU


class AgentView(Struct, frozen=True):
    """The agent's row. Times are UTC unix seconds.

    Attributes:
        ended_at: None while it lives, or if it was killed.
        recording: It stores samples.
        interval_seconds: The time between two ticks.
        source: Where GPUs are read from, None while they are not.
        gpu_problem: A sentence that says why there are no GPUs, or why they are not read; else None.
        sampler_silent_seconds: How long its sampler has not answered, None if it does.
    """

    pid: int
    version: str
    started_at: float
    heartbeat_at: float
    ended_at: float | None
    recording: bool
    interval_seconds: float
    source: str | None
    driver_version: str | None
    cuda_version: str | None
    gpu_problem: str | None
    sampler_state: str
    sampler_silent_seconds: float | None


def read_agent(connection: sqlite3.Connection) -> AgentView | None:
    """The newest agent of this store, live or not; None before the first one."""
    return next(iter(records(connection, AgentView, "SELECT * FROM agent")), None)


class Retention(Struct, frozen=True):
    """Maximum ages in seconds (``events_seconds``: events and cleared alerts) and size of the
    database, kept by deleting the oldest samples, then the oldest minutes. None: no limit."""

    raw_seconds: float | None = RAW_SECONDS
    minutes_seconds: float | None = 90 * DAY_SECONDS
    hours_seconds: float | None = None
    events_seconds: float | None = 365 * DAY_SECONDS
    size_bytes: int | None = 4 << 30


def age_words(seconds: float | None) -> str:
    """A limit of age in words.

    >>> age_words(7 * DAY_SECONDS), age_words(None)
    ('7 days', 'for ever')
    """
    if seconds is None:
        return "for ever"
    for size, word in ((365 * DAY_SECONDS, "year"), (DAY_SECONDS, "day"), (3600.0, "hour")):
        if seconds >= 2 * size or seconds == size:
            plural = "" if seconds == size else "s"
            return f"{seconds / size:g} {word}{plural}"
    return f"{seconds / 3600:g} hours"


class RecordStatus(Struct, frozen=True):
    """Extent, size and limits of the record, for `gputui agent status`.

    Attributes:
        problem: Why record.yaml cannot be used.
        began_at: The time of the oldest sample or mean (UTC unix seconds), None if nothing is recorded.
        raw_since: Since when single samples are kept, not their means alone (UTC unix seconds); None if nothing is
            recorded.
        file_bytes: The size of the database.
        used_bytes: The size of the database without its free pages.
    """

    retention: Retention
    problem: str | None
    began_at: float | None = None
    raw_since: float | None = None
    file_bytes: int | None = None
    used_bytes: int | None = None

    def to_json(self) -> dict[str, Any]:
        times = {"began_at": iso(self.began_at), "raw_since": iso(self.raw_since)}
        return {**asdict(self), **times, "retention": asdict(self.retention)}

    def lines(self) -> list[str]:
        """The status as text."""
        limits = self.retention
        lines = []
        limit = "any size"
        if limits.size_bytes is not None:
            limit = f"at most {bytes_text(limits.size_bytes)}"
        if self.problem is not None:
            lines.append(f"record.yaml is not used: {self.problem}")
        if self.began_at is not None and self.used_bytes is not None:
            day = datetime.fromtimestamp(self.began_at, UTC).strftime("%Y-%m-%d")
            lines.append(f"record      since {day}, {bytes_text(self.used_bytes)} of {limit}")
        lines.append(
            f"kept        samples {age_words(limits.raw_seconds)}, minutes {age_words(limits.minutes_seconds)}, "
            f"hours {age_words(limits.hours_seconds)}, events and alerts {age_words(limits.events_seconds)}"
        )
        return lines


def record_status(connection: sqlite3.Connection, retention: Retention, problem: str | None) -> RecordStatus:
    """The status. Raises sqlite3.Error."""
    began = first_sample(connection)
    file_bytes, used_bytes = used_space(connection)
    if began is None:
        return RecordStatus(retention, problem)
    raw_since = max(began, bounds(connection).raw_since)
    return RecordStatus(retention, problem, began, raw_since=raw_since, file_bytes=file_bytes, used_bytes=used_bytes)
