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
from gputui.metrics.draw.chart import chart
from gputui.metrics.draw.glyphs import sparkline
from gputui.metrics.draw.parts import Line
from gputui.metrics.draw.picture import Drawing
from gputui.metrics.draw.raster import Span
from gputui.store.metrics.roles import LOSS
from gputui.store.studies import StudyState, TrialRecord, TrialState
from gputui.studies import pictures
from gputui.studies.analysis import best_trial, by_objective, ranked
from gputui.studies.spec import StudySpec
from gputui.ui.tui.layout.charts import SHAPES
from gputui.ui.tui.layout.columns import Column, bar_spans, beside, filled, fit_line, fitting, paragraph, rule
from gputui.ui.tui.layout.lists import Listing, ListState, RowOrder, matching, order_named
from gputui.ui.tui.layout.sparklines import quantiles
from gputui.ui.views.metric_words import metric_title
from gputui.ui.views.snapshot import RunRow, StudyPage, StudyRow
from gputui.ui.views.words import RUN_SIGNS, STUDY_SIGNS, Sign, dated_clock, run_sign

View = Literal["values", "slices", "curves", "front"]
"""What the charts show: values over trials and the importance of parameters; values over each parameter; the curves of
each trial over its steps; one objective over the other."""

_NUMBER = re.compile(r"-?[0-9.]+(e-?[0-9]+)?|-?inf|nan")

_LOOKS = {
    "enqueued": "◌ dim", "launching": "◔ accent", "running": "● good", "pruning": "◑ warn",
    "stopping": "◑ warn", "complete": "✓ good", "pruned": "✂ dim", "infeasible": "⊘ warn",
    "failed": "✗ bad", "stopped": "■ dim", "unknown": "? warn",
}  # fmt: skip
TRIAL_SIGNS = {state: Sign(look[0], state.word, look[2:]) for state in TrialState for look in [_LOOKS[state]]}
_PALE = (TrialState.PRUNED, TrialState.STOPPED, TrialState.INFEASIBLE, TrialState.FAILED)


class TrialList(ListState, frozen=True):
    """State of the page beyond the snapshot. The order is empty until a study is shown."""

    view: View = "values"


class TrialRow(NamedTuple):
    """A trial. ``curve`` has the objective at each rung, or the newest losses of its run; ``loss`` is
    a complete trial's value, less being better; ``run`` is None if the snapshot has it not."""

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


def first_order(page: StudyPage) -> str:
    """The name of the order in which a study opens: the best trials first once it is over."""
    if page.study.state.is_over:
        return "value"
    return "number"


# --- the trials


def trial_sign(trial: TrialRecord, run: RunRow | None) -> Sign:
    """The sign of a trial: a launched one has the state of its run, which may be queued."""
    if trial.state is TrialState.RUNNING and run is not None and not run.run.state.is_over:
        return run_sign(run.run.state)
    return TRIAL_SIGNS[trial.state]


def trial_rows(page: StudyPage, state: TrialList, runs: Mapping[str, RunRow]) -> list[TrialRow]:
    """The filtered and sorted trials, with their ``runs`` by id."""
    objective = page.spec.objectives[0]
    best = {trial.number for trial in ranked(page.trials, page.spec.objectives, most=1)}
    farthest = max((one.rung for values in page.rungs.values() for one in values), default=0)
    rows = []
    for trial in matching(page.trials, state.filter_text, _searched):
        run = runs.get(trial.run_id or "")
        rungs = {one.rung: one.value for one in page.rungs.get(trial.number, ())}
        curve = tuple(map(rungs.get, range(1, farthest + 1)))
        if not farthest and run is not None and objective.metric in (LOSS, run.progress.loss_name):
            curve = run.progress.losses
        loss = None
        if trial.state is TrialState.COMPLETE and math.isfinite(trial.value or 0.0):
            loss = None if trial.value is None else objective.sign * trial.value
        rows.append(TrialRow(trial, trial_sign(trial, run), curve, trial.number in best, loss, run))
    return order_named(ORDERS, state.order).sorted(rows)


def _searched(trial: TrialRecord) -> str:
    params = " ".join(f"{name}={value}" for name, value in trial.params.items())
    return f"{trial.number} {trial.state.word} {trial.origin} {trial.reason or ''} {trial.run_id or ''} {params}"


def trial_listing(page: StudyPage, rows: Sequence[TrialRow]) -> Listing[TrialRow]:
    return Listing(
        "TRIALS",
        _columns(page, rows),
        {"": rows},
        lambda row: row.trial.number,
        empty="No trial yet.",
        base=lambda row: "dim" if row.trial.state in _PALE else None,
    )


def _columns(page: StudyPage, rows: Sequence[TrialRow]) -> list[Column[TrialRow]]:
    spec, trials = page.spec, page.trials
    digits = len(str(max((trial.number for trial in trials), default=0)))
    states = max((len(row.sign.word) + 2 for row in rows), default=0)

    def of_value(row: TrialRow) -> str:
        pale = "text" if row.trial.state is TrialState.COMPLETE else "dim"
        if row.is_best:
            return "good"
        return pale

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
    for objective, valued in by_objective(trials, spec.objectives)[1:]:
        texts = {trial.number: metric_value(trial.value) for trial in valued}
        columns.append(_column(metric_title(objective.metric), texts, of_value))
    for number, name in enumerate(spec.tuned):
        texts = {trial.number: clean(parameter(trial.params.get(name, UNKNOWN))) for trial in trials}
        columns.append(_column(clean(name), texts, lambda row: "text", importance=1 if number < 3 else 3))
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
        ends = [len(row.curve) * number // across for number in range(across + 1)] if across else [0]
        cells = [
            next((value for value in reversed(row.curve[start:end]) if value is not None), None)
            for start, end in pairwise(ends)
        ]
        return [(sparkline(quantiles(cells, among), len(cells), 0.0, 1.0), "accent")]

    return cell


def _reason(row: TrialRow, width: int) -> list[Span]:
    trial, run = row.trial, row.run
    if trial.reason:
        # The state has its own column.
        return [(clean(trial.reason.removeprefix(f"{trial.state} at ")), "dim")]
    parts = ["kept"] if trial.request == "keep" and not trial.state.is_over else []
    if run is not None and row.sign.word == "queued":
        parts.append(clean(run.run.waiting_for or "next"))
    elif run is not None and trial.state is TrialState.RUNNING and run.progress.step is not None:
        total = "" if run.progress.total_steps is None else f"/{count(run.progress.total_steps)}"
        parts.append(f"step {count(run.progress.step)}{total}")
    elif trial.origin != "sampled":
        parts.append(trial.origin)
    return [(" · ".join(parts), "dim")]


def detail_lines(row: TrialRow | None, now: float, width: int) -> list[Line]:
    """Details of the trial under the cursor: its parameters, its run and why it ended."""
    if row is None:
        return []
    trial = row.trial
    point = ", ".join(f"{clean(name)} {clean(parameter(value))}" for name, value in trial.params.items())
    first: list[Span] = [(" ", "text"), _state(row), (f" · {point}", "text")]
    begin = trial.created_at
    took = ""
    if trial.ended_at is not None:
        seconds = trial.ended_at - begin if row.run is None else row.run.run.trained_seconds(now)
        took = f" · took {duration(seconds)}"
    second: list[Span] = [
        (f" run {clean(trial.run_id)}" if trial.run_id else " no run yet", "dim"),
        (f" · began {dated_clock(begin, now)}{took}", "dim"),
        ("" if trial.parent is None else f" · from trial {trial.parent}", "accent"),
        (f" · started {trial.starts} times" if trial.starts > 1 else "", "warn"),
        (f" · {clean(trial.reason)}" if trial.reason else "", "text"),
    ]
    return [rule(f"TRIAL {trial.number}", width), fit_line(first, width), fit_line(second, width)]


# --- the study


def study_title(page: StudyPage) -> list[Span]:
    """The study's id and state, its profile and target."""
    study, sign = page.study, STUDY_SIGNS[page.study.state]
    target = "" if page.spec.target is None else f" on {clean(str(page.spec.target['name']))}"
    return [
        (" · ", "dim"),
        (clean(study.study_id), "title"),
        (f" {sign.glyph} {sign.word}", sign.style),
        (f" · profile {clean(study.profile)}{target}", "dim"),
    ]


def result_lines(page: StudyPage, runs: Mapping[str, RunRow], width: int) -> list[Line]:
    """The head of a study: its method; trials, best value and cost; the study's reason and
    problem."""
    study, row = page.study, next(one for one in page.studies if one.study_id == page.study.study_id)
    lines = [fitting(_results(page, row, runs), width), fit_line([(f" {goal_words(page.spec)}", "text")], width)]
    of_state = "bad" if study.state is StudyState.FAILED else "warn" if not study.state.is_over else "dim"
    # That all its trials have ended, the first line says.
    is_told = study.state is StudyState.FINISHED and row.over == row.planned
    for text, style in (("" if is_told else study.reason, of_state), (study.problem, "bad")):
        lines += paragraph((" ", style), clean(text or ""), style, width)[:2]
    return lines


def goal_words(spec: StudySpec) -> str:
    """``val/loss, lower is better · random, median pruner``."""
    better = {"minimize": "lower is better", "maximize": "higher is better"}
    goal = " and ".join(f"{clean(one.metric)}, {better[one.direction]}" for one in spec.objectives)
    has_pruner = spec.pruner.kind != "none" and spec.pbt is None
    return f"{goal} · {spec.method}" + f", {spec.pruner.kind} pruner" * has_pruner


def _results(page: StudyPage, row: StudyRow, runs: Mapping[str, RunRow]) -> list[list[Span]]:
    objectives = page.spec.objectives
    signs = Counter(trial_sign(trial, runs.get(trial.run_id or "")) for trial in page.trials)
    parts: list[list[Span]] = [[(f" {trials_done(row)}", "text")]]
    if len(objectives) > 1:
        parts.append([(f" · Pareto front: {count_of(len(ranked(page.trials, objectives)), 'trial')}", "dim")])
    elif (best := best_trial(page.trials, objectives)) is not None:
        parts.append([(" · best ", "dim"), (metric_value(best.value), "accent"), (f" trial {best.number}", "dim")])
    for sign in dict.fromkeys([*RUN_SIGNS.values(), *TRIAL_SIGNS.values()]):
        if signs[sign] and sign != TRIAL_SIGNS[TrialState.COMPLETE]:
            parts.append([(f" · {signs[sign]} {sign.word}", sign.style)])
    if page.gpu_hours:
        limit = page.spec.budget.gpu_hours
        of = "" if limit is None else f" of {limit:g}"
        parts.append([(f" · {gpu_hours(page.gpu_hours)}{of} GPU-hours", "text")])
    return [*parts, [(f" · {duration(page.running_seconds)}", "text")]]


def trials_done(row: StudyRow) -> str:
    """``5 of 8 trials ended``."""
    if row.planned is None:
        return f"{count_of(row.over, 'trial')} ended"
    return f"{count(row.over)} of {count_of(row.planned, 'trial')} ended"


def study_lines(page: StudyPage, width: int, most: int) -> list[Line]:
    """At most ``most`` studies with their best values, newest first, the one shown among them."""
    known, shown = page.studies, page.study.study_id
    place = next(number for number, row in enumerate(known) if row.study_id == shown)
    first = min(max(0, place - most + 1), max(0, len(known) - most))
    lines = [rule("STUDIES", width, f"{place + 1} of {len(known)}")]
    for row in known[first : first + most]:
        sign = STUDY_SIGNS[row.state]
        best = "" if row.best is None else f"{clean(row.metric)} {metric_value(row.best)}"
        parts: list[Span] = [
            ("▸" if row.study_id == shown else " ", "cursor"),
            (f"{clean(row.study_id):<28.28} ", "label" if row.study_id == shown else "text"),
            (f"{sign.glyph} {sign.word:<10} ", sign.style),
            (f"{trials_done(row):<24} ", "dim"),
            (best, "accent"),
        ]
        lines.append(fit_line(parts, width))
    return lines


# --- charts

DOT_HEIGHT = 1 / 30
"""Height of a point, as a fraction of the range of values."""

CHART_LEAST = 10
"""Least height of a chart with the importance of parameters below it."""

_GUTTER = 7
_COURSE_END = 11
"""Cells at the right of the trials' curves for their names."""

_VIEWS: Mapping[View, tuple[str, str]] = {
    "values": ("VALUES", "by end of trial · "),
    "slices": ("VALUE OVER PARAMETERS", "by importance, grey: pruned · "),
    "curves": ("CURVES", "others grey · "),
    "front": ("OBJECTIVES", ""),
}


def views_of(page: StudyPage) -> list[View]:
    missing = {"curves"} if all(len(values) < 2 for values in page.rungs.values()) else set()
    missing |= {"front"} if len(page.spec.objectives) < 2 else set()
    return [view for view in _VIEWS if view not in missing]


def picture_lines(page: StudyPage, state: TrialList, width: int, height: int) -> list[Line]:
    """The charts of the chosen view below a heading, in exactly ``height`` lines."""
    if height < 4 or width < 20:
        return filled([], width, height)
    views = views_of(page)
    view = state.view if state.view in views else "values"
    title, note = _VIEWS[view]
    cursor = next((one for one in page.trials if one.number == state.cursor), None)
    shown = list(_pictures(page, view, cursor))
    below = _importance(page, width) if view == "values" else []
    below = below if height - len(below) >= CHART_LEAST else []
    room = height - 1 - len(below)
    across = 2 if width >= 70 and len(shown) > 1 else 1
    down = max(1, min(math.ceil(len(shown) / across), room // 7))
    lines = [rule(title, width, f"{note}view {views.index(view) + 1} of {len(views)}")]
    for first in range(0, across * down, across):
        row = [_drawn(*each, width // across, room // down) for each in shown[first : first + across]]
        lines += [fit_line(line, width) for line in beside(*row)]
    return filled([*filled(lines, width, height - len(below)), *below], width, height)


Picture = tuple[Drawing, float | None, str]
"""A chart, the place of the trial under the cursor on its x axis, and words for no data."""


def _pictures(page: StudyPage, view: View, cursor: TrialRecord | None) -> Iterator[Picture]:
    trials, rungs, objectives = page.trials, page.rungs, page.spec.objectives
    if view == "curves":
        yield _named(pictures.curves(trials, rungs, page.spec)), None, "no trial passed a rung yet"
    elif view == "front":
        at = cursor.values[0] if cursor is not None and cursor.values else None
        yield pictures.front(trials, objectives, DOT_HEIGHT), at, "no complete trial yet"
    elif view == "values":
        at = None if cursor is None else pictures.ended_places(trials).get(cursor.number)
        for one, valued in by_objective(trials, objectives):
            drawing = pictures.values_by_trial(valued, rungs, one, DOT_HEIGHT)
            yield drawing, at, "no trial has a value yet"
    else:
        for one, valued in by_objective(trials, objectives):
            weights = {each.name: -each.share for each in page.study.importances_for(one.metric)}
            for dimension in sorted(page.spec.space, key=lambda each: weights.get(each.name, 0.0)):
                at = None if cursor is None else pictures.axis_position(dimension, cursor)
                drawing = pictures.over_parameter(valued, rungs, dimension, one, DOT_HEIGHT)
                yield drawing, at, "no complete trial yet"


def _importance(page: StudyPage, width: int) -> list[Line]:
    """The importance of each parameter for each objective."""
    lines = []
    for metric in [one.metric for one in page.spec.objectives]:
        shares = page.study.importances_for(metric)
        lines.append(rule("IMPORTANCE", width, f"for {clean(metric)}, of complete trials"))
        if not shares:
            lines.append(fit_line([("  Known after eight complete trials.", "dim")], width))
        names = min(20, max((len(clean(one.name)) for one in shares), default=0))
        for one in shares:
            name, text = f" {clean(one.name):<{names}.{names}} ", f" {percent(one.share * 100):>5}"
            bar = bar_spans(one.share, max(4, width - names - 10))
            lines.append(fit_line([(name, "text"), *bar, (text, "text")], width))
    return lines


def _named(drawing: Drawing) -> Drawing:
    """The drawing with the names of its best curves at their ends."""
    shapes, curves = iter(SHAPES), []
    for curve in drawing.curves:
        shape = next(shapes) if curve.label else ""
        end = f"{shape} {curve.label}" if shape else ""
        curves.append(replace(curve, label="", shape=shape, end=end))
    return replace(drawing, curves=curves)


def _drawn(drawing: Drawing, cursor: float | None, empty: str, width: int, height: int) -> list[Line]:
    has_ends = any(curve.end for curve in drawing.curves)
    return chart(
        drawing.curves,
        width=width,
        height=height,
        title=f" {drawing.title}",
        x_axis=drawing.x_axis,
        y_axis=drawing.y_axis,
        cursor=cursor,
        least_gutter=_GUTTER,
        end_gutter=_COURSE_END * has_ends,
        empty_text=empty,
    )
