"""The agent, as it describes itself in the store; the extent of the record and its limits."""

from __future__ import annotations

import sqlite3

from msgspec import Struct


class AgentView(Struct, frozen=True):
    """The agent's row. Times are UTC unix seconds; ``gpu_problem`` is a sentence that says why there are no GPUs, or
    why they are not read; else None."""

    pid: int
    version: str
    started_at: float
    heartbeat_at: float
    ended_at: float | None
    recording: bool
    interval_seconds: float
    source: str | None
    driver_version: str | None
    gpu_problem: str | None
    sampler_state: str
    sampler_silent_seconds: float | None


def read_agent(connection: sqlite3.Connection) -> AgentView | None:
    """The newest agent of this store, live or not; None before the first one."""
    row = connection.execute(
        "SELECT pid, version, started_at, heartbeat_at, ended_at, recording, interval_seconds, source, driver_version, "
        "gpu_problem, sampler_state, sampler_silent_seconds FROM agent"
    ).fetchone()
    if row is None:
        return None
    values = [*row[:5], bool(row[5]), *row[6:]]
    return AgentView(*values)


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
