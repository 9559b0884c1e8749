"""What is remembered of a run between two moments: its best values, its usual step time, what it skipped. Pure; all of
it can be stored as JSON, so that the next agent continues."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gputui.alerts.loss_course import BestLoss, LossCourse
from gputui.alerts.moments import RunMoment, Stagnation
from gputui.alerts.trends import MINUTE_SECONDS, Mean

PATIENCE_STEPS = 1000.0
LEAST_STEP_TIMES = 10
STEP_TIMES = 100
# A step time beyond this many medians is not taken for the run's usual one.
UNUSUAL_TIMES = 1.5
# A loader that reads ahead makes one step of many wait for all: only a mean tells how long they wait.
TIMES = ("step_time", "data_time")
TIMES_SECONDS = 30.0
# Metrics older than this say nothing of now: the run may hang, which is recovery's to see.
OLD_SECONDS = 300.0


@dataclass(slots=True)
class RunTrend:
    """One attempt of a run. ``age_seconds`` is since its newest line; ``patience_steps`` after how many steps without
    improvement somebody wants to know."""

    attempt: int
    values: dict[str, float] = field(default_factory=dict)
    step: int | None = None
    age_seconds: float = math.inf
    patience_steps: float = PATIENCE_STEPS
    loss: LossCourse = field(default_factory=LossCourse)
    best_validation: BestLoss = field(default_factory=BestLoss)
    step_times: deque[float] = field(default_factory=lambda: deque(maxlen=STEP_TIMES))
    times: dict[str, Mean] = field(default_factory=lambda: {name: Mean(TIMES_SECONDS) for name in TIMES})
    cache_hit: Mean = field(default_factory=lambda: Mean(MINUTE_SECONDS))
    skipped: int = 0
    samples_before: float | None = None

    def take(self, step: int | None, values: Mapping[str, float], skipped: int, waited_seconds: float) -> None:
        """New lines of the attempt: the newest of each metric, at ``step``; ``skipped`` samples were reported among
        them. ``waited_seconds`` is since the lines before."""
        before = self.step
        if step is not None:
            if before is not None and step < before:
                # It went back, to a checkpoint or to a new phase: what was best before is not what it is judged by.
                self.loss, self.best_validation = LossCourse(), BestLoss()
            self.step = step
        self.values.update(values)
        self.age_seconds = 0.0
        self.skipped += skipped
        for best in (self.loss.best, self.best_validation):
            best.wait(waited_seconds)
        self._take_losses(values)
        self._take_step_time(values.get("step_time"))
        for name, mean in self.times.items():
            mean.add(values.get(name), min(max(waited_seconds, 0.1), TIMES_SECONDS))
        hit = values.get("cache_hit_rate")
        if hit is not None and self.values.get("epoch", 1.0) >= 1:
            self.cache_hit.add(100.0 * hit, min(max(waited_seconds, 0.1), MINUTE_SECONDS))
        samples = values.get("samples")
        if samples is not None and math.isfinite(samples) and self.samples_before is None:
            self.samples_before = samples

    def advance(
        self,
        run_id: str,
        elapsed_seconds: float,
        *,
        is_training: bool,
        lr_expected: tuple[float, float] | None = None,
        nccl_errors: int = 0,
        nccl_text: str = "",
    ) -> RunMoment:
        """Let ``elapsed_seconds`` pass and return what the rules measure of the run."""
        self.age_seconds += elapsed_seconds
        epoch = self.values.get("epoch")
        validation = self.best_validation.stagnation("val/loss", self.step, epoch)
        loss = self.loss.stagnation(self.step, epoch, self.patience_steps)
        stagnation: list[Stagnation] = []
        if validation is not None:
            # Epochs are judged by what was not trained on, where that is known; steps by the loss of every step.
            stagnation.append(replace(validation, steps=None))
        if loss is not None:
            epochs = None if validation is not None else loss.epochs
            stagnation.append(replace(loss, epochs=epochs))
        is_fresh = self.age_seconds <= OLD_SECONDS
        seen, share = self._skipped_share()
        return RunMoment(
            run_id=run_id,
            is_training=is_training,
            values=self.values if is_fresh else {},
            means=self._means() if is_fresh else {},
            stagnation=tuple(stagnation) if is_fresh else (),
            median_step_seconds=self.median_step_seconds,
            cache_hit_percent=self.cache_hit.value if is_fresh else None,
            skipped_percent=share,
            samples_seen=seen,
            lr_expected=lr_expected,
            nccl_errors=nccl_errors,
            nccl_text=nccl_text,
        )

    @property
    def median_step_seconds(self) -> float | None:
        """The usual step time, None before there are enough steps."""
        return statistics.median(self.step_times) if len(self.step_times) >= LEAST_STEP_TIMES else None

    def _means(self) -> dict[str, float]:
        found = {name: mean.value for name, mean in self.times.items()}
        return {name: value for name, value in found.items() if value is not None}

    def _take_losses(self, values: Mapping[str, float]) -> None:
        epoch = self.values.get("epoch")
        loss = values.get("loss")
        if loss is not None and math.isfinite(loss) and self.step is not None:
            self.loss.add(loss, self.step, epoch, self.patience_steps)
        validation = values.get("val/loss")
        if validation is not None and math.isfinite(validation):
            self.best_validation.add(validation, self.step, epoch)

    def _take_step_time(self, seconds: float | None) -> None:
        if seconds is None or not math.isfinite(seconds):
            return
        median = self.median_step_seconds
        if median is None or seconds <= UNUSUAL_TIMES * median:
            self.step_times.append(seconds)

    def _skipped_share(self) -> tuple[float | None, float | None]:
        """Samples consumed in this attempt and the share of them that could not be read, in percent: by the metrics
        ``skipped_samples`` and ``samples``, else by the events counted here."""
        samples = self.values.get("samples")
        if samples is None or not math.isfinite(samples):
            return None, None
        reported = self.values.get("skipped_samples")
        seen = samples if reported is not None else samples - (self.samples_before or 0.0)
        skipped = self.skipped if reported is None else reported
        whole = seen + skipped
        return whole, 100.0 * skipped / whole if whole > 0 else None

    # --- across agents

    def to_json(self) -> dict[str, Any]:
        return {
            "attempt": self.attempt,
            "step": self.step,
            "values": self.values,
            "loss": self.loss.to_json(),
            "best_validation": self.best_validation.to_json(),
            "step_times": list(self.step_times),
            "times": {name: mean.to_json() for name, mean in self.times.items()},
            "cache_hit": self.cache_hit.to_json(),
            "skipped": self.skipped,
            "samples_before": self.samples_before,
        }

    @classmethod
    def from_json(cls, data: Any) -> RunTrend:
        """Raises TypeError, KeyError, AttributeError or ValueError if it cannot be understood. What was measured
        before says nothing of now: its values wait for the next line."""
        trend = cls(
            attempt=int(data["attempt"]),
            step=data["step"],
            values={str(name): float(value) for name, value in data["values"].items()},
            loss=LossCourse.from_json(data["loss"]),
            best_validation=BestLoss(*data["best_validation"]),
            times={name: Mean.from_json(TIMES_SECONDS, data["times"][name]) for name in TIMES},
            cache_hit=Mean.from_json(MINUTE_SECONDS, data["cache_hit"]),
            skipped=int(data["skipped"]),
            samples_before=data["samples_before"],
        )
        trend.step_times.extend(float(seconds) for seconds in data["step_times"])
        return trend
