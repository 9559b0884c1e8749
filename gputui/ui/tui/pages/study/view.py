"""The page of a study as lines: head, a row per trial, and charts of the objective."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.text import clean
from gputui.core.units import UNKNOWN, aligned, count, count_of, duration, gpu_hours, metric_value, percent
from gputui.metrics.draw.chart import chart
from gputui.metrics.draw.glyphs import sparkline
from gputui.metrics.draw.parts import Line
from gputui.metrics.draw.picture import Drawing
from gputui.metrics.draw.raster import Span
from gputui.store.run_states import RunState
from gputui.store.studies import StudyState, TrialRecord, TrialState
from gputui.studies import pictures
from gputui.studies.analysis import best_trial, by_objective, counted, ranked
from gputui.studies.spec import Dimension, Objective, StudySpec
from gputui.ui.tui.data.progress import LOSS
from gputui.ui.tui.data.snapshot import Progress, StudyPage
from gputui.ui.tui.layout.charts import SHAPES
from gputui.ui.tui.layout.columns import (
    Column,
    bar_spans,
    fit_line,
    fitting,
    head_line,
    place,
    row_line,
    rule,
    selected,
    wrap,
)
from gputui.ui.tui.layout.panels import metric_title
from gputui.ui.tui.layout.words import STUDY_SIGNS, UNKNOWN_SIGN, Sign, dated_clock, run_sign

View = Literal["values", "slices", "courses", "front"]
"""What the charts show: values over trials and the importance of parameters; values over each parameter; the course of
each trial over its steps; one objective over the other."""

Order = Literal["number", "value"]

HEAD_LINES = 2
"""Lines of the table above its rows."""

SIDE_LEAST = 110
"""Least width of a page with the charts beside the table."""

DOT_HEIGHT = 1 / 30
"""Height of a point, as a fraction of the range of values."""

LEAST_PLAIN = 1e-3
"""Smaller parameters are written with an exponent."""

_GUTTER = 7
_COURSE_END = 11
"""Cells at the right of the trials' curves for their names."""

_HEADED_LEAST = 8
"""Least height of charts with a heading."""

_VIEWS: Mapping[View, tuple[str, str]] = {
    "values": ("VALUES", "by end of trial"),
    "slices": ("VALUE OVER PARAMETERS", "by importance, grey: pruned"),
    "courses": ("CURVES", "others grey"),
    "front": ("OBJECTIVES", ""),
}
_NUMBER = re.compile(r"-?[0-9.]+(e-?[0-9]+)?|-?inf|nan")

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
    TrialState.UNKNOWN: UNKNOWN_SIGN,
}


class StudyTable(Struct, frozen=True):
    """State of the page beyond the snapshot: the trial under the cursor, the first row shown, filter, order, view."""

    cursor: int | None = None
    top: int = 0
    filter_text: str = ""
    order: Order = "number"
    view: View = "values"


class TrialRow(NamedTuple):
    """A trial as the table shows it. ``value`` is its final or latest value; ``curve`` has its value at each rung that
    any trial passed or, if not ``is_by_rung``, the newest losses of its run: of an objective that is the loss."""

    trial: TrialRecord
    progress: Progress | None
    value: float | None
    curve: tuple[float | None, ...]
    is_by_rung: bool
    is_best: bool
    run_state: RunState | None = None

    @property
    def sign(self) -> Sign:
        """That of the trial; of one that the study has launched, that of its run, which may still be queued."""
        if self.trial.state is TrialState.RUNNING and self.run_state is not None and not self.run_state.is_over:
            return run_sign(self.run_state)
        return TRIAL_SIGNS[self.trial.state]


# --- what the table shows


def trial_rows(
    page: StudyPage,
    progress: Mapping[str, Progress],
    table: StudyTable,
    states: Mapping[str, RunState] = MappingProxyType({}),
) -> list[TrialRow]:
    """The filtered and sorted trials. ``progress`` and ``states`` are those of their runs, by run."""
    objective = page.spec.objectives[0]
    best = {trial.number for trial in ranked(page.trials, page.spec.objectives, most=1)}
    words = table.filter_text.lower().split()
    farthest = max((one.rung for values in page.rungs.values() for one in values), default=0)
    rows = []
    for trial in page.trials:
        if not all(word in _searched(trial) for word in words):
            continue
        run = None if trial.run_id is None else progress.get(trial.run_id)
        rungs = {one.rung: one.value for one in page.rungs.get(trial.number, ())}
        is_by_rung = len(rungs) > 1 or run is None or objective.metric != LOSS
        curve = tuple(map(rungs.get, range(1, farthest + 1))) if is_by_rung or run is None else run.losses
        value = trial.value if trial.value is not None else next(reversed(rungs.values()), None)
        state = None if trial.run_id is None else states.get(trial.run_id)
        rows.append(TrialRow(trial, run, value, curve, is_by_rung, trial.number in best, state))
    if table.order == "value":

        def key(row: TrialRow) -> tuple[bool, bool, float, int]:
            is_known = row.value is not None and math.isfinite(row.value)
            value = objective.sign * row.value if is_known and row.value is not None else 0.0
            return row.trial.state is not TrialState.COMPLETE, not is_known, value, row.trial.number

        rows.sort(key=key)
    return rows


def _searched(trial: TrialRecord) -> str:
    params = " ".join(f"{name}={value}" for name, value in trial.params.items())
    words = (str(trial.number), TRIAL_SIGNS[trial.state].word, trial.origin, trial.reason or "", trial.run_id or "")
    return " ".join((*words, params)).lower()


# --- the head


def study_head(page: StudyPage, width: int) -> list[Line]:
    """The study's name and state; then its trials, best value and cost."""
    study, spec = page.study, page.spec
    sign = STUDY_SIGNS[study.state]
    place_of = page.known.index(study.study_id) + 1
    parts: list[list[Span]] = [
        [(f" {clean(study.study_id)} ", "title"), (f"{sign.glyph} {sign.word}", sign.style)],
        [(f" · profile {clean(study.profile)}", "text")],
        [] if spec.target is None else [(f" · on {clean(str(spec.target['name']))}", "text")],
    ]
    wanted = " and ".join(f"{one.direction} {clean(one.metric)}" for one in spec.objectives)
    parts.append([(f" · {wanted}", "text")])
    how = "pbt" if spec.pbt is not None else str(spec.sampler.kind)
    how += "" if spec.pruner.kind == "none" or spec.pbt is not None else f", {spec.pruner.kind} pruner"
    parts.append([(f" · {how}", "dim")])
    if len(page.known) > 1:
        parts.append([(f" · study {place_of} of {len(page.known)}", "dim")])
    lines = [fitting(parts, width), fitting(_results(page), width)]
    of_state = "bad" if study.state is StudyState.FAILED else "warn" if not study.state.is_over else "dim"
    for text, style in ((study.reason, of_state), (study.trouble, "bad")):
        lines += [fit_line([(f" {part}", style)], width) for part in wrap(clean(text or ""), width - 2) if text][:2]
    return lines


def _results(page: StudyPage) -> list[list[Span]]:
    states = counted(page.trials)
    parts: list[list[Span]] = [[(f" {count(len(page.trials))} trials", "text")]]
    wanted = page.spec.wanted_trials
    if wanted is not None:
        # Points that a person added, reruns and earlier runs count beyond the budget.
        parts[0] = [(f" {count(len(page.trials))} of {count(max(wanted, len(page.trials)))} trials", "text")]
    for state in TrialState:
        if states.get(state):
            parts.append([(f" · {states[state]} {TRIAL_SIGNS[state].word}", TRIAL_SIGNS[state].style)])
    best = best_trial(page.trials, page.spec.objectives)
    if len(page.spec.objectives) > 1:
        front = ranked(page.trials, page.spec.objectives)
        parts.insert(1, [(f" · Pareto front: {count_of(len(front), 'trial')}", "dim")])
    elif best is not None:
        parts.insert(1, [(" · best ", "dim"), (metric_value(best.value), "accent"), (f" trial {best.number}", "dim")])
    if page.gpu_hours:
        limit = page.spec.budget.gpu_hours
        of = "" if limit is None else f" of {limit:g}"
        parts.append([(f" · {gpu_hours(page.gpu_hours)}{of} GPU-hours", "text")])
    parts.append([(f" · {duration(page.running_seconds)}", "text")])
    return parts


# --- the table


def table_lines(page: StudyPage, rows: Sequence[TrialRow], table: StudyTable, width: int, height: int) -> list[Line]:
    """A heading, the columns' names, and a row per trial."""
    if height < 1:
        return []
    title = f"TRIALS /{clean(table.filter_text)}" if table.filter_text else "TRIALS"
    note = f"by {clean(page.spec.objectives[0].metric)}" if table.order == "value" else "by number"
    if len(rows) > height - HEAD_LINES:
        note = f"{table.top + 1}–{min(table.top + height - HEAD_LINES, len(rows))} of {len(rows)}, {note}"
    placed = place(_columns(page, rows), width - 1)
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


def _columns(page: StudyPage, rows: Sequence[TrialRow]) -> list[Column[TrialRow]]:
    spec = page.spec
    metric = metric_title(spec.objectives[0].metric)
    values = _texts({row.trial.number: metric_value(row.value) for row in rows})
    columns: list[Column[TrialRow]] = [
        Column("#", 6, lambda row, _: [("★ " * row.is_best, "good"), (str(row.trial.number), "label")], align=">"),
        Column("STATE", 12, lambda row, _: [(f"{row.sign.glyph} {row.sign.word}", row.sign.style)], gap=1),
        Column(metric.upper(), max(9, min(16, len(metric)), _widest(values)), _value(values), align=">", gap=1),
        Column("CURVE", 10, _curve(page), importance=2, gap=1),
    ]
    if spec.pruner.kind != "none" or spec.pbt is not None:
        rungs = {trial.number: count(trial.rung) for trial in page.trials}
        columns.append(Column("RUNG", 5, _text(rungs, "dim"), align=">", importance=4, gap=1))
    for objective, trials in by_objective(page.trials, spec.objectives)[1:]:
        head = metric_title(objective.metric)
        texts = _texts({trial.number: metric_value(trial.value) for trial in trials})
        columns.append(Column(head.upper(), max(9, min(16, len(head)), _widest(texts)), _text(texts), align=">"))
    for number, name in enumerate(spec.tuned):
        texts = _texts(_params(page.trials, name))
        head = clean(name)
        width = min(16, max(len(head), _widest(texts)))
        columns.append(Column(head.upper(), width, _text(texts), align=">", importance=1 if number < 3 else 3, gap=1))
    columns.append(Column("REASON", 12, _reason, importance=9, grow=1))
    return columns


def _texts(texts: Mapping[int, str]) -> Mapping[int, str]:
    """The texts by trial, with their decimal points below each other if all are numbers."""
    are_numbers = all(text == UNKNOWN or _NUMBER.fullmatch(text) for text in texts.values())
    return dict(zip(texts, aligned(list(texts.values())), strict=True)) if are_numbers else texts


def _widest(texts: Mapping[int, str]) -> int:
    return max(map(len, texts.values()), default=1)


def _text(texts: Mapping[int, str], style: str = "text") -> Callable[[TrialRow, int], list[Span]]:
    return lambda row, _: [(texts[row.trial.number], style)]


def _value(texts: Mapping[int, str]) -> Callable[[TrialRow, int], list[Span]]:
    def cell(row: TrialRow, width: int) -> list[Span]:
        style = "good" if row.is_best else "text" if row.trial.state is TrialState.COMPLETE else "dim"
        return [(texts[row.trial.number], style)]

    return cell


def _curve(page: StudyPage) -> Callable[[TrialRow, int], list[Span]]:
    values = [one.value for rungs in page.rungs.values() for one in rungs]
    reached = [value for value in values if value is not None and math.isfinite(value)]
    low, high = min(reached, default=None), max(reached, default=None)
    return lambda row, width: _sparks(row, width, low, high)


def _sparks(row: TrialRow, width: int, low: float | None, high: float | None) -> list[Span]:
    """A curve. Curves over rungs share the range of all trials, so that they can be compared."""
    curve = row.curve
    if not row.is_by_rung:
        return [(sparkline(curve[-width:], width) if curve else "", "accent")]
    # Equal rungs are in equal columns, which shows where a trial was pruned.
    ends = (
        [len(curve) * cell // width for cell in range(1, width + 1)] if len(curve) > width else range(1, len(curve) + 1)
    )
    starts = [0, *ends]
    cells = [
        next((value for value in reversed(curve[start:end]) if value is not None), None)
        for start, end in zip(starts, ends, strict=False)
    ]
    return [(sparkline(cells, len(cells), low, high), "accent")]


def _params(trials: Sequence[TrialRecord], name: str) -> dict[int, str]:
    """A parameter of each trial. Where one value needs an exponent all have one, so that they compare at a glance."""
    values = [one.params.get(name) for one in trials]
    has_exponent = any(isinstance(value, float) and 0 < abs(value) < LEAST_PLAIN for value in values)
    return {one.number: _param(one, name, has_exponent=has_exponent) for one in trials}


def _param(trial: TrialRecord, name: str, *, has_exponent: bool = False) -> str:
    value = trial.params.get(name)
    if isinstance(value, float):
        mantissa, mark, exponent = f"{value:{'.3e' if has_exponent else '.4g'}}".partition("e")
        return f"{mantissa}e{int(exponent)}" if mark else mantissa
    return UNKNOWN if value is None else clean(str(value))


def _reason(row: TrialRow, width: int) -> list[Span]:
    if row.trial.reason:
        # The state has its own column.
        return [(clean(row.trial.reason.removeprefix(f"{row.trial.state} at ")), "dim")]
    parts = ["kept"] if row.trial.wish == "keep" and not row.trial.state.is_over else []
    if row.progress is not None and row.trial.state is TrialState.RUNNING and row.progress.step is not None:
        total = "" if row.progress.total_steps is None else f"/{count(row.progress.total_steps)}"
        parts.append(f"step {count(row.progress.step)}{total}")
    elif row.trial.origin != "sampled":
        parts.append(row.trial.origin)
    return [(" · ".join(parts), "dim")]


def detail_lines(row: TrialRow | None, now: float, width: int) -> list[Line]:
    """Details of the trial under the cursor: its parameters, its run and why it ended."""
    if row is None:
        return []
    trial = row.trial
    sign = row.sign
    point = ", ".join(f"{clean(name)} {_param(trial, name)}" for name in trial.params)
    first: list[Span] = [(f" Trial {trial.number} ", "title"), (sign.word, sign.style), (f" · {point}", "text")]
    second: list[Span] = [(f" run {clean(trial.run_id)}" if trial.run_id else " no run yet", "dim")]
    second.append((f" · began {dated_clock(trial.created_at, now)}", "dim"))
    if trial.ended_at is not None:
        second.append((f" · took {duration(trial.ended_at - trial.created_at)}", "dim"))
    if trial.parent is not None:
        second.append((f" · from trial {trial.parent}", "accent"))
    if trial.starts > 1:
        second.append((f" · started {trial.starts} times", "warn"))
    if trial.reason:
        second.append((f" · {clean(trial.reason)}", "text"))
    return [rule("", width), fit_line(first, width), fit_line(second, width)]


# --- the pictures


def views_of(page: StudyPage) -> tuple[View, ...]:
    """The views that this study has."""
    several = len(page.spec.objectives) > 1
    has_courses = any(len(values) > 1 for values in page.rungs.values())
    return ("values", "slices", *(("courses",) if has_courses else ()), *(("front",) if several else ()))


def picture_lines(page: StudyPage, table: StudyTable, width: int, height: int) -> list[Line]:
    """The charts of the chosen view in exactly ``height`` lines, below a heading if there is room."""
    spec = page.spec
    if height < 3 or width < 20:
        return [fit_line([], width)] * max(0, height)
    if height >= _HEADED_LEAST:
        return [_view_heading(page, spec, table, width), *_picture_lines(page, spec, table, width, height - 1)]
    return _picture_lines(page, spec, table, width, height)


def _view_heading(page: StudyPage, spec: StudySpec, table: StudyTable, width: int) -> Line:
    """What the charts show, in which order or colours, and which of the views it is."""
    views = views_of(page)
    view = table.view if table.view in views else "values"
    words, note = _VIEWS[view]
    better = "lower is better" if spec.objectives[0].direction == "minimize" else "higher is better"
    better = "" if len(spec.objectives) > 1 else better
    notes = [part for part in (note, better, f"view {views.index(view) + 1} of {len(views)}") if part]
    while len(words) + len(" · ".join(notes)) + 6 > width and len(notes) > 1:
        notes.pop(0)
    return rule(words, width, " · ".join(notes))


def _picture_lines(page: StudyPage, spec: StudySpec, table: StudyTable, width: int, height: int) -> list[Line]:
    cursor = next((one for one in page.trials if one.number == table.cursor), None)
    lines: list[Line] = []
    if table.view == "slices":
        for objective, trials in by_objective(page.trials, spec.objectives):
            part = page._replace(trials=tuple(trials))
            lines += _slices(part, objective, cursor, width, height // len(spec.objectives))
    elif table.view == "courses":
        lines = _courses(page, spec, width, height)
    elif table.view == "front" and len(spec.objectives) > 1:
        at = cursor.values[0] if cursor is not None and cursor.values else None
        front = pictures.front(page.trials, spec.objectives, DOT_HEIGHT)
        lines = _drawn(front, at, width, height, "no complete trial yet")
    else:
        for objective, trials in by_objective(page.trials, spec.objectives):
            part = page._replace(trials=tuple(trials))
            lines += _values(part, objective, cursor, width, height // len(spec.objectives))
    return [*lines[:height], *[fit_line([], width)] * (height - len(lines))]


def _values(page: StudyPage, objective: Objective, cursor: TrialRecord | None, width: int, height: int) -> list[Line]:
    spec = page.spec
    shares = page.study.importances_for(objective.metric)
    below = 0 if height < 14 else 1 + len(spec.space)
    at = None if cursor is None else pictures.ended_places(page.trials).get(cursor.number)
    drawing = pictures.values_by_trial(page.trials, page.rungs, objective, DOT_HEIGHT)
    lines = _drawn(drawing, at, width, height - below, "no trial has a value yet")
    if not below:
        return lines
    lines.append(rule("IMPORTANCE", width, f"for {clean(objective.metric)}, of complete trials"))
    if not shares:
        return [*lines, fit_line([("  Known after eight complete trials.", "dim")], width)]
    name_width = min(20, max(len(clean(one.name)) for one in shares))
    for one in shares:
        room = max(4, width - name_width - 10)
        lines.append(
            fit_line(
                [
                    (f" {clean(one.name):<{name_width}.{name_width}} ", "text"),
                    *bar_spans(one.share, room),
                    (f" {percent(one.share * 100):>5}", "text"),
                ],
                width,
            )
        )
    return lines


def _courses(page: StudyPage, spec: StudySpec, width: int, height: int) -> list[Line]:
    """The curves of all trials over steps; the names of the best stand at their ends, in the order of their values."""
    drawing = pictures.courses(page.trials, page.rungs, spec)
    gutter = _COURSE_END if width >= 4 * _COURSE_END else 0
    shapes = iter(SHAPES)
    curves = []
    for curve in drawing.curves:
        if gutter and curve.label:
            shape = next(shapes)
            curve = replace(curve, label="", shape=shape, end=f"{shape} {curve.label}")
        curves.append(curve)
    return _drawn(replace(drawing, curves=curves), None, width, height, "no trial passed a rung yet", gutter)


def _drawn(
    drawing: Drawing, cursor: float | None, width: int, height: int, empty: str, end_gutter: int = 0
) -> list[Line]:
    return chart(
        drawing.curves,
        width=width,
        height=height,
        title=f" {drawing.title}",
        x_axis=drawing.x_axis,
        y_axis=drawing.y_axis,
        cursor=cursor,
        least_gutter=_GUTTER,
        end_gutter=end_gutter,
        empty_text=empty,
    )


def _slices(page: StudyPage, objective: Objective, cursor: TrialRecord | None, width: int, height: int) -> list[Line]:
    """A chart of the value over each tuned parameter; if not all fit, over the most important ones."""
    spec = page.spec
    across = 2 if width >= 70 and len(spec.space) > 1 else 1
    down = max(1, min(math.ceil(len(spec.space) / across), height // 7))
    places = {one.name: place for place, one in enumerate(page.study.importances_for(objective.metric))}
    shown = sorted(spec.space, key=lambda one: places.get(one.name, 0))[: across * down]
    each_width, each_height = width // across, height // down
    lines: list[Line] = []
    for first in range(0, len(shown), across):
        panels = [
            _slice(page, objective, one, cursor, each_width, each_height) for one in shown[first : first + across]
        ]
        lines += [fit_line([span for panel in panels for span in panel[row]], width) for row in range(each_height)]
    return lines


def _slice(
    page: StudyPage, objective: Objective, dimension: Dimension, cursor: TrialRecord | None, width: int, height: int
) -> list[Line]:
    at = None if cursor is None else pictures.axis_position(dimension, cursor)
    drawing = pictures.over_parameter(page.trials, page.rungs, dimension, objective, DOT_HEIGHT)
    return _drawn(drawing, at, width, height, "no complete trial yet")
