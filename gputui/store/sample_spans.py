"""Samples of a GPU or the host in equally long spans, as charts draw them: from hours and minutes where the samples are
gone.

Times are UTC unix seconds.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gputui.store import samples
from gputui.store.database import one_moment
from gputui.store.rollups import bounds
from gputui.store.series import GPU, HOST, HOST_ID, Series

Values = tuple[int, float | None, float | None, float | None]


class SampleSpan(NamedTuple):
    """Values of samples in one span. ``number`` counts spans; times are UTC unix seconds. ``count``, ``low``, ``high``
    and ``mean`` have a value for each column asked for: how many samples knew it, its extremes and its mean."""

    number: int
    first_at: float
    last_at: float
    samples: int
    values: Sequence[Values]


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
) -> Iterator[SampleSpan]:
    """The samples of a GPU in the spans from number ``first`` to ``last``; span n begins ``n · seconds`` after 1970.

    Of each span the first ``looked_at`` seconds are read: with less than all of it, what lies between is not known.
    Columns are of GPU_COLUMNS. Spans without a sample are left out. Raises sqlite3.Error.
    """
    assert GPU_COLUMNS.issuperset(columns)
    row = connection.execute("SELECT gpu_id FROM gpus WHERE uuid = ?", (uuid,)).fetchone()
    if row is None:
        return iter(())
    with one_moment(connection):
        return iter(list(_all_spans(connection, GPU, row[0], columns, seconds, first, last, looked_at)))


def host_spans(
    connection: sqlite3.Connection, columns: Sequence[str], seconds: float, first: int, last: int, looked_at: float
) -> Iterator[SampleSpan]:
    """The same of the host; columns are of HOST_COLUMNS."""
    assert HOST_COLUMNS.issuperset(columns)
    with one_moment(connection):
        return iter(list(_all_spans(connection, HOST, HOST_ID, columns, seconds, first, last, looked_at)))


def newest_gpu_sample(connection: sqlite3.Connection, uuid: str) -> float | None:
    """When a GPU was sampled last, in UTC unix seconds."""
    row = connection.execute("SELECT gpu_id FROM gpus WHERE uuid = ?", (uuid,)).fetchone()
    found = None if row is None else samples.newest(connection, GPU, row[0], (), math.inf)
    return None if found is None else float(found[0])


def newest_host_sample(connection: sqlite3.Connection) -> float | None:
    """When the host was sampled last."""
    found = samples.newest(connection, HOST, HOST_ID, (), math.inf)
    return None if found is None else float(found[0])


def _all_spans(
    connection: sqlite3.Connection,
    series: Series,
    gpu_id: int,
    columns: Sequence[str],
    seconds: float,
    first: int,
    last: int,
    looked_at: float,
) -> Iterator[SampleSpan]:
    """From hours, minutes and samples, each where the finer ones are gone."""
    limits = bounds(connection)
    kind = "host" if series is HOST else "gpu"
    for table, since, until in (
        ("hours", float("-inf"), limits.minutes_since),
        ("minutes", limits.minutes_since, limits.raw_since),
        ("samples", limits.raw_since, float("inf")),
    ):
        begin = first if since == float("-inf") else max(first, math.ceil(since / seconds))
        end = last if until == float("inf") else min(last, math.ceil(until / seconds) - 1)
        if begin > end:
            continue
        # A span of minutes or hours has few rows; all of them are read.
        read = looked_at if table == "samples" else seconds
        values = _OF_SAMPLES if table == "samples" else _OF_ROLLUPS
        named = {"first": begin, "last": end, "seconds": seconds, "looked_at": read, "gpu_id": gpu_id}
        yield from _spans(connection, f"{kind}_{table}", values, columns, named)


# How many samples there are, and then how often a column was known, its extremes and its sum.
_OF_SAMPLES = ("count(*)", "count({0}), min({0}), max({0}), total({0})")
_OF_ROLLUPS = (
    "sum(sample_count)",
    "total(CASE WHEN {0}_mean NOTNULL THEN sample_count END), min({0}_min), max({0}_max), "
    "total({0}_mean * sample_count)",
)
_SPANS = "WITH RECURSIVE spans (n) AS (SELECT :first UNION ALL SELECT n + 1 FROM spans WHERE n < :last)"


def _spans(
    connection: sqlite3.Connection,
    table: str,
    values: tuple[str, str],
    columns: Sequence[str],
    named: Mapping[str, float],
) -> Iterator[SampleSpan]:
    asked = ", ".join((values[0], *(values[1].format(name) for name in columns)))
    rows = connection.execute(
        f"{_SPANS} SELECT n, min(at), max(at), {asked} FROM spans CROSS JOIN {table} AS s "  # noqa: S608
        f"ON {_of_source(table)} s.at >= n * :seconds AND s.at < n * :seconds + :looked_at GROUP BY n",
        named,
    )
    for number, first_at, last_at, samples_there, *rest in rows:
        found = []
        for i in range(0, len(rest), 4):
            count, low, high, total = rest[i : i + 4]
            found.append((int(count), low, high, total / count if count else None))
        yield SampleSpan(number, first_at, last_at, int(samples_there), found)


def _of_source(table: str) -> str:
    return "" if table.startswith("host_") else "gpu_id = :gpu_id AND"
