"""The report as a self-contained HTML page: no script, no other file, all text escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.text import clean
from gputui.core.units import UNKNOWN, bytes_text, count, duration, metric_value, short_number, watts
from gputui.metrics.draw.export import svg_text
from gputui.metrics.draw.parts import XAxis
from gputui.metrics.draw.picture import Drawing, picture
from gputui.reports import html
from gputui.reports.html import plain
from gputui.reports.summary.costs import CostFigures, Prices, cost_of, together
from gputui.reports.summary.facts import MAX_PICTURED, RunFacts, Spread
from gputui.reports.summary.gates import GateVerdict
from gputui.reports.summary.scalability import Scaling
from gputui.store.runs import is_renamed

_PICTURE = (1000, 360)
_MAX_CURVES = 6


class Report(Struct, frozen=True):
    """The content of a page. ``made_at`` is UTC unix seconds; ``verdicts`` are by run ID."""

    title: str
    made_at: float
    runs: Sequence[RunFacts]
    verdicts: Mapping[str, Sequence[GateVerdict]]
    scalings: Sequence[Scaling]
    prices: Prices


def page(report: Report) -> str:
    """The whole page."""
    made = datetime.fromtimestamp(report.made_at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    parts = _together(report)
    for run in report.runs:
        parts += _run(run, report)
    runs = f"{len(report.runs)} run{'' if len(report.runs) == 1 else 's'}"
    return html.document(report.title, f"{runs}, {made}", parts)


def _together(report: Report) -> list[str]:
    parts = []
    if len(report.runs) > 1:
        costs = [cost_of(run, report.prices) for run in report.runs]
        parts += ["<h2>Together</h2>", html.pairs(_cost_rows(together(costs), report.prices))]
        parts += ["<h2>Runs beside each other</h2>", _comparison(report.runs, costs, report)]
        losses = _losses(report.runs)
        if len(losses.curves) > 1:
            parts.append(html.wide(svg_text(picture(losses, *_PICTURE))))
    if len(report.runs) > MAX_PICTURED:
        parts.append(f'<p class="dim">The newest {MAX_PICTURED} runs have pictures; name a run to see its own.</p>')
    for group in report.scalings:
        rows = [
            (
                point.run_id, str(point.ranks), f"{metric_value(point.speed)} {group.unit}",
                f"{point.speed_up:.2f}", f"{100 * point.efficiency:.1f} %", _share(point.comm_share),
                _share(point.data_share),
            )
            for point in group.points
        ]  # fmt: skip
        ranks = "GPUs" if group.has_gpus else "processes"
        heads = ("run", ranks, "speed", "speed-up", "efficiency", "communication", "waiting for data")
        parts += [f"<h2>How {plain(group.profile)} scales</h2>", html.table(heads, rows)]
    return parts


def _run(run: RunFacts, report: Report) -> list[str]:
    measured, gpus = run.measured, run.gpus
    started = UNKNOWN if run.started_at is None else _moment(run.started_at)
    rows = [
        ("profile", run.profile),
        ("state", run.state),
        ("started", started),
        ("from launch to end", UNKNOWN if run.ended_at is None else duration(run.ended_at - run.created_at)),
        ("of that in attempts", duration(run.took_seconds)),
        ("attempts", count(run.attempts)),
        ("GPUs", count(run.gpu_count)),
        ("last step", count(run.last_step)),
        ("samples per second", metric_value(measured.samples_per_second)),
        ("tokens per second", metric_value(measured.tokens_per_second)),
        ("step", _step_words(measured.step_seconds)),
        ("waiting for data", _share(measured.data_share)),
        ("communication", _share(measured.comm_share)),
        ("peak memory of a process", bytes_text(measured.peak_memory_bytes)),
        ("most memory in use on a GPU", bytes_text(gpus.memory_used_bytes_most)),
        ("GPU utilisation", _percent_words(gpus.utilization_percent)),
        ("power of a GPU", _watt_words(gpus.power_watts)),
    ]
    labels = [("name", run.name), ("tags", " ".join(run.tags)), ("note", run.note or "")]
    is_named = is_renamed(run.run_id, run.name)
    rows = [(name, text) for name, text in labels if text and (name != "name" or is_named)] + rows
    best = [
        (one.name, metric_value(one.value), count(one.step), "more" if one.is_more_better else "less")
        for one in measured.best
    ]
    gates = [
        f'<td>{plain(one.gate.replace("_", " "))}</td><td class="{one.outcome}">{one.outcome}</td>'
        f"<td>{plain(short_number(one.figure))}</td><td>{plain(f'{one.threshold:g} {one.unit}')}</td>"
        f"<td>{plain(one.text)}</td>"
        for one in report.verdicts.get(run.run_id, ())
    ]
    parts = [
        f"<h2>{plain(run.run_id)}</h2>",
        html.pairs(rows),
        *(html.wide(svg_text(picture(each, *_PICTURE))) for each in run.pictures),
        "<h3>Quality gates</h3>",
        html.table_of(("gate", "", "figure", "threshold", ""), gates),
        "<h3>Cost</h3>",
        html.pairs([*_cost_rows(cost_of(run, report.prices), report.prices), *_lost_rows(run)]),
    ]
    if best:
        parts += ["<h3>Best values</h3>", html.table(("metric", "best", "step", "better is"), best)]
    if run.launched:
        parts += ["<h3>Parameters</h3>", html.pairs([(name, str(value)) for name, value in run.launched.items()])]
    return parts


def _losses(runs: Sequence[RunFacts]) -> Drawing:
    """The losses of several runs in one chart; only the first ones if colours run out."""
    found = [
        (run, drawn, curve)
        for run in runs
        for drawn in run.pictures
        for curve in drawn.curves
        if curve.label == "loss" and not curve.is_shadow and curve.bins
    ]
    curves = [
        replace(curve, style=f"series.{place}", label=clean(run.run_id))
        for place, (run, _, curve) in enumerate(found[:_MAX_CURVES])
    ]
    return Drawing(curves, "loss", found[0][1].x_axis if found else XAxis())


def _comparison(runs: Sequence[RunFacts], costs: Sequence[CostFigures], report: Report) -> str:
    """A row per run, a column per figure."""
    names = dict.fromkeys(one.name for run in runs for one in run.measured.best)
    heads = ["run", "state", "GPUs", "samples/s", "step p50", "utilisation", "GPU-hours", "kWh", "gates", *names]
    rows = []
    for run, cost in zip(runs, costs, strict=True):
        best = {one.name: one.value for one in run.measured.best}
        verdicts = report.verdicts.get(run.run_id, ())
        failed = [verdict.gate.replace("_", " ") for verdict in verdicts if verdict.outcome == "fail"]
        used = run.gpus.utilization_percent
        step = run.measured.step_seconds
        rows.append(
            (
                run.run_id, run.state, count(run.gpu_count), metric_value(run.measured.samples_per_second),
                _seconds(None if step is None else step.p50), UNKNOWN if used is None else f"{used.mean:.0f} %",
                metric_value(cost.gpu_hours), metric_value(cost.energy_kwh),
                ", ".join(failed) + " failed" if failed else "none failed",
                *(metric_value(best.get(name)) for name in names),
            )
        )  # fmt: skip
    return html.table(heads, rows)


def _cost_rows(cost: CostFigures, prices: Prices) -> list[tuple[str, str]]:
    least = "at least " if cost.is_partial else ""
    rows = [
        ("GPU-hours", metric_value(cost.gpu_hours)),
        ("energy", UNKNOWN if cost.energy_kwh is None else f"{least}{metric_value(cost.energy_kwh)} kWh"),
    ]
    if prices.per_kwh is not None or prices.per_gpu_hour is not None:
        price = UNKNOWN if cost.price is None else f"{least}{cost.price:.2f} {prices.currency or ''}".strip()
        rows.append(("price", price))
    return [
        *rows,
        ("lost to failures", _hours_words(cost.lost_gpu_hours, cost.lost_share)),
        ("idle", _hours_words(cost.idle_gpu_hours, cost.idle_share)),
    ]


def _lost_rows(run: RunFacts) -> list[tuple[str, str]]:
    if run.lost is None:
        return []
    unknown = f", of {run.lost.unknown} of them the cost is unknown" if run.lost.unknown else ""
    return [
        ("failures", f"{run.lost.incidents}{unknown}"),
        ("steps redone", count(run.lost.steps)),
        ("time lost", duration(run.lost.seconds)),
    ]


def _hours_words(hours: float | None, share: float | None) -> str:
    return UNKNOWN if hours is None else f"{metric_value(hours)} GPU-hours" + (f", {_share(share)}" if share else "")


def _step_words(values: Spread | None) -> str:
    return UNKNOWN if values is None else f"p50 {_seconds(values.p50)}, p95 {_seconds(values.p95)}"


def _seconds(value: float | None) -> str:
    return UNKNOWN if value is None else f"{short_number(value * 1000)} ms"


def _percent_words(values: Spread | None) -> str:
    return UNKNOWN if values is None else f"mean {values.mean:.1f} %, p05 {values.p05:.0f} %, p95 {values.p95:.0f} %"


def _watt_words(values: Spread | None) -> str:
    return UNKNOWN if values is None else f"mean {watts(values.mean)}, p95 {watts(values.p95)}"


def _share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{100 * value:.1f} %"


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
