"""How often GPUs had each utilisation and power while they were held; from minutes and hours where samples are gone."""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gputui.store.database import one_moment
from gputui.store.rollups import bounds, span_seconds


@dataclass(frozen=True, slots=True)
class Stay:
    """A GPU that was held from ``begin`` to ``end``, UTC unix seconds."""

    uuid: str
    begin: float
    end: float


@dataclass(slots=True)
class GpuCounts:
    """How often each value was sampled, in whole percent and whole watts; of what was put together into minutes and
    hours, their means count as often as they had samples, by the share of them that the GPU was held.
    ``memory_used_bytes_most`` is the most that was in use, as far as it is known to have been then."""

    utilization_percent: Counter[float] = field(default_factory=Counter)
    power_watts: Counter[float] = field(default_factory=Counter)
    memory_used_bytes_most: int | None = None


def gpu_counts(connection: sqlite3.Connection, stays: Iterable[Stay]) -> GpuCounts:
    """All stays together, each sample once. Raises sqlite3.Error."""
    with one_moment(connection):
        return _counts(connection, stays)


def _counts(connection: sqlite3.Connection, stays: Iterable[Stay]) -> GpuCounts:
    found = GpuCounts()
    limits = bounds(connection)
    for stay in stays:
        row = connection.execute("SELECT gpu_id FROM gpus WHERE uuid = ?", (stay.uuid,)).fetchone()
        if row is None:
            continue
        _count_samples(connection, found, row[0], max(stay.begin, limits.raw_since), stay.end)
        for name, since, until in (
            ("minutes", limits.minutes_since, limits.raw_since),
            ("hours", -math.inf, limits.minutes_since),
        ):
            _count_spans(connection, found, name, row[0], stay, max(stay.begin, since), min(stay.end, until))
    return found


def _count_samples(connection: sqlite3.Connection, found: GpuCounts, gpu_id: int, begin: float, end: float) -> None:
    if end <= begin:
        return
    where = "FROM gpu_samples WHERE gpu_id = ? AND at >= ? AND at < ?"
    for column, counts in _counters(found):
        rows = connection.execute(
            f"SELECT round({column}) AS value, count(*) {where} AND {column} NOTNULL GROUP BY value",
            (gpu_id, begin, end),
        )
        for value, number in rows:
            counts[value] += number
    (used,) = connection.execute(f"SELECT max(memory_used_bytes) {where}", (gpu_id, begin, end)).fetchone()
    _at_least(found, used)


def _count_spans(
    connection: sqlite3.Connection, found: GpuCounts, name: str, gpu_id: int, stay: Stay, begin: float, end: float
) -> None:
    """Minutes or hours that lie in [begin, end), which is what they tell of a stay. One that lies there in part counts
    in part; of one that the stay covers in part it is not known whether its extremes are the stay's."""
    if end <= begin:
        return
    named = {
        "gpu_id": gpu_id, "seconds": float(span_seconds(name)), "begin": begin, "end": end, "stay_begin": stay.begin,
        "stay_end": stay.end,
    }  # fmt: skip
    where = f"FROM gpu_{name} WHERE gpu_id = :gpu_id AND at > :begin - :seconds AND at < :end"
    covered = "(min(at + :seconds, :end) - max(at, :begin)) / :seconds"
    for column, counts in _counters(found):
        rows = connection.execute(
            f"SELECT round({column}_mean) AS value, sum(sample_count * {covered}) {where} "
            f"AND {column}_mean NOTNULL GROUP BY value",
            named,
        )
        for value, number in rows:
            if samples_covered := round(number):
                counts[value] += samples_covered
    (used,) = connection.execute(
        f"SELECT max(memory_used_bytes_max) {where} AND at >= :stay_begin AND at + :seconds <= :stay_end", named
    ).fetchone()
    _at_least(found, used)


def _counters(found: GpuCounts) -> Iterator[tuple[str, Counter[float]]]:
    yield "utilization_percent", found.utilization_percent
    yield "power_watts", found.power_watts


def _at_least(found: GpuCounts, used: int | None) -> None:
    if used is not None:
        found.memory_used_bytes_most = max(used, found.memory_used_bytes_most or 0)
