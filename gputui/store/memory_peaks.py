"""Peaks of the GPU memory of attempts, as reported by their ranks or the driver."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from msgspec import Struct

from gputui.store import json_columns

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
