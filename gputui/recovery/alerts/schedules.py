"""The expected learning rate at a step, by the schedule of a profile. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

Shape = Literal["constant", "linear", "cosine"]
SHAPES: tuple[Shape, ...] = ("constant", "linear", "cosine")

EXPECTED_METRICS = ("lr_expected", "lr_scheduled")
"""Metrics by which a script reports its expected learning rate."""


class RateSchedule(Struct, frozen=True):
    """A rise from 0 to ``peak`` over ``warmup_steps``, then ``shape`` down to ``final`` at ``total_steps``. None takes
    the value of the run: its learning-rate parameter, and the ``total_steps`` that it reports."""

    shape: Shape
    peak: float | None = None
    final: float = 0.0
    warmup_steps: int = 0
    total_steps: int | None = None

    def at(self, step: int, *, peak: float | None, total_steps: int | None) -> float | None:
        """The rate at ``step``; the arguments replace missing values. None if unknown."""
        top = self.peak if self.peak is not None else peak
        if top is None:
            return None
        if step < self.warmup_steps:
            return top * (step + 1) / self.warmup_steps
        if self.shape == "constant":
            return top
        total = self.total_steps if self.total_steps is not None else total_steps
        if total is None or total <= self.warmup_steps:
            return None
        done = min(1.0, (step - self.warmup_steps) / (total - self.warmup_steps))
        share = 1.0 - done if self.shape == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
        return self.final + (top - self.final) * share


def expected_rate(
    schedule: RateSchedule | None, step: int | None, values: Mapping[str, float], peak: float | None
) -> tuple[float, float] | None:
    """The range of the learning rate at ``step``: the value that the script reports, else the profile's schedule at
    this step and its neighbours, because scripts count before or after the step."""
    for name in EXPECTED_METRICS:
        if name in values:
            return (values[name], values[name]) if math.isfinite(values[name]) else None
    if schedule is None or step is None:
        return None
    reported = values.get("total_steps")
    total = None if reported is None or not math.isfinite(reported) else int(reported)
    rates = [schedule.at(max(0, one), peak=peak, total_steps=total) for one in (step - 1, step, step + 1)]
    known = [rate for rate in rates if rate is not None]
    return (min(known), max(known)) if len(known) == len(rates) else None
