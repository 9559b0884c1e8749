"""Reduce a run's lines, one by one, to the figures of a report."""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

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
"""The last epoch counts if it has at least this share of the lines of the previous one."""


def measure(
    lines: Iterable[StoredLine], attempts: Sequence[Attempt], expected: ExpectedRate, roles: MetricRoles
) -> Measured:
    """The figures of a run. ``lines`` come in the order in which they were written."""
    tally = _Tally(expected, roles)
    cuts = cuts_of(attempts)
    for line in lines:
        numbers = line.numbers()
        tally.add_times(line, numbers)
        is_first = line.rank in (None, 0)
        if is_first and (line.step is None or line.step < cuts.get(line.attempt, math.inf)):
            tally.add_learning(line, numbers)
    return tally.measured()


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


@dataclass(slots=True)
class _Tally:
    """Sums over lines.

    Attributes:
        expected, roles: The schedule of the learning rate, and which metrics are the losses.
        steps: The seconds of each.
        gradients, not_finite, scales_loss: Gradient norms that are finite, how many are not, and whether the loss is
            scaled.
        speeds: By the name of the metric.
        data, comm: Shares of the step time, by rank.
        epochs: The sum and the number of the training losses of each.
        since_validation: Of the training loss, since the newest validation.
        reported: What earlier lines said that the schedule needs: the number of steps.
    """

    expected: ExpectedRate
    roles: MetricRoles
    steps: array[float] = field(default_factory=lambda: array("d"))
    gradients: array[float] = field(default_factory=lambda: array("d"))
    not_finite: int = 0
    scales_loss: bool = False
    speeds: dict[str, _Mean] = field(default_factory=lambda: defaultdict(_Mean))
    data: dict[int, _Mean] = field(default_factory=lambda: defaultdict(_Mean))
    comm: dict[int, _Mean] = field(default_factory=lambda: defaultdict(_Mean))
    peak: float | None = None
    epochs: dict[int, tuple[float, int]] = field(default_factory=dict)
    since_validation: _Mean = field(default_factory=_Mean)
    validation: Validation | None = None
    rate: RateCheck | None = None
    best: dict[str, Best] = field(default_factory=dict)
    reported: dict[str, float] = field(default_factory=dict)

    def add_times(self, line: StoredLine, numbers: Mapping[str, float]) -> None:
        """Count what every rank reports, repeated steps too."""
        peak = numbers.get("gpu_mem_peak")
        if peak is not None and math.isfinite(peak) and peak > 0:
            self.peak = max(self.peak or 0.0, peak)
        if "event" in line.data:
            return
        seconds = numbers.get("step_time")
        if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
            seconds = None
        if line.rank in (None, 0):
            weight = 1.0 if seconds is None else seconds
            for name in _SPEEDS:
                self.speeds[name].add(numbers.get(name), weight)
            if seconds is not None:
                self.steps.append(seconds)
        if seconds is not None:
            for name, shares in (("data_time", self.data), ("comm_time", self.comm)):
                if name in numbers:
                    shares[line.rank or 0].add(numbers[name] / seconds, seconds)

    def add_learning(self, line: StoredLine, numbers: Mapping[str, float]) -> None:
        """Count losses, gradients and best values of the first rank, each step once."""
        if "total_steps" in numbers:
            self.reported["total_steps"] = numbers["total_steps"]
        self.scales_loss |= "loss_scale" in numbers
        norm = numbers.get("grad_norm")
        loss = numbers.get(self.roles.training or "")
        if norm is not None and math.isfinite(norm):
            self.gradients.append(norm)
        elif norm is not None:
            self.not_finite += 1
        if loss is not None:
            self.since_validation.add(loss, 1.0)
            epoch = numbers.get("epoch")
            if epoch is not None and math.isfinite(epoch):
                total, count = self.epochs.get(math.floor(epoch), (0.0, 0))
                self.epochs[math.floor(epoch)] = (total + loss, count + 1)
        self._compare_rate(line, numbers)
        held_out = numbers.get(self.roles.validation or "")
        if held_out is not None:
            if (train := self.since_validation.value) is not None:
                self.validation = Validation(line.step, held_out, train)
            self.since_validation = _Mean()
        for name, value in numbers.items():
            if math.isfinite(value):
                self._compare_best(name, value, line.step)

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
        rate = numbers.get("lr")
        if rate is None or line.step is None or "event" in line.data:
            return
        limits = self.expected(line.attempt, line.step, {**self.reported, **numbers})
        if limits is None:
            return
        off = math.inf
        if math.isfinite(rate):
            nearest = min(max(rate, limits[0]), limits[1])
            off = 100.0 * abs(rate - nearest) / max(abs(nearest), 1e-12)
        if self.rate is None or off > self.rate.worst_percent:
            self.rate = RateCheck(off, line.step)

    def measured(self) -> Measured:
        epochs = []
        for epoch, (total, count) in sorted(self.epochs.items()):
            mean = total / count if math.isfinite(total) else math.nan
            epochs.append(EpochLoss(epoch, mean, count))
        if len(epochs) > 1 and epochs[-1].count < _MIN_PARTIAL * epochs[-2].count:
            epochs.pop()
        return Measured(
            step_seconds=spread(Counter(self.steps).items()),
            samples_per_second=self.speeds["samples_per_s"].value,
            tokens_per_second=self.speeds["tokens_per_s"].value,
            mfu=self.speeds["mfu"].value,
            data_share=_mean_share(self.data.values()),
            comm_share=_mean_share(self.comm.values()),
            peak_memory_bytes=self.peak,
            gradient_norm=spread(Counter(self.gradients).items()),
            gradients_not_finite=self.not_finite,
            scales_loss=self.scales_loss,
            epochs=tuple(epochs),
            validation=self.validation,
            rate=self.rate,
            best=tuple(self.best.values()),
        )


def _mean_share(ranks: Iterable[_Mean]) -> float | None:
    shares = [share.value for share in ranks if share.value is not None]
    if shares:
        return math.fsum(shares) / len(shares)
    return None
