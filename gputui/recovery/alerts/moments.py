"""The input of rules: a GPU, the host or a run at one moment, and the value that a rule reads of it.

``None`` is unknown: an unknown value neither raises nor clears an alert.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from gputui.store.series import GpuSlowSample


class RuleReading(Struct, frozen=True):
    """A ``value`` and its ``limit``, in the unit of the rule. ``applies`` is False if the rule is irrelevant now (no
    run uses the GPU), which clears an alert; ``detail`` goes into the sentence."""

    value: float | None = None
    limit: float = 0.0
    detail: str = ""
    applies: bool = True


UNKNOWN = RuleReading()
IDLE = RuleReading(applies=False)
"""The rule does not apply."""


class GpuMoment(Struct, frozen=True):
    """One GPU. ``is_known`` is False while the driver does not answer.

    ``busy_percent`` and ``throttled_percent`` are means over the last minute, ``power_watts`` over five minutes and
    ``power_before_watts`` over the last hour of the same attempt (None before there is enough). ``training_run`` is the
    run that uses the GPU and has made steps. ``slow`` is the newest slow sample, ``grown`` the growth of its integers
    since the previous moment. ``xids`` are those reported since then.
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
    grown: Mapping[str, int] = msgspec.field(default_factory=dict)


class HostMoment(Struct, frozen=True):
    """The host. ``memory_growth_bytes_per_hour`` is None before there is enough history."""

    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    memory_growth_bytes_per_hour: float | None = None
    disk_used_bytes: int | None = None
    disk_total_bytes: int | None = None
    shm_used_bytes: int | None = None
    shm_total_bytes: int | None = None


class Stagnation(Struct, frozen=True):
    """The time without improvement of a metric: the best value, and its age in steps, epochs and seconds of training.
    ``is_converged``: the best is negligible beside the first value."""

    metric: str
    best: float
    step: int | None
    steps: int | None
    epochs: float | None
    seconds: float | None = None
    is_converged: bool = False


class RunMoment(Struct, frozen=True):
    """One run. ``is_training``: its attempt is active and has made a step. ``values`` are its newest metrics, ``means``
    those of its times over half a minute; both are empty when outdated. ``median_step_seconds`` is the median of
    earlier steps; ``cache_hit_percent`` a mean over the last minute; ``lr_expected`` the range that the schedule
    allows. ``nccl_errors`` counts errors since the previous moment."""

    run_id: str
    is_training: bool = True
    values: Mapping[str, float] = msgspec.field(default_factory=dict)
    means: Mapping[str, float] = msgspec.field(default_factory=dict)
    stagnation: tuple[Stagnation, ...] = ()
    median_step_seconds: float | None = None
    cache_hit_percent: float | None = None
    skipped_percent: float | None = None
    samples_seen: float | None = None
    lr_expected: tuple[float, float] | None = None
    nccl_errors: int = 0
    nccl_text: str = ""
