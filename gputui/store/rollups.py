"""Rollups of samples (minutes, hours): summaries, extent, means, and values at a past time."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from msgspec import Struct

from gputui.store import samples
from gputui.store.database import one_moment
from gputui.store.rows import named_rows
from gputui.store.series import GPU, HOST, HOST_ID, Series

_ALL = ("mean", "min", "max", "p95")
_NO_PERCENTILE = ("mean", "min", "max")

MINUTE = 60
HOUR = 3600
DAY = 86_400

# Weighted by samples; rows without a value are left out.
_MEAN_OF_ROLLUPS = "sum({0}_mean * sample_count) / sum(CASE WHEN {0}_mean NOTNULL THEN sample_count END)"

# SQL for the number of samples, and per column for its number of values, extremes and sum.
_OF_SAMPLES = ("count(*)", "count({0}), min({0}), max({0}), total({0})")
_OF_ROLLUPS = (
    "sum(sample_count)",
    "total(CASE WHEN {0}_mean NOTNULL THEN sample_count END), min({0}_min), max({0}_max), "
    "total({0}_mean * sample_count)",
)


class Kept(NamedTuple):
    """A column of samples and its kept statistics. Means are rounded to ``digits`` decimals."""

    column: str
    parts: tuple[str, ...]
    digits: int


GPU_KEPT = (
    Kept("utilization_percent", _ALL, 2),
    Kept("memory_used_bytes", _NO_PERCENTILE, 0),
    Kept("temperature_celsius", _ALL, 2),
    Kept("power_watts", _ALL, 2),
    Kept("sm_clock_mhz", _NO_PERCENTILE, 1),
)
MEMORY_TEMPERATURE = Kept("memory_temperature_celsius", _NO_PERCENTILE, 2)
"""A value of the slow samples of a GPU."""

HOST_KEPT = (
    Kept("cpu_percent", _ALL, 2),
    Kept("memory_used_bytes", _NO_PERCENTILE, 0),
    Kept("disk_used_bytes", ("mean",), 0),
    Kept("disk_read_bytes_per_second", ("mean",), 0),
    Kept("disk_write_bytes_per_second", ("mean",), 0),
    Kept("network_received_bytes_per_second", ("mean",), 0),
    Kept("network_sent_bytes_per_second", ("mean",), 0),
)


def names(statistics: Sequence[Kept]) -> list[str]:
    """The columns of kept statistics."""
    return [f"{column.column}_{part}" for column in statistics for part in column.parts]


def summary(statistics: Sequence[Kept], columns: Sequence[Sequence[float | None]]) -> list[float | int | None]:
    """The statistics of the samples of one span, given as a sequence per kept column, in the order
    of `names`; None without a known value."""
    row: list[float | int | None] = []
    for statistic, column in zip(statistics, columns, strict=True):
        values = sorted(value for value in column if value is not None)
        parts: Mapping[str, float | int] = {}
        if values:
            parts = _parts(values, statistic.digits)
        row += [parts.get(part) for part in statistic.parts]
    return row


def _parts(values: Sequence[float], digits: int) -> Mapping[str, float | int]:
    mean: float | int = round(math.fsum(values) / len(values), digits)
    if not digits:
        mean = int(mean)
    return {
        "mean": mean,
        "min": values[0],
        "max": values[-1],
        "p95": values[math.ceil(0.95 * len(values)) - 1],
    }


class GpuHistory(Struct, frozen=True):
    """Means of one GPU over equal spans, oldest first; None without samples."""

    utilization_percent: tuple[float | None, ...]
    memory_used_bytes: tuple[float | None, ...]
    power_watts: tuple[float | None, ...]
    temperature_celsius: tuple[float | None, ...]


class HostHistory(Struct, frozen=True):
    """Means of the host over equal spans, oldest first; None in spans without samples.

    Attributes:
        cpu_percent: the use of all processors together.
        memory_used_bytes: what programs hold, without caches.
        disk_read_bytes_per_second: read from all disks.
        disk_write_bytes_per_second: written to all disks.
        network_received_bytes_per_second: received on all interfaces.
        network_sent_bytes_per_second: sent on all interfaces.
    """

    cpu_percent: tuple[float | None, ...]
    memory_used_bytes: tuple[float | None, ...]
    disk_read_bytes_per_second: tuple[float | None, ...]
    disk_write_bytes_per_second: tuple[float | None, ...]
    network_received_bytes_per_second: tuple[float | None, ...]
    network_sent_bytes_per_second: tuple[float | None, ...]


class Bounds(NamedTuple):
    """The times since when samples, and minutes, are kept; 0 if none was ever deleted."""

    raw_since: float
    minutes_since: float


def bounds(connection: sqlite3.Connection) -> Bounds:
    """The extent of samples and minutes."""
    row = connection.execute("SELECT raw_since, minutes_since FROM record_bounds").fetchone()
    if row is None:
        return Bounds(0.0, 0.0)
    return Bounds(*row)


def span_seconds(name: str) -> int:
    if name == "minutes":
        return MINUTE
    return HOUR


class SpanGrid(NamedTuple):
    """Equal spans of time.

    Attributes:
        seconds: the length of a span.
        first: the number of the first span that is read.
        last: the number of the last span that is read.
        origin: the begin of span 0, in UTC unix seconds.
        read_seconds: of each span, only the samples of its first so many seconds are read; None for all.
    """

    seconds: float
    first: int
    last: int
    origin: float = 0.0
    read_seconds: float | None = None

    @classmethod
    def equal_parts(cls, since: float, end: float, parts: int) -> SpanGrid:
        """The ``parts`` equal spans of [since, end)."""
        return cls((end - since) / parts, 0, parts - 1, since)


def means(
    connection: sqlite3.Connection, series: Series, gpu_id: int, columns: Sequence[str], grid: SpanGrid
) -> list[tuple[float | None, ...]]:
    """The means of columns in each span of a grid: of samples or, where these are deleted, of the longest rollups that
    fit into a span or still exist. A rollup counts for the span in which it begins. Raises sqlite3.Error."""
    limits = bounds(connection)
    tables = [(series.table, "avg({0})")]
    if grid.origin < limits.raw_since:
        name = "minutes"
        if grid.seconds >= HOUR or grid.origin < limits.minutes_since:
            name = "hours"
        tables.append((_rollup_table(gpu_id, name), _MEAN_OF_ROLLUPS))
    spans = grid.last - grid.first + 1
    table_of_means: list[list[float | None]] = [[None] * spans for _ in columns]
    for table, mean in tables:
        expressions = ", ".join(mean.format(column) for column in columns)
        for number, *values in _rows_by_span(connection, table, gpu_id, expressions, grid):
            for column, value in zip(table_of_means, values, strict=True):
                if column[number - grid.first] is None:
                    column[number - grid.first] = value
    return [without_gaps(column) for column in table_of_means]


def _rollup_table(gpu_id: int, name: str) -> str:
    """The table of minutes, hours or samples of a GPU or of the host."""
    if gpu_id == HOST_ID:
        return f"host_{name}"
    return f"gpu_{name}"


def _rows_by_span(
    connection: sqlite3.Connection, table: str, gpu_id: int, expressions: str, grid: SpanGrid
) -> sqlite3.Cursor:
    """The number of each span with rows, and the SQL ``expressions`` over these."""
    of_subject = "gpu_id = :gpu_id AND"
    if gpu_id == HOST_ID:
        of_subject = ""
    parameters = {**grid._asdict(), "gpu_id": gpu_id}
    parameters["read_seconds"] = grid.read_seconds or grid.seconds
    # A loop over the spans: with a GROUP BY alone, SQLite would sort the rows of a year first.
    return connection.execute(
        "WITH RECURSIVE spans (n) AS (SELECT :first UNION ALL SELECT n + 1 FROM spans WHERE n < :last) "  # noqa: S608 - fixed names
        f"SELECT n, {expressions} FROM spans "
        f"CROSS JOIN {table} ON {of_subject} at >= :origin + n * :seconds "
        "AND at < :origin + n * :seconds + :read_seconds GROUP BY n",
        parameters,
    )


def without_gaps(values: Sequence[float | None]) -> tuple[float | None, ...]:
    """The values of equal spans; where samples come less often than spans, an empty span has
    the value before it. Empty for longer than that, it stays None."""
    places = [place for place, value in enumerate(values) if value is not None]
    if len(places) < 3 or len(places) == len(values):
        return tuple(values)
    # Not the longest ones: those are interruptions.
    usual = sorted(after - before for before, after in pairwise(places))[int(0.9 * (len(places) - 2))]
    filled = list(values)
    for before, after in pairwise([*places, len(values)]):
        # The newest value holds until the next one is due.
        longest = 1.5 * usual if after < len(values) else usual
        if usual > 1 and after - before <= longest:
            filled[before:after] = [values[before]] * (after - before)
    return tuple(filled)


def means_around(
    connection: sqlite3.Connection, columns: Sequence[str], at: float, limits: Bounds, gpu_id: int = HOST_ID
) -> dict[str, Any] | None:
    """The means of ``columns`` in the minute or hour that contains a time, with ``at`` as its
    begin, for a GPU or the host; None if unknown."""
    name = "hours"
    if at >= limits.minutes_since:
        name = "minutes"
    mean_columns = ", ".join(f"{column}_mean AS {column}" for column in columns)
    of_subject = "gpu_id = :gpu_id AND"
    if gpu_id == HOST_ID:
        of_subject = ""
    rows = named_rows(
        connection,
        f"SELECT at, {mean_columns} FROM {_rollup_table(gpu_id, name)} "  # noqa: S608 - fixed names
        f"WHERE {of_subject} at <= :at AND at > :since AND sample_count > 0",
        {"gpu_id": gpu_id, "at": at, "since": at - span_seconds(name)},
    )
    if rows:
        return rows[0]
    return None


class Neighbours(NamedTuple):
    """The times of the host's samples around a moment, or of their rollups.

    Attributes:
        before: the last one up to the moment, None if there is none.
        after: the first one after the moment, None if there is none.
    """

    before: float | None
    after: float | None


def sampled_around(connection: sqlite3.Connection, at: float, limits: Bounds | None = None) -> Neighbours:
    """The samples of the host around a time. ``limits`` are the result of `bounds`, if known."""
    if limits is None:
        limits = bounds(connection)
    places = [("host_samples", math.inf)]
    if limits.raw_since:
        places += [("host_minutes", limits.raw_since), ("host_hours", limits.minutes_since)]
    before: float | None = None
    after: float | None = None
    for table, limit in places:
        if before is None:
            query = f"SELECT max(at) FROM {table} WHERE at <= ? AND at < ?"  # noqa: S608
            (before,) = connection.execute(query, (at, limit)).fetchone()
        if at < limit:
            query = f"SELECT min(at) FROM {table} WHERE at > ? AND at < ?"  # noqa: S608
            (earlier,) = connection.execute(query, (at, limit)).fetchone()
            if earlier is not None:
                after = earlier
    return Neighbours(before, after)


def first_sample(connection: sqlite3.Connection) -> float | None:
    """The time of the host's first known sample."""
    return sampled_around(connection, -math.inf).after


class ColumnSummary(NamedTuple):
    """One column of the samples of a span; without a known value, ``values`` is 0 and the others are None."""

    values: int
    low: float | None
    high: float | None
    mean: float | None


class SampleSpan(NamedTuple):
    """The samples of span ``number`` of a grid, summarized for each requested column."""

    number: int
    first_at: float
    last_at: float
    samples: int
    columns: Sequence[ColumnSummary]


def newest_sample(connection: sqlite3.Connection, uuid: str | None) -> float | None:
    """The time of the newest sample of a GPU, or of the host (None)."""
    series = HOST if uuid is None else GPU
    sample = samples.newest(connection, series, _gpu_id(connection, uuid), (), math.inf)
    if sample:
        at: float = sample["at"]
        return at
    return None


def sample_at(
    connection: sqlite3.Connection, uuid: str | None, columns: Sequence[str], at: float
) -> dict[str, Any] | None:
    """The last sample of a GPU, or of the host (None), up to a time, or the means of its minute or hour
    where no finer data exist; None if nothing was known yet."""
    limits = bounds(connection)
    gpu_id = _gpu_id(connection, uuid)
    if at < limits.raw_since:
        return means_around(connection, columns, at, limits, gpu_id)
    series = HOST if uuid is None else GPU
    return samples.newest(connection, series, gpu_id, columns, at)


def _gpu_id(connection: sqlite3.Connection, uuid: str | None) -> int:
    """The id of a GPU (-1: there is none), or of the host (None)."""
    row = connection.execute("SELECT gpu_id FROM gpus WHERE uuid = ?", (uuid,)).fetchone()
    if uuid is None:
        return HOST_ID
    if row is None:
        return -1
    return int(row[0])


def sample_spans(
    connection: sqlite3.Connection, uuid: str | None, columns: Sequence[str], grid: SpanGrid
) -> list[SampleSpan]:
    """The samples of a GPU, or of the host (None), in the spans of a grid from 1970 on; spans without samples are left
    out. Hours and minutes are read, as a whole, where no finer data exist. Raises sqlite3.Error."""
    with one_moment(connection):
        limits = bounds(connection)
        gpu_id = _gpu_id(connection, uuid)
        tables = (
            ("hours", -math.inf, limits.minutes_since),
            ("minutes", limits.minutes_since, limits.raw_since),
            ("samples", limits.raw_since, math.inf),
        )
        spans = []
        for name, since, end in tables:
            part = grid._replace(first=_span_from(grid.first, since, grid), last=_span_before(grid.last, end, grid))
            count, of_column = _OF_SAMPLES
            if name != "samples":
                count, of_column = _OF_ROLLUPS
                part = part._replace(read_seconds=None)
            if part.first > part.last:
                continue
            expressions = ", ".join(("min(at), max(at)", count, *(of_column.format(column) for column in columns)))
            rows = _rows_by_span(connection, _rollup_table(gpu_id, name), gpu_id, expressions, part)
            spans += [_sample_span(row) for row in rows]
        return spans


def _span_from(first: int, at: float, grid: SpanGrid) -> int:
    """The number of the first span from number ``first`` on that begins at a time or later."""
    if at == -math.inf:
        return first
    return max(first, math.ceil(at / grid.seconds))


def _span_before(last: int, at: float, grid: SpanGrid) -> int:
    """The number of the last span up to number ``last`` that begins before a time."""
    if at == math.inf:
        return last
    return min(last, math.ceil(at / grid.seconds) - 1)


def _sample_span(row: Sequence[Any]) -> SampleSpan:
    """A span from its number, first and last time and number of samples, and the values of each column: their number,
    lowest, highest and sum."""
    number, first_at, last_at, sample_count, *values = row
    columns = []
    for place in range(0, len(values), 4):
        count, low, high, total = values[place : place + 4]
        mean = total / count if count else None
        columns.append(ColumnSummary(int(count), low, high, mean))
    return SampleSpan(number, first_at, last_at, int(sample_count), columns)
