"""Reduce a run's lines, one by one, to the figures of a report."""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from gputui.metrics.curves.names import is_more_better
from gputui.reports.summary.facts import Best, EpochLoss, Measured, RateCheck, Validation, spread
from gputui.store.attempts import Attempt, cuts_of
from gputui.store.metrics.roles import MetricRoles
from gputui.store.metrics.stored_lines import StoredLine

ExpectedRate = Callable[[int, int, Mapping[str, float]], tuple[float, float] | None]
"""(attempt, step, reported values) → the allowed range of the learning rate."""

_SPEEDS = ("samples_per_s", "tokens_per_s", "mfu")
"""Metrics with separate figures."""

_MIN_PARTIAL = 0.5
"""The last epoch counts if it has at least this share of the lines of the previous one: the mean of a few lines after
the beginning of an epoch says nothing about it."""

_LEAST_RATE = 1e-12
"""The smallest learning rate that deviations are relative to: a schedule may end at 0."""


def measure(
    lines: Iterable[StoredLine], attempts: Sequence[Attempt], expected: ExpectedRate, roles: MetricRoles
) -> Measured:
    """The figures of a run. ``lines`` come in the order in which they were written."""
    times = _TimeTally()
    learning = _LearningTally(expected, roles)
    cuts = cuts_of(attempts)
    for line in lines:
        numbers = line.numbers()
        times.add(line, numbers)
        is_repeated = line.step is not None and line.step >= cuts.get(line.attempt, math.inf)
        if _is_first_rank(line) and not is_repeated:
            learning.add(line, numbers)
    return Measured(
        step_seconds=spread(Counter(times.steps).items()),
        samples_per_second=times.speeds["samples_per_s"].value,
        tokens_per_second=times.speeds["tokens_per_s"].value,
        mfu=times.speeds["mfu"].value,
        data_share=_mean_of_ranks(times.data_shares),
        comm_share=_mean_of_ranks(times.comm_shares),
        peak_memory_bytes=times.peak_bytes,
        gradient_norm=spread(Counter(learning.gradient_norms).items()),
        gradients_not_finite=learning.gradients_not_finite,
        scales_loss=learning.scales_loss,
        epochs=tuple(learning.epoch_losses()),
        validation=learning.validation,
        rate=learning.rate,
        best=tuple(learning.best.values()),
    )


def _is_first_rank(line: StoredLine) -> bool:
    return line.rank in (None, 0)


@dataclass(slots=True)
class _Mean:
    """A weighted mean of finite values."""

    total: float = 0.0
    weight: float = 0.0

    def add(self, value: float | None, weight: float) -> None:
        if value is not None and math.isfinite(value):
            self.total += value * weight
            self.weight += weight

    @property
    def value(self) -> float | None:
        if self.weight > 0:
            return self.total / self.weight
        return None


def _means() -> defaultdict[Any, _Mean]:
    return defaultdict(_Mean)


@dataclass(slots=True)
class _TimeTally:
    """Times, speeds and memory of all ranks; repeated steps count, too.

    Attributes:
        steps: the seconds of each step of the first rank.
        speeds: the mean of each of the `_SPEEDS`, by its name.
        data_shares: the share of the step time spent in waiting for data, by rank.
        comm_shares: the share of the step time spent in collectives, by rank.
        peak_bytes: the most memory that any rank used; None if none reports it.
    """

    steps: array[float] = field(default_factory=lambda: array("d"))
    speeds: dict[str, _Mean] = field(default_factory=_means)
    data_shares: dict[int, _Mean] = field(default_factory=_means)
    comm_shares: dict[int, _Mean] = field(default_factory=_means)
    peak_bytes: float | None = None

    def add(self, line: StoredLine, numbers: Mapping[str, float]) -> None:
        peak = numbers.get("gpu_mem_peak")
        if _is_positive(peak):
            self.peak_bytes = max(self.peak_bytes or 0.0, peak)
        if "event" in line.data:
            return
        seconds = numbers.get("step_time")
        if not _is_positive(seconds):
            seconds = None
        if _is_first_rank(line):
            weight = 1.0 if seconds is None else seconds
            for name in _SPEEDS:
                self.speeds[name].add(numbers.get(name), weight)
        if seconds is None:
            return
        if _is_first_rank(line):
            self.steps.append(seconds)
        rank = line.rank or 0
        if "data_time" in numbers:
            self.data_shares[rank].add(numbers["data_time"] / seconds, seconds)
        if "comm_time" in numbers:
            self.comm_shares[rank].add(numbers["comm_time"] / seconds, seconds)


def _is_positive(value: float | None) -> TypeGuard[float]:
    """Return whether a value is known, finite and above 0."""
    return value is not None and math.isfinite(value) and value > 0


def _mean_of_ranks(shares: Mapping[int, _Mean]) -> float | None:
    values = [share.value for share in shares.values() if share.value is not None]
    if values:
        return math.fsum(values) / len(values)
    return None


@dataclass(slots=True)
class _LearningTally:
    """Losses, gradients, learning rate and best values of the first rank; each step counts once.

    Attributes:
        expected: the schedule of the learning rate.
        roles: which metrics are the losses.
        gradient_norms: the finite norms.
        gradients_not_finite: how many norms were not finite.
        scales_loss: whether the training scales its loss.
        epochs: the sum and the number of the training losses of each epoch.
        since_validation: the mean training loss since the newest validation.
        validation: the newest validation; None before one.
        rate: the largest deviation from the schedule; None without one.
        best: the best value of each metric, by its name.
        total_steps: the number of steps as an earlier line told it, which a schedule may need.
    """

    expected: ExpectedRate
    roles: MetricRoles
    gradient_norms: array[float] = field(default_factory=lambda: array("d"))
    gradients_not_finite: int = 0
    scales_loss: bool = False
    epochs: dict[int, tuple[float, int]] = field(default_factory=dict)
    since_validation: _Mean = field(default_factory=_Mean)
    validation: Validation | None = None
    rate: RateCheck | None = None
    best: dict[str, Best] = field(default_factory=dict)
    total_steps: float | None = None

    def add(self, line: StoredLine, numbers: Mapping[str, float]) -> None:
        self.total_steps = numbers.get("total_steps", self.total_steps)
        self.scales_loss |= "loss_scale" in numbers
        self._add_gradient(numbers.get("grad_norm"))
        self._add_training_loss(numbers.get(self.roles.training or ""), numbers.get("epoch"))
        self._compare_rate(line, numbers)
        self._add_validation_loss(line.step, numbers.get(self.roles.validation or ""))
        for name, value in numbers.items():
            if math.isfinite(value):
                self._compare_best(name, value, line.step)

    def _add_gradient(self, norm: float | None) -> None:
        if norm is None:
            return
        if math.isfinite(norm):
            self.gradient_norms.append(norm)
        else:
            self.gradients_not_finite += 1

    def _add_training_loss(self, loss: float | None, epoch: float | None) -> None:
        if loss is None:
            return
        self.since_validation.add(loss, 1.0)
        if epoch is not None and math.isfinite(epoch):
            number = math.floor(epoch)
            total, count = self.epochs.get(number, (0.0, 0))
            self.epochs[number] = (total + loss, count + 1)

    def _add_validation_loss(self, step: int | None, loss: float | None) -> None:
        if loss is None:
            return
        training_loss = self.since_validation.value
        if training_loss is not None:
            self.validation = Validation(step, loss, training_loss)
        self.since_validation = _Mean()

    def _compare_best(self, name: str, value: float, step: int | None) -> None:
        """Note a value that is the best of its metric so far, if that is a result of the training."""
        is_more = is_more_better(name)
        if name == self.roles.best:
            is_more = self.roles.mode == "max"
        judged = (self.roles.training, self.roles.validation, self.roles.best)
        is_result = name in judged or name.startswith(("val/", "test"))
        if not is_result and (not is_more or name in _SPEEDS):
            return
        best = self.best.get(name)
        if is_more and (best is None or value > best.value):
            self.best[name] = Best(name, value, step, "more")
        elif not is_more and (best is None or value < best.value):
            self.best[name] = Best(name, value, step, "less")

    def _compare_rate(self, line: StoredLine, numbers: Mapping[str, float]) -> None:
        """Note the learning rate of a line if it is further off its schedule than any before."""
        rate = numbers.get("lr")
        if rate is None or line.step is None or "event" in line.data:
            return
        reported = dict(numbers)
        if self.total_steps is not None:
            reported["total_steps"] = self.total_steps
        limits = self.expected(line.attempt, line.step, reported)
        if limits is None:
            return
        lowest, highest = limits
        off_percent = math.inf
        if math.isfinite(rate):
            nearest = min(max(rate, lowest), highest)
            off_percent = 100.0 * abs(rate - nearest) / max(abs(nearest), _LEAST_RATE)
        if self.rate is None or off_percent > self.rate.worst_percent:
            self.rate = RateCheck(off_percent, line.step)

    def epoch_losses(self) -> list[EpochLoss]:
        """The mean loss of each epoch, without a last one of which too few lines were written."""
        epochs = []
        for epoch, (total, count) in sorted(self.epochs.items()):
            mean = total / count if math.isfinite(total) else math.nan
            epochs.append(EpochLoss(epoch, mean, count))
        if len(epochs) > 1 and epochs[-1].count < _MIN_PARTIAL * epochs[-2].count:
            epochs.pop()
        return epochs
