"""Samples of a GPU or the host in equal spans, for charts; from hours and minutes if the samples are deleted.

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
    """The samples of span ``number``. ``values`` has for each requested column the number of known values, the minimum,
    the maximum and the mean."""

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

    Only the first ``looked_at`` seconds of each span are read, which bounds the cost of long spans. Columns are of
    GPU_COLUMNS. Spans without samples are left out. Raises sqlite3.Error.
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
    """The same for the host; columns are of HOST_COLUMNS."""
    assert HOST_COLUMNS.issuperset(columns)
    with one_moment(connection):
        return iter(list(_all_spans(connection, HOST, HOST_ID, columns, seconds, first, last, looked_at)))


def newest_gpu_sample(connection: sqlite3.Connection, uuid: str) -> float | None:
    """The time of a GPU's newest sample (UTC unix seconds)."""
    row = connection.execute("SELECT gpu_id FROM gpus WHERE uuid = ?", (uuid,)).fetchone()
    sample = None if row is None else samples.newest(connection, GPU, row[0], (), math.inf)
    return None if sample is None else float(sample[0])


def newest_host_sample(connection: sqlite3.Connection) -> float | None:
    """The time of the host's newest sample."""
    sample = samples.newest(connection, HOST, HOST_ID, (), math.inf)
    return None if sample is None else float(sample[0])


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
    """Spans from hours, minutes and samples, each where no finer data exist."""
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
        # Minutes and hours have few rows per span, so all are read.
        read = looked_at if table == "samples" else seconds
        values = _OF_SAMPLES if table == "samples" else _OF_ROLLUPS
        named = {"first": begin, "last": end, "seconds": seconds, "looked_at": read, "gpu_id": gpu_id}
        yield from _spans(connection, f"{kind}_{table}", values, columns, named)


# SQL for the number of samples, and per column for its number of values, extremes and sum.
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
    source = "" if table.startswith("host_") else "gpu_id = :gpu_id AND"
    rows = connection.execute(
        f"{_SPANS} SELECT n, min(at), max(at), {asked} FROM spans CROSS JOIN {table} AS s "  # noqa: S608
        f"ON {source} s.at >= n * :seconds AND s.at < n * :seconds + :looked_at GROUP BY n",
        named,
    )
    for number, first_at, last_at, samples_there, *rest in rows:
        found = []
        for i in range(0, len(rest), 4):
            count, low, high, total = rest[i : i + 4]
            found.append((int(count), low, high, total / count if count else None))
        yield SampleSpan(number, first_at, last_at, int(samples_there), found)
