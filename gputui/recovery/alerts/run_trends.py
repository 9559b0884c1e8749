"""Running statistics of a run: its best values, usual step time and skipped samples. Pure. They can be stored as JSON
for the next agent."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from gputui.recovery.alerts.loss_course import BestLoss, LossCourse
from gputui.recovery.alerts.moments import RunMoment, Stagnation
from gputui.recovery.alerts.trends import MINUTE_SECONDS, Mean

PATIENCE_STEPS = 1000.0
MIN_STEP_TIMES = 10
STEP_TIMES = 100
# Step times beyond this many medians are ignored in the median.
UNUSUAL_TIMES = 1.5
# With a loader that reads ahead, one of many steps waits for all, so only a mean is meaningful.
TIMES = ("step_time", "data_time")
TIMES_SECONDS = 30.0
# Older metrics are outdated. The run may hang, which recovery detects.
OLD_SECONDS = 300.0


@dataclass(slots=True)
class RunTrend:
    """The statistics of one attempt. ``age_seconds`` is the age of its newest line; ``patience_steps`` is the number of
    steps without improvement that raises an alert."""

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
        """Add new lines: the newest value of each metric at ``step``, and ``skipped`` samples. ``waited_seconds`` is
        the time since the previous lines."""
        before = self.step
        if step is not None:
            if before is not None and step < before:
                # The run went back to a checkpoint, or to a new phase, so earlier best values do not count.
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
        """Let ``elapsed_seconds`` pass and return the moment for the rules."""
        self.age_seconds += elapsed_seconds
        epoch = self.values.get("epoch")
        validation = self.best_validation.stagnation("val/loss", self.step, epoch)
        loss = self.loss.stagnation(self.step, epoch, self.patience_steps)
        stagnation: list[Stagnation] = []
        if validation is not None:
            # Epochs are judged by the validation loss, if there is one, and steps by the training loss.
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
            means={name: value for name, mean in self.times.items() if is_fresh and (value := mean.value) is not None},
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
        """The usual step time; None before there are enough steps."""
        return statistics.median(self.step_times) if len(self.step_times) >= MIN_STEP_TIMES else None

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
        """The samples of this attempt and the share that could not be read, in percent: by the metrics
        ``skipped_samples`` and ``samples``, else by counted events."""
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
        """Raises TypeError, KeyError, AttributeError or ValueError for invalid data. Stored values are outdated, so
        rules wait for the next line."""
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
