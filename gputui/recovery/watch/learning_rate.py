"""The learning rate that a schedule expects, and how far off the reported one is. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from gputui.core.units import short_number
from gputui.recovery.watch.rules import Observation, RuleSet

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


def lr_off_schedule(values: Mapping[str, float], expected: tuple[float, float] | None, rules: RuleSet) -> Observation:
    """The difference between the learning rate and its schedule in percent."""
    rate = values.get("lr")
    if not values or rate is None or expected is None:
        return Observation("lr_off_schedule", applies=not values or expected is not None)
    lowest, highest = expected
    nearest = highest
    off = math.inf
    if math.isfinite(rate):
        nearest = min(max(rate, lowest), highest)
        off = 100.0 * abs(rate - nearest) / max(abs(nearest), 1e-12)
    text = f"is {short_number(rate)}, its schedule says {short_number(nearest)}"
    limit = rules["lr_off_schedule"].limits["above_percent"]
    return Observation("lr_off_schedule", off, limit, text)
