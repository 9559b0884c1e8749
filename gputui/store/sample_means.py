"""Means of samples over equal parts of a span of time."""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections.abc import Sequence

from gputui.store import samples
from gputui.store.samples import Series


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
        f"SELECT CAST((at - ?) * ? AS INTEGER) AS bucket, {sums} FROM {series.rows} "  # noqa: S608 - fixed names
        f"WHERE {where} AND at >= ? AND at < ? GROUP BY bucket",
        (since, per_second, *key, since, until),
    )
    found = [[(0.0, 0)] * buckets for _ in columns]
    for bucket, *values in rows:
        # Rounding can push a sample at the very end of the span one bucket too far.
        place = min(bucket, buckets - 1)
        for number, column in enumerate(found):
            total, count = column[place]
            column[place] = (total + values[2 * number], count + values[2 * number + 1])
    for piece in samples.pieces(connection, series, gpu_id, columns, since, until):
        begin = 0
        while begin < len(piece.times):
            place = min(int((piece.times[begin] - since) * per_second), buckets - 1)
            end = max(begin + 1, bisect_left(piece.times, since + (place + 1) / per_second, begin))
            for column, values in zip(found, piece.columns, strict=True):
                known = [value for value in values[begin:end] if value is not None]
                total, count = column[place]
                column[place] = (total + sum(known), count + len(known))
            begin = end
    return [[total / count if count else None for total, count in column] for column in found]
