"""Means of samples over equal parts of a span of time."""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache

from gputui.store import packs, samples
from gputui.store.moment import one_moment
from gputui.store.packs import Column, Times
from gputui.store.series import MILLI, Series


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
    with one_moment(connection):
        rows = connection.execute(
            f"SELECT CAST((at - ?) * ? AS INTEGER) AS bucket, {sums} FROM {series.rows} "  # noqa: S608 - fixed names
            f"WHERE {where} AND at >= ? AND at < ? GROUP BY bucket",
            (since, per_second, *key, since, until),
        ).fetchall()
        packed = samples.pack_rows(connection, series, gpu_id, columns, since, until).fetchall()
    totals = [[0.0] * buckets for _ in columns]
    counts = [[0] * buckets for _ in columns]
    for bucket, *values in rows:
        # Rounding can push a sample at the very end of the span one bucket too far.
        place = min(bucket, buckets - 1)
        for number in range(len(columns)):
            totals[number][place] += values[2 * number]
            counts[number][place] += values[2 * number + 1]
    units = [MILLI if series.columns[name] else 1.0 for name in columns]
    for count, *pack in packed:
        places, parts = _parts(Times(*pack[:4]), count, since, until, buckets)
        for number, unit in enumerate(units):
            column = Column(*pack[4 + 3 * number : 7 + 3 * number])
            for place, (total, known) in zip(places, packs.sums(column, count, parts), strict=True):
                totals[number][place] += total / unit
                counts[number][place] += known
    return [
        [total / count if count else None for total, count in zip(*both, strict=True)]
        for both in zip(totals, counts, strict=True)
    ]


@lru_cache(maxsize=256)
def _parts(
    times: Times, count: int, since: float, until: float, buckets: int
) -> tuple[list[int], list[tuple[int, int]]]:
    """The buckets in which samples of a pack lie, and for each of them the number of its first sample and that behind
    its last. The GPUs of a machine are sampled at the same times."""
    seconds = [at / MILLI for at in packs.decode_times(times, count, 0, count)]
    begin, behind = bisect_left(seconds, since), bisect_left(seconds, until)
    per_second = buckets / (until - since)
    places, parts = [], []
    while begin < behind:
        place = min(int((seconds[begin] - since) * per_second), buckets - 1)
        end = max(begin + 1, bisect_left(seconds, since + (place + 1) / per_second, begin, behind))
        places.append(place)
        parts.append((begin, end))
        begin = end
    return places, parts
