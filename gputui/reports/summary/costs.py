"""The costs of runs and what was wasted: ``cost_analysis.json``. Pure.

Time lost to failures and idle time may overlap (a GPU idles while a failed run restarts), so they must not be added.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from gputui.reports.summary.facts import RunFacts, number
from gputui.reports.summary.performance import identity_shape


class Prices(Struct, frozen=True):
    """The prices of a kilowatt-hour and a GPU-hour; None is left out. ``currency`` is only displayed."""

    per_kwh: float | None = None
    per_gpu_hour: float | None = None
    currency: str | None = None


class CostFigures(Struct, frozen=True):
    """The costs of one or several runs. ``is_partial``: energy or price lack an unknown part, so they are lower
    bounds."""

    gpu_hours: float | None = None
    energy_kwh: float | None = None
    price: float | None = None
    is_partial: bool = False
    lost_gpu_hours: float | None = None
    idle_gpu_hours: float | None = None

    @property
    def lost_share(self) -> float | None:
        """The share of GPU-hours lost to failures."""
        return _share(self.lost_gpu_hours, self.gpu_hours)

    @property
    def idle_share(self) -> float | None:
        """The share of GPU-hours in which a GPU was idle."""
        return _share(self.idle_gpu_hours, self.gpu_hours)

    def to_json(self) -> dict[str, Any]:
        return {
            "gpu_hours": number(self.gpu_hours),
            "energy_kwh": number(self.energy_kwh),
            "price": number(self.price),
            "is_partial": self.is_partial,
            "lost_to_failures_gpu_hours": number(self.lost_gpu_hours),
            "lost_to_failures_share": number(self.lost_share),
            "idle_gpu_hours": number(self.idle_gpu_hours),
            "idle_share": number(self.idle_share),
        }


def cost_of(run: RunFacts, prices: Prices) -> CostFigures:
    """The costs of one run. Failures cost 0 if there were none, None if their cost is unknown."""
    hours, energy = run.cost.gpu_hours, run.cost.energy_kwh
    idle = None if run.gpus.idle_share is None or hours is None else hours * run.gpus.idle_share
    parts = [(energy, prices.per_kwh), (hours, prices.per_gpu_hour)]
    asked = [(amount, each) for amount, each in parts if each is not None]
    known = [amount * each for amount, each in asked if amount is not None]
    energy_is_partial = run.cost.energy_is_partial or (energy is None and run.gpu_count > 0)
    return CostFigures(
        gpu_hours=hours,
        energy_kwh=energy,
        price=math.fsum(known) if known else None,
        is_partial=energy_is_partial or len(known) < len(asked),
        lost_gpu_hours=0.0 if run.lost is None else run.lost.gpu_hours,
        idle_gpu_hours=idle,
    )


def together(costs: Sequence[CostFigures]) -> CostFigures:
    """The sum of known costs."""
    hours = _sum(cost.gpu_hours for cost in costs)
    energy = _sum(cost.energy_kwh for cost in costs)
    price = _sum(cost.price for cost in costs)
    return CostFigures(
        hours,
        energy,
        price,
        any(cost.is_partial for cost in costs),
        _sum(cost.lost_gpu_hours for cost in costs),
        _sum(cost.idle_gpu_hours for cost in costs),
    )


def cost_shape(runs: Sequence[RunFacts], prices: Prices) -> dict[str, Any]:
    """The JSON of all runs together and of each."""
    costs = [cost_of(run, prices) for run in runs]
    return {
        "currency": prices.currency,
        "price_per_kwh": prices.per_kwh,
        "price_per_gpu_hour": prices.per_gpu_hour,
        "total": together(costs).to_json(),
        "runs": [
            {
                **identity_shape(run),
                **cost.to_json(),
                "incidents": 0 if run.lost is None else run.lost.incidents,
                "incidents_of_unknown_cost": 0 if run.lost is None else run.lost.unknown,
                "lost_seconds": number(None if run.lost is None else run.lost.seconds),
                "lost_steps": None if run.lost is None else run.lost.steps,
            }
            for run, cost in zip(runs, costs, strict=True)
        ],
    }


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) if known else None
