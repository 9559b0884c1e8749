"""Reduce a run's lines, one by one, to the figures of a report."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gputui.metrics.curves.axis import cuts_of
from gputui.metrics.curves.names import is_more_better
from gputui.reports.summary.facts import Best, EpochLoss, Measured, RateCheck, Spread, Validation, spread
from gputui.store.attempts import Attempt
from gputui.store.metrics.queries import StoredLine

ExpectedRate = Callable[[int, int, Mapping[str, float]], tuple[float, float] | None]
"""(attempt, step, reported values) → the allowed range of the learning rate."""

_VALIDATION_LOSS = "val/loss"
# Metrics with separate figures.
_NOT_BEST = ("samples_per_s", "tokens_per_s", "mfu")
_MIN_PARTIAL = 0.5
"""The last epoch counts if it has at least this share of the lines of the previous one."""


def measured(lines: Iterable[StoredLine], attempts: Sequence[Attempt], expected: ExpectedRate) -> Measured:
    """The figures of a run. ``lines`` come in the order in which they were written."""
    tally = _Tally(cuts_of(attempts), expected)
    for line in lines:
        tally.take(line)
    return tally.measured()


@dataclass(slots=True)
class _Rank:
    """Sums of seconds over the lines that report both values: the wait for data and its step times; the communication
    and its step times."""

    data: float = 0.0
    data_of: float = 0.0
    comm: float = 0.0
    comm_of: float = 0.0


@dataclass(slots=True)
class _Mean:
    """A weighted mean."""

    total: float = 0.0
    weight: float = 0.0

    def add(self, value: float | None, weight: float) -> None:
        if value is not None and math.isfinite(value):
            self.total += value * weight
            self.weight += weight

    @property
    def value(self) -> float | None:
        return self.total / self.weight if self.weight > 0 else None


@dataclass(slots=True)
class _Tally:
    cuts: Mapping[int, float]
    expected: ExpectedRate
    steps: array[float] = field(default_factory=lambda: array("d"))
    gradients: array[float] = field(default_factory=lambda: array("d"))
    not_finite: int = 0
    scales_loss: bool = False
    ranks: dict[int, _Rank] = field(default_factory=dict)
    samples: _Mean = field(default_factory=_Mean)
    tokens: _Mean = field(default_factory=_Mean)
    mfu: _Mean = field(default_factory=_Mean)
    peak: float | None = None
    epochs: dict[int, tuple[float, int]] = field(default_factory=dict)
    since_validation: _Mean = field(default_factory=_Mean)
    validation: Validation | None = None
    rate: RateCheck | None = None
    best: dict[str, Best] = field(default_factory=dict)
    reported: dict[str, float] = field(default_factory=dict)

    def take(self, line: StoredLine) -> None:
        numbers = line.numbers()
        self._times(line, numbers)
        peak = numbers.get("gpu_mem_peak")
        if peak is not None and math.isfinite(peak) and peak > 0:
            self.peak = peak if self.peak is None else max(self.peak, peak)
        if line.rank in (None, 0) and (line.step is None or line.step < self.cuts.get(line.attempt, math.inf)):
            self._learned(line, numbers)

    def _times(self, line: StoredLine, numbers: Mapping[str, float]) -> None:
        if "event" in line.data:
            return
        seconds = numbers.get("step_time")
        known = seconds is not None and math.isfinite(seconds) and seconds > 0
        weight = seconds if known and seconds is not None else 1.0
        if line.rank in (None, 0):
            if known:
                self.steps.append(weight)
            for name, mean in (("samples_per_s", self.samples), ("tokens_per_s", self.tokens), ("mfu", self.mfu)):
                mean.add(numbers.get(name), weight)
        if known:
            rank = self.ranks.setdefault(line.rank or 0, _Rank())
            data, comm = numbers.get("data_time"), numbers.get("comm_time")
            if data is not None and math.isfinite(data):
                rank.data, rank.data_of = rank.data + data, rank.data_of + weight
            if comm is not None and math.isfinite(comm):
                rank.comm, rank.comm_of = rank.comm + comm, rank.comm_of + weight

    def _learned(self, line: StoredLine, numbers: Mapping[str, float]) -> None:
        if "total_steps" in numbers:
            self.reported["total_steps"] = numbers["total_steps"]
        loss, norm = numbers.get("loss"), numbers.get("grad_norm")
        self.scales_loss |= "loss_scale" in numbers
        if norm is not None:
            if math.isfinite(norm):
                self.gradients.append(norm)
            else:
                self.not_finite += 1
        if loss is not None:
            self.since_validation.add(loss, 1.0)
            epoch = numbers.get("epoch")
            if epoch is not None and math.isfinite(epoch):
                total, count = self.epochs.get(math.floor(epoch), (0.0, 0))
                self.epochs[math.floor(epoch)] = (total + loss, count + 1)
        self._compare_rate(line, numbers)
        held_out = numbers.get(_VALIDATION_LOSS)
        if held_out is not None:
            train = self.since_validation.value
            if train is not None:
                self.validation = Validation(line.step, held_out, train)
            self.since_validation = _Mean()
        for name, value in numbers.items():
            if name == "loss" or name.startswith(("val/", "test")) or (is_more_better(name) and name not in _NOT_BEST):
                self._better(name, value, line.step)

    def _better(self, name: str, value: float, step: int | None) -> None:
        if not math.isfinite(value):
            return
        more = is_more_better(name)
        before = self.best.get(name)
        if before is None or (value > before.value if more else value < before.value):
            self.best[name] = Best(name, value, step, more)

    def _compare_rate(self, line: StoredLine, numbers: Mapping[str, float]) -> None:
        rate = numbers.get("lr")
        if rate is None or line.step is None or "event" in line.data:
            return
        limits = self.expected(line.attempt, line.step, {**self.reported, **numbers})
        if limits is None:
            return
        nearest = min(max(rate, limits[0]), limits[1])
        off = 100.0 * abs(rate - nearest) / max(abs(nearest), 1e-12) if math.isfinite(rate) else math.inf
        before = self.rate
        if before is None:
            self.rate = RateCheck(off, line.step, 1)
        elif off > before.worst_percent:
            self.rate = RateCheck(off, line.step, before.count + 1)
        else:
            self.rate = RateCheck(before.worst_percent, before.step, before.count + 1)

    def measured(self) -> Measured:
        return Measured(
            step_seconds=_spread(self.steps),
            samples_per_second=self.samples.value,
            tokens_per_second=self.tokens.value,
            mfu=self.mfu.value,
            data_share=_mean([one.data / one.data_of for one in self.ranks.values() if one.data_of > 0]),
            comm_share=_mean([one.comm / one.comm_of for one in self.ranks.values() if one.comm_of > 0]),
            peak_memory_bytes=self.peak,
            gradient_norm=_spread(self.gradients),
            gradients_not_finite=self.not_finite,
            scales_loss=self.scales_loss,
            epochs=self._epochs(),
            validation=self.validation,
            rate=self.rate,
            best=tuple(self.best.values()),
        )

    def _epochs(self) -> tuple[EpochLoss, ...]:
        found = [
            EpochLoss(number, total / count if math.isfinite(total) else math.nan, count)
            for number, (total, count) in sorted(self.epochs.items())
        ]
        if len(found) > 1 and found[-1].count < _MIN_PARTIAL * found[-2].count:
            found.pop()
        return tuple(found)


def _spread(values: array[float]) -> Spread | None:
    return spread(Counter(values).items())


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
