"""Running statistics of GPUs and of the host: means, and the growth of memory. Pure. They can be stored as JSON for the
next agent."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from gputui.machine.gpu_model import GpuFacts
from gputui.machine.throttle import TROUBLE
from gputui.recovery.alerts.moments import GpuMoment
from gputui.store.series import GpuSample, GpuSlowSample

MINUTE_SECONDS = 60.0
POWER_SECONDS = 300.0
POWER_BEFORE_SECONDS = 3600.0
MIN_SHARE = 0.6
"""The share of its span that a mean needs before it has a value."""
GROWTH_SAMPLES = 61
GROWTH_EVERY_SECONDS = 30.0


@dataclass(slots=True)
class Mean:
    """An exponentially weighted mean.

    Attributes:
        span_seconds: the age at which the weight of a value has fallen to 1/e.
        weighted_sum: the sum of weighted values.
        weight: the sum of the weights: 0 before the first value, towards 1 as the span fills.
    """

    span_seconds: float
    weighted_sum: float = 0.0
    weight: float = 0.0

    def add(self, value: float | None, elapsed_seconds: float) -> None:
        """Add a value, ``elapsed_seconds`` after the previous one. Unknown and non-finite values are ignored."""
        if value is None or not math.isfinite(value):
            return
        share = 1.0 - math.exp(-elapsed_seconds / self.span_seconds)
        self.weighted_sum += (value - self.weighted_sum) * share
        self.weight += (1.0 - self.weight) * share

    @property
    def value(self) -> float | None:
        """The mean; None before `MIN_SHARE` of the span is filled."""
        return self.weighted_sum / self.weight if self.weight >= MIN_SHARE else None

    @property
    def zero_padded(self) -> float | None:
        """The mean with zeros before the first value; None without a value."""
        return self.weighted_sum if self.weight > 0 else None

    def to_json(self) -> list[float]:
        """The sum and the weight."""
        return [self.weighted_sum, self.weight]

    @classmethod
    def from_json(cls, span_seconds: float, data: Any) -> Mean:
        """Raises TypeError or ValueError."""
        weighted_sum, weight = data
        return cls(span_seconds, float(weighted_sum), float(weight))


@dataclass(slots=True)
class GpuTrend:
    """The statistics of one GPU.

    Attributes:
        attempt: the run and attempt of utilisation and power; another one resets them.
        busy: utilisation in percent.
        throttled: 100 while throttled for a harmful reason, else 0, whatever runs on the GPU.
        power: watts over the last minutes.
        power_before: watts over the last hour.
        counts: the newest integers of the slow tier, by name.
    """

    attempt: str | None = None
    busy: Mean = field(default_factory=lambda: Mean(MINUTE_SECONDS))
    throttled: Mean = field(default_factory=lambda: Mean(MINUTE_SECONDS))
    power: Mean = field(default_factory=lambda: Mean(POWER_SECONDS))
    power_before: Mean = field(default_factory=lambda: Mean(POWER_BEFORE_SECONDS))
    counts: dict[str, int] = field(default_factory=dict)

    def advance(
        self,
        sample: GpuSample | None,
        facts: GpuFacts,
        elapsed_seconds: float,
        *,
        training: tuple[str, int] | None,
        holder: str | None,
        xids: tuple[int, ...] = (),
        slow: GpuSlowSample | None = None,
    ) -> GpuMoment:
        """Take in one moment and return what the rules measure of it.

        Args:
            sample: the newest sample; None while the driver does not answer.
            facts: what does not change.
            elapsed_seconds: since the moment before.
            training: the run and attempt that train on the GPU.
            holder: who holds its memory, in words.
            xids: the codes of new XID errors.
            slow: the newest sample of the slow tier.
        """
        grown = self._grown(slow)
        attempt = None if training is None else f"{training[0]} {training[1]}"
        if attempt != self.attempt:
            # Utilisation and power of another run are not comparable.
            self.attempt = attempt
            self.busy = Mean(MINUTE_SECONDS)
            self.power, self.power_before = Mean(POWER_SECONDS), Mean(POWER_BEFORE_SECONDS)
        if sample is None or sample.state == "error":
            return GpuMoment(
                facts.uuid, facts.index, is_known=False, xids=xids, slow=slow, grown=grown,
                training_run=training[0] if training else None,
            )  # fmt: skip
        reasons = sample.throttle_reasons
        throttled = None if reasons is None else 100.0 * any(reason in TROUBLE for reason in reasons)
        self.throttled.add(throttled, elapsed_seconds)
        self.busy.add(sample.utilization_percent, elapsed_seconds)
        if training is not None:
            self.power.add(sample.power_watts, elapsed_seconds)
            self.power_before.add(sample.power_watts, elapsed_seconds)
        return GpuMoment(
            uuid=facts.uuid,
            index=facts.index,
            state=sample.state,
            utilization_percent=sample.utilization_percent,
            busy_percent=None if sample.utilization_percent is None else self.busy.value,
            memory_used_bytes=None if facts.memory_is_unified else sample.memory_used_bytes,
            memory_total_bytes=sample.memory_total_bytes or facts.memory_total_bytes,
            temperature_celsius=sample.temperature_celsius,
            slowdown_celsius=facts.temperature_slowdown_celsius,
            throttle_reasons=reasons,
            throttled_percent=None if throttled is None else self.throttled.zero_padded,
            power_watts=None if sample.power_watts is None else self.power.value,
            power_before_watts=self.power_before.value,
            training_run=training[0] if training else None,
            holder=holder,
            xids=xids,
            slow=slow,
            grown=grown,
        )

    def _grown(self, slow: GpuSlowSample | None) -> dict[str, int]:
        """The growth of each count; 0 for the first value and after a decrease (the driver was reloaded)."""
        if slow is None:
            return {}
        counts = {name: value for name in slow.__struct_fields__ if type(value := getattr(slow, name)) is int}
        grown = {name: max(0, value - self.counts.get(name, value)) for name, value in counts.items()}
        self.counts |= counts
        return grown

    def to_json(self) -> dict[str, Any]:
        return {
            "attempt": self.attempt,
            "busy": self.busy.to_json(),
            "throttled": self.throttled.to_json(),
            "power": self.power.to_json(),
            "power_before": self.power_before.to_json(),
            "counts": self.counts,
        }

    @classmethod
    def from_json(cls, data: Any) -> GpuTrend:
        """Raises AttributeError, KeyError, TypeError or ValueError."""
        return cls(
            attempt=data["attempt"],
            busy=Mean.from_json(MINUTE_SECONDS, data["busy"]),
            throttled=Mean.from_json(MINUTE_SECONDS, data["throttled"]),
            power=Mean.from_json(POWER_SECONDS, data["power"]),
            power_before=Mean.from_json(POWER_BEFORE_SECONDS, data["power_before"]),
            counts={str(name): int(value) for name, value in data.get("counts", {}).items()},
        )


@dataclass(slots=True)
class Growth:
    """The growth of a value.

    Attributes:
        samples: (``clock_seconds``, value) of the last half hour, one per half minute.
        age_seconds: since the newest sample.
        clock_seconds: since this object was created.
    """

    samples: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=GROWTH_SAMPLES))
    age_seconds: float = math.inf
    clock_seconds: float = 0.0

    def add(self, value: float | None, elapsed_seconds: float) -> None:
        """Add a value, ``elapsed_seconds`` after the previous one. Unknown and non-finite values are ignored."""
        self.age_seconds += elapsed_seconds
        self.clock_seconds += elapsed_seconds
        if value is not None and math.isfinite(value) and self.age_seconds >= GROWTH_EVERY_SECONDS:
            self.samples.append((self.clock_seconds, value))
            self.age_seconds = 0.0

    @property
    def per_hour(self) -> float | None:
        """The smaller slope of the two halves, so that a jump (the start of a run) is no growth; None before half an
        hour."""
        if len(self.samples) < GROWTH_SAMPLES:
            return None
        middle = GROWTH_SAMPLES // 2
        halves = (list(islice(self.samples, 0, middle + 1)), list(islice(self.samples, middle, None)))
        return 3600.0 * min(_slope(half) for half in halves)

    def to_json(self) -> list[list[float]]:
        """The samples, with times relative to now (at most 0)."""
        return [[at - self.clock_seconds, value] for at, value in self.samples]

    @classmethod
    def from_json(cls, data: Any, down_seconds: float) -> Growth:
        """``down_seconds`` is the time without an agent. After more than four sampling periods, or if the clock was set
        back, the result is empty. Raises TypeError or ValueError."""
        growth = cls()
        if 0 <= down_seconds <= 4 * GROWTH_EVERY_SECONDS:
            growth.samples.extend((float(at) - down_seconds, float(value)) for at, value in data)
        return growth


def _slope(points: list[tuple[float, float]]) -> float:
    """The least-squares slope through the points, per second."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
