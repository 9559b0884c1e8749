"""The charts of a study, and the bars of what mattered for its objective."""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec.structs import replace

from gputui.core.text import clean
from gputui.core.units import percent
from gputui.metrics.draw.chart import chart
from gputui.metrics.draw.parts import Line
from gputui.metrics.draw.picture import Drawing
from gputui.store.studies import TrialRecord
from gputui.studies import pictures
from gputui.studies.analysis import by_objective
from gputui.studies.spec import Objective
from gputui.ui.tui.data.snapshot import StudyPage
from gputui.ui.tui.layout.charts import SHAPES
from gputui.ui.tui.layout.columns import bar_spans, fit_line, rule
from gputui.ui.tui.pages.study.view import TrialList, View

DOT_HEIGHT = 1 / 30
"""Height of a point, as a fraction of the range of values."""

_GUTTER = 7
_COURSE_END = 11
"""Cells at the right of the trials' curves for their names."""

_VIEWS: Mapping[View, tuple[str, str]] = {
    "values": ("VALUES", "by end of trial"),
    "slices": ("VALUE OVER PARAMETERS", "by importance, grey: pruned"),
    "courses": ("CURVES", "others grey"),
    "front": ("OBJECTIVES", ""),
}


def views_of(page: StudyPage) -> tuple[View, ...]:
    """The views that this study has."""
    several = len(page.spec.objectives) > 1
    has_courses = any(len(values) > 1 for values in page.rungs.values())
    return ("values", "slices", *(("courses",) if has_courses else ()), *(("front",) if several else ()))


def picture_lines(page: StudyPage, state: TrialList, width: int, height: int) -> list[Line]:
    """The charts of the chosen view below a heading, in exactly ``height`` lines."""
    blank = fit_line([], width)
    if height < 4 or width < 20:
        return [blank] * max(0, height)
    views = views_of(page)
    view = state.view if state.view in views else "values"
    words, note = _VIEWS[view]
    notes = " · ".join(part for part in (note, f"view {views.index(view) + 1} of {len(views)}") if part)
    cursor = next((one for one in page.trials if one.number == state.cursor), None)
    lines = [rule(words, width, notes)]
    room = height - 1
    if view == "courses":
        lines += _courses(page, width, room)
    elif view == "front":
        at = cursor.values[0] if cursor is not None and cursor.values else None
        front = pictures.front(page.trials, page.spec.objectives, DOT_HEIGHT)
        lines += _drawn(front, at, width, room, "no complete trial yet")
    else:
        draw = _slices if view == "slices" else _values
        for objective, trials in by_objective(page.trials, page.spec.objectives):
            part = page._replace(trials=tuple(trials))
            lines += draw(part, objective, cursor, width, room // len(page.spec.objectives))
    return [*lines[:height], *[blank] * (height - len(lines))]


def _values(page: StudyPage, objective: Objective, cursor: TrialRecord | None, width: int, height: int) -> list[Line]:
    below = 0 if height < 14 else 1 + len(page.spec.space)
    at = None if cursor is None else pictures.ended_places(page.trials).get(cursor.number)
    drawing = pictures.values_by_trial(page.trials, page.rungs, objective, DOT_HEIGHT)
    lines = _drawn(drawing, at, width, height - below, "no trial has a value yet")
    if not below:
        return lines
    shares = page.study.importances_for(objective.metric)
    lines.append(rule("IMPORTANCE", width, f"for {clean(objective.metric)}, of complete trials"))
    if not shares:
        return [*lines, fit_line([("  Known after eight complete trials.", "dim")], width)]
    name_width = min(20, max(len(clean(one.name)) for one in shares))
    for one in shares:
        name = f" {clean(one.name):<{name_width}.{name_width}} "
        bar = bar_spans(one.share, max(4, width - name_width - 10))
        lines.append(fit_line([(name, "text"), *bar, (f" {percent(one.share * 100):>5}", "text")], width))
    return lines


def _courses(page: StudyPage, width: int, height: int) -> list[Line]:
    """The curves of all trials over steps; the names of the best stand at their ends, in the order of their values."""
    drawing = pictures.courses(page.trials, page.rungs, page.spec)
    gutter = _COURSE_END if width >= 4 * _COURSE_END else 0
    shapes = iter(SHAPES)
    curves = []
    for curve in drawing.curves:
        if gutter and curve.label:
            shape = next(shapes)
            curve = replace(curve, label="", shape=shape, end=f"{shape} {curve.label}")
        curves.append(curve)
    return _drawn(replace(drawing, curves=curves), None, width, height, "no trial passed a rung yet", gutter)


def _slices(page: StudyPage, objective: Objective, cursor: TrialRecord | None, width: int, height: int) -> list[Line]:
    """A chart of the value over each tuned parameter; if not all fit, over the most important ones."""
    space = page.spec.space
    across = 2 if width >= 70 and len(space) > 1 else 1
    down = max(1, min(math.ceil(len(space) / across), height // 7))
    places = {one.name: place for place, one in enumerate(page.study.importances_for(objective.metric))}
    drawn = []
    for dimension in sorted(space, key=lambda one: places.get(one.name, 0))[: across * down]:
        at = None if cursor is None else pictures.axis_position(dimension, cursor)
        drawing = pictures.over_parameter(page.trials, page.rungs, dimension, objective, DOT_HEIGHT)
        drawn.append(_drawn(drawing, at, width // across, height // down, "no complete trial yet"))
    lines: list[Line] = []
    for first in range(0, len(drawn), across):
        for parts in zip(*drawn[first : first + across], strict=True):
            lines.append(fit_line([span for part in parts for span in part], width))
    return lines


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
