"""What there is to see of a study, as drawings for the screen and for files: values over trials and over parameters,
the courses of trials, and the front of two objectives. Pure.

Of a pruned trial the value at its last rung is shown. ``rungs`` are by trial; ``dot_height`` is the height of a point
in shares of the range: a single dot of a terminal's cell is easily missed.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence

from gputui.charts.axes import AxisKind
from gputui.charts.cells import cell_width
from gputui.charts.chart import Curve, XAxis, YAxis
from gputui.charts.envelope import Bin
from gputui.charts.picture import Drawing
from gputui.charts.safe_text import clean
from gputui.store.studies import RungValue, TrialRecord, TrialState
from gputui.studies.analysis import best_so_far, complete, pareto_front, ranked
from gputui.studies.spec import Dimension, Objective, StudySpec

Rungs = Mapping[int, Sequence[RungValue]]
_Point = tuple[float, float]
LONGEST_NAME = 16
COLOURED_COURSES = 5
"""Courses with a colour of their own: those of the best trials."""


def ended_places(trials: Sequence[TrialRecord]) -> dict[int, int]:
    """The place (from 1) of each trial that is over, in the order of their ends, by its number."""
    ended = sorted((one for one in trials if one.ended_at is not None), key=lambda one: (one.ended_at, one.number))
    return {one.number: place for place, one in enumerate(ended, 1)}


def values_by_trial(
    trials: Sequence[TrialRecord], rungs: Rungs, objective: Objective, dot_height: float = 0.0
) -> Drawing:
    """The values of one objective in the order in which trials ended, and the best so far."""
    places = ended_places(trials)
    usable = {one.number for one in complete(trials)} & places.keys()
    points = _finite((places[one.number], one.value) for one in trials if one.number in usable)
    pruned = _finite((places[number], value) for number, value in _pruned(trials, rungs).items() if number in places)
    best = _finite(best_so_far(trials, objective))
    axis = _value_axis([*points, *pruned])
    pruned_dots, dots = _dots([pruned, points], axis, dot_height)
    return Drawing(
        _with_bins(
            Curve(pruned_dots, "dim", "pruned"),
            Curve(dots, "series.0", "complete"),
            Curve(_line(best), "good", "best", best[-1][1] if best else None),
        ),
        clean(objective.metric),
        XAxis("trials over", 1.0, float(max(2, len(places))), "count"),
        axis,
    )


def over_parameter(
    trials: Sequence[TrialRecord],
    rungs: Rungs,
    dimension: Dimension,
    objective: Objective,
    dot_height: float = 0.0,
) -> Drawing:
    """The values of one objective over a tuned parameter."""
    name = clean(dimension.name)
    points = _finite((x, one.value) for one in complete(trials) if (x := axis_position(dimension, one)) is not None)
    pruned_values = _pruned(trials, rungs)
    pruned = _finite(
        (x, pruned_values[one.number])
        for one in trials
        if one.number in pruned_values and (x := axis_position(dimension, one)) is not None
    )
    if dimension.kind == "choice":
        x_axis = XAxis("", -0.5, len(dimension.choices) - 0.5, names=_axis_names(dimension))
    else:
        x_axis = XAxis(name, dimension.low, dimension.high, scale="log" if dimension.log else "linear")
    axis = _value_axis([*points, *pruned])
    pruned_dots, dots = _dots([pruned, points], axis, dot_height)
    return Drawing(
        _with_bins(Curve(pruned_dots, "dim"), Curve(dots, "series.0")),
        f"{clean(objective.metric)} over {name}",
        x_axis,
        axis,
    )


def axis_position(dimension: Dimension, trial: TrialRecord) -> float | None:
    """The place of a trial on a parameter's axis: its value, or the place of a choice from 0."""
    value = trial.params.get(dimension.name)
    if dimension.kind == "choice":
        choices = [repr(one) for one in dimension.choices]
        return float(choices.index(repr(value))) if repr(value) in choices else None
    return float(value) if isinstance(value, (int, float)) else None


def front(trials: Sequence[TrialRecord], objectives: Sequence[Objective], dot_height: float = 0.0) -> Drawing:
    """The second objective over the first; the Pareto front in its own colour, joined."""
    known = [one for one in complete(trials) if len(one.values) == len(objectives)]
    points = _finite((one.values[0], one.values[1]) for one in known)
    best = sorted(_finite((one.values[0], one.values[1]) for one in pareto_front(trials, objectives)))
    axis = YAxis()
    (dots,) = _dots([points], axis, dot_height)
    return Drawing(
        _with_bins(Curve(dots, "series.0", "trials"), Curve(_line(best), "good", f"front of {len(best)}")),
        f"{clean(objectives[1].metric)} over {clean(objectives[0].metric)}",
        XAxis(clean(objectives[0].metric)),
        axis,
    )


def courses(trials: Sequence[TrialRecord], rungs: Rungs, spec: StudySpec) -> Drawing:
    """What each trial had reached over the steps: the best trials in colours, all others grey."""
    best = [one.number for one in ranked(trials, spec.objectives)[:COLOURED_COURSES]]
    others = [one.number for one in trials if one.number not in best]
    points = {
        number: _finite((one.step + 1.0, one.value) for one in rungs.get(number, ())) for number in (*others, *best)
    }
    grey = [Curve(_line(points[number]), "dim", is_shadow=True) for number in others]
    coloured = [Curve(_line(points[number]), f"series.{place}", f"trial {number}") for place, number in enumerate(best)]
    axis = _value_axis([point for each in points.values() for point in each])
    return Drawing(_with_bins(*grey, *coloured), clean(spec.objectives[0].metric), XAxis("steps"), axis)


def _finite(points: Iterable[tuple[float, float | None]]) -> list[_Point]:
    """The points that have a place on axes."""
    return [(x, value) for x, value in points if value is not None and math.isfinite(x) and math.isfinite(value)]


def _line(points: Iterable[_Point]) -> list[Bin]:
    return [Bin(x, x, value, value, value, value, 1) for x, value in points]


def _dots(groups: Sequence[Sequence[_Point]], axis: YAxis, height: float) -> list[list[Bin]]:
    """Points that no line joins, in the order of x: all equally high on the axis, a share of what they span."""
    values = [value for points in groups for _, value in points]
    least, most = min(values, default=1.0), max(values, default=1.0)
    return [
        [
            Bin(x, x, *_dot_ends(value, least, most, axis.kind, height), value, value, 1, gap_before=True)
            for x, value in sorted(points)
        ]
        for points in groups
    ]


def _dot_ends(value: float, least: float, most: float, kind: AxisKind, height: float) -> tuple[float, float]:
    """Where a dot begins and ends that is ``height`` times as high as the way from ``least`` to ``most``."""
    if kind == "log":
        ratio = math.exp((math.log(most) - math.log(least)) * height / 2)
        low, high = value / ratio, value * ratio
    else:
        # Halves first: the difference of two finite numbers may not be finite.
        half = (most / 2 - least / 2) * height
        # An axis of values that cannot be negative begins at 0.
        low, high = max(value - half, 0.0 if value >= 0 else -sys.float_info.max), value + half
    return low, min(high, sys.float_info.max)


def _with_bins(*curves: Curve) -> list[Curve]:
    return [curve for curve in curves if curve.bins]


def _pruned(trials: Sequence[TrialRecord], rungs: Rungs) -> dict[int, float | None]:
    """What each pruned trial had reached at its last rung, by number."""
    return {
        one.number: rungs[one.number][-1].value
        for one in trials
        if one.state is TrialState.PRUNED and rungs.get(one.number)
    }


def _axis_names(dimension: Dimension) -> tuple[str, ...]:
    """The choices as an axis shows them; one with characters of another width by its place."""
    names = [clean(str(value))[:LONGEST_NAME] for value in dimension.choices]
    return tuple(name if cell_width(name) == len(name) else f"#{place}" for place, name in enumerate(names))


def _value_axis(points: Sequence[_Point]) -> YAxis:
    """Logarithmic where the values span more than a factor of 100."""
    values = [value for _, value in points]
    least, most = min(values, default=1.0), max(values, default=1.0)
    kind: AxisKind = "log" if least > 0 and most / least > 100 else "linear"
    return YAxis(kind)
