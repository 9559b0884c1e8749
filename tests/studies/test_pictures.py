"""A study's drawings: which points they have and where."""

from __future__ import annotations

from gputui.charts.chart import chart
from gputui.charts.export import svg_text
from gputui.charts.picture import picture
from gputui.store.studies import RungValue, TrialState
from gputui.studies import pictures
from gputui.studies.spec import Dimension, Objective
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
    drawing = pictures.over_trials(TRIALS, RUNGS, LOSS)
    assert points(drawing, "pruned") == [(2.0, 0.8)]
    assert points(drawing, "complete") == [(1.0, 0.5), (3.0, 0.3)]
    assert points(drawing, "best") == [(1.0, 0.5), (2.0, 0.5), (3.0, 0.3)]


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
