"""A study's drawings: which points they have and where."""

from __future__ import annotations

import math

import pytest

from gputui.charts.chart import chart
from gputui.charts.export import svg_text
from gputui.charts.picture import picture
from gputui.store.studies import RungValue, TrialState
from gputui.studies import pictures
from gputui.studies.spec import Dimension, Objective, StudySpec
from tests.studies.test_analysis import trial

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


def test_choices_stand_beside_each_other_under_their_names() -> None:
    drawing = pictures.over_parameter(TRIALS, RUNGS, KIND, LOSS)
    assert sorted((each.first_x, each.first) for curve in drawing.curves for each in curve.bins) == [
        (0.0, 0.5), (1.0, 0.8), (2.0, 0.3)
    ]  # fmt: skip
    drawn = "".join(text for text, _ in chart(drawing.curves, width=60, height=9, x_axis=drawing.x_axis)[-1])
    assert [drawn.index(name) for name in "abc"] == sorted(drawn.index(name) for name in "abc")
    sheet = svg_text(picture(drawing))
    assert all(f">{name}</text>" in sheet for name in "abc")


def test_names_of_another_width_do_not_shift_the_axis() -> None:
    wide = Dimension("kind", "choice", choices=("漢字", "x"))
    names = pictures.over_parameter([], {}, wide, LOSS).x_axis.names
    assert names == ("#0", "x")


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, None])
def test_a_course_leaves_out_what_has_no_place_on_an_axis(value: float | None) -> None:
    rungs = {0: [RungValue(0, 1, 9, 1.0, 1, 0.0), RungValue(0, 2, 19, value, 1, 0.0)]}
    drawing = pictures.courses(TRIALS, rungs, StudySpec("s", "net", (KIND,), (LOSS,)))
    assert points(drawing, "trial 0") == [(10.0, 1.0)]
    assert chart(drawing.curves, width=60, height=9, x_axis=drawing.x_axis, y_axis=drawing.y_axis)


def heights(drawing: pictures.Drawing) -> list[tuple[float, float]]:
    """How far each dot reaches below and above its value."""
    return [
        (each.first - each.low, each.high - each.first)
        for curve in drawing.curves
        if curve.label != "best so far"
        for each in curve.bins
        if each.first is not None and each.low is not None and each.high is not None
    ]


def test_pruned_and_complete_dots_are_equally_high() -> None:
    drawing = pictures.values_by_trial(TRIALS, RUNGS, LOSS, 0.2)
    assert drawing.y_axis.kind == "linear"
    assert [pytest.approx((0.05, 0.05))] * 3 == heights(drawing)


def test_dots_are_equally_high_on_a_logarithmic_axis() -> None:
    trials = [trial(0, 0.01), trial(1, 1.0), trial(2, 100.0)]
    drawing = pictures.values_by_trial(trials, {}, LOSS, 0.5)
    assert drawing.y_axis.kind == "log"
    found = [(each.low, each.high) for curve in drawing.curves if curve.label == "complete" for each in curve.bins]
    assert found == [pytest.approx((value / 10, value * 10)) for value in (0.01, 1.0, 100.0)]


def test_pruned_values_have_a_say_in_the_axis() -> None:
    trials = [trial(0, 0.01), trial(1, 10.0), trial(2, state=TrialState.PRUNED, params={"kind": "a"})]
    rungs = {2: [RungValue(2, 1, 9, -1.0, 1, 0.0)]}
    assert pictures.values_by_trial(trials, rungs, LOSS).y_axis.kind == "linear"
    assert pictures.over_parameter(trials, rungs, KIND, LOSS).y_axis.kind == "linear"


@pytest.mark.parametrize("values", [(1e-320, 1e308), (-1.7e308, 1.7e308), (1.0, 1.0)])
def test_dots_can_be_drawn_at_the_ends_of_what_floats_hold(values: tuple[float, float]) -> None:
    drawing = pictures.values_by_trial([trial(place, value) for place, value in enumerate(values)], {}, LOSS, 0.2)
    assert chart(drawing.curves, width=60, height=9, x_axis=drawing.x_axis, y_axis=drawing.y_axis)


def test_a_dot_at_zero_does_not_reach_below_it() -> None:
    drawing = pictures.values_by_trial([trial(0, 0.0), trial(1, 0.5)], {}, LOSS, 0.2)
    assert [low for low, _ in heights(drawing)] == [0.0, pytest.approx(0.05)]
