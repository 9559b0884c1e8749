"""What GPUs did while an attempt had them, as counts of values: from samples, and from minutes and hours where samples
are gone."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from gputui.store import rollups
from gputui.store.moment import one_moment


@dataclass(frozen=True, slots=True)
class Stay:
    """A GPU that was held from ``begin`` to ``end``, UTC unix seconds."""

    uuid: str
    begin: float
    end: float


@dataclass(slots=True)
class GpuCounts:
    """How often each value was sampled, in whole percent and whole watts; of what was put together into minutes and
    hours, their means count as often as they had samples. ``memory_used_bytes_most`` is the most that was in use."""

    utilization_percent: Counter[float] = field(default_factory=Counter)
    power_watts: Counter[float] = field(default_factory=Counter)
    memory_used_bytes_most: int | None = None


def gpu_counts(connection: sqlite3.Connection, stays: Iterable[Stay]) -> GpuCounts:
    """All stays together, each sample once. Raises sqlite3.Error."""
    with one_moment(connection):
        return _counts(connection, stays)


def _counts(connection: sqlite3.Connection, stays: Iterable[Stay]) -> GpuCounts:
    found = GpuCounts()
    limits = rollups.bounds(connection)
    for stay in stays:
        row = connection.execute("SELECT gpu_id FROM gpus WHERE uuid = ?", (stay.uuid,)).fetchone()
        if row is None:
            continue
        begin = max(stay.begin, limits.raw_since)
        _count(connection, found, "gpu_samples", ("", "1"), row[0], begin, stay.end)
        means = ("_mean", "sample_count")
        until = min(stay.end, limits.raw_since)
        _count(connection, found, "gpu_minutes", means, row[0], max(stay.begin, limits.minutes_since), until)
        _count(connection, found, "gpu_hours", means, row[0], stay.begin, min(stay.end, limits.minutes_since))
    return found


def _count(
    connection: sqlite3.Connection,
    found: GpuCounts,
    table: str,
    columns: tuple[str, str],
    gpu_id: int,
    begin: float,
    end: float,
) -> None:
    if end <= begin:
        return
    suffix, weight = columns
    where = f"FROM {table} WHERE gpu_id = ? AND at >= ? AND at < ?"
    for name, counts in (("utilization_percent", found.utilization_percent), ("power_watts", found.power_watts)):
        column = f"{name}{suffix}"
        rows = connection.execute(
            f"SELECT round({column}) AS value, sum({weight}) {where} AND {column} NOTNULL GROUP BY value",
            (gpu_id, begin, end),
        )
        for value, number in rows:
            counts[value] += number
    most = "memory_used_bytes_max" if suffix else "memory_used_bytes"
    (used,) = connection.execute(f"SELECT max({most}) {where}", (gpu_id, begin, end)).fetchone()
    if used is not None:
        found.memory_used_bytes_most = max(used, found.memory_used_bytes_most or 0)
