"""A report of runs, and its files. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from gputui.core.text import clean
from gputui.metrics.draw.parts import XAxis
from gputui.metrics.draw.picture import Drawing
from gputui.recovery.costs import Cost
from gputui.reports.pages import render
from gputui.reports.summary import story
from gputui.reports.summary.costs import Prices, cost_of, together
from gputui.reports.summary.facts import RunFacts, Spread, rounded
from gputui.reports.summary.gates import GateVerdict, judge
from gputui.reports.summary.scaling import Scaling, efficiency_of, scalability_shape, scalings
from gputui.store.json_shapes import iso

MAX_PICTURED = 20
"""The runs of a report that have pictures, newest first; a page of them is about 2 MB."""
_MAX_CURVES = 6


class Report(Struct, frozen=True):
    """The content of a report. ``made_at`` is UTC unix seconds; ``verdicts`` of the gates are by
    run ID, empty if they were not asked for."""

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
    """A report of ``runs``; ``others`` only count for scaling. ``thresholds`` change those of the
    gates; None: no gates."""
    groups = scalings([*runs, *others])
    verdicts: dict[str, Sequence[GateVerdict]] = {}
    if thresholds is not None:
        for facts in runs:
            run_id = facts.run.run_id
            verdicts[run_id] = judge(facts, efficiency_of(run_id, groups), thresholds)
    return Report(title, now, runs, verdicts, groups, prices)


def shapes(report: Report) -> dict[str, Any]:
    """The JSON files by name without suffix, which ``--json`` prints."""
    made = {"made_at": iso(report.made_at)}
    found: dict[str, Any] = rounded(
        {
            "performance_summary": {**made, "runs": [_performance(run, report) for run in report.runs]},
            "cost_analysis": {**made, **_cost(report)},
            "scalability_report": {**made, **scalability_shape(report.scalings)},
        }
    )
    return found


def contents(report: Report) -> dict[str, bytes]:
    """The files of a report by name."""
    found = {
        f"{name}.json": json.dumps(shape, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        for name, shape in shapes(report).items()
    }
    found["report.html"] = page(report)
    return {name: text.encode("utf-8", "replace") for name, text in found.items()}


def page(report: Report) -> str:
    """The report as a self-contained HTML page."""
    costs = [cost_of(run, report.prices) for run in report.runs]
    failed = {
        run_id: [one.gate.replace("_", " ") for one in verdicts if one.outcome == "fail"]
        for run_id, verdicts in report.verdicts.items()
    }
    return render(
        "report.html.j2",
        report=report,
        made=datetime.fromtimestamp(report.made_at, UTC).strftime("%Y-%m-%d %H:%M UTC"),
        runs=list(zip(report.runs, costs, strict=True)),
        total=together(costs),
        losses=_losses(report.runs),
        names=list(dict.fromkeys(one.name for run in report.runs for one in run.measured.best)),
        bests={each.run.run_id: {one.name: one.value for one in each.measured.best} for each in report.runs},
        failed=failed,
        max_pictured=MAX_PICTURED,
        story=story,
    )


def _performance(facts: RunFacts, report: Report) -> dict[str, Any]:
    """One run of ``performance_summary.json``."""
    run, measured, gpus = facts.run, facts.measured, facts.gpus
    best = {one.name: asdict(one) for one in measured.best}
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
        "best": {name: {key: one[key] for key in ("value", "step", "better")} for name, one in best.items()},
        "gates": [_fields(one) for one in report.verdicts.get(run.run_id, ())],
    }


def _fields(values: Spread | GateVerdict | None) -> dict[str, Any] | None:
    return None if values is None else asdict(values)


def _cost(report: Report) -> dict[str, Any]:
    """``cost_analysis.json``: all runs together and each."""
    costs, prices = [cost_of(run, report.prices) for run in report.runs], report.prices
    runs = []
    for facts, cost in zip(report.runs, costs, strict=True):
        lost = facts.lost or Cost(None, None, None, incidents=0)
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
        "total": together(costs).to_json(),
        "runs": runs,
    }


def _losses(runs: Sequence[RunFacts]) -> Drawing | None:
    """The losses of several runs in one chart; only the first ones if colours run out."""
    found = [
        (run, drawn, curve)
        for run in runs
        for drawn in run.pictures
        for curve in drawn.curves
        if curve.label == "loss" and not curve.is_shadow and curve.bins
    ]
    curves = [
        replace(curve, style=f"series.{place}", label=clean(facts.run.run_id))
        for place, (facts, _, curve) in enumerate(found[:_MAX_CURVES])
    ]
    return Drawing(curves, "loss", found[0][1].x_axis or XAxis()) if len(curves) > 1 else None
