"""Each gate passes, fails, and is skipped where there is nothing to judge."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from gputui.reports.summary.facts import EpochLoss, RateCheck, RunFacts, Validation, spread
from gputui.reports.summary.gates import judge
from tests.reports.summary.making import facts, learned, used

NAN = math.nan


def epochs(*losses: float) -> RunFacts:
    return learned(epochs=tuple(EpochLoss(number, loss, 5) for number, loss in enumerate(losses)))


def norms(*values: float, bad: int = 0, scaled: bool = False) -> RunFacts:
    found = spread((value, 1) for value in values)
    return learned(gradient_norm=found, gradients_not_finite=bad, scales_loss=scaled)


def rate(percent: float) -> RunFacts:
    return learned(rate=RateCheck(percent, 7))


def gap(held_out: float, train: float) -> RunFacts:
    return learned(validation=Validation(9, held_out, train))


def test_gate() -> None:
    for gate, run, efficiency, outcome, figure in [
        ("loss_rise", epochs(2.0, 1.0, 1.005), None, "pass", 0.5),
        ("loss_rise", epochs(2.0, 1.0, 1.02), None, "fail", 2.0),
        ("loss_rise", epochs(2.0, 1.0), None, "pass", -50.0),
        ("loss_rise", epochs(-1.0, -0.5), None, "fail", 50.0),
        ("loss_rise", epochs(2.0, NAN), None, "fail", math.inf),
        ("loss_rise", epochs(2.0), None, "skip", None),
        # A converged model's loss doubles by noise: next to the loss it began with, that is nothing.
        ("loss_rise", epochs(2.0, 6e-4, 1.4e-3), None, "pass", 0.4),
        ("gradients", norms(1.0, 1.0, 9.0), None, "pass", 9.0),
        ("gradients", norms(1.0, 1.0, 11.0), None, "fail", 11.0),
        ("gradients", norms(1.0, bad=1), None, "fail", math.inf),
        ("gradients", norms(1.0, bad=1, scaled=True), None, "pass", 1.0),
        ("gradients", facts(), None, "skip", None),
        ("learning_rate", rate(0.9), None, "pass", 0.9),
        ("learning_rate", rate(1.1), None, "fail", 1.1),
        ("learning_rate", facts(), None, "skip", None),
        ("validation_gap", gap(1.1, 1.0), None, "pass", 10.0),
        ("validation_gap", gap(0.8, 1.0), None, "pass", -20.0),
        ("validation_gap", gap(1.3, 1.0), None, "fail", 30.0),
        ("validation_gap", gap(NAN, 1.0), None, "fail", math.inf),
        ("validation_gap", facts(), None, "skip", None),
        ("gpu_utilization", used(80.0, 94.0), None, "pass", 87.0),
        ("gpu_utilization", used(80.0, 84.0), None, "fail", 82.0),
        ("gpu_utilization", facts(), None, "skip", None),
        ("parallel_efficiency", facts(), 0.85, "pass", 85.0),
        ("parallel_efficiency", facts(), 0.75, "fail", 75.0),
        ("parallel_efficiency", facts(), None, "skip", None),
    ]:
        [verdict] = [one for one in judge(run, efficiency, {}) if one.gate == gate]
        assert verdict.outcome == outcome and verdict.text, (gate, run, efficiency, outcome, figure)
        assert verdict.figure == (None if figure is None else pytest.approx(figure)), gate
        assert {one.outcome for one in judge(run, efficiency, {}) if one.gate != gate} == {"skip"}, gate


def test_the_validation_gap_names_what_it_is_a_share_of() -> None:
    for first_loss, base in ((2.0, "1"), (55.0, "5.5")):
        run = replace(
            gap(1.3, 1.0), measured=replace(gap(1.3, 1.0).measured, epochs=epochs(first_loss).measured.epochs)
        )
        assert f" {base}, " in next(one.text for one in judge(run, None, {}) if one.gate == "validation_gap")


def test_a_profile_has_thresholds_of_its_own_and_the_option_wins() -> None:
    run = replace(used(80.0), thresholds={"gpu_utilization": 75.0})
    assert {one.gate: one.outcome for one in judge(run, None, {})}["gpu_utilization"] == "pass"
    assert {one.gate: one.outcome for one in judge(run, None, {"gpu_utilization": 81.0})}["gpu_utilization"] == "fail"
