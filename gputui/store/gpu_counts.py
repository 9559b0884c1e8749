"""Histograms of utilisation and power of GPUs while they were held; from minutes and hours if samples are deleted."""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from msgspec import Struct

from gputui.store import json_columns
from gputui.store.database import one_moment
from gputui.store.rollups import bounds, span_seconds


class Stay(Struct, frozen=True):
    """A GPU held from ``begin`` to ``end``, UTC unix seconds."""

    uuid: str
    begin: float
    end: float


@dataclass(slots=True)
class GpuCounts:
    """Number of samples by value, in whole percent and whole watts. The mean of a minute or hour counts with its number
    of samples, times the share of it that the GPU was held. ``memory_used_bytes_most`` is the maximum that certainly
    occurred while it was held."""

    utilization_percent: Counter[float] = field(default_factory=Counter)
    power_watts: Counter[float] = field(default_factory=Counter)
    memory_used_bytes_most: int | None = None


def gpu_counts(connection: sqlite3.Connection, stays: Iterable[Stay]) -> GpuCounts:
    """Histograms over all stays; each sample counts once. Raises sqlite3.Error."""
    counts = GpuCounts()
    with one_moment(connection):
        limits = bounds(connection)
        for stay in stays:
            row = connection.execute("SELECT gpu_id, facts FROM gpus WHERE uuid = ?", (stay.uuid,)).fetchone()
            if row is None:
                continue
            most_bytes = counts.memory_used_bytes_most
            _count_samples(connection, counts, row[0], max(stay.begin, limits.raw_since), stay.end)
            for name, since, until in (
                ("minutes", limits.minutes_since, limits.raw_since),
                ("hours", -math.inf, limits.minutes_since),
            ):
                _count_spans(connection, counts, name, row[0], stay, max(stay.begin, since), min(stay.end, until))
            if json_columns.mapping(row[1]).get("memory_is_unified"):
                # What the whole host has in use is no peak of the GPU.
                counts.memory_used_bytes_most = most_bytes
    return counts


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
    """Add the minutes or hours of a stay in [begin, end). A span that overlaps in part counts in part; the maximum of a
    span that the stay covers in part does not count, because it may be from before or after."""
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


def _counters(counts: GpuCounts) -> Iterator[tuple[str, Counter[float]]]:
    yield "utilization_percent", counts.utilization_percent
    yield "power_watts", counts.power_watts


def _at_least(counts: GpuCounts, used: int | None) -> None:
    if used is not None:
        counts.memory_used_bytes_most = max(used, counts.memory_used_bytes_most or 0)
