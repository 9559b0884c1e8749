"""The facts of a run for reports: frozen values, read once from the store. Unknown is None.

Times are UTC unix seconds, durations seconds, energies joules, memory bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import msgspec
from msgspec import Struct

from gputui.metrics.draw.picture import Drawing
from gputui.store.attempts import RunCost

IDLE_PERCENT = 5.0
"""A GPU with a lower utilisation is idle; drivers report a few percent for a screen or a copy."""
MAX_PICTURED = 20
"""The runs of a report that have pictures, newest first; a page of them is about 2 MB."""
SIGNIFICANT_DIGITS = 9
"""No figure is more exact."""


class Spread(Struct, frozen=True):
    """The distribution of values: mean, nearest-rank percentiles, minimum, maximum and count."""

    mean: float
    p05: float
    p50: float
    p95: float
    p99: float
    least: float
    most: float
    count: int


def spread(values: Iterable[tuple[float, int]]) -> Spread | None:
    """The distribution of (value, count) pairs, without non-finite values; None without any."""
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


class Best(Struct, frozen=True):
    """The best finite value of a metric and its step; ``is_more_better``: larger is better."""

    name: str
    value: float
    step: int | None
    is_more_better: bool


class EpochLoss(Struct, frozen=True):
    """The mean training loss of one epoch over ``count`` lines; NaN if one of them was not finite."""

    epoch: int
    loss: float
    count: int


class Validation(Struct, frozen=True):
    """The newest validation loss, and the mean training loss since the previous one."""

    step: int | None
    loss: float
    train_loss: float


class RateCheck(Struct, frozen=True):
    """The deviation of the learning rate from its schedule: the largest one in percent, its step, and the number of
    compared lines."""

    worst_percent: float
    step: int | None
    count: int


class Measured(Struct, frozen=True):
    """Figures from a run's lines. Steps that a later attempt repeats count for times but not for losses. ``data_share``
    and ``comm_share`` are shares of the step time, averaged over ranks."""

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


class GpuUse(Struct, frozen=True):
    """The use of the GPUs while the run had them. ``idle_share`` is the share of samples below ``IDLE_PERCENT``."""

    utilization_percent: Spread | None = None
    power_watts: Spread | None = None
    memory_used_bytes_most: float | None = None
    idle_share: float | None = None


class Lost(Struct, frozen=True):
    """The cost of failures, see `gputui.recovery.costs`. ``unknown`` of the ``incidents`` have no figure."""

    gpu_hours: float | None
    seconds: float | None
    steps: int | None
    incidents: int
    unknown: int


class RunFacts(Struct, frozen=True):
    """A run in a report. ``launched`` are the parameters of the launch without secrets. Runs with the same ``like``
    (profile and parameters, except those that depend on the number of GPUs) are compared for scaling. ``lost`` is None
    without failures. ``thresholds`` are those of the profile for quality gates. ``process_count`` is the number of
    processes without GPUs, else 0. ``took_seconds`` is the sum of its attempts."""

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
    thresholds: Mapping[str, float] = msgspec.field(default_factory=dict)
    measured: Measured = msgspec.field(default_factory=Measured)
    gpus: GpuUse = msgspec.field(default_factory=GpuUse)
    pictures: Sequence[Drawing] = ()
    process_count: int = 0
    took_seconds: float | None = None
    tags: tuple[str, ...] = ()
    note: str | None = None


def number(value: float | None) -> float | int | None:
    """A figure for JSON, rounded to its significant digits; None if it is unknown or not finite."""
    if value is None or not math.isfinite(value):
        return None
    if isinstance(value, int) or value == 0:
        return value
    return round(value, max(0, SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(abs(value)))))
