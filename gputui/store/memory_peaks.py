"""How much GPU memory the ranks of attempts took at most, as they reported it."""

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
    """One attempt: its parameters, its number of GPUs, the largest peak of its ranks in bytes (None if none reported
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
        peak = peak_bytes(connection, run_id, number)
        if peak is not None or ran_out:
            found.append(PastPeak(run_id, number, json.loads(params), gpu_count, peak, bool(ran_out)))
    return found


def peak_bytes(connection: sqlite3.Connection, run_id: str, attempt: int) -> int | None:
    """The largest peak that the ranks of an attempt reported last; None if none did. Raises sqlite3.Error."""
    (peak,) = connection.execute(
        # Text, which stands for what JSON has no number for, would be the largest of all.
        "SELECT max(CASE WHEN json_type(n.data, ?1) IN ('integer', 'real') THEN n.data ->> ?1 END) "
        "FROM metric_newest AS n JOIN metric_sources AS s USING (source_id) WHERE s.run_id = ?2 AND n.attempt = ?3",
        (f'$."{PEAK_METRIC}"', run_id, attempt),
    ).fetchone()
    return int(peak) if isinstance(peak, (int, float)) and peak > 0 else None
