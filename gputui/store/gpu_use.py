"""Histograms of utilisation and power of GPUs while they were held, and memory peaks."""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from gputui.store.database import StoreError, one_moment, open_reader
from gputui.store.rollups import bounds, span_seconds
from gputui.store.rows import json_items, json_mapping, named_rows

CUDA_OOM = "cuda_oom"
"""The kind of incident of an attempt that ran out of GPU memory (`gputui.recovery.kinds`)."""

PEAK_METRIC = "gpu_mem_peak"
"""The metric with a rank's peak in bytes (docs/profiles.md)."""

RUNS_LOOKED_AT = 50  # the newest runs of a profile tell what it needs today
PROCESS_SETS_LOOKED_AT = 60
"""Number of newest sets of each GPU that are searched."""


class Stay(Struct, frozen=True):
    """A GPU held from ``begin`` to ``end``, UTC unix seconds."""

    uuid: str
    begin: float
    end: float


@dataclass(slots=True)
class GpuCounts:
    """Number of samples by value, in whole percent and whole watts. The mean of a minute or hour
    counts with its number of samples, times the share of it that the GPU was held.
    ``memory_used_bytes_most`` is the maximum that certainly occurred while it was held."""

    utilization_percent: Counter[float] = field(default_factory=Counter)
    power_watts: Counter[float] = field(default_factory=Counter)
    memory_used_bytes_most: int | None = None


class _RowForm(NamedTuple):
    """How rows of a table tell what a GPU did from ``:begin`` to ``:end``, a part of a stay; in SQL.

    Attributes:
        mean: The suffix of columns with means.
        most: The suffix of columns with maxima.
        weight: The number of samples that a row counts for.
        overlaps: The condition of rows that count, at least in part.
        is_in_stay: The condition of rows whose maximum certainly occurred in the stay.
    """

    mean: str
    most: str
    weight: str
    overlaps: str
    is_in_stay: str


_SAMPLES = _RowForm(
    mean="", most="", weight="1", overlaps="at >= :begin AND at < :end", is_in_stay="at >= :begin AND at < :end"
)
_SPANS = _RowForm(
    mean="_mean",
    most="_max",
    weight="sample_count * (min(at + :seconds, :end) - max(at, :begin)) / :seconds",
    overlaps="at > :begin - :seconds AND at < :end",
    is_in_stay="at >= :stay_begin AND at + :seconds <= :stay_end",
)


class _Recorded(NamedTuple):
    """A table of rows of GPUs, and the time (UTC unix seconds) for which it is asked.

    Attributes:
        seconds: The length of a row's time, 0.0 for single samples.
    """

    table: str
    form: _RowForm
    seconds: float
    since: float
    until: float


def gpu_counts(connection: sqlite3.Connection, stays: Iterable[Stay]) -> GpuCounts:
    """Histograms over all stays; each sample counts once. Raises sqlite3.Error."""
    counts = GpuCounts()
    with one_moment(connection):
        tables = _tables(connection)
        for stay in stays:
            row = connection.execute("SELECT gpu_id, facts FROM gpus WHERE uuid = ?", (stay.uuid,)).fetchone()
            if row is None:
                continue
            gpu_id, facts = row
            # What the whole host has in use is no peak of the GPU.
            counts_memory = not json_mapping(facts).get("memory_is_unified")
            for recorded in tables:
                most = _count(connection, counts, recorded, gpu_id, stay)
                if most is not None and counts_memory:
                    counts.memory_used_bytes_most = max(most, counts.memory_used_bytes_most or 0)
    return counts


def _tables(connection: sqlite3.Connection) -> Sequence[_Recorded]:
    """The tables, each for the time that no finer one has."""
    limits = bounds(connection)
    minute = float(span_seconds("minutes"))
    hour = float(span_seconds("hours"))
    return (
        _Recorded("gpu_samples", _SAMPLES, seconds=0.0, since=limits.raw_since, until=math.inf),
        _Recorded("gpu_minutes", _SPANS, seconds=minute, since=limits.minutes_since, until=limits.raw_since),
        _Recorded("gpu_hours", _SPANS, seconds=hour, since=-math.inf, until=limits.minutes_since),
    )


def _count(
    connection: sqlite3.Connection, counts: GpuCounts, recorded: _Recorded, gpu_id: int, stay: Stay
) -> int | None:
    """Add what a table has of a stay; return its largest memory in use."""
    begin = max(stay.begin, recorded.since)
    end = min(stay.end, recorded.until)
    if begin >= end:
        return None
    form = recorded.form
    rows_of_stay = f"FROM {recorded.table} WHERE gpu_id = :gpu_id AND {form.overlaps}"
    values = {
        "gpu_id": gpu_id,
        "seconds": recorded.seconds,
        "begin": begin,
        "end": end,
        "stay_begin": stay.begin,
        "stay_end": stay.end,
    }
    for column, histogram in (
        (f"utilization_percent{form.mean}", counts.utilization_percent),
        (f"power_watts{form.mean}", counts.power_watts),
    ):
        numbers = connection.execute(
            f"SELECT round({column}) AS value, sum({form.weight}) {rows_of_stay} AND {column} NOTNULL GROUP BY value",
            values,
        )
        for value, number in numbers:
            if round(number):
                histogram[value] += round(number)
    (used,) = connection.execute(
        f"SELECT max(memory_used_bytes{form.most}) {rows_of_stay} AND {form.is_in_stay}", values
    ).fetchone()
    if used is None:
        return None
    return int(used)


class PastPeak(Struct, frozen=True):
    """The memory that an attempt needed.

    Attributes:
        peak_bytes: The largest peak of its ranks, None if unknown.
        ran_out: It ran out of GPU memory.
    """

    run_id: str
    attempt: int
    params: Mapping[str, Any]
    gpu_count: int
    peak_bytes: int | None
    ran_out: bool


def past_peaks(connection: sqlite3.Connection, profile: str) -> list[PastPeak]:
    """Attempts of the newest runs of a profile that had GPUs, newest first."""
    attempts = named_rows(
        connection,
        "SELECT a.run_id, a.number AS attempt, a.params, json_array_length(a.gpus) AS gpu_count, "
        "EXISTS (SELECT 1 FROM incidents AS i "
        "  WHERE i.run_id = a.run_id AND i.attempt = a.number AND i.kind = ?) AS ran_out "
        "FROM attempts AS a JOIN runs AS r USING (run_id) "
        "WHERE a.run_id IN (SELECT run_id FROM runs WHERE profile = ? ORDER BY sequence DESC LIMIT ?) "
        "AND a.gpus != '[]' ORDER BY r.sequence DESC, a.number DESC",
        [CUDA_OOM, profile, RUNS_LOOKED_AT],
    )
    peaks = []
    for row in attempts:
        peak = peak_bytes(connection, row["run_id"], row["attempt"])
        if peak is not None or row["ran_out"]:
            peaks.append(
                PastPeak(
                    run_id=row["run_id"],
                    attempt=row["attempt"],
                    params=json_mapping(row["params"]),
                    gpu_count=row["gpu_count"],
                    peak_bytes=peak,
                    ran_out=bool(row["ran_out"]),
                )
            )
    return peaks


def known_peaks(database: Path, profile: str) -> list[PastPeak]:
    """`past_peaks` of a database; none where nothing is recorded that can be read."""
    with suppress(StoreError, sqlite3.Error), closing(open_reader(database)) as connection:
        return past_peaks(connection, profile)
    return []


def peak_bytes(connection: sqlite3.Connection, run_id: str, attempt: int) -> int | None:
    """The largest last reported peak of an attempt's ranks; None if there is none."""
    return _reported_peak(connection, run_id, attempt, "max")


def _reported_peak(connection: sqlite3.Connection, run_id: str, attempt: int, of_ranks: str) -> int | None:
    """The last reported peaks of an attempt's ranks joined by an SQL function, of the source with
    the most; None if there is none."""
    (peak,) = connection.execute(
        # Text, such as "NaN", would be larger than any number.
        f"SELECT max(peak) FROM (SELECT {of_ranks}(CASE WHEN json_type(n.data, ?1) IN ('integer', 'real') "  # noqa: S608
        "THEN n.data ->> ?1 END) AS peak FROM metric_newest AS n JOIN metric_sources AS s USING (source_id) "
        "WHERE s.run_id = ?2 AND n.attempt = ?3 GROUP BY source_id)",
        (f'$."{PEAK_METRIC}"', run_id, attempt),
    ).fetchone()
    if peak is not None and peak > 0:
        return int(peak)
    return None


def study_peaks(connection: sqlite3.Connection, study_id: str) -> dict[str, int]:
    """The largest measured peak of a study's newest trials with one GPU, in bytes, by the GPU's
    name. A trial is measured once it has reported a peak, or has ended after a step.

    The driver's figure counts too, because it includes the CUDA context. Raises sqlite3.Error.
    """
    attempts = connection.execute(
        "SELECT g.name, g.gpu_id, a.run_id, a.number, a.ended_at NOTNULL AND a.last_step NOTNULL "
        "FROM (SELECT run_id FROM runs WHERE study_id = ? ORDER BY trial DESC LIMIT ?) AS r "
        "JOIN attempts AS a USING (run_id) JOIN gpus AS g ON a.gpus = json_array(g.uuid)",
        (study_id, RUNS_LOOKED_AT),
    ).fetchall()
    peaks: dict[str, int] = {}
    names: dict[int, str] = {}
    measured: set[str] = set()
    for name, gpu_id, run_id, number, has_ended in attempts:
        reported = _reported_peak(connection, run_id, number, "sum")
        if reported is not None or has_ended:
            names[gpu_id] = name
            measured.add(run_id)
            peaks[name] = max(peaks.get(name, 0), reported or 0)
    for gpu_id, name in names.items():
        peaks[name] = max(peaks[name], _listed_by_driver(connection, gpu_id, measured))
    return {name: peak for name, peak in peaks.items() if peak}


def _listed_by_driver(connection: sqlite3.Connection, gpu_id: int, run_ids: Collection[str]) -> int:
    """The largest total of one of these runs' processes on a GPU, by the driver; or 0."""
    rows = connection.execute(
        "SELECT processes FROM gpu_process_sets WHERE gpu_id = ? AND processes NOTNULL ORDER BY at DESC LIMIT ?",
        (gpu_id, PROCESS_SETS_LOOKED_AT),
    )
    most = 0
    for (text,) in rows:
        bytes_by_gpu: Counter[str] = Counter()
        for process in json_items(text):
            if process.get("run_id") in run_ids:
                bytes_by_gpu[process["run_id"]] += process.get("memory_bytes") or 0
        most = max(most, *bytes_by_gpu.values(), 0)
    return most
