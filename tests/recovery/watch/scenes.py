"""Samples and lines played through one rule, second by second, as the agent does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gputui.machine.gpu_model import GpuFacts
from gputui.recovery.watch.engine import AlertChange, Engine, Key, sentence
from gputui.recovery.watch.learning_rate import RateSchedule
from gputui.recovery.watch.machine import GpuMoment, GpuWatch, HostWatch
from gputui.recovery.watch.metric_history import MetricHistory
from gputui.recovery.watch.overrides import with_overrides
from gputui.recovery.watch.rules import RULES, Observation, Rule
from gputui.store.series import GpuSample, GpuSlowSample, HostSample

GIB = 2**30
FACTS = GpuFacts("GPU-a", 3, "x", memory_total_bytes=80 * GIB, temperature_slowdown_celsius=90.0)
SUBJECTS = {"gpu": "GPU 3", "host": "the host", "run": "vit-1"}
# A healthy moment of each subject.
USUAL: dict[str, dict[str, Any]] = {
    "gpu": {
        "utilization_percent": 95.0, "memory_used_bytes": 60 * GIB, "temperature_celsius": 64.0,
        "power_watts": 600.0, "throttle_reasons": (), "training": ("vit-1", 1),
        "slow": {"row_remap_pending": False, "row_remap_failed": False, "ecc_uncorrected": 7},
    },
    "host": {
        "memory_used_bytes": 88 * GIB, "memory_total_bytes": 256 * GIB, "disk_used_bytes": 700 * GIB,
        "disk_total_bytes": 1000 * GIB, "shm_used_bytes": 4 * GIB, "shm_total_bytes": 100 * GIB,
    },
    "run": {
        "loss": lambda second: 5.0 - 1e-4 * second, "grad_norm": 1.2, "lr": 0.001, "step_time": 0.3,
        "data_time": 0.006, "epoch": 3.0, "cache_hit_rate": 0.97, "samples": 5000.0, "skipped_samples": 0.0,
    },
}  # fmt: skip
UNKNOWN: dict[str, dict[str, Any]] = {kind: {"is_unknown": True} for kind in USUAL}

Scene = Iterable[tuple[Mapping[str, Any], float]]
"""What differs from the usual, and for how many seconds; a function is called with the second."""


class Stage:
    """One rule, one subject, one engine. A run writes a line of ten steps each second."""

    def __init__(
        self, rule_id: str, engine: Engine | None = None, schedule: RateSchedule | None = None, **override: object
    ) -> None:
        overrides = {rule_id: override} if override else {}
        self.rules = with_overrides(RULES, overrides, "test")
        self.rule: Rule = self.rules[rule_id]
        self.engine = engine or Engine()
        self.key = Key(rule_id, self.rule.subject, "x")
        self.gpu = GpuWatch()
        self.host = HostWatch()
        self.history = MetricHistory()
        self.schedule = schedule
        self.second = 0
        self.changes: list[AlertChange] = []

    def play(self, scene: Scene) -> list[str]:
        """The engine's output for the moments, once a second: raised, cleared, …"""
        said = []
        for differs, lasts in scene:
            for _ in range(int(lasts)):
                self.second += 1
                values = {**USUAL[self.rule.subject], **differs}
                now = {name: value(self.second) if callable(value) else value for name, value in values.items()}
                (observation,) = (entry for entry in self._observe(now) if entry.kind == self.rule.id)
                change = self.engine.evaluate(self.rule, self.key, observation, 1.0)
                if change is not None:
                    said.append(change.kind)
                    self.changes.append(change)
        return said

    def _observe(self, now: dict[str, Any]) -> Iterator[Observation]:
        is_unknown = now.pop("is_unknown", False)
        if self.rule.subject == "gpu":
            extras = {name: now.pop(name) for name in ("training", "holder", "xids") if name in now}
            facts = now.pop("facts", FACTS)
            slow = now.pop("slow")
            extras["slow"] = None if is_unknown else GpuSlowSample("GPU-a", **slow)
            sample = None if is_unknown else GpuSample("GPU-a", **now)
            return self.gpu.observe(GpuMoment(facts, sample, **extras), 1.0, self.rules)
        if self.rule.subject == "host":
            return self.host.observe(None if is_unknown else HostSample(1e9 + self.second, **now), self.rules)
        if self.rule.id == "nccl_errors":
            text = now.pop("error", "")
            value = None if is_unknown else float(bool(text))
            return iter([Observation("nccl_errors", value, text=text)])
        if not is_unknown:
            self.history.add(
                10 * self.second, {name: number for name, number in now.items() if number is not None}, self.second
            )
        return self.history.observe(not is_unknown, self.rules, self.schedule)

    @property
    def is_raised(self) -> bool:
        return self.key in self.engine.raised()

    @property
    def sentence(self) -> str:
        """The sentence of the last alert."""
        return sentence(self.rule, self.changes[-1].observation, SUBJECTS[self.rule.subject]).replace("\u202f", " ")
