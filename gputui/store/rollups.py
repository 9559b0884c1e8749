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


class Kept(NamedTuple):
    """A column of samples and its kept statistics. Means are rounded to ``digits`` decimals."""

    column: str
    parts: tuple[str, ...]
    digits: int


_ALL = ("mean", "min", "max", "p95")
_NO_PERCENTILE = ("mean", "min", "max")

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


MINUTE = 60
HOUR = 3600
DAY = 86_400


class GpuHistory(Struct, frozen=True):
    """Means of one GPU over equal buckets, oldest first; None without samples."""

    utilization_percent: tuple[float | None, ...]
    memory_used_bytes: tuple[float | None, ...]
    power_watts: tuple[float | None, ...]
    temperature_celsius: tuple[float | None, ...]


class HostHistory(Struct, frozen=True):
    """Means of the host over equal buckets, oldest first; None without samples."""

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


def means(
    connection: sqlite3.Connection, series: Series, gpu_id: int, columns: Sequence[str], since: float, end: float,
    buckets: int,
) -> list[tuple[float | None, ...]]:  # fmt: skip
    """The means of columns in ``buckets`` equal parts of [since, until): of samples or, where these
    are deleted, of the longest spans that fit into a part or still exist. A span counts for the
    part in which it begins."""
    limits = bounds(connection)
    width = (end - since) / buckets
    tables = [(series.table, "avg({0})")]
    if since < limits.raw_since:
        name = "hours" if width >= HOUR or since < limits.minutes_since else "minutes"
        subject = "host" if gpu_id == HOST_ID else "gpu"
        tables.append((f"{subject}_{name}", _MEAN_OF_ROLLUPS))
    table_of_means: list[list[float | None]] = [[None] * buckets for _ in columns]
    for table, mean in tables:
        expressions = ", ".join(mean.format(column) for column in columns)
        parts = _Parts(since, width, 0, buckets - 1, width)
        for bucket, *values in _rows_by_part(connection, table, gpu_id, expressions, parts):
            for column, value in zip(table_of_means, values, strict=True):
                if column[bucket] is None:
                    column[bucket] = value
    return [without_gaps(column) for column in table_of_means]


# Weighted by samples; rows without a value are left out.
_MEAN_OF_ROLLUPS = "sum({0}_mean * sample_count) / sum(CASE WHEN {0}_mean NOTNULL THEN sample_count END)"


class _Parts(NamedTuple):
    """Parts of the time: number n begins at ``origin + n · seconds``. The rows of its first
    ``read_seconds`` are read."""

    origin: float
    seconds: float
    first: int
    last: int
    read_seconds: float


def _rows_by_part(
    connection: sqlite3.Connection, table: str, gpu_id: int, expressions: str, parts: _Parts
) -> sqlite3.Cursor:
    """The number of each part with rows, and the SQL ``expressions`` over these."""
    source = "" if gpu_id == HOST_ID else "gpu_id = :gpu_id AND"
    # A loop over the parts: with a GROUP BY alone, SQLite would sort the rows of a year first.
    return connection.execute(
        "WITH RECURSIVE parts (n) AS (SELECT :first UNION ALL SELECT n + 1 FROM parts WHERE n < :last) "  # noqa: S608 - fixed names
        f"SELECT n, {expressions} FROM parts CROSS JOIN {table} ON {source} at >= :origin + n * :seconds "
        "AND at < :origin + n * :seconds + :read_seconds GROUP BY n",
        {**parts._asdict(), "gpu_id": gpu_id},
    )


def without_gaps(values: Sequence[float | None]) -> tuple[float | None, ...]:
    """The values of equal buckets; where samples come less often than buckets, an empty bucket has
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
    name = "minutes" if at >= limits.minutes_since else "hours"
    means = ", ".join(f"{column}_mean AS {column}" for column in columns)
    table = f"host_{name} WHERE" if gpu_id == HOST_ID else f"gpu_{name} WHERE gpu_id = :gpu_id AND"
    rows = named_rows(
        connection,
        f"SELECT at, {means} FROM {table} at <= :at AND at > :since AND sample_count > 0",  # noqa: S608 - fixed names
        {"gpu_id": gpu_id, "at": at, "since": at - span_seconds(name)},
    )
    if rows:
        return rows[0]
    return None


def sampled_around(
    connection: sqlite3.Connection, at: float, limits: Bounds | None = None
) -> tuple[float | None, float | None]:
    """The times of the host's last sample up to a time and of its first one after it, or of their
    rollups. ``limits`` are the result of `bounds`, if known."""
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
    return before, after


def first_sample(connection: sqlite3.Connection) -> float | None:
    """The time of the host's first known sample."""
    return sampled_around(connection, -math.inf)[1]


Values = tuple[int, float | None, float | None, float | None]


class SampleSpan(NamedTuple):
    """The samples of span ``number``. ``values`` has for each requested column the number of known
    values, the minimum, the maximum and the mean."""

    number: int
    first_at: float
    last_at: float
    samples: int
    values: Sequence[Values]


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


def _column_values(count: float, low: Any, high: Any, total: float) -> Values:
    """The number of values of a column in a span, their bounds, and their mean."""
    if not count:
        return 0, low, high, None
    return int(count), low, high, total / count


def sample_spans(
    connection: sqlite3.Connection, uuid: str | None, columns: Sequence[str], seconds: float, first: int, last: int,
    read_seconds: float,
) -> list[SampleSpan]:  # fmt: skip
    """The samples of a GPU, or of the host (None), in the spans from number ``first`` to ``last``;
    span n begins ``n · seconds`` after 1970. Spans without samples are left out.

    Of samples, only the first ``read_seconds`` of each span are read, which bounds the cost of long
    spans. Hours and minutes are read where no finer data exist.
    """
    with one_moment(connection):
        limits = bounds(connection)
        gpu_id = _gpu_id(connection, uuid)
        spans = []
        for table, since, limit in (
            ("hours", -math.inf, limits.minutes_since),
            ("minutes", limits.minutes_since, limits.raw_since),
            ("samples", limits.raw_since, math.inf),
        ):
            begin = first
            end = last
            if since != -math.inf:
                begin = max(first, math.ceil(since / seconds))
            if limit != math.inf:
                end = min(last, math.ceil(limit / seconds) - 1)
            if begin > end:
                continue
            count, of_column = _OF_ROLLUPS
            part_seconds = seconds
            if table == "samples":
                count, of_column = _OF_SAMPLES
                part_seconds = read_seconds
            expressions = ", ".join(("min(at), max(at)", count, *(of_column.format(name) for name in columns)))
            parts = _Parts(0.0, seconds, begin, end, part_seconds)
            name = f"host_{table}" if uuid is None else f"gpu_{table}"
            for number, first_at, last_at, sample_count, *rest in _rows_by_part(
                connection, name, gpu_id, expressions, parts
            ):
                by_column = (rest[at : at + 4] for at in range(0, len(rest), 4))
                values = [_column_values(*column) for column in by_column]
                spans.append(SampleSpan(number, first_at, last_at, int(sample_count), values))
        return spans


# SQL for the number of samples, and per column for its number of values, extremes and sum.
_OF_SAMPLES = ("count(*)", "count({0}), min({0}), max({0}), total({0})")
_OF_ROLLUPS = (
    "sum(sample_count)",
    "total(CASE WHEN {0}_mean NOTNULL THEN sample_count END), min({0}_min), max({0}_max), "
    "total({0}_mean * sample_count)",
)
