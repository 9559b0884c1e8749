"""Drawings of a study for the screen and for files: values over trials and parameters, curves, and
the Pareto front. Pure.

A pruned trial is drawn with the value at its last rung. ``rungs`` are by trial. ``dot_height`` is
the height of a point as a share of the range, because a single dot of a terminal's cell is easy to
miss.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

from gputui.core.text import cell_width, clean
from gputui.metrics.draw.bins import Bin
from gputui.metrics.draw.parts import Chart, Curve, XAxis, YAxis
from gputui.metrics.draw.scales import AxisKind
from gputui.store.studies import RungValue, TrialRecord, TrialState
from gputui.studies.analysis import best_so_far, complete_trials, pareto_front, rank_trials, sorted_by_end
from gputui.studies.spec import Dimension, Objective, StudySpec

Rungs = Mapping[int, Sequence[RungValue]]
_Point = tuple[float, float]
LONGEST_NAME = 16  # names at the ends of curves leave room for these
COLOURED_COURSES = 5
"""How many of the best trials are drawn in colours."""


def end_positions(trials: Sequence[TrialRecord]) -> dict[int, int]:
    """The position (from 1) of each trial that is over, in the order of their ends, by number."""
    return {trial.number: position for position, trial in enumerate(sorted_by_end(trials), 1)}


def draw_values(trials: Sequence[TrialRecord], rungs: Rungs, objective: Objective, dot_height: float = 0.0) -> Chart:
    """The values of one objective in the order in which trials ended, and the best so far."""
    positions = end_positions(trials)
    pruned, completed, axis = _dots_of_trials(trials, rungs, lambda trial: positions.get(trial.number), dot_height)
    best = _finite(best_so_far(trials, objective))
    best_value = best[-1][1] if best else None
    curves = [
        Curve(pruned, style="dim", label="pruned"),
        Curve(completed, label="done"),
        Curve(_line(best), style="good", label="best so far", value=best_value),
    ]
    x_axis = XAxis("finished trials", 1.0, float(max(2, len(positions))), "count")
    return Chart(_with_bins(curves), clean(objective.metric), x_axis, axis)


def draw_over_parameter(
    trials: Sequence[TrialRecord], rungs: Rungs, dimension: Dimension, objective: Objective, dot_height: float = 0.0
) -> Chart:
    """The values of one objective over a tuned parameter."""
    name = clean(dimension.name)
    pruned, completed, axis = _dots_of_trials(trials, rungs, lambda trial: axis_position(dimension, trial), dot_height)
    if dimension.kind == "choice":
        x_axis = XAxis("", -0.5, len(dimension.choices) - 0.5, names=_axis_names(dimension))
    else:
        scale: AxisKind = "log" if dimension.log else "linear"
        x_axis = XAxis(name, dimension.low, dimension.high, scale=scale)
    curves = [Curve(pruned, style="dim"), Curve(completed)]
    return Chart(_with_bins(curves), f"{clean(objective.metric)} over {name}", x_axis, axis)


def axis_position(dimension: Dimension, trial: TrialRecord) -> float | None:
    """The position of a trial on a parameter's axis: the value, or the index of a choice."""
    value = trial.params.get(dimension.name)
    if dimension.kind == "choice":
        choices = [repr(choice) for choice in dimension.choices]
        if repr(value) in choices:
            return float(choices.index(repr(value)))
        return None
    if isinstance(value, (int, float)):
        return float(value)
    return None


def draw_front(trials: Sequence[TrialRecord], objectives: Sequence[Objective], dot_height: float = 0.0) -> Chart:
    """The second objective over the first, with the Pareto front highlighted and joined."""
    measured = [trial for trial in complete_trials(trials) if len(trial.values) == len(objectives)]
    points = _finite((trial.values[0], trial.values[1]) for trial in measured)
    best = sorted(_finite((trial.values[0], trial.values[1]) for trial in pareto_front(trials, objectives)))
    (dots,) = _dots([points], "linear", dot_height)
    curves = [Curve(dots, label="trials"), Curve(_line(best), style="good", label="Pareto front")]
    first, second = (clean(objective.metric) for objective in objectives[:2])
    return Chart(_with_bins(curves), f"{second} over {first}", XAxis(first), YAxis())


def draw_curves(trials: Sequence[TrialRecord], rungs: Rungs, spec: StudySpec) -> Chart:
    """The value of each trial over the steps: the best trials in colours, others grey."""
    best = [trial.number for trial in rank_trials(trials, spec.objectives, most=COLOURED_COURSES)]
    others = [trial.number for trial in trials if trial.number not in best]
    points = {
        number: _finite((rung.step + 1.0, rung.value) for rung in rungs.get(number, ())) for number in (*others, *best)
    }
    curves = [Curve(_line(points[number]), style="dim", is_shadow=True) for number in others]
    for index, number in enumerate(best):
        curves.append(Curve(_line(points[number]), style=f"series.{index}", label=f"trial {number}"))
    axis = _value_axis([point for curve_points in points.values() for point in curve_points])
    return Chart(_with_bins(curves), clean(spec.objectives[0].metric), XAxis("steps"), axis)


def _dots_of_trials(
    trials: Sequence[TrialRecord], rungs: Rungs, x_of: Callable[[TrialRecord], float | None], height: float
) -> tuple[list[Bin], list[Bin], YAxis]:
    """The dots of pruned and of complete trials, and the axis of their values."""
    passed = {trial.number: rungs.get(trial.number, ()) for trial in trials if trial.state is TrialState.PRUNED}
    pruned = _finite((x_of(trial), passed[trial.number][-1].value) for trial in trials if passed.get(trial.number))
    completed = _finite((x_of(trial), trial.value) for trial in complete_trials(trials))
    axis = _value_axis([*completed, *pruned])
    pruned_dots, dots = _dots([pruned, completed], axis.kind, height)
    return pruned_dots, dots, axis


def _finite(points: Iterable[tuple[float | None, float | None]]) -> list[_Point]:
    """The points with finite coordinates."""
    complete_points = ((x, value) for x, value in points if x is not None and value is not None)
    return [(x, value) for x, value in complete_points if math.isfinite(x) and math.isfinite(value)]


def _line(points: Iterable[_Point]) -> list[Bin]:
    return [Bin(first_x=x, last_x=x, low=value, high=value, first=value, last=value, points=1) for x, value in points]


def _dots(groups: Sequence[Sequence[_Point]], kind: AxisKind, height: float) -> list[list[Bin]]:
    """Unconnected points, sorted by x, with the same height on the axis: a share of their range."""
    values = [value for points in groups for _, value in points]
    least = min(values, default=1.0)
    most = max(values, default=1.0)

    def dot(x: float, value: float) -> Bin:
        low, high = _dot_ends(value, least, most, kind, height)
        return Bin(first_x=x, last_x=x, low=low, high=high, first=value, last=value, points=1, gap_before=True)

    return [[dot(x, value) for x, value in sorted(points)] for points in groups]


def _dot_ends(value: float, least: float, most: float, kind: AxisKind, height: float) -> tuple[float, float]:
    """The ends of a dot whose height is the share ``height`` of the range from ``least`` to
    ``most``."""
    if kind == "log":
        ratio = math.exp((math.log(most) - math.log(least)) * height / 2)
        low = value / ratio
        high = value * ratio
    else:
        # Halves first: the difference of two finite numbers may not be finite.
        half = (most / 2 - least / 2) * height
        # An axis of values that cannot be negative begins at 0.
        least_low = 0.0 if value >= 0 else -sys.float_info.max
        low = max(value - half, least_low)
        high = value + half
    return low, min(high, sys.float_info.max)


def _with_bins(curves: Iterable[Curve]) -> list[Curve]:
    return [curve for curve in curves if curve.bins]


def _axis_names(dimension: Dimension) -> tuple[str, ...]:
    """The choices as labels of an axis; a wide or long one is replaced by its index."""
    names = [clean(str(value))[:LONGEST_NAME] for value in dimension.choices]
    for index, name in enumerate(names):
        if cell_width(name) != len(name):
            names[index] = f"#{index}"
    return tuple(names)


def _value_axis(points: Sequence[_Point]) -> YAxis:
    """A logarithmic axis if the values span more than a factor of 100."""
    values = [value for _, value in points]
    least = min(values, default=1.0)
    most = max(values, default=1.0)
    kind: AxisKind = "log" if least > 0 and most / least > 100 else "linear"
    return YAxis(kind)
