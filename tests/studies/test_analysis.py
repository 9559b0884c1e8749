"""Findings and drawings of a study, against values worked out by hand."""

from __future__ import annotations

import math
import random

from msgspec.structs import replace

from gputui.metrics.draw.chart import draw_chart
from gputui.metrics.draw.parts import Chart
from gputui.store.studies import OUTSIDE, RungValue, TrialRecord, TrialState
from gputui.studies import pictures
from gputui.studies.analysis import best_so_far, best_trial, complete_trials, rank_trials, split_by_objective
from gputui.studies.importances import MIN_TRIALS, evaluate_importances
from gputui.studies.spec import Dimension, Objective, StudySpec
from tests.studies.conftest import trial

LOSS = Objective("loss")
ACCURACY = Objective("accuracy", "maximize")
OTHER = Dimension("other", "choice", choices=("a", "b", "c"))
SPACE = (Dimension("lr", "float", 0.0, 1.0), Dimension("width", "float", 0.0, 1.0), OTHER)
SPEC = StudySpec("s", "net", SPACE, (LOSS, ACCURACY))
RUNGS = {1: [RungValue(1, 1, 9, value=0.9, attempt=1, at=0.0), RungValue(1, 2, 19, value=0.8, attempt=1, at=0.0)]}


PRUNED = TrialState.PRUNED
RUNNING = TrialState.RUNNING


def planted(count: int, seed: int = 3) -> list[TrialRecord]:
    """The loss is least in the middle of ``width``, the accuracy rises with ``lr``; ``other`` changes nothing."""
    draw = random.Random(seed)
    trials = []
    for number in range(count):
        lr = draw.random()
        width = draw.random()
        letter = draw.choice("abc")
        loss = 6 * abs(width - 0.5) + 0.01 * draw.random()
        params = {"lr": lr, "width": width, "other": letter}
        trials.append(trial(number, loss, lr + 0.01 * draw.random(), params=params))
    return trials


TRIALS = [
    trial(0, 0.5, params={"other": "a"}), trial(1, state=PRUNED, params={"other": "b"}),
    trial(2, 0.3, params={"other": "c"}), trial(3, state=RUNNING, params={"other": "a"}),
]  # fmt: skip


def points(drawing: Chart, label: str) -> list[tuple[float, float | None]]:
    return [(bucket.first_x, bucket.first) for curve in drawing.curves if curve.label == label for bucket in curve.bins]


def test_only_complete_trials_with_a_number_that_keep_the_constraints_count() -> None:
    diverged = trial(2, math.nan)
    withheld = trial(3)
    too_large = trial(4, 0.1, constraints=(5.0,))
    feasible = trial(5, 0.4, constraints=(-1.0, 0.0))
    trials = [trial(0, 0.5), trial(1, 0.1, state=PRUNED), diverged, withheld, too_large, feasible]
    assert complete_trials(trials) == [trial(0, 0.5), feasible]


def test_the_best_is_by_the_direction_and_the_earlier_of_equals() -> None:
    trials = [trial(0, 0.5), trial(1, 0.2), trial(2, 0.9), trial(3, 0.2)]
    assert (best_trial(trials, [LOSS]), best_trial(trials, [ACCURACY])) == (trials[1], trials[2])
    assert best_trial([trial(0, state=TrialState.FAILED)], [LOSS]) is None


def test_the_best_so_far_counts_every_trial_that_is_over() -> None:
    trials = [trial(0, 0.9, state=PRUNED), trial(1, 0.5), trial(2, 0.7), trial(3, 0.2), trial(4, state=RUNNING)]
    assert best_so_far(trials, LOSS) == [(2, 0.5), (3, 0.5), (4, 0.2)]


def test_the_front_holds_what_nothing_beats_in_every_objective() -> None:
    objectives = (LOSS, ACCURACY)
    trials = [trial(0, 0.5, 0.9), trial(1, 0.2, 0.5), trial(2, 0.6, 0.8), trial(3, 0.2, 0.5), trial(4, 0.1, 0.1)]
    assert [trial.number for trial in rank_trials(trials, objectives, most=1)] == [4, 1, 3, 0]
    assert best_trial(trials, objectives) is None
    (_, losses), (_, accuracies) = split_by_objective(trials, objectives)
    assert [trial.values for trial in losses] == [(trial.values[0],) for trial in trials]
    assert best_trial(accuracies, objectives[1:]) == accuracies[0]


def test_what_mattered_is_found_for_each_objective() -> None:
    importances = evaluate_importances(planted(120), SPEC)
    for metric, most in (("loss", "width"), ("accuracy", "lr")):
        shares = {importance.name: importance.share for importance in importances if importance.objective == metric}
        assert next(iter(shares)) == most
        assert math.isclose(sum(shares.values()), 1.0)
    assert evaluate_importances(planted(MIN_TRIALS - 1), SPEC) == []
    strange = replace(planted(1)[0], origin=OUTSIDE, params={"lr": 7.0, "width": "big", "other": "z"})
    assert evaluate_importances([*planted(120), strange], SPEC) == importances
    lacking = [
        replace(
            trial, params={name: value for name, value in trial.params.items() if name != "width" or trial.number % 2}
        )
        for trial in planted(60)
    ]
    assert {importance.name for importance in evaluate_importances(lacking, SPEC)} == {"lr", "width", "other"}


# --- drawings ---------------------------------------------------------------------------------------------------------


def test_a_pruned_trial_stands_at_the_value_of_its_last_rung() -> None:
    drawing = pictures.draw_values(TRIALS, RUNGS, LOSS)
    assert points(drawing, "pruned") == [(2.0, 0.8)]
    assert points(drawing, "done") == [(1.0, 0.5), (3.0, 0.3)]
    assert points(drawing, "best so far") == [(1.0, 0.5), (2.0, 0.5), (3.0, 0.3)]
    over = pictures.draw_over_parameter(TRIALS, RUNGS, OTHER, LOSS)
    assert points(over, "") == [(1.0, 0.8), (0.0, 0.5), (2.0, 0.3)]
    assert over.x_axis.names == ("a", "b", "c")


def test_a_course_leaves_out_what_has_no_place_on_an_axis() -> None:
    for value in (math.inf, -math.inf, math.nan, None):
        rungs = {
            0: [RungValue(0, 1, 9, value=1.0, attempt=1, at=0.0), RungValue(0, 2, 19, value=value, attempt=1, at=0.0)]
        }
        drawing = pictures.draw_curves(TRIALS, rungs, StudySpec("s", "net", (OTHER,), (LOSS,)))
        assert points(drawing, "trial 0") == [(10.0, 1.0)]
        assert draw_chart(drawing, 60, 9)
