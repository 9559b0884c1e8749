"""Playing moments through the engine, as the agent does once a second."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gputui.recovery.alerts.engine import AlertChange, Engine, Key
from gputui.recovery.alerts.moments import GpuMoment, HostMoment, RunMoment
from gputui.recovery.alerts.resolved_rules import ResolvedRule, standard, with_overrides
from gputui.recovery.alerts.sentences import sentence
from gputui.store.series import GpuSlowSample

GIB = 2**30
Moment = GpuMoment | HostMoment | RunMoment
Scene = Iterable[tuple[Moment, float]]
"""Moments, and for how many seconds each lasts."""


def slow(**values: Any) -> GpuSlowSample:
    return GpuSlowSample("GPU-a", **values)


def gpu(**values: Any) -> GpuMoment:
    """A healthy busy GPU, with what differs."""
    usual: dict[str, Any] = {
        "uuid": "GPU-a", "index": 3, "utilization_percent": 95.0, "busy_percent": 95.0,
        "memory_used_bytes": 60 * GIB, "memory_total_bytes": 80 * GIB, "temperature_celsius": 64.0,
        "slowdown_celsius": 90.0, "throttle_reasons": (), "throttled_percent": 0.0,
        "power_watts": 600.0, "power_before_watts": 600.0, "training_run": "vit-1",
        "slow": slow(row_remap_pending=False, row_remap_failed=False),
        "grown": {"ecc_uncorrected": 0},
    }  # fmt: skip
    return GpuMoment(**{**usual, **values})


def host(**values: Any) -> HostMoment:
    usual: dict[str, Any] = {
        "memory_used_bytes": 88 * GIB,
        "memory_total_bytes": 256 * GIB,
        "memory_growth_bytes_per_hour": 0.0,
        "disk_used_bytes": 700 * GIB,
        "disk_total_bytes": 1000 * GIB,
        "shm_used_bytes": 4 * GIB,
        "shm_total_bytes": 100 * GIB,
    }
    return HostMoment(**{**usual, **values})


def run(metrics: Mapping[str, float] | None = None, **values: Any) -> RunMoment:
    usual_metrics = {"loss": 1.9, "grad_norm": 1.2, "lr": 0.001, "step_time": 0.3, "data_time": 0.006, "epoch": 3.0}
    values_now = {**usual_metrics, **(metrics or {})}
    usual: dict[str, Any] = {
        "run_id": "vit-1",
        "values": values_now,
        "means": {name: values_now[name] for name in ("step_time", "data_time")},
        "median_step_seconds": 0.3,
    }
    return RunMoment(**{**usual, **values})


class Stage:
    """One rule, one subject, one engine."""

    def __init__(self, rule_id: str, engine: Engine | None = None, **override: object) -> None:
        self.rule: ResolvedRule = with_overrides(standard(), {rule_id: override} if override else {}, "test")[rule_id]
        self.engine = engine or Engine()
        self.key = Key(rule_id, self.rule.rule.subject, "x")
        self.changes: list[AlertChange] = []
        self.seconds = 0.0
        self.times: list[tuple[str, float]] = []

    def play(self, scene: Scene) -> list[str]:
        """What the engine says to the moments, once a second: raised, cleared, …"""
        said = []
        for moment, lasts in scene:
            for _ in range(int(lasts)):
                self.seconds += 1.0
                reading = self.rule.rule.measure(moment, self.rule.limits)
                change = self.engine.evaluate(self.rule, self.key, reading, 1.0)
                if change is not None:
                    said.append(change.kind)
                    self.changes.append(change)
                    self.times.append((change.kind, self.seconds))
        return said

    @property
    def is_raised(self) -> bool:
        return self.key in self.engine.raised()

    def sentence(self, subject: str) -> str:
        """The sentence of the last alert."""
        return sentence(self.rule.rule, self.changes[-1].reading, subject)
