"""The history of an attempt's metrics, and what the rules see of it.

Pure. The loss of a step is noisy: the best of many values is only the luckiest one. A slowly
falling loss would never beat it, and on a plateau luck alone finds a new best now and then. So a
loss has improved if both of these hold: its mean over half the patience is lower than any before,
and the regression line over twice the patience falls significantly.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct, field

from gputui.core.units import count, metric_value, short_number
from gputui.recovery.watch.machine import MINUTE_SECONDS, Mean
from gputui.recovery.watch.rules import RULES, Observation, RuleSet
from gputui.store.metrics.roles import BEST, LOSS, USUAL_ROLES, VALIDATION_LOSS, MetricRoles

# The numbers of blocks in the patience, in the mean and in the regression line.
PATIENCE_BLOCKS = 10
MEAN_BLOCKS = 5
LINE_BLOCKS = 20
# A falling slope is this many standard errors below zero. In simulations (tests/recovery/watch)
# luck ends a plateau about once in 20 000 steps, and a fall by a fifth of the noise in 1000 steps
# is never taken for a plateau.
MIN_ERRORS = 1.5
# The smallest improvement, as a share of the best value.
MIN_IMPROVEMENT = 1e-4
# A loss that has fallen to this share of its first value has converged.
CONVERGED_SHARE = 0.01

MIN_STEP_TIMES = 10  # the first steps compile and warm up
STEP_TIMES = 100  # follows a change of the load within minutes
# Step times beyond this many medians are ignored in the median.
UNUSUAL_TIMES = 1.5
# With a loader that reads ahead, one of many steps waits for all, so only a mean is meaningful.
TIMES_SECONDS = 30.0
# Older metrics are outdated. The run may hang, which has a detector of its own.
OLD_SECONDS = 300.0
# Fewer samples have no share of skipped ones.
MIN_SAMPLES = 100


# --- loss -------------------------------------------------------------------------------------


class BestLoss(Struct):
    """The best value of a metric to minimize, when it was, and the first value."""

    value: float | None = None
    step: int | None = None
    epoch: float | None = None
    trained_seconds: float = 0.0
    first: float = 0.0

    def add(self, value: float, step: int | None, epoch: float | None, trained_seconds: float) -> bool:
        """Add a value; return whether it is the best so far."""
        if self.value is None:
            self.first = value
        elif value >= self.value - MIN_IMPROVEMENT * abs(self.value):
            return False
        self.value = value
        self.step = step
        self.epoch = epoch
        self.trained_seconds = trained_seconds
        return True


class LossHistory(Struct):
    """The means of blocks of steps, and the best.

    Attributes:
        blocks: the newest means.
        begin: the first step of the block that is not over; None before its first loss.
        total: the sum of the losses in the block that is not over.
        count: how many losses the block that is not over has.
        best: the best mean over several blocks.
        blocks_since: how many blocks have ended after the best.
    """

    blocks: list[float] = field(default_factory=list)
    begin: int | None = None
    total: float = 0.0
    count: int = 0
    best: BestLoss = field(default_factory=BestLoss)
    blocks_since: int = 0

    def add(
        self, loss: float, step: int, epoch: float | None, patience_steps: float, trained_seconds: float = 0.0
    ) -> None:
        """Add a finite loss. If lines are rarer than blocks, each line is a block."""
        if self.begin is not None and step - self.begin >= patience_steps / PATIENCE_BLOCKS:
            self.blocks.append(self.total / self.count)
            del self.blocks[:-LINE_BLOCKS]
            self.total = 0.0
            self.count = 0
            self.begin = None
            if len(self.blocks) >= MEAN_BLOCKS:
                self.blocks_since += 1
                mean = statistics.fmean(self.blocks[-MEAN_BLOCKS:])
                may_be_best = self.best.value is None or falls(self.blocks)
                if may_be_best and self.best.add(mean, step, epoch, trained_seconds):
                    self.blocks_since = 0
        if self.begin is None:
            self.begin = step
        self.total += loss
        self.count += 1

    def steps_since(self, step: int | None, patience_steps: float) -> int | None:
        """The steps without improvement; at most the patience if there were too few lines since."""
        if step is None or self.best.step is None:
            return None
        steps = max(0, step - self.best.step)
        if self.blocks_since >= PATIENCE_BLOCKS:
            return steps
        return min(steps, int(patience_steps))


def falls(values: Sequence[float]) -> bool:
    """Return whether the least-squares line through evenly spaced values falls significantly."""
    middle = (len(values) - 1) / 2
    mean = statistics.fmean(values)
    places = [place - middle for place in range(len(values))]
    spread = sum(place**2 for place in places)
    slope = sum(place * (value - mean) for place, value in zip(places, values, strict=True)) / spread
    residual = sum((value - mean - slope * place) ** 2 for place, value in zip(places, values, strict=True))
    return slope < -MIN_ERRORS * math.sqrt(residual / (len(values) - 2) / spread)


# --- learning rate ----------------------------------------------------------------------------

Shape = Literal["constant", "linear", "cosine"]

EXPECTED_METRICS = ("lr_expected", "lr_scheduled")
"""Metrics by which a script reports its expected learning rate."""


class RateSchedule(Struct, frozen=True):
    """A rise from 0 to ``peak`` over ``warmup_steps``, then ``shape`` down to ``final`` at ``total_steps``.

    A ``peak`` of None is the run's learning-rate parameter, ``total_steps`` of None those that it reports.
    """

    shape: Shape
    peak: float | None = None
    final: float = 0.0
    warmup_steps: int = 0
    total_steps: int | None = None

    def at(self, step: int, *, peak: float | None, total_steps: int | None) -> float | None:
        """The rate at ``step``; the arguments replace missing values. None if unknown."""
        top = peak if self.peak is None else self.peak
        if top is None:
            return None
        if step < self.warmup_steps:
            return top * (step + 1) / self.warmup_steps
        if self.shape == "constant":
            return top
        total = total_steps if self.total_steps is None else self.total_steps
        if total is None or total <= self.warmup_steps:
            return None
        done = min(1.0, (step - self.warmup_steps) / (total - self.warmup_steps))
        share = 1.0 - done
        if self.shape != "linear":
            share = 0.5 * (1.0 + math.cos(math.pi * done))
        return self.final + (top - self.final) * share


def expected_rate(
    schedule: RateSchedule | None, step: int | None, values: Mapping[str, float], peak: float | None
) -> tuple[float, float] | None:
    """The range of the learning rate at a step; None if it is unknown.

    It is the value that the script reports, else that of the profile's schedule at this step and its
    neighbours, because scripts count before or after the step.

    Args:
        values: the newest ones of the run's metrics.
        peak: the run's learning rate parameter.
    """
    for name in EXPECTED_METRICS:
        if name in values:
            if math.isfinite(values[name]):
                return (values[name], values[name])
            return None
    if schedule is None or step is None:
        return None
    reported = values.get("total_steps", math.nan)
    total = int(reported) if math.isfinite(reported) else None
    steps = (step - 1, step, step + 1)
    rates = [schedule.at(max(0, near_step), peak=peak, total_steps=total) for near_step in steps]
    expected = [rate for rate in rates if rate is not None]
    if len(expected) == len(rates):
        return (min(expected), max(expected))
    return None


# --- all metrics ------------------------------------------------------------------------------


class _Plateau(NamedTuple):
    """A metric without improvement.

    Attributes:
        best: its best value, and when that was.
        length: since then, in ``unit``; None if unknown.
    """

    metric: str
    best: BestLoss
    length: float | None
    unit: Literal["steps", "epochs"]


class MetricHistory(Struct):
    """The history of training, from the lines of one attempt.

    What its profile names as the best metric takes the place of both losses, negated if more of it is better.

    Attributes:
        roles: the run's names of the metrics.
        values: the newest value of each watched metric.
        line_at: when the newest line was written (unix seconds).
        trained_seconds: the time between lines so far.
        patience_steps: the steps without improvement that raise an alert.
        loss: how the training loss went.
        validation: the best validation loss.
        step_times: the newest step times without outliers, in seconds.
        usual_step_seconds: the median of ``step_times``, as of a few lines ago; None before there are enough.
        uncounted: how many step times were added since the median was taken.
        step_time: the recent mean of seconds per step.
        data_time: the recent mean of seconds per step that waited for data.
        cache_hit: the recent mean percentage of samples that a cache had.
        skipped: how many samples could not be read, by events.
        samples_before: the count of samples in the first line that has it.
    """

    roles: MetricRoles = USUAL_ROLES
    values: dict[str, float] = field(default_factory=dict)
    step: int | None = None
    line_at: float | None = None
    trained_seconds: float = 0.0
    patience_steps: float = RULES["no_improvement"].limits["steps"]
    loss: LossHistory = field(default_factory=LossHistory)
    validation: BestLoss = field(default_factory=BestLoss)
    step_times: list[float] = field(default_factory=list)
    usual_step_seconds: float | None = None
    uncounted: int = 0
    step_time: Mean = field(default_factory=lambda: Mean(TIMES_SECONDS))
    data_time: Mean = field(default_factory=lambda: Mean(TIMES_SECONDS))
    cache_hit: Mean = field(default_factory=lambda: Mean(MINUTE_SECONDS))
    skipped: int = 0
    samples_before: float | None = None

    def add(
        self,
        step: int | None,
        values: Mapping[str, float],
        at: float | None,
        *,
        event: str | None = None,
        rank: int | None = None,
    ) -> None:
        """Add the next line of the attempt, written at ``at`` (unix seconds). Of ranks above 0 only
        skipped samples count."""
        self.skipped += event == "sample_skipped"
        if rank:
            return
        waited = 0.0
        if at is not None:
            if self.line_at is not None:
                waited = max(0.0, at - self.line_at)
            self.line_at = at
        self.trained_seconds += waited
        if step is not None:
            if self.step is not None and step < self.step:
                # It went back to a checkpoint, or to a new phase: earlier best values do not count.
                self.loss = LossHistory()
                self.validation = BestLoss()
            self.step = step
        self.values.update(values)
        epoch = self.values.get("epoch")
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        loss = finite.get(LOSS)
        validation = finite.get(VALIDATION_LOSS)
        if self.roles.best is not None:
            loss = validation = self._signed(finite.get(BEST))
        if loss is not None and self.step is not None and event is None:
            self.loss.add(loss, self.step, epoch, self.patience_steps, self.trained_seconds)
        if validation is not None:
            self.validation.add(validation, self.step, epoch, self.trained_seconds)
        self._add_times(finite, min(max(waited, 0.1), TIMES_SECONDS))
        if "cache_hit_rate" in finite and (epoch is None or epoch >= 1):
            self.cache_hit.add(100.0 * finite["cache_hit_rate"], min(max(waited, 0.1), MINUTE_SECONDS))
        if self.samples_before is None:
            self.samples_before = finite.get("samples")

    def _signed(self, value: float | None) -> float | None:
        """A value of the best metric to minimize, or such a value as it was reported."""
        if value is not None and self.roles.mode == "max":
            return -value
        return value

    def _add_times(self, finite: Mapping[str, float], waited: float) -> None:
        self.data_time.add(finite.get("data_time"), waited)
        seconds = finite.get("step_time")
        if seconds is None:
            return
        self.step_time.add(seconds, waited)
        if self.usual_step_seconds is None or seconds <= UNUSUAL_TIMES * self.usual_step_seconds:
            self.step_times.append(seconds)
            self.uncounted += 1
            if self.uncounted >= MIN_STEP_TIMES:
                del self.step_times[:-STEP_TIMES]
                self.usual_step_seconds = statistics.median(self.step_times)
                self.uncounted = 0

    # --- observations -------------------------------------------------------------------------

    def observe(
        self, is_fresh: bool, rules: RuleSet, schedule: RateSchedule | None = None, peak: float | None = None
    ) -> Iterator[Observation]:
        """Yield an observation for each rule about runs but NCCL's errors.

        Args:
            is_fresh: a line arrived within OLD_SECONDS.
            schedule: the profile's.
            peak: the run's learning rate parameter.
        """
        self.patience_steps = rules["no_improvement"].limits["steps"]
        values: Mapping[str, float] = {}
        cache_hit = None
        if is_fresh:
            values = self.values
            cache_hit = self.cache_hit.value
            yield self._no_improvement(rules)
            yield self._slow_steps(rules)
            yield self._data_wait(rules)
        else:
            yield from map(Observation, ("no_improvement", "slow_steps", "data_wait"))
        norm = values.get("grad_norm")
        if norm is not None and math.isnan(norm):
            norm = math.inf
        yield Observation("gradient_norm", norm, rules["gradient_norm"].limits["above"])
        limit = rules["cache_misses"].limits["below_percent"]
        yield Observation("cache_misses", cache_hit, limit, applies=values.get("epoch", 1.0) >= 1)
        limit = rules["skipped_samples"].limits["above_percent"]
        yield Observation("skipped_samples", self._skipped_percent(), limit)
        expected = expected_rate(schedule, self.step, self.values, peak)
        yield _lr_off_schedule(values, expected, rules)

    def _no_improvement(self, rules: RuleSet) -> Observation:
        """The steps or epochs without improvement: the value that is farthest beyond its limit.

        Epochs are judged by the validation loss, if there is one, and steps by the training loss.
        Converged metrics, and spans shorter than the limit in minutes, are ignored.
        """
        limits = rules["no_improvement"].limits
        plateaus = list(self._plateaus())
        telling = [plateau for plateau in plateaus if self._tells(plateau.best, limits["minutes"])]
        measured = [plateau for plateau in telling if plateau.length is not None]
        if not measured:
            has_values = any(plateau.best.value is not None for plateau in plateaus)
            return Observation("no_improvement", applies=bool(telling) or not has_values)
        farthest = max(measured, key=lambda plateau: (plateau.length or 0.0) / limits[plateau.unit])
        best = farthest.best
        length = farthest.length or 0.0
        amount = count(length) if float(length).is_integer() else f"{length:.1f}"
        reported = metric_value(self._signed(best.value))
        text = f"{farthest.metric}: no improvement for {amount} {farthest.unit} (best {reported}"
        if best.step is not None:
            text += f" at step {count(best.step)}"
        return Observation("no_improvement", float(length), limits[farthest.unit], f"{text})", since=best.step)

    def _plateaus(self) -> Iterator[_Plateau]:
        """How long the losses have not improved, in steps and in epochs."""
        training = self.loss.best
        metric = self.roles.best or self.roles.loss or LOSS
        yield _Plateau(metric, training, self.loss.steps_since(self.step, self.patience_steps), "steps")
        best = training
        # The epochs since a loss that was judged too seldom mean nothing.
        is_judged = self.loss.blocks_since >= PATIENCE_BLOCKS
        if self.validation.value is not None:
            metric = self.roles.best or self.roles.validation or VALIDATION_LOSS
            best = self.validation
            is_judged = True
        epoch = self.values.get("epoch")
        if epoch is not None and best.epoch is not None and is_judged:
            yield _Plateau(metric, best, max(0.0, epoch - best.epoch), "epochs")

    def _tells(self, best: BestLoss, minutes: float) -> bool:
        """Return whether a best value is old enough, and far enough from convergence, for an alert."""
        is_old = self.trained_seconds - best.trained_seconds >= 60.0 * minutes
        return best.value is not None and is_old and abs(best.value) >= CONVERGED_SHARE * abs(best.first)

    def _slow_steps(self, rules: RuleSet) -> Observation:
        """The step time in milliseconds; its limit is at least a multiple of the median."""
        seconds = self.step_time.value
        usual = self.usual_step_seconds
        if seconds is None or usual is None:
            return Observation("slow_steps")
        limits = rules["slow_steps"].limits
        usual_milliseconds = 1000.0 * usual
        limit = max(limits["above_milliseconds"], limits["times_median"] * usual_milliseconds)
        text = f"; it was about {usual_milliseconds:.0f} ms before"
        return Observation("slow_steps", 1000.0 * seconds, limit, text)

    def _data_wait(self, rules: RuleSet) -> Observation:
        """A step's wait for data in milliseconds; its limit is at least a share of the step."""
        wait = self.data_time.value
        step = self.step_time.value
        limits = rules["data_wait"].limits
        if wait is None:
            return Observation("data_wait")
        limit = max(limits["above_milliseconds"], 10.0 * limits["above_percent"] * (step or 0.0))
        text = ""
        if step:
            text = f", {100.0 * wait / step:.0f} % of a step"
        return Observation("data_wait", 1000.0 * wait, limit, text)

    def _skipped_percent(self) -> float | None:
        """The samples of this attempt that could not be read, by the metrics ``skipped_samples``
        and ``samples``, else by counted events; None for less than MIN_SAMPLES."""
        samples = self.values.get("samples")
        reported = self.values.get("skipped_samples")
        if samples is None or not math.isfinite(samples):
            return None
        read = samples - (self.samples_before or 0.0)
        skipped = float(self.skipped)
        if reported is not None:
            read = samples
            skipped = reported
        if read + skipped >= MIN_SAMPLES:
            return 100.0 * skipped / (read + skipped)
        return None


def _lr_off_schedule(values: Mapping[str, float], expected: tuple[float, float] | None, rules: RuleSet) -> Observation:
    """The difference between the learning rate and its schedule in percent."""
    rate = values.get("lr")
    if not values or rate is None or expected is None:
        return Observation("lr_off_schedule", applies=not values or expected is not None)
    nearest = expected[1]
    off = math.inf
    if math.isfinite(rate):
        nearest = min(max(rate, expected[0]), expected[1])
        off = 100.0 * abs(rate - nearest) / max(abs(nearest), 1e-12)
    text = f"is {short_number(rate)}, its schedule says {short_number(nearest)}"
    limit = rules["lr_off_schedule"].limits["above_percent"]
    return Observation("lr_off_schedule", off, limit, text)
