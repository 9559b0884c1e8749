"""Queries of samples and their means. Times are UTC unix seconds. Every function raises sqlite3.Error."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from typing import Any

from gputui.store import series
from gputui.store.series import Series

Row = tuple[Any, ...]


def between(
    connection: sqlite3.Connection,
    series: Series,
    gpu_id: int,
    columns: Sequence[str],
    begin: float,
    end: float,
    limit: int = -1,
) -> list[Row]:
    """(at, value of each column) of the samples in [begin, end), ordered by time; at most ``limit`` (-1: all)."""
    where, key = series.key(gpu_id)
    return connection.execute(
        f"SELECT {', '.join(('at', *columns))} FROM {series.table} WHERE {where} AND at >= ? AND at < ? "  # noqa: S608
        "ORDER BY at LIMIT ?",
        (*key, begin, end, limit),
    ).fetchall()


def newest(
    connection: sqlite3.Connection,
    series: Series,
    gpu_id: int,
    columns: Sequence[str],
    at: float,
    *,
    including: bool = True,
) -> Row | None:
    """(at, value of each column) of the last sample up to a time, or before it without ``including``."""
    where, key = series.key(gpu_id)
    row: Row | None = connection.execute(
        f"SELECT {', '.join(('at', *columns))} FROM {series.table} "  # noqa: S608
        f"WHERE {where} AND at {'<=' if including else '<'} ? ORDER BY at DESC LIMIT 1",
        (*key, at),
    ).fetchone()
    return row


def around(connection: sqlite3.Connection, series: Series, gpu_id: int, at: float) -> tuple[float | None, float | None]:
    """The times of the last sample up to a time and of the first one after it."""
    where, key = series.key(gpu_id)
    before, after = connection.execute(
        f"SELECT (SELECT max(at) FROM {series.table} WHERE {where} AND at <= ?), "  # noqa: S608
        f"(SELECT min(at) FROM {series.table} WHERE {where} AND at > ?)",
        (*key, at, *key, at),
    ).fetchone()
    return before, after


def times_up_to(connection: sqlite3.Connection, series: Series, gpu_id: int, at: float, limit: int) -> list[float]:
    """The times of the last samples up to a time, newest first."""
    where, key = series.key(gpu_id)
    rows = connection.execute(
        f"SELECT at FROM {series.table} WHERE {where} AND at <= ? ORDER BY at DESC LIMIT ?",  # noqa: S608
        (*key, at, limit),
    )
    return [row[0] for row in rows]


def sample_means(
    connection: sqlite3.Connection,
    series: Series,
    gpu_id: int,
    columns: Sequence[str],
    since: float,
    until: float,
    buckets: int,
) -> list[list[float | None]]:
    """The means of columns in ``buckets`` equal parts of [since, until); None without a value."""
    where, key = series.key(gpu_id)
    per_second = buckets / (until - since)
    sums = ", ".join(f"total({column}), count({column})" for column in columns)
    rows = connection.execute(
        f"SELECT CAST((at - ?) * ? AS INTEGER) AS bucket, {sums} FROM {series.table} "  # noqa: S608
        f"WHERE {where} AND at >= ? AND at < ? GROUP BY bucket",
        (since, per_second, *key, since, until),
    )
    totals = [[0.0] * buckets for _ in columns]
    counts = [[0] * buckets for _ in columns]
    for bucket, *values in rows:
        # Rounding may put a sample at the very end one bucket too far.
        index = min(bucket, buckets - 1)
        for number in range(len(columns)):
            totals[number][index] += values[2 * number]
            counts[number][index] += values[2 * number + 1]
    return [
        [total / count if count else None for total, count in zip(*both, strict=True)]
        for both in zip(totals, counts, strict=True)
    ]


WINDOW_COLUMNS = (
    "at", "gpu", "uuid", "state", "utilization_percent", "memory_used_bytes", "memory_total_bytes",
    "temperature_celsius", "power_watts", "power_limit_watts", "sm_clock_mhz", "throttle_reasons",
)  # fmt: skip


def samples_between(
    connection: sqlite3.Connection, uuids: Sequence[str], since: float, until: float, limit: int
) -> list[tuple[object, ...]]:
    """Rows of WINDOW_COLUMNS from ``since`` to ``until`` (UTC unix seconds), oldest first; of more than ``limit`` the
    newest.

    ``gpu`` is the GPU's index. Raises sqlite3.Error.
    """
    merged: list[tuple[object, ...]] = []
    for uuid in uuids:
        row = connection.execute("SELECT gpu_id, position FROM gpus WHERE uuid = ?", (uuid,)).fetchone()
        if row is not None:
            after = math.nextafter(until, math.inf)
            for at, *values in between(connection, series.GPU, row[0], WINDOW_COLUMNS[3:], since, after):
                merged.append((at, row[1], uuid, *values))
    merged.sort(key=lambda found_row: found_row[:2])
    return merged[-limit:]
