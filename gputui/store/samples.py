"""Samples as they were taken. Times are UTC unix seconds. Every function raises sqlite3.Error."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

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
    """(at, value of each column) of the samples in [begin, end), in the order of their times: all, or the first
    ``limit``."""
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
    """(at, value of each column) of the last sample up to a moment, or before it."""
    where, key = series.key(gpu_id)
    row: Row | None = connection.execute(
        f"SELECT {', '.join(('at', *columns))} FROM {series.table} "  # noqa: S608
        f"WHERE {where} AND at {'<=' if including else '<'} ? ORDER BY at DESC LIMIT 1",
        (*key, at),
    ).fetchone()
    return row


def around(connection: sqlite3.Connection, series: Series, gpu_id: int, at: float) -> tuple[float | None, float | None]:
    """When the last sample up to a moment and the first one after it were taken."""
    where, key = series.key(gpu_id)
    before, after = connection.execute(
        f"SELECT (SELECT max(at) FROM {series.table} WHERE {where} AND at <= ?), "  # noqa: S608
        f"(SELECT min(at) FROM {series.table} WHERE {where} AND at > ?)",
        (*key, at, *key, at),
    ).fetchone()
    return before, after


def times_up_to(connection: sqlite3.Connection, series: Series, gpu_id: int, at: float, limit: int) -> list[float]:
    """When the last samples up to a moment were taken, newest first."""
    where, key = series.key(gpu_id)
    rows = connection.execute(
        f"SELECT at FROM {series.table} WHERE {where} AND at <= ? ORDER BY at DESC LIMIT ?",  # noqa: S608
        (*key, at, limit),
    )
    return [row[0] for row in rows]
