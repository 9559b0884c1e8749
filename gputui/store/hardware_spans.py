"""Samples of GPUs and of the host put together by equal spans of time, for charts of any length."""

from __future__ import annotations

import math
import sqlite3
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from gputui.store import packs, samples
from gputui.store.moment import one_moment
from gputui.store.packs import Column, Times
from gputui.store.rollups import bounds
from gputui.store.series import GPU, HOST, HOST_ID, MILLI, Series, pack_columns

# From spans of this length on, and where less than half of each is looked at, packs are looked for span by span.
MANY_PACKS_SECONDS = 500.0

Values = tuple[int, float | None, float | None, float | None]


class Span(NamedTuple):
    """What samples said in one span. ``number`` counts spans; times are UTC unix seconds. ``count``, ``low``, ``high``
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
) -> Iterator[Span]:
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
) -> Iterator[Span]:
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
) -> Iterator[Span]:
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
        if table == "samples":
            named = {"first": begin, "last": end, "seconds": seconds, "looked_at": looked_at, "gpu_id": gpu_id}
            found = {span.number: span for span in _spans(connection, series.rows, _OF_SAMPLES, columns, named)}
            for span in _packed_spans(connection, series, columns, named):
                before = found.get(span.number)
                found[span.number] = span if before is None else _together(before, span)
            yield from (found[number] for number in sorted(found))
        else:
            # A span of minutes has few rows; all of them are read.
            named = {"first": begin, "last": end, "seconds": seconds, "looked_at": seconds, "gpu_id": gpu_id}
            yield from _spans(connection, f"{kind}_{table}", _OF_ROLLUPS, columns, named)


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
) -> Iterator[Span]:
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
        yield Span(number, first_at, last_at, int(samples_there), found)


def _packed_spans(
    connection: sqlite3.Connection, series: Series, columns: Sequence[str], named: Mapping[str, float]
) -> Iterator[Span]:
    """One for each pack that reaches into a span."""
    seconds, looked_at, first, last = (named[name] for name in ("seconds", "looked_at", "first", "last"))
    units = [MILLI if series.columns[name] else 1 for name in columns]
    seen: set[Times] = set()
    for count, *pack in _packs_of_spans(connection, series, columns, named):
        times = Times(*pack[:4])
        if times in seen:
            continue
        seen.add(times)
        numbers, parts, ends = _windows(times, count, seconds, looked_at, int(first), int(last))
        told = [packs.told(Column(*pack[4 + 3 * n : 7 + 3 * n]), count, parts) for n in range(len(columns))]
        for place, (number, (begin, end), (first_at, last_at)) in enumerate(zip(numbers, parts, ends, strict=True)):
            values: list[Values] = [_values(one[place], unit) for one, unit in zip(told, units, strict=True)]
            yield Span(number, first_at, last_at, end - begin, values)


def _packs_of_spans(
    connection: sqlite3.Connection, series: Series, columns: Sequence[str], named: Mapping[str, float]
) -> sqlite3.Cursor:
    """`pack_columns` of the packs that reach into a span; some of them more than once."""
    seconds, gpu_id = named["seconds"], int(named["gpu_id"])
    if seconds < MANY_PACKS_SECONDS or named["looked_at"] * 2 > seconds:
        begin, end = named["first"] * seconds, (named["last"] + 1) * seconds
        return samples.pack_rows(connection, series, gpu_id, columns, begin, end)
    source = _of_source(series.packs)
    return connection.execute(
        f"{_SPANS} SELECT {pack_columns(series, columns)} FROM spans CROSS JOIN {series.packs} AS s "  # noqa: S608
        f"ON {source} s.at < n * :seconds + :looked_at AND s.at >= "
        f"coalesce((SELECT max(at) FROM {series.packs} WHERE {source} at <= n * :seconds), n * :seconds)",
        named,
    )


@lru_cache(maxsize=1024)
def _windows(
    times: Times, count: int, seconds: float, looked_at: float, first: int, last: int
) -> tuple[list[int], list[tuple[int, int]], list[tuple[float, float]]]:
    """Of the spans that a pack reaches into: their numbers, the places of their samples in it, and the times of the
    first and the last of these. The GPUs of a machine are sampled at the same times."""
    taken = [at / MILLI for at in packs.decode_times(times, count, 0, count)]
    numbers, parts, ends = [], [], []
    for number in range(max(first, math.floor(taken[0] / seconds)), min(last, math.floor(taken[-1] / seconds)) + 1):
        begin = bisect_left(taken, number * seconds)
        end = bisect_left(taken, number * seconds + looked_at, begin)
        if begin < end:
            numbers.append(number)
            parts.append((begin, end))
            ends.append((taken[begin], taken[end - 1]))
    return numbers, parts, ends


def _values(told: packs.Told | None, unit: float) -> Values:
    if told is None:
        return 0, None, None, None
    return told.known, told.low / unit, told.high / unit, told.total / unit / told.known


def _of_source(table: str) -> str:
    return "" if table.startswith("host_") else "gpu_id = :gpu_id AND"


def _together(one: Span, other: Span) -> Span:
    """Two parts of the same span."""
    values = []
    for (count, low, high, mean), (more, lower, higher, their_mean) in zip(one.values, other.values, strict=True):
        if low is None or high is None or mean is None:
            values.append((more, lower, higher, their_mean))
        elif lower is None or higher is None or their_mean is None:
            values.append((count, low, high, mean))
        else:
            both = (mean * count + their_mean * more) / (count + more)
            values.append((count + more, min(low, lower), max(high, higher), both))
    first_at, last_at = min(one.first_at, other.first_at), max(one.last_at, other.last_at)
    return Span(one.number, first_at, last_at, one.samples + other.samples, values)
