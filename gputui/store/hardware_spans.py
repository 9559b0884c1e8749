"""Samples of GPUs and of the host put together by equal spans of time, for charts of any length."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gputui.store.rollups import bounds


class Span(NamedTuple):
    """What samples said in one span. ``number`` counts spans; times are UTC unix seconds. ``count``, ``low``, ``high``
    and ``mean`` have a value for each column asked for: how many samples knew it, its extremes and its mean."""

    number: int
    first_at: float
    last_at: float
    samples: int
    values: Sequence[tuple[int, float | None, float | None, float | None]]


GPU_COLUMNS = frozenset(
    {"utilization_percent", "memory_used_bytes", "power_watts", "temperature_celsius", "sm_clock_mhz"}
)
HOST_COLUMNS = frozenset({"cpu_percent", "memory_used_bytes"})


def gpu_spans(
    connection: sqlite3.Connection,
    uuid: str,
    columns: Sequence[str],
    seconds: float,
    first: int,
    last: int,
    looked_at: float,
) -> Iterator[Span]:
    """The samples of a GPU in the spans from number ``first`` to ``last``; span n begins ``n · seconds`` after 1970.

    Of each span the first ``looked_at`` seconds are read: with less than all of it, what lies between is not known.
    Columns are of GPU_COLUMNS. Spans without a sample are left out. Raises sqlite3.Error.
    """
    assert GPU_COLUMNS.issuperset(columns)
    source = "gpu_{table} AS s ON s.gpu_id = (SELECT gpu_id FROM gpus WHERE uuid = :uuid) AND"
    return _all_spans(connection, source, columns, seconds, first, last, looked_at, uuid)


def host_spans(
    connection: sqlite3.Connection, columns: Sequence[str], seconds: float, first: int, last: int, looked_at: float
) -> Iterator[Span]:
    """The same of the host; columns are of HOST_COLUMNS."""
    assert HOST_COLUMNS.issuperset(columns)
    return _all_spans(connection, "host_{table} AS s ON", columns, seconds, first, last, looked_at, None)


def newest_gpu_sample(connection: sqlite3.Connection, uuid: str) -> float | None:
    """When a GPU was sampled last, in UTC unix seconds."""
    row = connection.execute(
        "SELECT max(at) FROM gpu_samples WHERE gpu_id = (SELECT gpu_id FROM gpus WHERE uuid = ?)", (uuid,)
    ).fetchone()
    return None if row[0] is None else float(row[0])


def newest_host_sample(connection: sqlite3.Connection) -> float | None:
    """When the host was sampled last."""
    row = connection.execute("SELECT max(at) FROM host_samples").fetchone()
    return None if row[0] is None else float(row[0])


def _all_spans(
    connection: sqlite3.Connection,
    source: str,
    columns: Sequence[str],
    seconds: float,
    first: int,
    last: int,
    looked_at: float,
    uuid: str | None,
) -> Iterator[Span]:
    """From hours, minutes and samples, each where the finer ones are gone."""
    limits = bounds(connection)
    for table, since, until in (
        ("hours", float("-inf"), limits.minutes_since),
        ("minutes", limits.minutes_since, limits.raw_since),
        ("samples", limits.raw_since, float("inf")),
    ):
        begin = first if since == float("-inf") else max(first, math.ceil(since / seconds))
        end = last if until == float("inf") else min(last, math.ceil(until / seconds) - 1)
        if begin <= end:
            # A span of minutes has few rows; all of them are read.
            width = looked_at if table == "samples" else seconds
            yield from _spans(
                connection, source.format(table=table), _values(columns, table), seconds, begin, end, width, uuid
            )


def _values(columns: Sequence[str], table: str) -> str:
    """How often each column was known, its extremes and its mean, and before those how many samples there are."""
    if table == "samples":
        return "count(*)" + "".join(f", count({name}), min({name}), max({name}), avg({name})" for name in columns)
    weight = "CASE WHEN {name}_mean NOTNULL THEN sample_count END"
    return "sum(sample_count)" + "".join(
        f", total({weight.format(name=name)}), min({name}_min), max({name}_max), "
        f"sum({name}_mean * sample_count) / sum({weight.format(name=name)})"
        for name in columns
    )


def _spans(
    connection: sqlite3.Connection,
    source: str,
    values: str,
    seconds: float,
    first: int,
    last: int,
    looked_at: float,
    uuid: str | None,
) -> Iterator[Span]:
    rows = connection.execute(
        "WITH RECURSIVE spans (n) AS (SELECT :first UNION ALL SELECT n + 1 FROM spans WHERE n < :last) "  # noqa: S608
        f"SELECT n, min(at), max(at), {values} FROM spans CROSS JOIN {source} "
        "s.at >= n * :seconds AND s.at < n * :seconds + :looked_at GROUP BY n",
        {"first": first, "last": last, "seconds": seconds, "looked_at": looked_at, "uuid": uuid},
    )
    for number, first_at, last_at, samples, *rest in rows:
        found = [(int(rest[i]), rest[i + 1], rest[i + 2], rest[i + 3]) for i in range(0, len(rest), 4)]
        yield Span(number, first_at, last_at, int(samples), found)
