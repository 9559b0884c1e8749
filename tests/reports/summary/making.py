"""Facts of runs, as tests need them."""

from __future__ import annotations

from typing import Any

from gputui.reports.summary.facts import GpuUse, Measured, RunFacts, spread
from gputui.store.attempts import RunCost


def facts(run_id: str = "net-1", **changes: Any) -> RunFacts:
    """A run on one GPU of which nothing is known but what is given."""
    values: dict[str, Any] = {
        "run_id": run_id, "name": "net", "profile": "net", "state": "succeeded", "created_at": 100.0,
        "started_at": 100.0, "ended_at": 200.0, "gpu_count": 1, "attempts": 1, "last_step": 10, "launched": {},
        "like": "net", "cost": RunCost(None, None, False, ()),
    }  # fmt: skip
    return RunFacts(**{**values, **changes})


def learned(**measured: Any) -> RunFacts:
    return facts(measured=Measured(**measured))


def used(*percents: float) -> RunFacts:
    return facts(gpus=GpuUse(utilization_percent=spread((percent, 1) for percent in percents)))


def fast(run_id: str, gpus: int, samples_per_second: float | None, **changes: Any) -> RunFacts:
    return facts(run_id, gpu_count=gpus, measured=Measured(samples_per_second=samples_per_second), **changes)
