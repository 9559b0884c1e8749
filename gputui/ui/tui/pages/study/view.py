"""The page of a study as lines: results, the list of trials, details of one, and charts."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from msgspec.structs import replace

from gputui.core.text import clean
from gputui.core.units import UNKNOWN, aligned, count, count_of, duration, gpu_hours, metric_value, parameter, percent
from gputui.metrics.draw.chart import Gutters, draw_chart
from gputui.metrics.draw.glyphs import sparkline
from gputui.metrics.draw.parts import Chart, Line, Span
from gputui.store.metrics.roles import LOSS
from gputui.store.studies import StudyState, TrialRecord, TrialState
from gputui.studies import pictures
from gputui.studies.analysis import best_trial, rank_trials, split_by_objective
from gputui.studies.results import StudyResults
from gputui.studies.spec import Objective, StudySpec
from gputui.ui.tui.layout.charts import SHAPES
from gputui.ui.tui.layout.columns import (
    Column,
    bar_spans,
    fill_height,
    fit_line,
    fit_parts,
    join_blocks,
    paragraph,
    rule,
)
from gputui.ui.tui.layout.lists import Listing, ListState, RowOrder, filter_rows, order_named
from gputui.ui.tui.layout.sparklines import to_quantiles
from gputui.ui.views.metric_words import metric_title
from gputui.ui.views.snapshot import RunRow, StudyRow
from gputui.ui.views.words import RUN_SIGNS, STUDY_SIGNS, Sign, dated_clock, run_sign

View = Literal["values", "slices", "curves", "front"]
"""What the charts show: values over trials and the importance of parameters; values over each parameter; the curves of
each trial over its steps; one objective over the other."""

_NUMBER = re.compile(r"-?[0-9.]+(e-?[0-9]+)?|-?inf|nan")

_GLYPHS_AND_STYLES = {
    "enqueued": ("◌", "dim"),
    "launching": ("◔", "accent"),
    "running": ("●", "good"),
    "pruning": ("◑", "warn"),
    "stopping": ("◑", "warn"),
    "complete": ("✓", "good"),
    "pruned": ("✂", "dim"),
    "infeasible": ("⊘", "warn"),
    "failed": ("✗", "bad"),
    "stopped": ("■", "dim"),
    "unknown": ("?", "warn"),
}
TRIAL_SIGNS = {
    TrialState(state): Sign(glyph, TrialState(state).word, style)
    for state, (glyph, style) in _GLYPHS_AND_STYLES.items()
}
_PALE = (TrialState.PRUNED, TrialState.STOPPED, TrialState.INFEASIBLE, TrialState.FAILED)

DOT_HEIGHT = 1 / 30
"""Height of a point, as a fraction of the range of values."""

CHART_LEAST = 10
"""Least height of a chart with the importance of parameters below it."""

_WIDTH_OF_TWO = 70
"""From this width on two charts are side by side."""

_LEAST_HEIGHT = 7
"""Least height of a chart below others."""

_GUTTER = 7
_END_NAMES = 11
"""Cells at the right of the trials' curves for their names."""

_VIEWS: Mapping[View, tuple[str, str]] = {
    "values": ("VALUES", "by end of trial · "),
    "slices": ("VALUE OVER PARAMETERS", "by importance, grey: pruned · "),
    "curves": ("CURVES", "others grey · "),
    "front": ("OBJECTIVES", ""),
}


class TrialList(ListState, frozen=True):
    """State of the page beyond the snapshot. The order is empty until a study is shown."""

    view: View = "values"


class TrialRow(NamedTuple):
    """A trial in the list.

    Attributes:
        curve: the objective at each rung, or the newest losses of its run.
        is_best: whether no other is better.
        loss: a complete trial's value, of which less is better; None for others.
        run: None if the snapshot has it not.
    """

    trial: TrialRecord
    sign: Sign
    curve: tuple[float | None, ...]
    is_best: bool
    loss: float | None
    run: RunRow | None


ORDERS: tuple[RowOrder[TrialRow], ...] = (
    RowOrder("number", "n", "by number"),
    RowOrder("value", "v", "by value", lambda row: row.loss),
)


def first_order(study: StudyResults) -> str:
    """The name of the order in which a study opens: the best trials first once it is over."""
    if study.study.state.is_over:
        return "value"
    return "number"


# --- the trials


def trial_sign(trial: TrialRecord, run: RunRow | None) -> Sign:
    """The sign of a trial: a launched one has the state of its run, which may be queued."""
    if trial.state is TrialState.RUNNING and run is not None and not run.run.state.is_over:
        return run_sign(run.run.state)
    return TRIAL_SIGNS[trial.state]


def trial_rows(study: StudyResults, state: TrialList, runs: Mapping[str, RunRow]) -> list[TrialRow]:
    """The filtered and sorted trials, with their ``runs`` by id."""
    objective = study.spec.objectives[0]
    best = {trial.number for trial in rank_trials(study.trials, study.spec.objectives, most=1)}
    farthest = max((value.rung for values in study.rungs.values() for value in values), default=0)
    rows = []
    for trial in filter_rows(study.trials, state.filter_text, _search_text):
        run = runs.get(trial.run_id or "")
        rungs = {value.rung: value.value for value in study.rungs.get(trial.number, ())}
        curve = tuple(rungs.get(rung) for rung in range(1, farthest + 1))
        if not farthest and run is not None and objective.metric in (LOSS, run.progress.loss_name):
            curve = run.progress.losses
        rows.append(
            TrialRow(
                trial,
                trial_sign(trial, run),
                curve,
                is_best=trial.number in best,
                loss=_loss(trial, objective),
                run=run,
            )
        )
    return order_named(ORDERS, state.order).sorted(rows)


def _loss(trial: TrialRecord, objective: Objective) -> float | None:
    """A complete trial's value, of which less is better."""
    if trial.state is not TrialState.COMPLETE or trial.value is None or not math.isfinite(trial.value):
        return None
    return objective.sign * trial.value


def _search_text(trial: TrialRecord) -> str:
    params = " ".join(f"{name}={value}" for name, value in trial.params.items())
    return f"{trial.number} {trial.state.word} {trial.origin} {trial.reason or ''} {trial.run_id or ''} {params}"


def trial_listing(study: StudyResults, rows: Sequence[TrialRow]) -> Listing[TrialRow]:
    """The list of trials."""

    def base(row: TrialRow) -> str | None:
        if row.trial.state in _PALE:
            return "dim"
        return None

    columns = _columns(study, rows)
    return Listing("TRIALS", columns, {"": rows}, lambda row: row.trial.number, empty="No trial yet.", base=base)


def _columns(study: StudyResults, rows: Sequence[TrialRow]) -> list[Column[TrialRow]]:
    spec = study.spec
    trials = study.trials
    digits = len(str(max((trial.number for trial in trials), default=0)))
    states = max((len(row.sign.word) + 2 for row in rows), default=0)

    def of_value(row: TrialRow) -> str:
        if row.is_best:
            return "good"
        if row.trial.state is TrialState.COMPLETE:
            return "text"
        return "dim"

    first = {trial.number: metric_value(trial.shown_value) for trial in trials}
    columns: list[Column[TrialRow]] = [
        Column("#", 2 + digits, _number, ">"),
        Column("STATE", max(9, states), lambda row, _: [_state(row)], gap=1),
        _column(metric_title(spec.objectives[0].metric), first, of_value),
        Column("CURVE", 10, _curve(rows), importance=2, gap=1),
    ]
    if spec.pruner.kind != "none" or spec.pbt is not None:
        rungs = {trial.number: count(trial.rung) for trial in trials}
        columns.append(_column("rung", rungs, lambda row: "dim", importance=4))
    for objective, valued in split_by_objective(trials, spec.objectives)[1:]:
        texts = {trial.number: metric_value(trial.value) for trial in valued}
        columns.append(_column(metric_title(objective.metric), texts, of_value))
    for number, name in enumerate(spec.tuned):
        texts = {trial.number: clean(parameter(trial.params.get(name, UNKNOWN))) for trial in trials}
        importance = 1 if number < 3 else 3
        columns.append(_column(clean(name), texts, lambda row: "text", importance=importance))
    return [*columns, Column("REASON", 12, _reason, importance=9, grow=1)]


def _number(row: TrialRow, width: int) -> list[Span]:
    return [("★ " * row.is_best, "good"), (str(row.trial.number), "label")]


def _state(row: TrialRow) -> Span:
    return f"{row.sign.glyph} {row.sign.word}", row.sign.style


def _column(
    head: str, texts: Mapping[int, str], style: Callable[[TrialRow], str], importance: int = 0
) -> Column[TrialRow]:
    """A column of texts by trial, with decimal points below each other if all are numbers."""
    if all(text == UNKNOWN or _NUMBER.fullmatch(text) for text in texts.values()):
        texts = dict(zip(texts, aligned(list(texts.values())), strict=True))
    width = min(16, max([len(head), *map(len, texts.values())]))
    return Column(head.upper(), width, lambda row, _: [(texts[row.trial.number], style(row))], ">", importance, gap=1)


def _curve(rows: Sequence[TrialRow]) -> Callable[[TrialRow, int], list[Span]]:
    """The curves by the ranks of their values among those of all trials; equal rungs are in equal columns."""
    among = sorted(value for row in rows for value in row.curve if value is not None and math.isfinite(value))

    def cell(row: TrialRow, width: int) -> list[Span]:
        across = min(width, len(row.curve))
        ends = [len(row.curve) * number // max(1, across) for number in range(across + 1)]
        cells = [
            next((value for value in reversed(row.curve[start:end]) if value is not None), None)
            for start, end in pairwise(ends)
        ]
        return [(sparkline(to_quantiles(cells, among), len(cells), 0.0, 1.0), "accent")]

    return cell


def _reason(row: TrialRow, width: int) -> list[Span]:
    trial = row.trial
    run = row.run
    if trial.reason:
        # The state has its own column.
        return [(clean(trial.reason.removeprefix(f"{trial.state} at ")), "dim")]
    parts = []
    if trial.request == "keep" and not trial.state.is_over:
        parts.append("kept")
    if run is not None and row.sign.word == "queued":
        parts.append(clean(run.run.waiting_for or "next"))
    elif run is not None and trial.state is TrialState.RUNNING and run.progress.step is not None:
        step = f"step {count(run.progress.step)}"
        if run.progress.total_steps is not None:
            step += f"/{count(run.progress.total_steps)}"
        parts.append(step)
    elif trial.origin != "sampled":
        parts.append(trial.origin)
    return [(" · ".join(parts), "dim")]


def detail_lines(row: TrialRow | None, now: float, width: int) -> list[Line]:
    """Details of the trial under the cursor: its parameters, its run and why it ended."""
    if row is None:
        return []
    trial = row.trial
    point = ", ".join(f"{clean(name)} {clean(parameter(value))}" for name, value in trial.params.items())
    what: list[Span] = [(" ", "text"), _state(row), (f" · {point}", "text")]
    run = f"run {clean(trial.run_id)}" if trial.run_id else "no run yet"
    course: list[Span] = [(f" {run} · began {dated_clock(trial.created_at, now)}", "dim")]
    if trial.ended_at is not None:
        course.append((f" · took {duration(_seconds_taken(row, trial.ended_at, now))}", "dim"))
    if trial.parent is not None:
        course.append((f" · from trial {trial.parent}", "accent"))
    if trial.starts > 1:
        course.append((f" · started {trial.starts} times", "warn"))
    if trial.reason:
        course.append((f" · {clean(trial.reason)}", "text"))
    return [rule(f"TRIAL {trial.number}", width), fit_line(what, width), fit_line(course, width)]


def _seconds_taken(row: TrialRow, ended_at: float, now: float) -> float | None:
    """How long a trial took: the training of its run, where that is known."""
    if row.run is not None:
        return row.run.run.trained_seconds(now)
    return ended_at - row.trial.created_at


# --- the study


def study_title(study: StudyResults) -> list[Span]:
    """The study's id and state, its profile and target."""
    record = study.study
    sign = STUDY_SIGNS[record.state]
    profile = f" · profile {clean(record.profile)}"
    if study.spec.target is not None:
        profile += f" on {clean(str(study.spec.target['name']))}"
    return [
        (" · ", "dim"),
        (clean(record.study_id), "title"),
        (f" {sign.glyph} {sign.word}", sign.style),
        (profile, "dim"),
    ]


def result_lines(study: StudyResults, rows: Sequence[StudyRow], runs: Mapping[str, RunRow], width: int) -> list[Line]:
    """The head of a study: trials, best value and cost; its method; its reason and its problem.

    Args:
        study: the study that is shown.
        rows: the rows of all studies.
        runs: the rows of runs, by their ids.
        width: the cells of a line.
    """
    record = study.study
    row = next(row for row in rows if row.study_id == record.study_id)
    style = "dim"
    if record.state is StudyState.FAILED:
        style = "bad"
    elif not record.state.is_over:
        style = "warn"
    reason = clean(record.reason or "")
    if record.state is StudyState.FINISHED and row.over == row.planned:
        # The first line says that all its trials have ended.
        reason = ""
    return [
        fit_parts(_results(study, row, runs), width),
        fit_line([(f" {goal_words(study.spec)}", "text")], width),
        *paragraph((" ", style), reason, style, width)[:2],
        *paragraph((" ", "bad"), clean(record.problem or ""), "bad", width)[:2],
    ]


def goal_words(spec: StudySpec) -> str:
    """``val/loss, lower is better · random, median pruner``."""
    better = {"minimize": "lower is better", "maximize": "higher is better"}
    goals = [f"{clean(objective.metric)}, {better[objective.direction]}" for objective in spec.objectives]
    method = spec.method
    if spec.pruner.kind != "none" and spec.pbt is None:
        method += f", {spec.pruner.kind} pruner"
    return f"{' and '.join(goals)} · {method}"


def _results(study: StudyResults, row: StudyRow, runs: Mapping[str, RunRow]) -> list[list[Span]]:
    objectives = study.spec.objectives
    signs = Counter(trial_sign(trial, runs.get(trial.run_id or "")) for trial in study.trials)
    parts: list[list[Span]] = [[(f" {trials_done(row)}", "text")]]
    if len(objectives) > 1:
        parts.append([(f" · Pareto front: {count_of(len(rank_trials(study.trials, objectives)), 'trial')}", "dim")])
    elif (best := best_trial(study.trials, objectives)) is not None:
        parts.append([(" · best ", "dim"), (metric_value(best.value), "accent"), (f" trial {best.number}", "dim")])
    for sign in dict.fromkeys([*RUN_SIGNS.values(), *TRIAL_SIGNS.values()]):
        if signs[sign] and sign != TRIAL_SIGNS[TrialState.COMPLETE]:
            parts.append([(f" · {signs[sign]} {sign.word}", sign.style)])
    if study.gpu_hours:
        hours = gpu_hours(study.gpu_hours)
        if study.spec.budget.gpu_hours is not None:
            hours += f" of {study.spec.budget.gpu_hours:g}"
        parts.append([(f" · {hours} GPU-hours", "text")])
    return [*parts, [(f" · {duration(study.running_seconds)}", "text")]]


def trials_done(row: StudyRow) -> str:
    """``5 of 8 trials ended``."""
    if row.planned is None:
        return f"{count_of(row.over, 'trial')} ended"
    return f"{count(row.over)} of {count_of(row.planned, 'trial')} ended"


def study_lines(rows: Sequence[StudyRow], study_id: str, width: int, most: int) -> list[Line]:
    """At most ``most`` studies with their best values, newest first, the one that is shown among them."""
    current = [row.study_id for row in rows].index(study_id)
    first = min(max(0, current - most + 1), max(0, len(rows) - most))
    lines = [rule("STUDIES", width, f"{current + 1} of {len(rows)}")]
    for number, row in enumerate(rows[first : first + most], first):
        sign = STUDY_SIGNS[row.state]
        pointer = " "
        style = "text"
        if number == current:
            pointer = "▸"
            style = "label"
        spans: list[Span] = [
            (pointer, "cursor"),
            (f"{clean(row.study_id):<28.28} ", style),
            (f"{sign.glyph} {sign.word:<10} ", sign.style),
            (f"{trials_done(row):<24} ", "dim"),
        ]
        if row.best is not None:
            spans.append((f"{clean(row.metric)} {metric_value(row.best)}", "accent"))
        lines.append(fit_line(spans, width))
    return lines


# --- charts


def views_of(study: StudyResults) -> list[View]:
    """The views that this study has data for."""
    missing = set()
    if all(len(values) < 2 for values in study.rungs.values()):
        missing.add("curves")
    if len(study.spec.objectives) < 2:
        missing.add("front")
    return [view for view in _VIEWS if view not in missing]


def picture_lines(study: StudyResults, state: TrialList, width: int, height: int) -> list[Line]:
    """The charts of the chosen view below a heading, in exactly ``height`` lines."""
    if height < 4 or width < 20:
        return fill_height([], width, height)
    views = views_of(study)
    view = state.view if state.view in views else "values"
    title, note = _VIEWS[view]
    below: list[Line] = []
    if view == "values":
        below = _importance(study, width)
    if height - len(below) < CHART_LEAST:
        below = []
    charts_height = height - len(below)
    heading = rule(title, width, f"{note}view {views.index(view) + 1} of {len(views)}")
    cursor = next((trial for trial in study.trials if trial.number == state.cursor), None)
    charts = _grid(list(_pictures(study, view, cursor)), width, charts_height - 1)
    return [*fill_height([heading, *charts], width, charts_height), *below]


class TrialPicture(NamedTuple):
    """A chart of trials.

    Attributes:
        cursor: the x of the trial under the cursor; None if it has no place in the chart.
        empty: words for no data.
    """

    chart: Chart
    cursor: float | None
    empty: str

    def lines(self, width: int, height: int) -> list[Line]:
        """The picture in so many cells."""
        chart = replace(self.chart, title=f" {self.chart.title}")
        names_width = 0
        if any(curve.end for curve in chart.curves):
            names_width = _END_NAMES
        gutters = Gutters(_GUTTER, names_width)
        return draw_chart(chart, width, height, cursor=self.cursor, gutters=gutters, empty_text=self.empty)


def _grid(drawn: Sequence[TrialPicture], width: int, height: int) -> list[Line]:
    """As many of the pictures as have room, in rows of one or two."""
    across = 2 if width >= _WIDTH_OF_TWO and len(drawn) > 1 else 1
    down = max(1, min(math.ceil(len(drawn) / across), height // _LEAST_HEIGHT))
    lines = []
    for first in range(0, across * down, across):
        blocks = [picture.lines(width // across, height // down) for picture in drawn[first : first + across]]
        lines += [fit_line(line, width) for line in join_blocks(*blocks)]
    return lines


def _pictures(study: StudyResults, view: View, cursor: TrialRecord | None) -> Iterator[TrialPicture]:
    trials = study.trials
    rungs = study.rungs
    objectives = study.spec.objectives
    if view == "curves":
        chart = _with_end_names(pictures.draw_curves(trials, rungs, study.spec))
        yield TrialPicture(chart, cursor=None, empty="no trial passed a rung yet")
    elif view == "front":
        at = None
        if cursor is not None and cursor.values:
            at, *_ = cursor.values
        yield TrialPicture(pictures.draw_front(trials, objectives, DOT_HEIGHT), at, empty="no complete trial yet")
    elif view == "values":
        at = None
        if cursor is not None:
            at = pictures.end_positions(trials).get(cursor.number)
        for objective, valued in split_by_objective(trials, objectives):
            chart = pictures.draw_values(valued, rungs, objective, DOT_HEIGHT)
            yield TrialPicture(chart, at, empty="no trial has a value yet")
    else:
        yield from _slices(study, cursor)


def _slices(study: StudyResults, cursor: TrialRecord | None) -> Iterator[TrialPicture]:
    """The values of each objective over each parameter, the most important parameter first."""
    for objective, valued in split_by_objective(study.trials, study.spec.objectives):
        shares = {importance.name: importance.share for importance in study.study.importances_for(objective.metric)}
        for dimension in sorted(study.spec.space, key=lambda dimension: -shares.get(dimension.name, 0.0)):
            at = None
            if cursor is not None:
                at = pictures.axis_position(dimension, cursor)
            chart = pictures.draw_over_parameter(valued, study.rungs, dimension, objective, DOT_HEIGHT)
            yield TrialPicture(chart, at, empty="no complete trial yet")


def _importance(study: StudyResults, width: int) -> list[Line]:
    """The importance of each parameter for each objective."""
    lines = []
    for objective in study.spec.objectives:
        importances = study.study.importances_for(objective.metric)
        lines.append(rule("IMPORTANCE", width, f"for {clean(objective.metric)}, of complete trials"))
        if not importances:
            lines.append(fit_line([("  Known after eight complete trials.", "dim")], width))
        room = min(20, max((len(clean(importance.name)) for importance in importances), default=0))
        for importance in importances:
            name = f" {clean(importance.name):<{room}.{room}} "
            share = f" {percent(importance.share * 100):>5}"
            bar = bar_spans(importance.share, max(4, width - room - 10))
            lines.append(fit_line([(name, "text"), *bar, (share, "text")], width))
    return lines


def _with_end_names(chart: Chart) -> Chart:
    """The chart with the names of its best curves at their ends."""
    shapes = iter(SHAPES)
    curves = []
    for curve in chart.curves:
        shape = end = ""
        if curve.label:
            shape = next(shapes)
            end = f"{shape} {curve.label}"
        curves.append(replace(curve, label="", shape=shape, end=end))
    return replace(chart, curves=curves)
