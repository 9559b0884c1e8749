"""Facts of runs, as tests need them."""

from __future__ import annotations

from typing import Any

from gputui.reports.summary.facts import GpuUse, Measured, RunFacts, spread
from gputui.store.attempts import RunCost
from gputui.store.run_states import RunState
from gputui.store.runs import Run


def facts(run_id: str = "net-1", on: int = 1, *, created_at: float = 100.0, like: str = "net", **more: Any) -> RunFacts:
    """A run of which nothing is known but what is given."""
    uuids = tuple(f"GPU-{number}" for number in range(on))
    run = Run(run_id, 1, "net", "net", RunState.SUCCEEDED, 1, {}, "{}", created_at, gpus=uuids)
    return RunFacts(run, 1, 10, {}, like, **{"cost": RunCost(None, None, False, ()), **more})


def learned(**measured: Any) -> RunFacts:
    return facts(measured=Measured(**measured))


def used(*percents: float) -> RunFacts:
    return facts(gpus=GpuUse(utilization_percent=spread((percent, 1) for percent in percents)))


def fast(run_id: str, on: int, samples_per_second: float | None, **changes: Any) -> RunFacts:
    return facts(run_id, on, measured=Measured(samples_per_second=samples_per_second), **changes)
