"""A study's drawings: which points they have and where."""

from __future__ import annotations

import math

from gputui.metrics.draw.chart import chart
from gputui.store.studies import RungValue, TrialState
from gputui.studies import pictures
from gputui.studies.spec import Dimension, Objective, StudySpec
from tests.studies.test_analysis import trial
from tests.tables import table

LOSS = Objective("loss")
KIND = Dimension("kind", "choice", choices=("a", "b", "c"))
TRIALS = [
    trial(0, 0.5, params={"kind": "a"}),
    trial(1, state=TrialState.PRUNED, params={"kind": "b"}),
    trial(2, 0.3, params={"kind": "c"}),
    trial(3, state=TrialState.RUNNING, params={"kind": "a"}),
]
RUNGS = {1: [RungValue(1, 1, 9, 0.9, 1, 0.0), RungValue(1, 2, 19, 0.8, 1, 0.0)]}


def points(drawing: pictures.Drawing, label: str) -> list[tuple[float, float | None]]:
    return [(each.first_x, each.first) for curve in drawing.curves if curve.label == label for each in curve.bins]


def test_a_pruned_trial_stands_at_the_value_of_its_last_rung() -> None:
    drawing = pictures.values_by_trial(TRIALS, RUNGS, LOSS)
    assert points(drawing, "pruned") == [(2.0, 0.8)]
    assert points(drawing, "complete") == [(1.0, 0.5), (3.0, 0.3)]
    assert points(drawing, "best so far") == [(1.0, 0.5), (2.0, 0.5), (3.0, 0.3)]


@table("value", [math.inf, -math.inf, math.nan, None])
def test_a_course_leaves_out_what_has_no_place_on_an_axis(value: float | None) -> None:
    rungs = {0: [RungValue(0, 1, 9, 1.0, 1, 0.0), RungValue(0, 2, 19, value, 1, 0.0)]}
    drawing = pictures.courses(TRIALS, rungs, StudySpec("s", "net", (KIND,), (LOSS,)))
    assert points(drawing, "trial 0") == [(10.0, 1.0)]
    assert chart(drawing.curves, width=60, height=9, x_axis=drawing.x_axis, y_axis=drawing.y_axis)
