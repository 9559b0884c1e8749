"""The costs of runs and what was wasted. Pure.

Time lost to failures and idle time may overlap (a GPU idles while a failed run restarts), so they
must not be added.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from gputui.reports.summary.facts import RunFacts


class Prices(Struct, frozen=True):
    """The prices of a kilowatt-hour and a GPU-hour; None is left out. ``currency`` is only
    displayed."""

    per_kwh: float | None = None
    per_gpu_hour: float | None = None
    currency: str | None = None


class CostFigures(Struct, frozen=True):
    """The costs of one or several runs. ``is_partial``: energy or price lack an unknown part, so
    they are lower bounds."""

    gpu_hours: float | None = None
    energy_kwh: float | None = None
    price: float | None = None
    is_partial: bool = False
    lost_to_failures_gpu_hours: float | None = None
    idle_gpu_hours: float | None = None

    @property
    def lost_share(self) -> float | None:
        return _share(self.lost_to_failures_gpu_hours, self.gpu_hours)

    @property
    def idle_share(self) -> float | None:
        return _share(self.idle_gpu_hours, self.gpu_hours)

    def to_json(self) -> dict[str, Any]:
        shares = {"lost_to_failures_share": self.lost_share, "idle_share": self.idle_share}
        return {**asdict(self), **shares}


def cost_of(run: RunFacts, prices: Prices) -> CostFigures:
    """The costs of one run. Failures cost 0 if there were none, None if their cost is unknown."""
    hours, energy, idle = run.cost.gpu_hours, run.cost.energy_kwh, run.gpus.idle_share
    parts = [(energy, prices.per_kwh), (hours, prices.per_gpu_hour)]
    asked = [(amount, each) for amount, each in parts if each is not None]
    known = [amount * each for amount, each in asked if amount is not None]
    energy_is_partial = run.cost.energy_is_partial or (energy is None and run.gpu_count > 0)
    return CostFigures(
        gpu_hours=hours,
        energy_kwh=energy,
        price=math.fsum(known) if known else None,
        is_partial=energy_is_partial or len(known) < len(asked),
        lost_to_failures_gpu_hours=0.0 if run.lost is None else run.lost.lost_gpu_hours,
        idle_gpu_hours=None if idle is None or hours is None else hours * idle,
    )


def together(costs: Sequence[CostFigures]) -> CostFigures:
    """The sum of known costs."""
    return CostFigures(
        gpu_hours=_sum(cost.gpu_hours for cost in costs),
        energy_kwh=_sum(cost.energy_kwh for cost in costs),
        price=_sum(cost.price for cost in costs),
        is_partial=any(cost.is_partial for cost in costs),
        lost_to_failures_gpu_hours=_sum(cost.lost_to_failures_gpu_hours for cost in costs),
        idle_gpu_hours=_sum(cost.idle_gpu_hours for cost in costs),
    )


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) if known else None
