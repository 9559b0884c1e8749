"""Queries of rollups (minutes, hours, days): their extent, means for charts, and values at a past time.

Times are UTC unix seconds. `span_summary` makes the rows; `sample_spans` and `gpu_counts` read them with the samples.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from msgspec import Struct

from gputui.store import samples
from gputui.store.series import HOST, HOST_ID

MINUTE = 60
HOUR = 3600
DAY = 86_400

GPU_MEANS = ("utilization_percent", "memory_used_bytes", "power_watts", "temperature_celsius")
"""The columns of `GpuHistory`, in its order."""


class GpuHistory(Struct, frozen=True):
    """Means of one GPU over equal buckets, oldest first; None without samples."""

    utilization_percent: tuple[float | None, ...]
    memory_used_bytes: tuple[float | None, ...]
    power_watts: tuple[float | None, ...]
    temperature_celsius: tuple[float | None, ...]


class HostHistory(Struct, frozen=True):
    """Means of the host over equal buckets, oldest first; None without samples."""

    cpu_percent: tuple[float | None, ...]
    memory_used_bytes: tuple[float | None, ...]
    disk_read_bytes_per_second: tuple[float | None, ...]
    disk_write_bytes_per_second: tuple[float | None, ...]
    network_received_bytes_per_second: tuple[float | None, ...]
    network_sent_bytes_per_second: tuple[float | None, ...]


class Bounds(NamedTuple):
    """The times since when samples, and minutes, are kept; 0 if none was ever deleted."""

    raw_since: float
    minutes_since: float


def bounds(connection: sqlite3.Connection) -> Bounds:
    """The extent of samples and minutes. Raises sqlite3.Error."""
    row = connection.execute("SELECT raw_since, minutes_since FROM record_bounds").fetchone()
    return Bounds(0.0, 0.0) if row is None else Bounds(*row)


def spans_for(limits: Bounds, at: float) -> str:
    """The rollup that contains a time whose samples are deleted: ``minutes`` or ``hours``."""
    return "minutes" if at >= limits.minutes_since else "hours"


def span_seconds(name: str) -> int:
    return MINUTE if name == "minutes" else HOUR


def means(
    connection: sqlite3.Connection,
    columns: Sequence[str],
    since: float,
    until: float,
    buckets: int,
    gpu_id: int = HOST_ID,
) -> list[list[float | None]]:
    """Means of columns over ``buckets`` equal parts of [since, until), for a GPU or the host, from the longest spans
    that fit into a part, or from those that still exist. A span counts for the part in which it begins."""
    width = (until - since) / buckets
    if width >= DAY:
        name = "days"
    else:
        name = "hours" if width >= HOUR or since < bounds(connection).minutes_since else "minutes"
    # Weighted by samples; rows without a value are left out.
    parts = ", ".join(
        f"sum({column}_mean * sample_count) / sum(CASE WHEN {column}_mean NOTNULL THEN sample_count END)"
        for column in columns
    )
    table = f"host_{name} ON" if gpu_id == HOST_ID else f"gpu_{name} ON gpu_id = :gpu_id AND"
    # A loop over the buckets: with a GROUP BY, SQLite would sort the rows of a year first.
    rows = connection.execute(
        "WITH RECURSIVE parts (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM parts WHERE n < :buckets - 1) "  # noqa: S608 - fixed names
        f"SELECT n, {parts} FROM parts CROSS JOIN {table} "
        "at >= :since + n * :width AND at < :since + (n + 1) * :width GROUP BY n",
        {"buckets": buckets, "since": since, "width": width, "gpu_id": gpu_id},
    )
    means_by_column: list[list[float | None]] = [[None] * buckets for _ in columns]
    for bucket, *values in rows:
        for series, value in zip(means_by_column, values, strict=True):
            series[bucket] = value
    return means_by_column


def completed(
    connection: sqlite3.Connection,
    table: list[list[float | None]],
    columns: Sequence[str],
    since: float,
    until: float,
    gpu_id: int = HOST_ID,
) -> list[list[float | None]]:
    """Means of samples, a list per column, completed by rollups where samples are deleted."""
    if since >= bounds(connection).raw_since:
        return table
    older = means(connection, columns, since, until, len(table[0]), gpu_id)
    return [
        [b if a is None else a for a, b in zip(newer, rest, strict=True)]
        for newer, rest in zip(table, older, strict=True)
    ]


def held(values: Sequence[float | None]) -> tuple[float | None, ...]:
    """The values of equal buckets; where samples come less often than buckets, an empty bucket has the value before it.
    Empty for longer than that, it stays None."""
    known = [place for place, value in enumerate(values) if value is not None]
    if len(known) < 3 or len(known) == len(values):
        return tuple(values)
    # Not the longest ones: those are interruptions.
    usual = sorted(after - before for before, after in pairwise(known))[int(0.9 * (len(known) - 2))]
    filled = list(values)
    for before, after in pairwise([*known, len(values)]):
        # The newest value holds until the next one is due.
        if usual > 1 and after - before <= (1.5 * usual if after < len(values) else usual):
            filled[before:after] = [values[before]] * (after - before)
    return tuple(filled)


def gpu_then(connection: sqlite3.Connection, gpu_id: int, at: float, limits: Bounds) -> dict[str, Any] | None:
    """The means of a GPU in the minute or hour that contains a time, by column of a sample, with ``at`` as its begin;
    None if unknown. Raises sqlite3.Error."""
    name = spans_for(limits, at)
    row = connection.execute(
        "SELECT at, utilization_percent_mean, memory_used_bytes_mean, temperature_celsius_mean, power_watts_mean, "  # noqa: S608
        f"sm_clock_mhz_mean FROM gpu_{name} WHERE gpu_id = ? AND at <= ? AND at > ? AND sample_count > 0",
        (gpu_id, at, at - span_seconds(name)),
    ).fetchone()
    if row is None:
        return None
    clock = None if row[5] is None else round(row[5])
    names = ("at", "utilization_percent", "memory_used_bytes", "temperature_celsius", "power_watts")
    return {**dict(zip(names, row[:5], strict=True)), "sm_clock_mhz": clock}


def host_then(connection: sqlite3.Connection, at: float, limits: Bounds) -> dict[str, Any] | None:
    """The same for the host."""
    name = spans_for(limits, at)
    cursor = connection.execute(
        "SELECT at, cpu_percent_mean AS cpu_percent, memory_used_bytes_mean AS memory_used_bytes, "  # noqa: S608
        "disk_used_bytes_mean AS disk_used_bytes, disk_read_bytes_per_second_mean AS disk_read_bytes_per_second, "
        "disk_write_bytes_per_second_mean AS disk_write_bytes_per_second, "
        "network_received_bytes_per_second_mean AS network_received_bytes_per_second, "
        f"network_sent_bytes_per_second_mean AS network_sent_bytes_per_second FROM host_{name} "
        "WHERE at <= ? AND at > ?",
        (at, at - span_seconds(name)),
    )
    row = cursor.fetchone()
    return None if row is None else dict(zip((column[0] for column in cursor.description), row, strict=True))


def sampled_around(
    connection: sqlite3.Connection, at: float, limits: Bounds | None = None
) -> tuple[float | None, float | None]:
    """The times of the host's last sample up to a time and of its first one after it, or of their rollups. ``limits``
    are the result of `bounds`, if known. Raises sqlite3.Error."""
    limits = bounds(connection) if limits is None else limits
    before, after = samples.around(connection, HOST, HOST_ID, at)
    if before is None and limits.raw_since:
        before = _before(connection, limits, at, "<=")
    if at < limits.raw_since:
        after = _after(connection, limits, at, after)
    return before, after


def sampled_before(connection: sqlite3.Connection, at: float) -> float | None:
    """The time of the host's last sample before a time."""
    found = samples.newest(connection, HOST, HOST_ID, (), at, including=False)
    return _before(connection, bounds(connection), at, "<") if found is None else float(found[0])


def _before(connection: sqlite3.Connection, limits: Bounds, at: float, compare: str) -> float | None:
    for table, until in (("host_minutes", limits.raw_since), ("host_hours", limits.minutes_since)):
        (begin,) = connection.execute(
            f"SELECT max(at) FROM {table} WHERE at {compare} ? AND at < ?",  # noqa: S608
            (at, until),
        ).fetchone()
        if begin is not None:
            return float(begin)
    return None


def _after(connection: sqlite3.Connection, limits: Bounds, at: float, sampled: float | None) -> float | None:
    for table, until in (("host_hours", limits.minutes_since), ("host_minutes", limits.raw_since)):
        (begin,) = connection.execute(
            f"SELECT min(at) FROM {table} WHERE at > ? AND at < ?",  # noqa: S608
            (at, until),
        ).fetchone()
        if begin is not None:
            return float(begin)
    return sampled


def first_sample(connection: sqlite3.Connection) -> float | None:
    """The time of the host's first known sample."""
    return sampled_around(connection, float("-inf"))[1]
