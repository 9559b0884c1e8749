"""The history of an attempt's metrics, and what the rules see of it. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from msgspec import Struct, field

from gputui.core.units import count, metric_value
from gputui.recovery.watch.learning_rate import RateSchedule, expected_rate, lr_off_schedule
from gputui.recovery.watch.loss_history import PATIENCE_BLOCKS, BestLoss, LossHistory
from gputui.recovery.watch.machine import MINUTE_SECONDS, Mean
from gputui.recovery.watch.rules import RULES, Observation, RuleSet
from gputui.store.metrics.roles import BEST, LOSS, USUAL_ROLES, VALIDATION_LOSS, MetricRoles

# A loss that has fallen to this share of its first value has converged.
CONVERGED_SHARE = 0.01

MIN_STEP_TIMES = 10  # the first steps compile and warm up
STEP_TIMES = 100  # follows a change of the load within minutes
# Step times beyond this many medians are ignored in the median.
UNUSUAL_TIMES = 1.5
# With a loader that reads ahead, one of many steps waits for all, so only a mean is meaningful.
TIMES_SECONDS = 30.0
# Lines that follow at once, or have no time, still count.
LEAST_WEIGHT_SECONDS = 0.1
# Older metrics are outdated. The run may hang, which has a detector of its own.
OLD_SECONDS = 300.0
# Fewer samples have no share of skipped ones.
MIN_SAMPLES = 100


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


class StepTimes(Struct):
    """How long steps took, in seconds.

    Attributes:
        step: the recent mean of a whole step.
        data: the recent mean of a step's wait for data.
        newest: the newest step times without outliers.
        usual_seconds: the median of ``newest``, as of a few lines ago; None before there are enough.
        uncounted: how many step times were added since the median was taken.
    """

    step: Mean = field(default_factory=lambda: Mean(TIMES_SECONDS))
    data: Mean = field(default_factory=lambda: Mean(TIMES_SECONDS))
    newest: list[float] = field(default_factory=list)
    usual_seconds: float | None = None
    uncounted: int = 0

    def add(self, values: Mapping[str, float], weight_seconds: float) -> None:
        """Add the finite values of a line, which counts in the means for as long as it took."""
        self.data.add(values.get("data_time"), weight_seconds)
        seconds = values.get("step_time")
        if seconds is None:
            return
        self.step.add(seconds, weight_seconds)
        is_outlier = self.usual_seconds is not None and seconds > UNUSUAL_TIMES * self.usual_seconds
        if is_outlier:
            return
        self.newest.append(seconds)
        self.uncounted += 1
        if self.uncounted >= MIN_STEP_TIMES:
            del self.newest[:-STEP_TIMES]
            self.usual_seconds = statistics.median(self.newest)
            self.uncounted = 0


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
        times: how long steps took.
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
    times: StepTimes = field(default_factory=StepTimes)
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
        waited = self._waited_for(at)
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
        self._add_losses(finite, epoch, is_event=event is not None)
        weight = max(waited, LEAST_WEIGHT_SECONDS)
        self.times.add(finite, min(weight, TIMES_SECONDS))
        if "cache_hit_rate" in finite and (epoch is None or epoch >= 1):
            self.cache_hit.add(100.0 * finite["cache_hit_rate"], min(weight, MINUTE_SECONDS))
        if self.samples_before is None:
            self.samples_before = finite.get("samples")

    def _waited_for(self, at: float | None) -> float:
        """The seconds from the line before to one that was written at a time; 0 if unknown."""
        if at is None:
            return 0.0
        before = self.line_at
        self.line_at = at
        if before is None:
            return 0.0
        return max(0.0, at - before)

    def _add_losses(self, finite: Mapping[str, float], epoch: float | None, *, is_event: bool) -> None:
        """Add the losses of a line, or the best metric for both. That of an event is no new training loss."""
        loss = finite.get(LOSS)
        validation = finite.get(VALIDATION_LOSS)
        if self.roles.best is not None:
            loss = validation = self._signed(finite.get(BEST))
        if loss is not None and self.step is not None and not is_event:
            self.loss.add(loss, self.step, epoch, self.patience_steps, self.trained_seconds)
        if validation is not None:
            self.validation.add(validation, self.step, epoch, self.trained_seconds)

    def _signed(self, value: float | None) -> float | None:
        """A value of the best metric to minimize, or such a value as it was reported."""
        if value is not None and self.roles.mode == "max":
            return -value
        return value

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
        yield lr_off_schedule(values, expected, rules)

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
        seconds = self.times.step.value
        usual = self.times.usual_seconds
        if seconds is None or usual is None:
            return Observation("slow_steps")
        limits = rules["slow_steps"].limits
        usual_milliseconds = 1000.0 * usual
        limit = max(limits["above_milliseconds"], limits["times_median"] * usual_milliseconds)
        text = f"; it was about {usual_milliseconds:.0f} ms before"
        return Observation("slow_steps", 1000.0 * seconds, limit, text)

    def _data_wait(self, rules: RuleSet) -> Observation:
        """A step's wait for data in milliseconds; its limit is at least a share of the step."""
        wait = self.times.data.value
        step = self.times.step.value
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
