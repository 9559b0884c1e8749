"""Means of samples over equal parts of a span of time."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from gputui.store.series import Series


def means(
    connection: sqlite3.Connection,
    series: Series,
    gpu_id: int,
    columns: Sequence[str],
    since: float,
    until: float,
    buckets: int,
) -> list[list[float | None]]:
    """The mean of each column in each of ``buckets`` equal parts of [since, until), UTC unix seconds; None where no
    sample knew it. Raises sqlite3.Error."""
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
        # Rounding can push a sample at the very end of the span one bucket too far.
        place = min(bucket, buckets - 1)
        for number in range(len(columns)):
            totals[number][place] += values[2 * number]
            counts[number][place] += values[2 * number + 1]
    return [
        [total / count if count else None for total, count in zip(*both, strict=True)]
        for both in zip(totals, counts, strict=True)
    ]
