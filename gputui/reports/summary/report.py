"""A report of runs: their costs, its JSON files and its page. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from gputui.core.text import clean
from gputui.core.units import iso
from gputui.metrics.draw.parts import Chart, XAxis
from gputui.recovery.costs import Cost
from gputui.reports.pages import render
from gputui.reports.summary import story
from gputui.reports.summary.facts import RunFacts, Spread, round_floats
from gputui.reports.summary.gates import GateVerdict, judge
from gputui.reports.summary.speedup import Scaling, efficiency_of, scalability_shape, scalings

MAX_PICTURED = 20
"""The runs of a report that have pictures, newest first; a page of them is about 2 MB."""
_MAX_CURVES = 6  # the theme has six colours of curves


class Prices(Struct, frozen=True):
    """The prices of a kilowatt-hour and a GPU-hour; None is left out. ``currency`` is only
    displayed."""

    per_kwh: float | None = None
    per_gpu_hour: float | None = None
    currency: str | None = None


class CostFigures(Struct, frozen=True):
    """The costs of one or several runs, None where unknown.

    Attributes:
        price: the price of hours and energy, in the currency of `Prices`.
        is_partial: whether energy or price lack an unknown part, so that they are lower bounds.
        lost_to_failures_gpu_hours: GPU-hours of work that failures undid, and of restarts.
        idle_gpu_hours: GPU-hours in which a GPU did nothing. Not to be added to those lost: a GPU idles while a failed
            run restarts.
    """

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
    hours = run.cost.gpu_hours
    energy = run.cost.energy_kwh
    idle = run.gpus.idle_share
    parts = [(energy, prices.per_kwh), (hours, prices.per_gpu_hour)]
    priced = [(amount, unit_price) for amount, unit_price in parts if unit_price is not None]
    costs = [amount * unit_price for amount, unit_price in priced if amount is not None]
    price = math.fsum(costs) if costs else None
    lost_hours = 0.0 if run.lost is None else run.lost.lost_gpu_hours
    idle_hours = None if idle is None or hours is None else hours * idle
    energy_is_partial = run.cost.energy_is_partial or (energy is None and run.gpu_count > 0)
    return CostFigures(
        gpu_hours=hours,
        energy_kwh=energy,
        price=price,
        is_partial=energy_is_partial or len(costs) < len(priced),
        lost_to_failures_gpu_hours=lost_hours,
        idle_gpu_hours=idle_hours,
    )


def total_costs(costs: Sequence[CostFigures]) -> CostFigures:
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
    if part is not None and whole:
        return part / whole
    return None


def _sum(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    if numbers:
        return math.fsum(numbers)
    return None


class Report(Struct, frozen=True):
    """The content of a report.

    Attributes:
        made_at: UTC unix seconds.
        verdicts: the verdicts of the gates, by run id; empty if they were not asked for.
    """

    title: str
    made_at: float
    runs: Sequence[RunFacts]
    verdicts: Mapping[str, Sequence[GateVerdict]]
    scalings: Sequence[Scaling]
    prices: Prices


def make(
    title: str,
    now: float,
    runs: Sequence[RunFacts],
    others: Sequence[RunFacts],
    prices: Prices,
    thresholds: Mapping[str, float] | None,
) -> Report:
    """Make a report of runs.

    Args:
        now: UTC unix seconds.
        others: runs that only count for scaling.
        thresholds: changes of the gates' thresholds; None for no gates.
    """
    groups = scalings([*runs, *others])
    verdicts: dict[str, Sequence[GateVerdict]] = {}
    if thresholds is not None:
        for facts in runs:
            run_id = facts.run.run_id
            verdicts[run_id] = judge(facts, efficiency_of(run_id, groups), thresholds)
    return Report(title, now, runs, verdicts=verdicts, scalings=groups, prices=prices)


def shapes(report: Report) -> dict[str, Any]:
    """The JSON files by name without suffix, which ``--json`` prints."""
    head = {"made_at": iso(report.made_at)}
    files: dict[str, Any] = round_floats(
        {
            "performance_summary": {**head, "runs": [_performance(run, report) for run in report.runs]},
            "cost_analysis": {**head, **_cost(report)},
            "scalability_report": {**head, **scalability_shape(report.scalings)},
        }
    )
    return files


def contents(report: Report) -> dict[str, bytes]:
    """The files of a report by name."""
    texts = {
        f"{name}.json": json.dumps(shape, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        for name, shape in shapes(report).items()
    }
    texts["report.html"] = page(report)
    return {name: text.encode("utf-8", "replace") for name, text in texts.items()}


def page(report: Report) -> str:
    """The report as a self-contained HTML page."""
    costs = [cost_of(run, report.prices) for run in report.runs]
    failed = {
        run_id: [verdict.gate.replace("_", " ") for verdict in verdicts if verdict.outcome == "fail"]
        for run_id, verdicts in report.verdicts.items()
    }
    return render(
        "report.html.j2",
        report=report,
        made=datetime.fromtimestamp(report.made_at, UTC).strftime("%Y-%m-%d %H:%M UTC"),
        runs=list(zip(report.runs, costs, strict=True)),
        total=total_costs(costs),
        losses=_losses(report.runs),
        names=list(dict.fromkeys(best.name for run in report.runs for best in run.measured.best)),
        bests={run.run.run_id: {best.name: best.value for best in run.measured.best} for run in report.runs},
        failed=failed,
        max_pictured=MAX_PICTURED,
        story=story,
    )


def _performance(facts: RunFacts, report: Report) -> dict[str, Any]:
    """One run of ``performance_summary.json``."""
    run = facts.run
    measured = facts.measured
    gpus = facts.gpus
    bests = {best.name: asdict(best) for best in measured.best}
    return {
        **facts.identity(),
        "state": run.state,
        "verdict": story.verdict(facts),
        "recoveries": list(facts.recoveries),
        "started_at": iso(run.started_at),
        "ended_at": iso(run.ended_at),
        "attempts": facts.attempts,
        "gpus": facts.gpu_count,
        "last_step": facts.last_step,
        "samples_per_second": measured.samples_per_second,
        "tokens_per_second": measured.tokens_per_second,
        "mfu": measured.mfu,
        "step_seconds": _fields(measured.step_seconds),
        "data_wait_share": measured.data_share,
        "communication_share": measured.comm_share,
        "peak_memory_bytes": measured.peak_memory_bytes,
        "gpu_memory_used_bytes_max": gpus.memory_used_bytes_most,
        "gpu_utilization_percent": _fields(gpus.utilization_percent),
        "gpu_power_watts": _fields(gpus.power_watts),
        "best": {name: {key: figures[key] for key in ("value", "step", "better")} for name, figures in bests.items()},
        "gates": [_fields(verdict) for verdict in report.verdicts.get(run.run_id, ())],
    }


def _fields(values: Spread | GateVerdict | None) -> dict[str, Any] | None:
    if values is None:
        return None
    return asdict(values)


def _cost(report: Report) -> dict[str, Any]:
    """``cost_analysis.json``: all runs together and each."""
    costs = [cost_of(run, report.prices) for run in report.runs]
    prices = report.prices
    runs = []
    for facts, cost in zip(report.runs, costs, strict=True):
        lost = facts.lost or Cost(lost_steps=None, lost_seconds=None, lost_gpu_hours=None, incidents=0)
        runs.append(
            {
                **facts.identity(),
                **cost.to_json(),
                "incidents": lost.incidents,
                "incidents_of_unknown_cost": lost.unknown,
                "lost_seconds": lost.lost_seconds,
                "lost_steps": lost.lost_steps,
            }
        )
    return {
        "currency": prices.currency,
        "price_per_kwh": prices.per_kwh,
        "price_per_gpu_hour": prices.per_gpu_hour,
        "total": total_costs(costs).to_json(),
        "runs": runs,
    }


def _losses(runs: Sequence[RunFacts]) -> Chart | None:
    """The losses of several runs in one chart; only the first ones if colours run out."""
    losses = [
        (run, drawn, curve)
        for run in runs
        for drawn in run.pictures
        for curve in drawn.curves
        if curve.label == clean(run.run.roles.loss or "") and not curve.is_shadow and curve.bins
    ]
    curves = [
        replace(curve, style=f"series.{place}", label=clean(facts.run.run_id))
        for place, (facts, _, curve) in enumerate(losses[:_MAX_CURVES])
    ]
    if len(curves) > 1:
        return Chart(curves, "loss", losses[0][1].x_axis or XAxis())
    return None
