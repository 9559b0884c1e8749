"""A report of runs, and its files. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gputui.reports.summary.costs import Prices, cost_shape
from gputui.reports.summary.facts import RunFacts
from gputui.reports.summary.gates import judge
from gputui.reports.summary.page import Report, page
from gputui.reports.summary.performance import performance_shape
from gputui.reports.summary.scalability import efficiency_of, scalability_shape, scalings
from gputui.store.json_shapes import iso


def make(
    title: str,
    now: float,
    runs: Sequence[RunFacts],
    others: Sequence[RunFacts],
    thresholds: Mapping[str, float],
    prices: Prices,
) -> Report:
    """A report of ``runs``; ``others`` only count for scaling."""
    groups = scalings([*runs, *others])
    verdicts = {run.run_id: judge(run, efficiency_of(run.run_id, groups), thresholds) for run in runs}
    return Report(title, now, runs, verdicts, groups, prices)


def shapes(report: Report) -> dict[str, Any]:
    """The JSON files by name without suffix, which ``--json`` prints."""
    made = {"made_at": iso(report.made_at)}
    performance = [performance_shape(run, report.verdicts.get(run.run_id, ())) for run in report.runs]
    return {
        "performance_summary": {**made, "runs": performance},
        "cost_analysis": {**made, **cost_shape(report.runs, report.prices)},
        "scalability_report": {**made, **scalability_shape(report.scalings)},
    }


def contents(report: Report) -> dict[str, bytes]:
    """The files of a report by name."""
    found = {
        f"{name}.json": (json.dumps(shape, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
        for name, shape in shapes(report).items()
    }
    return {**found, "report.html": page(report).encode("utf-8", "replace")}
