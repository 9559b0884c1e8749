"""The performance of runs as JSON: ``performance_summary.json``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gputui.reports.summary.facts import RunFacts, Spread, number
from gputui.reports.summary.gates import GateVerdict
from gputui.store.json_shapes import iso

Shape = dict[str, Any]


def performance_shape(run: RunFacts, verdicts: Sequence[GateVerdict]) -> Shape:
    """One run. Times are in seconds, memory in bytes, power in watts; null is unknown."""
    measured, gpus = run.measured, run.gpus
    return {
        **identity_shape(run),
        "state": run.state,
        "started_at": iso(run.started_at),
        "ended_at": iso(run.ended_at),
        "attempts": run.attempts,
        "gpus": run.gpu_count,
        "last_step": run.last_step,
        "samples_per_second": number(measured.samples_per_second),
        "tokens_per_second": number(measured.tokens_per_second),
        "mfu": number(measured.mfu),
        "step_seconds": _spread_shape(measured.step_seconds),
        "data_wait_share": number(measured.data_share),
        "communication_share": number(measured.comm_share),
        "peak_memory_bytes": number(measured.peak_memory_bytes),
        "gpu_memory_used_bytes_max": number(gpus.memory_used_bytes_most),
        "gpu_utilization_percent": _spread_shape(gpus.utilization_percent),
        "gpu_power_watts": _spread_shape(gpus.power_watts),
        "best": {
            one.name: {"value": number(one.value), "step": one.step, "better": "more" if one.is_more_better else "less"}
            for one in measured.best
        },
        "gates": [verdict.to_json() for verdict in verdicts],
    }


def identity_shape(run: RunFacts) -> Shape:
    """The identity of a run."""
    return {"run_id": run.run_id, "name": run.name, "profile": run.profile, "tags": list(run.tags), "note": run.note}


def _spread_shape(values: Spread | None) -> Shape | None:
    if values is None:
        return None
    return {
        "mean": number(values.mean),
        "p05": number(values.p05),
        "p50": number(values.p50),
        "p95": number(values.p95),
        "p99": number(values.p99),
        "min": number(values.least),
        "max": number(values.most),
        "count": values.count,
    }
