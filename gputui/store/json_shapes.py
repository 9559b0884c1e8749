"""The JSON output of ``--json``: stable shapes, which only ever gain fields. Unknown is null."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import asdict

from gputui.core.units import iso
from gputui.store.series import SLOW

if TYPE_CHECKING:
    from gputui.store.agent import AgentView
    from gputui.store.alerts import AlertView
    from gputui.store.attempts import Attempt, AttemptCost, RunCost
    from gputui.store.hardware import GpuView, Quarantined
    from gputui.store.placements import PlacementView
    from gputui.store.run_history import DecisionView, IncidentView
    from gputui.store.runs import Run

Shape = dict[str, Any]


_NO_COST: Shape = {
    **dict.fromkeys(("lost_steps", "lost_seconds", "lost_gpu_hours")), "lost_steps_is_at_least": False,
}  # fmt: skip

# Of a GPU: its newest values with its names, and its constant properties.
_VIEW_FIELDS = (
    "index", "uuid", "name", "utilization_percent", "memory_used_bytes", "memory_reserved_bytes", "memory_total_bytes",
    "temperature_celsius", "power_watts", "power_limit_watts", "sm_clock_mhz",
)  # fmt: skip
_FACT_FIELDS = (
    "pci_bus_id", "temperature_slowdown_celsius", "temperature_shutdown_celsius", "power_limit_default_watts",
    "power_limit_max_watts", "pcie_generation_max", "pcie_width_max", "compute_capability", "persistence_mode",
    "mig_mode", "memory_is_unified",
)  # fmt: skip


def rounded(value: float | None, digits: int) -> float | None:
    if value is None:
        return None
    return round(value, digits)


def number_or_word(value: float | None) -> float | str | None:
    """The value of a metric: JSON knows finite numbers only, others are words, as they are stored."""
    if value is None or math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    if value > 0:
        return "Infinity"
    return "-Infinity"


def gpu_shape(
    gpu: GpuView,
    failed: Quarantined | None = None,
    *,
    xids: int = 0,
    step_seconds: float | None = None,
    data_wait_fraction: float | None = None,
) -> Shape:
    """One GPU of ``gputui gpus --json``.

    Args:
        failed: Its quarantine.
        xids: Its number of XIDs within a day.
        step_seconds, data_wait_fraction: Of the rank on it.
    """
    reasons = processes = event = None
    if gpu.throttle_reasons is not None:
        reasons = list(gpu.throttle_reasons)
    if gpu.processes is not None:
        processes = [asdict(process) for process in gpu.processes]
    if gpu.event_at is not None:
        event = {"at": iso(gpu.event_at), "code": gpu.event_code, "text": gpu.event_text}
    return {
        **_of(gpu, *_VIEW_FIELDS),
        "throttle_reasons": reasons,
        "state": gpu.state,
        "age_seconds": rounded(gpu.age_seconds, 3),
        "run_id": gpu.run_id,
        "rank": gpu.rank,
        "processes": processes,
        "quarantine": failed and {"since": iso(failed.since), **_of(failed, "reason", "run_id", "attempt", "actor")},
        "run_name": gpu.run_name,
        "step_seconds": step_seconds,
        "data_wait_fraction": data_wait_fraction,
        "memory_utilization_percent": gpu.memory_utilization_percent,
        "memory_clock_mhz": gpu.memory_clock_mhz,
        "performance_state": gpu.performance_state,
        **{name: getattr(gpu.slow, name) for name in SLOW.columns},
        **{name: getattr(gpu.facts, name) for name in _FACT_FIELDS},
        "xids_last_day": xids,
        "last_event": event,
        "run_ids": list(gpu.run_ids),
        "locked_by": gpu.locked_by,
        "excluded": gpu.is_excluded,
    }


def _of(record: Any, *names: str) -> Shape:
    """Fields of a record; those that end in ``_at`` are times."""
    shape = {name: getattr(record, name) for name in names}
    return shape | {name: iso(at) for name, at in shape.items() if name.endswith("_at")}


def run_shape(run: Run) -> Shape:
    """One run of ``gputui ps --json``. ``reason`` is why it ended, recovers or waits."""
    return {
        "id": run.run_id,
        **_of(run, "name", "profile", "state", "attempt"),
        "gpus": list(run.gpus),
        "params": dict(run.params),
        **_of(run, "created_at", "started_at", "ended_at"),
        "reason": run.waiting_for if run.reason is None else run.reason,
        "target": run.target,
        "placement": _placement_shape(run.placement),
        "study": run.study_id,
        "trial": run.trial,
        "tags": list(run.tags),
        "note": run.note,
        "size_bytes": run.size_bytes,
    }


def _placement_shape(placement: PlacementView | None) -> Shape | None:
    if placement is None:
        return None
    times = {name: iso(getattr(placement, name)) for name in ("expected_start", "limit_at", "contact_at")}
    return {**asdict(placement), **times, "nodes": list(placement.nodes)}


class FailureCosts(NamedTuple):
    """What failures cost, as ``{lost_steps, lost_seconds, lost_gpu_hours}``: by incident, and their sum, None without
    incidents."""

    by_incident: Mapping[int, Shape] = MappingProxyType({})
    total: Shape | None = None


def show_shape(
    run: Run,
    attempts: Sequence[Attempt],
    incidents: Sequence[IncidentView],
    decisions: Sequence[DecisionView],
    lost: FailureCosts = FailureCosts(),  # noqa: B008 - immutable
    used: RunCost | None = None,
) -> Shape:
    """``gputui show RUN --json``. Of several incidents of an attempt, the first is shown, because
    the others follow from it. ``used`` are the resources of the run and its attempts."""
    first: dict[int, IncidentView] = {}
    for incident in incidents:
        first.setdefault(incident.attempt, incident)
    decided = {decision.incident_id: decision for decision in decisions}
    by_attempt: dict[int, AttemptCost] = {}
    if used is not None:
        by_attempt = {cost.attempt: cost for cost in used.attempts}
    return {
        **run_shape(run),
        "attempts": [
            {
                **_attempt_shape(attempt, first.get(attempt.number), decided, lost.by_incident),
                **_cost_shape(by_attempt.get(attempt.number)),
            }
            for attempt in attempts
        ],
        "cost_of_failures": lost.total,
        **_cost_shape(used),
        "energy_is_partial": used is not None and used.energy_is_partial,
    }


def alert_shape(alert: AlertView, now: float) -> Shape:
    """One alert of ``gputui alerts --json``; ``state`` is ``raised`` or ``cleared``."""
    left_out = ("alert_id", "subject_kind", "silenced_by")
    return {
        "id": alert.alert_id,
        "state": "raised" if alert.lasts else "cleared",
        "subject": alert.subject_kind,
        **_of(alert, *(name for name in alert.__struct_fields__ if name not in left_out)),
        "silenced_until": iso(alert.silenced_until) if alert.is_silenced(now) else None,
    }


def agent_shape(agent: AgentView | None, *, running: bool, home: str) -> Shape:
    """``gputui agent status --json``; the caller says whether the agent is ``running``."""
    shape: Shape = {"running": running, "pid": None, "version": None, "started_at": None, "recording": False}
    if agent is not None and running:
        shape |= _of(agent, "pid", "version", "started_at") | {"recording": bool(agent.recording)}
    return {**shape, "home": home}


def _cost_shape(cost: RunCost | AttemptCost | None) -> Shape:
    if cost is None:
        return {"gpu_hours": None, "energy_joules": None}
    return {
        "gpu_hours": rounded(cost.gpu_hours, 6),
        "energy_joules": rounded(cost.energy_joules, 1),
    }


def _attempt_shape(
    attempt: Attempt,
    incident: IncidentView | None,
    decided: Mapping[int, DecisionView],
    costs: Mapping[int, Shape],
) -> Shape:
    exit_shape = incident_shape = decision_shape = None
    if attempt.exit_code is not None or attempt.exit_signal is not None:
        exit_shape = {"code": attempt.exit_code, "signal": attempt.exit_signal}
    if incident is not None:
        incident_shape = {
            "kind": incident.kind,
            "rank": incident.rank,
            "summary": incident.summary,
            "evidence": list(incident.evidence),
            **(costs.get(incident.incident_id) or _NO_COST),
        }
        if (decision := decided.get(incident.incident_id)) is not None:
            decision_shape = {"actions": list(decision.actions), "reason": decision.reason}
    return {
        "number": attempt.number,
        "state": attempt.state,
        "params": dict(attempt.params),
        "gpus": list(attempt.gpus),
        "placement": _placement_shape(attempt.placement),
        "started_at": iso(attempt.started_at),
        "ended_at": iso(attempt.ended_at),
        "exit": exit_shape,
        "resumed_from": attempt.resumed_from,
        "last_step": attempt.last_step,
        "incident": incident_shape,
        "decision": decision_shape,
    }
