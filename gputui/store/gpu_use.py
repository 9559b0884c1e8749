"""Histograms of utilisation and power of GPUs while they were held; from minutes and hours if samples are deleted."""

from __future__ import annotations

import json
import math
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

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


PEAK_METRIC = "gpu_mem_peak"
"""The metric with a rank's peak in bytes (docs/metrics.md)."""

RUNS_LOOKED_AT = 50
PROCESS_SETS_LOOKED_AT = 60
"""Number of newest sets of each GPU that are searched."""


class PastPeak(Struct, frozen=True):
    """One attempt: its parameters, its number of GPUs, the largest peak of its ranks (None if unknown), and whether it
    ran out of GPU memory."""

    run_id: str
    attempt: int
    params: Mapping[str, Any]
    gpu_count: int
    peak_bytes: int | None
    ran_out: bool


def past_peaks(connection: sqlite3.Connection, profile: str) -> list[PastPeak]:
    """Attempts of the newest runs of a profile that had GPUs, newest first. Raises sqlite3.Error."""
    attempts = connection.execute(
        "SELECT a.run_id, a.number, a.params, iif(json_valid(a.gpus), json_array_length(a.gpus), 0), "
        "EXISTS (SELECT 1 FROM incidents AS i "
        "  WHERE i.run_id = a.run_id AND i.attempt = a.number AND i.kind = 'cuda_oom') "
        "FROM attempts AS a JOIN runs AS r USING (run_id) "
        "WHERE a.run_id IN (SELECT run_id FROM runs WHERE profile = ? ORDER BY sequence DESC LIMIT ?) "
        "ORDER BY r.sequence DESC, a.number DESC",
        (profile, RUNS_LOOKED_AT),
    ).fetchall()
    peaks = []
    for run_id, number, params, gpu_count, ran_out in attempts:
        if not gpu_count:
            continue
        peak = peak_bytes(connection, run_id, number)
        if peak is not None or ran_out:
            peaks.append(PastPeak(run_id, number, json.loads(params), gpu_count, peak, bool(ran_out)))
    return peaks


def peak_bytes(connection: sqlite3.Connection, run_id: str, attempt: int) -> int | None:
    """The largest last reported peak of an attempt's ranks; None if there is none. Raises sqlite3.Error."""
    (peak,) = connection.execute(
        # Text, such as "NaN", would be larger than any number.
        "SELECT max(CASE WHEN json_type(n.data, ?1) IN ('integer', 'real') THEN n.data ->> ?1 END) "
        "FROM metric_newest AS n JOIN metric_sources AS s USING (source_id) WHERE s.run_id = ?2 AND n.attempt = ?3",
        (f'$."{PEAK_METRIC}"', run_id, attempt),
    ).fetchone()
    return int(peak) if isinstance(peak, (int, float)) and peak > 0 else None


def study_peaks(connection: sqlite3.Connection, study_id: str) -> dict[str, int]:
    """The largest measured peak of a study's newest trials with one GPU, in bytes, by the GPU's name. A trial is
    measured once it has reported a peak, or has ended after a step.

    The driver's figure counts too, because it includes the CUDA context. Raises sqlite3.Error.
    """
    attempts = connection.execute(
        "SELECT g.name, g.gpu_id, a.run_id, a.number, a.ended_at NOTNULL AND a.last_step NOTNULL "
        "FROM (SELECT run_id FROM runs WHERE study_id = ? ORDER BY trial DESC LIMIT ?) AS r "
        "JOIN attempts AS a USING (run_id) JOIN gpus AS g ON g.uuid = iif(json_valid(a.gpus), a.gpus ->> '$[0]', NULL) "
        "WHERE iif(json_valid(a.gpus), json_array_length(a.gpus), 0) = 1",
        (study_id, RUNS_LOOKED_AT),
    ).fetchall()
    peaks: dict[str, int] = {}
    names: dict[int, str] = {}
    measured: set[str] = set()
    for name, gpu_id, run_id, number, has_ended in attempts:
        reported = _reported_by_ranks(connection, run_id, number)
        if reported is not None or has_ended:
            names[gpu_id] = name
            measured.add(run_id)
            peaks[name] = max(peaks.get(name, 0), reported or 0)
    for gpu_id, name in names.items():
        peaks[name] = max(peaks[name], _listed_by_driver(connection, gpu_id, measured))
    return {name: peak for name, peak in peaks.items() if peak}


def _reported_by_ranks(connection: sqlite3.Connection, run_id: str, attempt: int) -> int | None:
    """The sum of the last reported peaks of an attempt's ranks; None if there is none."""
    (peak,) = connection.execute(
        "SELECT max(total) FROM (SELECT "
        "sum(CASE WHEN json_type(n.data, ?1) IN ('integer', 'real') THEN n.data ->> ?1 END) AS total "
        "FROM metric_newest AS n JOIN metric_sources AS s USING (source_id) "
        "WHERE s.run_id = ?2 AND n.attempt = ?3 GROUP BY source_id)",
        (f'$."{PEAK_METRIC}"', run_id, attempt),
    ).fetchone()
    return int(peak) if peak is not None and peak > 0 else None


def _listed_by_driver(connection: sqlite3.Connection, gpu_id: int, run_ids: Collection[str]) -> int:
    """The largest total of one of these runs' processes on a GPU, as listed by the driver; 0 if unknown."""
    rows = connection.execute(
        "SELECT processes FROM gpu_process_sets WHERE gpu_id = ? AND processes NOTNULL ORDER BY at DESC LIMIT ?",
        (gpu_id, PROCESS_SETS_LOOKED_AT),
    )
    most = 0
    for (text,) in rows:
        bytes_by_gpu: Counter[str] = Counter()
        for process in json_columns.items(text):
            if process.get("run_id") in run_ids:
                bytes_by_gpu[process["run_id"]] += process.get("memory_bytes") or 0
        most = max(most, *bytes_by_gpu.values(), 0)
    return most
