"""Queries of samples and their means. Times are UTC unix seconds. All raise sqlite3.Error."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Sequence
from typing import Any

from gputui.store.rows import named_rows
from gputui.store.series import GPU, Series

Row = tuple[Any, ...]

WINDOW_COLUMNS = (
    "at", "gpu", "uuid", "state", "utilization_percent", "memory_used_bytes", "memory_total_bytes",
    "temperature_celsius", "power_watts", "power_limit_watts", "sm_clock_mhz", "throttle_reasons",
)  # fmt: skip


def gpu_ids(connection: sqlite3.Connection, uuids: Sequence[str]) -> dict[str, int]:
    """The ids of the known GPUs among these, by UUID."""
    query = "SELECT uuid, gpu_id FROM gpus WHERE uuid IN (SELECT value FROM json_each(?))"
    return dict(connection.execute(query, (json.dumps(list(uuids)),)).fetchall())


def between(
    connection: sqlite3.Connection,
    series: Series,
    gpu_id: int,
    columns: Sequence[str],
    times: tuple[float, float],
    limit: int = -1,
) -> list[Row]:
    """(at, value of each column) of the samples from one time up to before another, in order, ``limit`` at most."""
    where, key = series.key(gpu_id)
    return connection.execute(
        f"SELECT {', '.join(('at', *columns))} FROM {series.table} WHERE {where} AND at >= ? AND at < ? "  # noqa: S608
        "ORDER BY at LIMIT ?",
        (*key, *times, limit),
    ).fetchall()


def newest(
    connection: sqlite3.Connection, series: Series, gpu_id: int, columns: Sequence[str], at: float
) -> dict[str, Any] | None:
    """``at`` and the columns of the last sample up to a time."""
    where, key = series.key(gpu_id)
    query = f"SELECT {', '.join(('at', *columns))} FROM {series.table} WHERE {where} AND at <= ?"  # noqa: S608
    rows = named_rows(connection, f"{query} ORDER BY at DESC LIMIT 1", [*key, at])
    if rows:
        return rows[0]
    return None


def samples_between(
    connection: sqlite3.Connection, uuids: Sequence[str], since: float, end: float, limit: int
) -> list[tuple[object, ...]]:
    """Rows of WINDOW_COLUMNS from ``since`` to ``end`` (UTC unix seconds), oldest first; of more
    than ``limit`` the newest. ``gpu`` is the GPU's index."""
    merged: list[tuple[object, ...]] = []
    after = math.nextafter(end, math.inf)
    for gpu_id, index, uuid in connection.execute("SELECT gpu_id, position, uuid FROM gpus").fetchall():
        if uuid in uuids:
            rows = between(connection, GPU, gpu_id, WINDOW_COLUMNS[3:], (since, after))
            merged += [(at, index, uuid, *values) for at, *values in rows]
    merged.sort(key=lambda row: row[:2])
    return merged[-limit:]
