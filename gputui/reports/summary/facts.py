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

from gputui.metrics.draw.parts import Chart
from gputui.recovery.costs import Cost
from gputui.store.attempts import RunCost
from gputui.store.runs import Run

IDLE_PERCENT = 5.0
"""A GPU with a lower utilisation is idle; drivers report a few percent for a screen or a copy."""
SIGNIFICANT_DIGITS = 9
"""No figure is more exact."""


class Spread(Struct, frozen=True):
    """The distribution of values; percentiles by nearest rank.

    Attributes:
        p05: the 5th percentile; ``p50``, ``p95`` and ``p99`` alike.
        count: how many values there are.
    """

    mean: float
    p05: float
    p50: float
    p95: float
    p99: float
    min: float
    max: float
    count: int


def spread(values: Iterable[tuple[float, int]]) -> Spread | None:
    """The distribution of (value, count) pairs, without non-finite values; None without any."""
    pairs = sorted((value, n) for value, n in values if n > 0 and math.isfinite(value))
    if not pairs:
        return None
    counts = list(accumulate(n for _, n in pairs))
    total = counts[-1]

    def percentile(percent: int) -> float:
        rank = -(-percent * total // 100)
        return next(value for (value, _), cumulated in zip(pairs, counts, strict=True) if cumulated >= rank)

    mean = math.fsum(value * n for value, n in pairs) / total
    p05, p50, p95, p99 = (percentile(percent) for percent in (5, 50, 95, 99))
    return Spread(mean, p05, p50, p95=p95, p99=p99, min=pairs[0][0], max=pairs[-1][0], count=total)


class Best(Struct, frozen=True):
    """The best finite value of a metric and its step; ``better`` is the better direction."""

    name: str
    value: float
    step: int | None
    better: str  # "more" or "less"


class EpochLoss(Struct, frozen=True):
    """The mean training loss of one epoch over ``count`` lines; NaN if one was not finite."""

    epoch: int
    loss: float
    count: int


class Validation(Struct, frozen=True):
    """The newest validation loss, and the mean training loss since the previous one."""

    step: int | None
    loss: float
    train_loss: float


class RateCheck(Struct, frozen=True):
    """The largest deviation of the learning rate from its schedule in percent, and its step."""

    worst_percent: float
    step: int | None


class Measured(Struct, frozen=True):
    """Figures from a run's lines, None for what they do not have. Steps that a later attempt repeats count for times
    but not for losses.

    Attributes:
        mfu: the share of the GPUs' arithmetic that the model uses.
        data_share: the share of the step time spent in waiting for data, averaged over ranks.
        comm_share: the share of the step time spent in collectives, averaged over ranks.
        peak_memory_bytes: the most memory that any rank used.
        gradient_norm: the distribution of the finite gradient norms.
        gradients_not_finite: how many gradient norms were not finite.
        scales_loss: whether the training scales its loss, as mixed precision does: such gradients are skipped.
        epochs: the mean training loss of each epoch.
        rate: how well the learning rate keeps its schedule; None without a known schedule.
        best: the best value of each metric.
    """

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
    """The use of the GPUs while the run had them. ``idle_share`` is the share of samples below
    ``IDLE_PERCENT``."""

    utilization_percent: Spread | None = None
    power_watts: Spread | None = None
    memory_used_bytes_most: float | None = None
    idle_share: float | None = None


class RunFacts(Struct, frozen=True):
    """A run in a report.

    Attributes:
        launched: the parameters of the launch without secrets.
        like: equal for runs whose scaling is compared: the profile and the parameters, except those
            that depend on the number of GPUs.
        lost: the cost of its incidents; None without any.
        recoveries: a sentence about each incident (`story.recoveries`).
        thresholds: those of the profile for quality gates.
        process_count: the number of processes without GPUs, else 0.
        took_seconds: the sum of its attempts.
    """

    run: Run
    attempts: int
    last_step: int | None
    launched: Mapping[str, Any]
    like: str
    cost: RunCost
    lost: Cost | None = None
    recoveries: tuple[str, ...] = ()
    thresholds: Mapping[str, float] = msgspec.field(default_factory=dict)
    measured: Measured = msgspec.field(default_factory=Measured)
    gpus: GpuUse = msgspec.field(default_factory=GpuUse)
    pictures: Sequence[Chart] = ()
    process_count: int = 0
    took_seconds: float | None = None

    @property
    def gpu_count(self) -> int:
        return self.run.gpu_total or 0

    @property
    def ranks(self) -> int:
        return self.gpu_count or self.process_count

    def identity(self) -> dict[str, Any]:
        """The fields of JSON that say which run it is."""
        run = self.run
        return {
            "run_id": run.run_id,
            "name": run.name,
            "profile": run.profile,
            "tags": list(run.tags),
            "note": run.note,
        }


def round_floats(value: Any) -> Any:
    """Figures for JSON, at any depth: significant digits only, and None for NaN and infinities."""
    if isinstance(value, dict):
        return {name: round_floats(item) for name, item in value.items()}
    if isinstance(value, list):
        return [round_floats(item) for item in value]
    if not isinstance(value, float) or value == 0:
        return value
    if not math.isfinite(value):
        return None
    return round(value, max(0, SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(abs(value)))))
