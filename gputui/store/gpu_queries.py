"""What is known of a GPU beyond its newest sample: what the driver reported of it, and its slow values over time."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from gputui.store import rollups, sample_means, series

# Reports are rare; a GPU that comes and goes all day must not make each look at them long.
_EVENTS_LOOKED_AT = 512


@dataclass(frozen=True, slots=True)
class GpuEventView:
    """Something that the driver reported by itself: ``xid``, ``lost`` or ``returned``. ``at`` is UTC unix seconds."""

    at: float
    event: str
    code: int | None
    text: str | None


def xid_counts(connection: sqlite3.Connection, since: float, until: float) -> dict[str, int]:
    """How many XIDs each GPU had in (since, until], by UUID; GPUs without one are left out."""
    rows = connection.execute(
        "SELECT uuid, count(*) FROM (SELECT uuid, at, event FROM gpu_events ORDER BY event_id DESC LIMIT ?) "
        "WHERE event = 'xid' AND at > ? AND at <= ? GROUP BY uuid",
        (_EVENTS_LOOKED_AT, since, until),
    )
    return dict(rows.fetchall())


def gpu_events(connection: sqlite3.Connection, uuid: str, until: float, limit: int) -> list[GpuEventView]:
    """The newest reports about one GPU up to a moment, newest first."""
    rows = connection.execute(
        "SELECT at, event, code, text FROM gpu_events WHERE uuid = ? AND at <= ? ORDER BY event_id DESC LIMIT ?",
        (uuid, until, limit),
    )
    return [GpuEventView(*row) for row in rows]


def memory_temperature_history(
    connection: sqlite3.Connection, uuid: str, since: float, until: float, buckets: int
) -> tuple[float | None, ...]:
    """The mean temperature of a GPU's memory in each of ``buckets`` equal spans of [since, until)."""
    row = connection.execute("SELECT gpu_id FROM gpus WHERE uuid = ?", (uuid,)).fetchone()
    if row is None:
        return (None,) * buckets
    columns = ("memory_temperature_celsius",)
    table = sample_means.means(connection, series.SLOW, row[0], columns, since, until, buckets)
    return tuple(rollups.completed(connection, table, columns, since, until, row[0])[0])


def leased_since(connection: sqlite3.Connection, uuid: str) -> float | None:
    """Since when the run that has a GPU has it (UTC unix seconds); None for a GPU that no run has."""
    row = connection.execute("SELECT since FROM leases WHERE gpu_uuid = ?", (uuid,)).fetchone()
    return None if row is None else row[0]
