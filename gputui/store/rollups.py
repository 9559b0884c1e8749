"""Samples rolled up: minutes, hours and days, what is kept of a span, and what charts and reports read of them.

Times are UTC unix seconds.
"""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gputui.store import samples
from gputui.store.database import one_moment
from gputui.store.series import GPU, HOST, HOST_ID, Series

GPU_MEANS = ("utilization_percent", "memory_used_bytes", "power_watts", "temperature_celsius")
"""The columns of `GpuHistory`, in its order."""


@dataclass(frozen=True, slots=True)
class GpuHistory:
    """One GPU over time: equally wide buckets, oldest first; the mean of each, None if nothing was sampled."""

    utilization_percent: tuple[float | None, ...]
    memory_used_bytes: tuple[float | None, ...]
    power_watts: tuple[float | None, ...]
    temperature_celsius: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class HostHistory:
    """The host over time, in the same manner."""

    cpu_percent: tuple[float | None, ...]
    memory_used_bytes: tuple[float | None, ...]
    disk_read_bytes_per_second: tuple[float | None, ...]
    disk_write_bytes_per_second: tuple[float | None, ...]
    network_received_bytes_per_second: tuple[float | None, ...]
    network_sent_bytes_per_second: tuple[float | None, ...]


class Bounds(NamedTuple):
    """Samples, and minutes, are there from these moments on; 0 if none was ever deleted."""

    raw_since: float
    minutes_since: float


def bounds(connection: sqlite3.Connection) -> Bounds:
    """Raises sqlite3.Error."""
    row = connection.execute("SELECT raw_since, minutes_since FROM record_bounds").fetchone()
    return Bounds(0.0, 0.0) if row is None else Bounds(*row)


def spans_for(limits: Bounds, at: float) -> str:
    """Which tables hold a moment whose samples are gone: ``minutes`` or ``hours``."""
    return "minutes" if at >= limits.minutes_since else "hours"


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
    """The mean of each column in each of ``buckets`` equal parts of [since, until), of a GPU or of the host: from the
    longest spans that are no longer than a part, or from those that are still there. A span counts where it begins."""
    width = (until - since) / buckets
    if width >= DAY:
        name = "days"
    else:
        name = "hours" if width >= HOUR or since < bounds(connection).minutes_since else "minutes"
    # Each row counts as much as it has samples; one that knew nothing counts for nothing.
    parts = ", ".join(
        f"sum({column}_mean * sample_count) / sum(CASE WHEN {column}_mean NOTNULL THEN sample_count END)"
        for column in columns
    )
    table = f"host_{name} ON" if gpu_id == HOST_ID else f"gpu_{name} ON gpu_id = :gpu_id AND"
    # Over the spans of the answer, not grouped by them: SQLite would sort the rows of a year first.
    rows = connection.execute(
        "WITH RECURSIVE parts (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM parts WHERE n < :buckets - 1) "  # noqa: S608 - fixed names
        f"SELECT n, {parts} FROM parts CROSS JOIN {table} "
        "at >= :since + n * :width AND at < :since + (n + 1) * :width GROUP BY n",
        {"buckets": buckets, "since": since, "width": width, "gpu_id": gpu_id},
    )
    found: list[list[float | None]] = [[None] * buckets for _ in columns]
    for bucket, *values in rows:
        for series, value in zip(found, values, strict=True):
            series[bucket] = value
    return found


def completed(
    connection: sqlite3.Connection,
    table: list[list[float | None]],
    columns: Sequence[str],
    since: float,
    until: float,
    gpu_id: int = HOST_ID,
) -> list[list[float | None]]:
    """The means of samples, a list for each column, with what is left of them in parts whose samples are gone."""
    if since >= bounds(connection).raw_since:
        return table
    older = means(connection, columns, since, until, len(table[0]), gpu_id)
    return [
        [b if a is None else a for a, b in zip(newer, rest, strict=True)]
        for newer, rest in zip(table, older, strict=True)
    ]


def gpu_then(connection: sqlite3.Connection, gpu_id: int, at: float, limits: Bounds) -> dict[str, Any] | None:
    """The means of a GPU in the minute or hour in which a moment lies, by the names of a sample's columns, with ``at``,
    when that begins; None if nothing is known of it. Raises sqlite3.Error."""
    name = spans_for(limits, at)
    row = connection.execute(
        "SELECT at, utilization_percent_mean, memory_used_bytes_mean, temperature_celsius_mean, power_watts_mean, "  # noqa: S608
        f"sm_clock_mhz_mean FROM gpu_{name} WHERE gpu_id = ? AND at <= ? AND at > ? AND sample_count > 0",
        (gpu_id, at, at - span_seconds(name)),
    ).fetchone()
    if row is None:
        return None
    clock = None if row[5] is None else round(row[5])
    names = ("at", "utilization_percent", "memory_used_bytes", "temperature_celsius", "power_watts")
    return {**dict(zip(names, row[:5], strict=True)), "sm_clock_mhz": clock}


def host_then(connection: sqlite3.Connection, at: float, limits: Bounds) -> dict[str, Any] | None:
    """The same of the host."""
    name = spans_for(limits, at)
    cursor = connection.execute(
        "SELECT at, cpu_percent_mean AS cpu_percent, memory_used_bytes_mean AS memory_used_bytes, "  # noqa: S608
        "disk_used_bytes_mean AS disk_used_bytes, disk_read_bytes_per_second_mean AS disk_read_bytes_per_second, "
        "disk_write_bytes_per_second_mean AS disk_write_bytes_per_second, "
        "network_received_bytes_per_second_mean AS network_received_bytes_per_second, "
        f"network_sent_bytes_per_second_mean AS network_sent_bytes_per_second FROM host_{name} "
        "WHERE at <= ? AND at > ?",
        (at, at - span_seconds(name)),
    )
    row = cursor.fetchone()
    return None if row is None else dict(zip((column[0] for column in cursor.description), row, strict=True))


def sampled_around(
    connection: sqlite3.Connection, at: float, limits: Bounds | None = None
) -> tuple[float | None, float | None]:
    """When the host was sampled last up to a moment, and first after it, as far as that is still known. ``limits`` are
    the record's, where they are known. Raises sqlite3.Error."""
    limits = bounds(connection) if limits is None else limits
    before, after = samples.around(connection, HOST, HOST_ID, at)
    if before is None and limits.raw_since:
        before = _before(connection, limits, at, "<=")
    if at < limits.raw_since:
        after = _after(connection, limits, at, after)
    return before, after


def sampled_before(connection: sqlite3.Connection, at: float) -> float | None:
    """When the host was sampled last before a moment."""
    found = samples.newest(connection, HOST, HOST_ID, (), at, including=False)
    return _before(connection, bounds(connection), at, "<") if found is None else float(found[0])


def _before(connection: sqlite3.Connection, limits: Bounds, at: float, compare: str) -> float | None:
    for table, until in (("host_minutes", limits.raw_since), ("host_hours", limits.minutes_since)):
        (begin,) = connection.execute(
            f"SELECT max(at) FROM {table} WHERE at {compare} ? AND at < ?",  # noqa: S608
            (at, until),
        ).fetchone()
        if begin is not None:
            return float(begin)
    return None


def _after(connection: sqlite3.Connection, limits: Bounds, at: float, sampled: float | None) -> float | None:
    for table, until in (("host_hours", limits.minutes_since), ("host_minutes", limits.raw_since)):
        (begin,) = connection.execute(
            f"SELECT min(at) FROM {table} WHERE at > ? AND at < ?",  # noqa: S608
            (at, until),
        ).fetchone()
        if begin is not None:
            return float(begin)
    return sampled


def first_sample(connection: sqlite3.Connection) -> float | None:
    """When the host was sampled first, as far as that is still known."""
    return sampled_around(connection, float("-inf"))[1]


MINUTE = 60
HOUR = 3600
DAY = 86_400


class Kept(NamedTuple):
    """A column of samples, and what is kept of it. ``digits`` is to how many decimals a mean is rounded."""

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
"""Of a GPU too, but among its slow samples."""

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
    """The columns of a summary, in the order of `Gathered.summary`."""
    return [f"{one.column}_{part}" for one in kept for part in one.parts]


@dataclass(slots=True)
class Gathered:
    """The samples of one span, added some at a time: ``samples`` of them, ``answered`` those in which a GPU did."""

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
        """One sequence for each column kept; ``reasons`` are throttle reasons as JSON lists."""
        if not self._columns:
            self._columns = [[] for _ in self.kept]
        self.samples += len(columns[0])
        self.answered += states.count("ok")
        known = [given for given in reasons if given is not None]
        self._known += len(known)
        self._throttled += len(known) - known.count("[]")
        for own, column in zip(self._columns, columns, strict=True):
            # Sorted runs are sorted together in a fraction of the time.
            own += sorted(value for value in column if value is not None)

    def summary(self) -> list[float | int | None]:
        """The values under `names`; None if no sample knew it."""
        found: list[float | int | None] = []
        for one, values in zip(self.kept, self._columns or [[]] * len(self.kept), strict=True):
            values.sort()
            parts = _parts(values, one.digits) if values else {}
            found += [parts.get(part) for part in one.parts]
        return found

    @property
    def throttled_fraction(self) -> float | None:
        """The share of samples that name a reason for lower clocks; None if none was reported."""
        return None if not self._known else round(self._throttled / self._known, 4)


def _parts(values: Sequence[float], digits: int) -> Mapping[str, float | int]:
    mean = math.fsum(values) / len(values)
    return {
        "mean": round(mean, digits) if digits else round(mean),
        "min": values[0],
        "max": values[-1],
        "p95": values[math.ceil(0.95 * len(values)) - 1],
    }


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
