"""The page of a study as lines: what was found, a row per trial, and pictures of the values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from gputui.charts.axes import AxisKind
from gputui.charts.bars import bar, sparkline
from gputui.charts.chart import Curve, Line, XAxis, YAxis, chart
from gputui.charts.envelope import Bin
from gputui.charts.raster import Span
from gputui.charts.safe_text import clean
from gputui.charts.units import UNKNOWN, count, duration, metric_value, percent
from gputui.store.studies import StudyState, TrialRecord, TrialState
from gputui.studies.analysis import best_so_far, best_trial, complete, counted, importances, pareto_front
from gputui.studies.spec import Dimension, Objective, StudySpec
from gputui.tui.data.snapshot import Progress, StudyPage
from gputui.tui.layout.columns import (
    Column,
    fit_line,
    fitting,
    head_line,
    place,
    row_line,
    rule,
    selected,
    wrap,
)
from gputui.tui.layout.words import STUDY_SIGNS, Sign, clock

View = Literal["values", "slices", "front"]
"""What the pictures show: values over trials and what mattered; the value over each parameter; one objective over the
other."""

Order = Literal["number", "value"]

HEAD_LINES = 2
"""Lines of the table above its rows."""

SIDE_LEAST = 110
"""From this width on the pictures stand beside the table."""

_GUTTER = 7

TRIAL_SIGNS: Mapping[TrialState, Sign] = {
    TrialState.ENQUEUED: Sign("◌", "enqueued", "dim"),
    TrialState.LAUNCHING: Sign("◔", "waiting", "accent"),
    TrialState.RUNNING: Sign("●", "running", "good"),
    TrialState.PRUNING: Sign("◑", "pruning", "warn"),
    TrialState.STOPPING: Sign("◑", "stopping", "warn"),
    TrialState.COMPLETE: Sign("✓", "complete", "good"),
    TrialState.PRUNED: Sign("▽", "pruned", "dim"),
    TrialState.INFEASIBLE: Sign("⊘", "infeasible", "warn"),
    TrialState.FAILED: Sign("✗", "failed", "bad"),
    TrialState.STOPPED: Sign("■", "stopped", "dim"),
}


@dataclass(frozen=True, slots=True)
class StudyTable:
    """What the page adds to the snapshot: the trial under the cursor, the first row shown, filter, order and view."""

    cursor: int | None = None
    top: int = 0
    filter_text: str = ""
    order: Order = "number"
    view: View = "values"


class TrialRow(NamedTuple):
    """A trial as the table shows it. ``value`` is that of its end, or the last it has shown; ``curve`` its values at
    rungs, or the losses of its run."""

    trial: TrialRecord
    progress: Progress | None
    value: float | None
    curve: tuple[float | None, ...]
    is_best: bool


# --- what the table shows


def trial_rows(page: StudyPage, progress: Mapping[str, Progress], table: StudyTable) -> list[TrialRow]:
    """The trials that match the filter, in the order wanted. ``progress`` is that of their runs, by run."""
    objective = None if page.spec is None else page.spec.objectives[0]
    best = None if objective is None else best_trial(page.trials, objective)
    words = table.filter_text.lower().split()
    rows = []
    for trial in page.trials:
        if not all(word in _searched(trial) for word in words):
            continue
        run = None if trial.run_id is None else progress.get(trial.run_id)
        rungs = tuple(one.value for one in page.rungs.get(trial.number, ()))
        curve = rungs if len(rungs) > 1 or run is None else run.losses
        value = trial.value if trial.value is not None else next(iter(rungs[-1:]), None)
        rows.append(TrialRow(trial, run, value, curve, best is not None and trial.number == best.number))
    if table.order == "value" and objective is not None:
        sign = 1.0 if objective.direction == "minimize" else -1.0

        def key(row: TrialRow) -> tuple[bool, bool, float, int]:
            is_known = row.value is not None and math.isfinite(row.value)
            value = sign * row.value if is_known and row.value is not None else 0.0
            return row.trial.state is not TrialState.COMPLETE, not is_known, value, row.trial.number

        rows.sort(key=key)
    return rows


def _searched(trial: TrialRecord) -> str:
    params = " ".join(f"{name}={value}" for name, value in trial.params.items())
    words = (str(trial.number), TRIAL_SIGNS[trial.state].word, trial.origin, trial.reason or "", trial.run_id or "")
    return " ".join((*words, params)).lower()


# --- the head


def study_head(page: StudyPage, now: float, width: int) -> list[Line]:
    """The study's name and state, then what was found and what it took."""
    study, spec = page.study, page.spec
    sign = STUDY_SIGNS[study.state]
    place_of = page.known.index(study.study_id) + 1
    parts: list[list[Span]] = [
        [(f" {clean(study.name)} ", "title"), (f"{sign.glyph} {sign.word}", sign.style)],
        [(f" · profile {clean(study.profile)}", "text")],
    ]
    if spec is not None:
        wanted = " and ".join(f"{one.direction} {clean(one.metric)}" for one in spec.objectives)
        parts.append([(f" · {wanted}", "text")])
        how = "pbt" if spec.pbt is not None else str(spec.sampler.kind)
        how += "" if spec.pruner.kind == "none" or spec.pbt is not None else f", {spec.pruner.kind} pruner"
        parts.append([(f" · {how}", "dim")])
    if len(page.known) > 1:
        parts.append([(f" · study {place_of} of {len(page.known)}", "dim")])
    lines = [fitting(parts, width), fitting(_found(page, now), width)]
    if study.reason:
        style = "bad" if study.state is StudyState.FAILED else "warn" if not study.state.is_over else "dim"
        lines += [fit_line([(f" {part}", style)], width) for part in wrap(clean(study.reason), width - 2)][:2]
    return lines


def _found(page: StudyPage, now: float) -> list[list[Span]]:
    states = counted(page.trials)
    parts: list[list[Span]] = [[(f" {count(len(page.trials))} trials", "text")]]
    if page.spec is not None and page.spec.budget.trials is not None:
        parts[0] = [(f" {count(len(page.trials))} of {count(page.spec.budget.trials)} trials", "text")]
    for state in TrialState:
        if states.get(state):
            parts.append([(f" · {states[state]} {TRIAL_SIGNS[state].word}", TRIAL_SIGNS[state].style)])
    if page.spec is not None:
        best = best_trial(page.trials, page.spec.objectives[0])
        if best is not None:
            parts.insert(
                1, [(" · best ", "dim"), (metric_value(best.value), "accent"), (f" trial {best.number}", "dim")]
            )
    if page.gpu_hours:
        limit = None if page.spec is None else page.spec.budget.gpu_hours
        of = "" if limit is None else f" of {limit:g}"
        parts.append([(f" · {page.gpu_hours:.2g}{of} GPU-hours", "text")])
    end = now if page.study.ended_at is None else page.study.ended_at
    parts.append([(f" · {duration(max(0.0, end - page.study.created_at))}", "text")])
    return parts


# --- the table


def table_lines(page: StudyPage, rows: Sequence[TrialRow], table: StudyTable, width: int, height: int) -> list[Line]:
    """A heading, the names of the columns, a row per trial."""
    if height < 1:
        return []
    title = f"TRIALS /{clean(table.filter_text)}" if table.filter_text else "TRIALS"
    note = "by value" if table.order == "value" else "by number"
    if len(rows) > height - HEAD_LINES:
        note = f"{table.top + 1}–{min(table.top + height - HEAD_LINES, len(rows))} of {len(rows)}, {note}"
    placed = place(_columns(page), width - 1)
    lines = [rule(title, width, note), fit_line([(" ", "text"), *head_line(placed, width - 1)], width)]
    if not rows:
        words = "No trial matches the filter; esc clears it." if table.filter_text else "No trial yet."
        lines.append(fit_line([(f"  {words}", "dim")], width))
    for row in rows[table.top : table.top + max(0, height - HEAD_LINES)]:
        line = [(" ", "text"), *row_line(placed, row, width - 1, None if row.trial.state in _LIVELY else "dim")]
        lines.append(selected(line) if row.trial.number == table.cursor else line)
    return lines[:height]


_LIVELY = frozenset(TrialState) - {TrialState.PRUNED, TrialState.STOPPED, TrialState.INFEASIBLE, TrialState.FAILED}


def row_at(rows: Sequence[TrialRow], table: StudyTable, y: int) -> TrialRow | None:
    """The trial that line ``y`` of the table shows."""
    number = table.top + y - HEAD_LINES
    return rows[number] if y >= HEAD_LINES and number < len(rows) else None


def _columns(page: StudyPage) -> list[Column[TrialRow]]:
    spec = page.spec
    metric = "value" if spec is None else clean(spec.objectives[0].metric)
    columns: list[Column[TrialRow]] = [
        Column("#", 4, lambda row, _: [(str(row.trial.number), "label")], align=">"),
        Column("STATE", 12, _state, gap=1),
        Column(metric.upper(), max(9, min(16, len(metric))), _value, align=">", gap=1),
        Column("CURVE", 10, _curve, importance=2, gap=1),
    ]
    if spec is not None and (spec.pruner.kind != "none" or spec.pbt is not None):
        columns.append(Column("RUNG", 5, _rung, align=">", importance=4, gap=1))
    if spec is not None and len(spec.objectives) > 1:
        for place_of, objective in enumerate(spec.objectives[1:], 1):
            head = clean(objective.metric)
            columns.append(Column(head.upper(), max(9, min(16, len(head))), _objective(place_of), align=">"))
    names = spec.tuned if spec is not None else tuple(dict.fromkeys(name for one in page.trials for name in one.params))
    for number, name in enumerate(names):
        widest = max((len(_param(one, name)) for one in page.trials), default=1)
        head = clean(name)
        width = min(16, max(len(head), widest))
        columns.append(
            Column(head.upper(), width, _parameter(name), align=">", importance=1 if number < 3 else 3, gap=1)
        )
    columns.append(Column("REASON", 12, _reason, importance=9, grow=1))
    return columns


def _state(row: TrialRow, width: int) -> list[Span]:
    sign = TRIAL_SIGNS[row.trial.state]
    return [(f"{sign.glyph} ", sign.style), (sign.word, sign.style)]


def _value(row: TrialRow, width: int) -> list[Span]:
    text = metric_value(row.value)
    if row.is_best:
        return [("★ ", "good"), (text, "good")]
    return [(text, "text" if row.trial.state is TrialState.COMPLETE else "dim")]


def _curve(row: TrialRow, width: int) -> list[Span]:
    return [(sparkline(row.curve[-width:], width) if row.curve else "", "accent")]


def _rung(row: TrialRow, width: int) -> list[Span]:
    return [(UNKNOWN if row.trial.rung is None else str(row.trial.rung), "dim")]


def _objective(number: int) -> Callable[[TrialRow, int], list[Span]]:
    def cell(row: TrialRow, width: int) -> list[Span]:
        values = row.trial.values
        return [(metric_value(values[number]) if number < len(values) else UNKNOWN, "text")]

    return cell


def _parameter(name: str) -> Callable[[TrialRow, int], list[Span]]:
    return lambda row, width: [(_param(row.trial, name), "text")]


def _param(trial: TrialRecord, name: str) -> str:
    value = trial.params.get(name)
    if isinstance(value, float):
        return f"{value:.4g}"
    return UNKNOWN if value is None else clean(str(value))


def _reason(row: TrialRow, width: int) -> list[Span]:
    if row.trial.reason:
        return [(clean(row.trial.reason), "dim")]
    if row.progress is not None and row.trial.state is TrialState.RUNNING and row.progress.step is not None:
        total = "" if row.progress.total_steps is None else f"/{count(row.progress.total_steps)}"
        return [(f"step {count(row.progress.step)}{total}", "dim")]
    return [("" if row.trial.origin == "sampled" else row.trial.origin, "dim")]


def detail_lines(row: TrialRow | None, width: int) -> list[Line]:
    """What there is to say of the trial under the cursor: its point, its run and why it ended."""
    if row is None:
        return []
    trial = row.trial
    sign = TRIAL_SIGNS[trial.state]
    point = ", ".join(f"{clean(name)} {_param(trial, name)}" for name in trial.params)
    first: list[Span] = [(f" Trial {trial.number} ", "title"), (sign.word, sign.style), (f" · {point}", "text")]
    second: list[Span] = [(f" run {clean(trial.run_id)}" if trial.run_id else " no run yet", "dim")]
    second.append((f" · since {clock(trial.created_at)}", "dim"))
    if trial.parent is not None:
        second.append((f" · from trial {trial.parent}", "accent"))
    if trial.starts > 1:
        second.append((f" · started {trial.starts} times", "warn"))
    if trial.reason:
        second.append((f" · {clean(trial.reason)}", "text"))
    return [rule("", width), fit_line(first, width), fit_line(second, width)]


# --- the pictures


def views_of(page: StudyPage) -> tuple[View, ...]:
    """What can be looked at."""
    several = page.spec is not None and len(page.spec.objectives) > 1
    return ("values", "slices", "front") if several else ("values", "slices")


def picture_lines(page: StudyPage, table: StudyTable, width: int, height: int) -> list[Line]:
    """The pictures of the view in exactly ``height`` lines."""
    spec = page.spec
    if height < 3 or width < 20 or spec is None:
        return [fit_line([], width)] * max(0, height)
    cursor = next((one for one in page.trials if one.number == table.cursor), None)
    if table.view == "slices":
        lines = _slices(page, spec, cursor, width, height)
    elif table.view == "front" and len(spec.objectives) > 1:
        lines = _front(page, spec.objectives, cursor, width, height)
    else:
        lines = _values(page, spec, cursor, width, height)
    return [*lines[:height], *[fit_line([], width)] * (height - len(lines))]


def _values(page: StudyPage, spec: StudySpec, cursor: TrialRecord | None, width: int, height: int) -> list[Line]:
    shares = importances(page.trials, spec.space, spec.objectives[0])
    below = 0 if height < 14 else 1 + len(spec.space)
    lines = _over_trials(page, spec.objectives[0], cursor, width, height - below)
    if not below:
        return lines
    lines.append(rule("IMPORTANCE", width, "of complete trials"))
    if shares is None:
        return [*lines, fit_line([("  Known after four complete trials.", "dim")], width)]
    name_width = min(20, max(len(clean(one.name)) for one in shares))
    for one in shares:
        trend = {1: "larger is better", -1: "smaller is better", 0: ""}[one.sign]
        room = max(4, width - name_width - 28)
        lines.append(
            fit_line(
                [
                    (f" {clean(one.name):<{name_width}.{name_width}} ", "text"),
                    (bar(one.share, room), "accent"),
                    (f" {percent(one.share * 100):>5}", "text"),
                    (f" {trend}", "dim"),
                ],
                width,
            )
        )
    return lines


def _over_trials(
    page: StudyPage, objective: Objective, cursor: TrialRecord | None, width: int, height: int
) -> list[Line]:
    ended = sorted((one for one in page.trials if one.ended_at is not None), key=lambda one: (one.ended_at, one.number))
    places = {one.number: place_of for place_of, one in enumerate(ended, 1)}
    usable = {one.number for one in complete(page.trials)}
    points = [(places[one.number], one.value) for one in ended if one.number in usable]
    pruned = [(places[one.number], one.value) for one in ended if one.state is TrialState.PRUNED]
    best = best_so_far(page.trials, objective)
    curves = [
        Curve(_dots(pruned), "dim", "pruned" if pruned else ""),
        Curve(_dots(points), "series.0", "complete" if points else ""),
        Curve([_dot(x, value) for x, value in best], "good", "best", best[-1][1] if best else None),
    ]
    return chart(
        [curve for curve in curves if curve.bins],
        width=width,
        height=height,
        title=f" {clean(objective.metric)}",
        x_axis=XAxis("trials over", 1.0, float(max(2, len(ended))), "count"),
        y_axis=_value_axis([value for _, value in [*points, *best] if value is not None]),
        cursor=None if cursor is None else places.get(cursor.number),
        least_gutter=_GUTTER,
        empty_text="no trial is over yet",
    )


def _value_axis(values: Sequence[float]) -> YAxis:
    """Logarithmic where the values span more than a factor of 100."""
    least, most = min(values, default=1.0), max(values, default=1.0)
    kind: AxisKind = "log" if least > 0 and most / least > 100 else "linear"
    return YAxis(kind)


def _slices(page: StudyPage, spec: StudySpec, cursor: TrialRecord | None, width: int, height: int) -> list[Line]:
    """The value over each tuned parameter, as many as fit."""
    across = 2 if width >= 70 and len(spec.space) > 1 else 1
    down = max(1, min(math.ceil(len(spec.space) / across), height // 7))
    shown = spec.space[: across * down]
    each_width, each_height = width // across, height // down
    lines: list[Line] = []
    for first in range(0, len(shown), across):
        panels = [_slice(page, spec, one, cursor, each_width, each_height) for one in shown[first : first + across]]
        lines += [fit_line([span for panel in panels for span in panel[row]], width) for row in range(each_height)]
    return lines


def _slice(
    page: StudyPage, spec: StudySpec, dimension: Dimension, cursor: TrialRecord | None, width: int, height: int
) -> list[Line]:
    name, is_choice = dimension.name, dimension.kind == "choice"
    is_named = is_choice and any(isinstance(value, str) for value in dimension.choices)
    choices = [repr(value) for value in dimension.choices]

    def at(trial: TrialRecord) -> float | None:
        value = trial.params.get(name)
        if is_named:
            return float(choices.index(repr(value))) if repr(value) in choices else None
        return float(value) if isinstance(value, (int, float)) else None

    points = [(x, one.value) for one in complete(page.trials) if (x := at(one)) is not None]
    pruned = [(x, one.value) for one in page.trials if one.state is TrialState.PRUNED and (x := at(one)) is not None]
    axis_name = " · ".join(clean(str(value)) for value in dimension.choices) if is_named else clean(name)
    is_log = dimension.log or (is_choice and _spans_decades(dimension))
    return chart(
        [curve for curve in (Curve(_dots(pruned), "dim"), Curve(_dots(points), "series.0")) if curve.bins],
        width=width,
        height=height,
        title=f" {clean(spec.objectives[0].metric)} over {clean(name)}",
        x_axis=XAxis(axis_name, kind="count" if is_named else "number", scale="log" if is_log else "linear"),
        y_axis=_value_axis([value for _, value in points if value is not None]),
        cursor=None if cursor is None else at(cursor),
        least_gutter=_GUTTER,
        empty_text="no complete trial yet",
    )


def _spans_decades(dimension: Dimension) -> bool:
    numbers = [float(value) for value in dimension.choices if isinstance(value, (int, float))]
    is_positive = len(numbers) == len(dimension.choices) and min(numbers, default=0.0) > 0
    return is_positive and max(numbers) / min(numbers) >= 100


def _front(
    page: StudyPage, objectives: Sequence[Objective], cursor: TrialRecord | None, width: int, height: int
) -> list[Line]:
    """The second objective over the first; the front in its own colour, joined."""
    known = [one for one in complete(page.trials) if len(one.values) == len(objectives)]
    front = pareto_front(page.trials, objectives)
    return chart(
        [
            Curve(_dots([(one.values[0], one.values[1]) for one in known]), "series.0", "trials"),
            Curve(
                [_dot(one.values[0], one.values[1]) for one in sorted(front, key=lambda one: one.values[0])],
                "good",
                f"front of {len(front)}",
            ),
        ],
        width=width,
        height=height,
        title=f" {clean(objectives[1].metric)} over {clean(objectives[0].metric)}",
        x_axis=XAxis(clean(objectives[0].metric)),
        cursor=cursor.values[0] if cursor is not None and cursor.values else None,
        least_gutter=_GUTTER,
        empty_text="no complete trial yet",
    )


def _dot(x: float, value: float) -> Bin:
    return Bin(x, x, value, value, value, value, 1)


def _dots(points: Sequence[tuple[float, float | None]]) -> list[Bin]:
    """Points that no line joins, in the order of x; each as a short stroke, for a single dot is easily missed."""
    known = sorted((x, value) for x, value in points if value is not None and math.isfinite(value))
    half = (max(value for _, value in known) - min(value for _, value in known)) / 60 if known else 0.0
    # Nothing is drawn below 0 that has no value there, so that a logarithmic axis stays one.
    return [
        Bin(
            x,
            x,
            value - half if value - half > 0 or value <= 0 else value,
            value + half,
            value,
            value,
            1,
            gap_before=True,
        )
        for x, value in known
    ]
