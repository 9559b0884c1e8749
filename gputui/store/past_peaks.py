"""How much GPU memory earlier attempts of a profile took, as their own metrics told it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PEAK_METRIC = "gpu_mem_peak"
"""Bytes that a rank's process held at most on its GPU (docs/metrics.md)."""

RUNS_LOOKED_AT = 50


@dataclass(frozen=True, slots=True)
class PastPeak:
    """One attempt: its parameters, how many GPUs it had, the largest peak of its ranks in bytes (None where none told
    any), and whether GPU memory ran out in it."""

    run_id: str
    attempt: int
    params: Mapping[str, Any]
    gpu_count: int
    peak_bytes: int | None
    ran_out: bool


def past_peaks(connection: sqlite3.Connection, profile: str) -> list[PastPeak]:
    """Attempts of the newest runs of a profile that had GPUs, newest first. Raises sqlite3.Error."""
    attempts = connection.execute(
        "SELECT a.run_id, a.number, a.params, json_array_length(a.gpus), EXISTS (SELECT 1 FROM incidents AS i "
        "  WHERE i.run_id = a.run_id AND i.attempt = a.number AND i.kind = 'cuda_oom') "
        "FROM attempts AS a JOIN runs AS r USING (run_id) "
        "WHERE a.run_id IN (SELECT run_id FROM runs WHERE profile = ? ORDER BY sequence DESC LIMIT ?) "
        "ORDER BY r.sequence DESC, a.number DESC",
        (profile, RUNS_LOOKED_AT),
    ).fetchall()
    found = []
    for run_id, number, params, gpu_count, ran_out in attempts:
        if not gpu_count:
            continue
        (peak,) = connection.execute(
            "SELECT MAX(n.data ->> ?) FROM metric_newest AS n JOIN metric_sources AS s USING (source_id) "
            "WHERE s.run_id = ? AND n.attempt = ?",
            (f'$."{PEAK_METRIC}"', run_id, number),
        ).fetchone()
        peak_bytes = int(peak) if isinstance(peak, (int, float)) and peak > 0 else None
        if peak_bytes is not None or ran_out:
            found.append(PastPeak(run_id, number, json.loads(params), gpu_count, peak_bytes, bool(ran_out)))
    return found
