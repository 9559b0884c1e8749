"""What the rules look at: a GPU, the host and a run as they are at one moment, and what a rule reads of them.

``None`` is unknown everywhere: an unknown value neither raises an alert nor clears one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gputui.gpu.model import GpuSlowSample


@dataclass(frozen=True, slots=True)
class RuleReading:
    """What a rule reads at one moment: ``value`` and its ``limit``, in the rule's unit. ``applies`` is False if the
    question does not arise (no run claims the GPU), which clears an alert; ``detail`` goes into the sentence."""

    value: float | None = None
    limit: float = 0.0
    detail: str = ""
    applies: bool = True


UNKNOWN = RuleReading()
IDLE = RuleReading(applies=False)
"""The question does not arise."""


@dataclass(frozen=True, slots=True)
class GpuMoment:
    """One GPU. ``is_known`` is False while the driver says nothing.

    ``busy_percent`` and ``throttled_percent`` are means over the last minute, ``power_watts`` over five and
    ``power_before_watts`` over the last hour under the same attempt (None before there is enough of it).
    ``training_run`` is the run that claims the GPU and has made steps. ``slow`` is all that the driver gives every few
    seconds, and ``grown`` by how much each whole number of it is larger than in the moment before. ``xids`` are those
    reported since then.
    """

    uuid: str
    index: int
    is_known: bool = True
    state: str = "ok"
    utilization_percent: float | None = None
    busy_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_celsius: float | None = None
    slowdown_celsius: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    throttled_percent: float | None = None
    power_watts: float | None = None
    power_before_watts: float | None = None
    training_run: str | None = None
    holder: str | None = None
    xids: tuple[int, ...] = ()
    slow: GpuSlowSample | None = None
    grown: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostMoment:
    """The host. ``memory_growth_bytes_per_hour`` is None before there is enough history."""

    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    memory_growth_bytes_per_hour: float | None = None
    disk_used_bytes: int | None = None
    disk_total_bytes: int | None = None
    shm_used_bytes: int | None = None
    shm_total_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Stagnation:
    """How long a metric has not become better: the best value, and how many steps, epochs and seconds of training ago
    it was. ``is_converged``: the best is next to nothing beside the first value."""

    metric: str
    best: float
    step: int | None
    steps: int | None
    epochs: float | None
    seconds: float | None = None
    is_converged: bool = False


@dataclass(frozen=True, slots=True)
class RunMoment:
    """One run. ``is_training``: its attempt lives and has made a step. ``values`` are its newest metrics, ``means``
    those of its times over half a minute; both are empty once they are old. ``median_step_seconds`` is its own, of the
    steps before; ``cache_hit_percent`` a mean over the last minute; ``lr_expected`` the least and the most that its
    schedule allows. ``nccl_errors`` counts those since the moment before."""

    run_id: str
    is_training: bool = True
    values: Mapping[str, float] = field(default_factory=dict)
    means: Mapping[str, float] = field(default_factory=dict)
    stagnation: tuple[Stagnation, ...] = ()
    median_step_seconds: float | None = None
    cache_hit_percent: float | None = None
    skipped_percent: float | None = None
    samples_seen: float | None = None
    lr_expected: tuple[float, float] | None = None
    nccl_errors: int = 0
    nccl_text: str = ""
