"""Rollups of samples (minutes, hours, days): summaries, extent, means, and values at a past
time."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from msgspec import Struct

from gputui.store import samples
from gputui.store.database import named_rows, one_moment
from gputui.store.series import GPU, HOST, HOST_ID


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


def names(kept: Sequence[Kept]) -> list[str]:
    """The columns in the order of `Gathered.summary`."""
    return [f"{column.column}_{part}" for column in kept for part in column.parts]


@dataclass(slots=True)
class Gathered:
    """Samples of one span, added in batches. In ``answered`` of them the GPU answered."""

    kept: Sequence[Kept]
    samples: int = 0
    answered: int = 0
    _columns: list[list[float]] = field(default_factory=list)
    _known: int = 0
    _throttled: int = 0

    def add(
        self,
        columns: Sequence[Sequence[float | None]],
        states: Sequence[str] = (),
        reasons: Sequence[str | None] = (),
    ) -> None:
        """Add a batch: a sequence per kept column; ``reasons`` are JSON lists."""
        if not self._columns:
            self._columns = [[] for _ in self.kept]
        self.samples += len(columns[0])
        self.answered += states.count("ok")
        known = [given for given in reasons if given is not None]
        self._known += len(known)
        self._throttled += len(known) - known.count("[]")
        for own, column in zip(self._columns, columns, strict=True):
            # Timsort merges sorted batches quickly.
            own += sorted(value for value in column if value is not None)

    def summary(self) -> list[float | int | None]:
        """The values in the order of `names`; None without a known value."""
        found: list[float | int | None] = []
        for one, values in zip(self.kept, self._columns or [[]] * len(self.kept), strict=True):
            values.sort()
            parts = _parts(values, one.digits) if values else {}
            found += [parts.get(part) for part in one.parts]
        return found

    @property
    def throttled_fraction(self) -> float | None:
        """The share of samples with a throttle reason; None if the driver reported none."""
        return None if not self._known else round(self._throttled / self._known, 4)


def _parts(values: Sequence[float], digits: int) -> Mapping[str, float | int]:
    mean = math.fsum(values) / len(values)
    return {
        "mean": round(mean, digits) if digits else round(mean),
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
    return Bounds(0.0, 0.0) if row is None else Bounds(*row)


def span_seconds(name: str) -> int:
    return MINUTE if name == "minutes" else HOUR


def means(
    connection: sqlite3.Connection,
    columns: Sequence[str],
    since: float,
    until: float,
    buckets: int,
    gpu_id: int = HOST_ID,
) -> list[list[float | None]]:
    """Means of columns over ``buckets`` equal parts of [since, until), for a GPU or the host, from
    the longest spans that fit into a part, or from those that still exist. A span counts for the
    part in which it begins."""
    width = (until - since) / buckets
    if width >= DAY:
        name = "days"
    else:
        name = "hours" if width >= HOUR or since < bounds(connection).minutes_since else "minutes"
    # Weighted by samples; rows without a value are left out.
    parts = ", ".join(
        f"sum({column}_mean * sample_count) / sum(CASE WHEN {column}_mean NOTNULL THEN sample_count END)"
        for column in columns
    )
    table = f"host_{name} ON" if gpu_id == HOST_ID else f"gpu_{name} ON gpu_id = :gpu_id AND"
    # A loop over the buckets: with a GROUP BY, SQLite would sort the rows of a year first.
    rows = connection.execute(
        "WITH RECURSIVE parts (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM parts WHERE n < :buckets - 1) "  # noqa: S608 - fixed names
        f"SELECT n, {parts} FROM parts CROSS JOIN {table} "
        "at >= :since + n * :width AND at < :since + (n + 1) * :width GROUP BY n",
        {"buckets": buckets, "since": since, "width": width, "gpu_id": gpu_id},
    )
    means_by_column: list[list[float | None]] = [[None] * buckets for _ in columns]
    for bucket, *values in rows:
        for series, value in zip(means_by_column, values, strict=True):
            series[bucket] = value
    return means_by_column


def held(values: Sequence[float | None]) -> tuple[float | None, ...]:
    """The values of equal buckets; where samples come less often than buckets, an empty bucket has
    the value before it. Empty for longer than that, it stays None."""
    known = [place for place, value in enumerate(values) if value is not None]
    if len(known) < 3 or len(known) == len(values):
        return tuple(values)
    # Not the longest ones: those are interruptions.
    usual = sorted(after - before for before, after in pairwise(known))[int(0.9 * (len(known) - 2))]
    filled = list(values)
    for before, after in pairwise([*known, len(values)]):
        # The newest value holds until the next one is due.
        if usual > 1 and after - before <= (1.5 * usual if after < len(values) else usual):
            filled[before:after] = [values[before]] * (after - before)
    return tuple(filled)


def then(
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
        gpu_id=gpu_id,
        at=at,
        since=at - span_seconds(name),
    )
    return rows[0] if rows else None


def sampled_around(
    connection: sqlite3.Connection, at: float, limits: Bounds | None = None
) -> tuple[float | None, float | None]:
    """The times of the host's last sample up to a time and of its first one after it, or of their
    rollups. ``limits`` are the result of `bounds`, if known."""
    limits = bounds(connection) if limits is None else limits
    places = [("host_samples", math.inf)]
    if limits.raw_since:
        places += [("host_minutes", limits.raw_since), ("host_hours", limits.minutes_since)]
    before: float | None = None
    after: float | None = None
    for table, until in places:
        if before is None:
            query = f"SELECT max(at) FROM {table} WHERE at <= ? AND at < ?"  # noqa: S608
            (before,) = connection.execute(query, (at, until)).fetchone()
        if at < until:
            query = f"SELECT min(at) FROM {table} WHERE at > ? AND at < ?"  # noqa: S608
            (earlier,) = connection.execute(query, (at, until)).fetchone()
            after = after if earlier is None else earlier
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
    gpu_id = _gpu_id(connection, uuid)
    sample = samples.newest(connection, HOST if uuid is None else GPU, gpu_id, (), math.inf)
    return sample["at"] if sample else None


def _gpu_id(connection: sqlite3.Connection, uuid: str | None) -> int:
    """The id of a GPU (-1: there is none), or of the host (None)."""
    row = connection.execute("SELECT gpu_id FROM gpus WHERE uuid = ?", (uuid,)).fetchone()
    return HOST_ID if uuid is None else -1 if row is None else int(row[0])


def sample_spans(
    connection: sqlite3.Connection,
    uuid: str | None,
    columns: Sequence[str],
    seconds: float,
    first: int,
    last: int,
    looked_at: float,
) -> list[SampleSpan]:
    """The samples of a GPU, or of the host (None), in the spans from number ``first`` to ``last``;
    span n begins ``n · seconds`` after 1970. Spans without samples are left out.

    Only the first ``looked_at`` seconds of each span are read, which bounds the cost of long ones.
    """
    with one_moment(connection):
        return list(_spans(connection, uuid, columns, seconds, first, last, looked_at))


def _spans(
    connection: sqlite3.Connection,
    uuid: str | None,
    columns: Sequence[str],
    seconds: float,
    first: int,
    last: int,
    looked_at: float,
) -> Iterator[SampleSpan]:
    """Spans from hours, minutes and samples, each where no finer data exist."""
    limits, gpu_id = bounds(connection), _gpu_id(connection, uuid)
    kind = "host" if uuid is None else "gpu"
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
        is_raw = table == "samples"
        named = {
            "first": begin, "last": end, "seconds": seconds, "looked_at": looked_at if is_raw else seconds,
            "gpu_id": gpu_id,
        }  # fmt: skip
        count, of_column = _OF_SAMPLES if is_raw else _OF_ROLLUPS
        asked = ", ".join((count, *(of_column.format(name) for name in columns)))
        source = "" if kind == "host" else "gpu_id = :gpu_id AND"
        rows = connection.execute(
            "WITH RECURSIVE spans (n) AS (SELECT :first UNION ALL SELECT n + 1 FROM spans WHERE n < :last) "  # noqa: S608
            f"SELECT n, min(at), max(at), {asked} FROM spans CROSS JOIN {kind}_{table} AS s "
            f"ON {source} s.at >= n * :seconds AND s.at < n * :seconds + :looked_at GROUP BY n",
            named,
        )
        for number, first_at, last_at, there, *rest in rows:
            parts = (rest[i : i + 4] for i in range(0, len(rest), 4))
            found = [(int(known), low, high, total / known if known else None) for known, low, high, total in parts]
            yield SampleSpan(number, first_at, last_at, int(there), found)


# SQL for the number of samples, and per column for its number of values, extremes and sum.
_OF_SAMPLES = ("count(*)", "count({0}), min({0}), max({0}), total({0})")
_OF_ROLLUPS = (
    "sum(sample_count)",
    "total(CASE WHEN {0}_mean NOTNULL THEN sample_count END), min({0}_min), max({0}_max), "
    "total({0}_mean * sample_count)",
)
