"""What a report is made of: frozen values, read once from the store. Unknown is None.

Times are UTC unix seconds, durations seconds, energies joules, memory bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from gputui.charts.picture import Drawing
from gputui.store.costs import RunCost


@dataclass(frozen=True, slots=True)
class Spread:
    """How values lie: the mean, the nearest-rank 5th, 50th, 95th and 99th percentile, both ends, and of how many."""

    mean: float
    p05: float
    p50: float
    p95: float
    p99: float
    least: float
    most: float
    count: int


def spread(values: Iterable[tuple[float, int]]) -> Spread | None:
    """The spread of (value, how often) pairs; what is not finite is left out. None if there is nothing."""
    pairs = sorted((value, number) for value, number in values if number > 0 and math.isfinite(value))
    if not pairs:
        return None
    counts = list(accumulate(number for _, number in pairs))
    total = counts[-1]

    def percentile(percent: int) -> float:
        rank = -(-percent * total // 100)
        return next(value for (value, _), until in zip(pairs, counts, strict=True) if until >= rank)

    mean = math.fsum(value * number for value, number in pairs) / total
    p05, p50, p95, p99 = (percentile(percent) for percent in (5, 50, 95, 99))
    return Spread(mean, p05, p50, p95, p99, pairs[0][0], pairs[-1][0], total)


@dataclass(frozen=True, slots=True)
class Best:
    """The best finite value of a metric and where it was; ``is_more_better`` says which way was taken as better."""

    name: str
    value: float
    step: int | None
    is_more_better: bool


@dataclass(frozen=True, slots=True)
class EpochLoss:
    """The mean training loss of one epoch over ``count`` lines; NaN where one of them was not finite."""

    epoch: int
    loss: float
    count: int


@dataclass(frozen=True, slots=True)
class Validation:
    """The newest held-out loss, and the mean training loss of the steps since the one before it."""

    step: int | None
    loss: float
    train_loss: float


@dataclass(frozen=True, slots=True)
class RateCheck:
    """How far the learning rate was off its schedule: the largest difference in percent, at which step, of how many
    lines that could be compared."""

    worst_percent: float
    step: int | None
    count: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Values of a run's own lines. Steps that a later attempt did again count for the times and not for what was
    learned. ``data_share`` and ``comm_share`` are shares of the step time, the means over the ranks that tell them."""

    step_seconds: Spread | None = None
    samples_per_second: float | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None
    data_share: float | None = None
    comm_share: float | None = None
    peak_memory_bytes: float | None = None
    gradient_norm: Spread | None = None
    gradients_not_finite: int = 0
    scales_loss: bool = False
    epochs: tuple[EpochLoss, ...] = ()
    validation: Validation | None = None
    rate: RateCheck | None = None
    best: tuple[Best, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuUse:
    """What the GPUs did while the run had them. ``idle_share`` is the share of samples below ``IDLE_PERCENT``."""

    utilization_percent: Spread | None = None
    power_watts: Spread | None = None
    memory_used_bytes_most: float | None = None
    idle_share: float | None = None


IDLE_PERCENT = 5.0
"""A GPU that is used less than this does nothing for the run; drivers tell a few percent for a screen or a copy."""


MOST_PICTURED = 20
"""Of more runs in a report the newest have pictures; a page of them is about 2 MB."""


@dataclass(frozen=True, slots=True)
class Lost:
    """What failures cost a run, see `gputui.recovery.cost`. ``unknown`` of the ``incidents`` lack a figure."""

    gpu_hours: float | None
    seconds: float | None
    steps: int | None
    incidents: int
    unknown: int


@dataclass(frozen=True, slots=True)
class RunFacts:
    """All that a report needs of one run. ``launched`` are the launch's parameters, secrets in them redacted already;
    ``like`` tells which runs may be compared with each other for how they scale: same profile, same parameters but for
    those in which the number of GPUs shows. ``lost`` is None if nothing failed. ``thresholds`` are those of its
    profile for quality gates, by their names. ``process_count`` is how many processes it has without GPUs, else 0.
    ``took_seconds`` is the sum of its attempts. ``name``, ``tags`` and ``note`` are what a person calls it."""

    run_id: str
    name: str
    profile: str
    state: str
    created_at: float
    started_at: float | None
    ended_at: float | None
    gpu_count: int
    attempts: int
    last_step: int | None
    launched: Mapping[str, Any]
    like: str
    cost: RunCost
    lost: Lost | None = None
    thresholds: Mapping[str, float] = field(default_factory=dict)
    measured: Measured = field(default_factory=Measured)
    gpus: GpuUse = field(default_factory=GpuUse)
    pictures: Sequence[Drawing] = ()
    process_count: int = 0
    took_seconds: float | None = None
    tags: tuple[str, ...] = ()
    note: str | None = None
