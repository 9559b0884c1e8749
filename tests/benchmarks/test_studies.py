"""What studies are measured by: planted trainings whose best is known, and each part once, as short as it goes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import figures
from benchmarks.studies import moving, planted, simulated
from benchmarks.studies.__main__ import render
from benchmarks.studies.parts import PARTS, Size, measure
from benchmarks.studies.rows import FIGURES
from gputui.store.studies import TrialState

SMALL = Size(
    trial_seconds=1.0, seeds=3, studies=2, live_steps=80, kills=4, drill_trials=4, drill_steps=40, asked_trials=12,
    samplers=("tpe", "nsga2"),
)  # fmt: skip


def test_the_planted_space_has_its_best_where_it_says() -> None:
    assert planted.final_loss(0.005, 0.15, 256) == planted.BEST
    assert planted.course(0.005, 0.15, 256)[-1] == pytest.approx(planted.BEST, abs=1e-2)
    assert planted.course(0.001, 0.15, 256)[0] > planted.course(0.05, 0.15, 256)[0]
    assert planted.course(0.001, 0.15, 256)[-1] < planted.course(0.05, 0.15, 256)[-1]


def test_no_fixed_rate_is_good_on_a_moving_optimum() -> None:
    fixed = min(moving.trained(10**-power, 0, 400, 400) for power in (1.0, 1.5, 2.0, 2.5, 3.0))
    loss = moving.FIRST
    for step in range(400):
        loss = moving.next_loss(loss, moving.best_lr(step, 400), step, 400)
    assert loss < fixed / 2


def test_simulated_studies_follow_from_their_seed() -> None:
    pytest.importorskip("optuna")
    first, again = (simulated.planted_study("hyperband", 3) for _ in range(2))
    assert [one.params for one in first.trials] == [one.params for one in again.trials]
    assert len(first.trials) == 32 and {one.state for one in first.trials} == {TrialState.COMPLETE, TrialState.PRUNED}
    assert first.used_share < 1 == simulated.planted_study("none", 3).used_share
    assert simulated.moving_population(1) == simulated.moving_population(1)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", PARTS)
def test_each_part_measures(part: str) -> None:
    pytest.importorskip("optuna")
    found = measure([part], SMALL)
    assert figures.said(found, "failed") == []
    shown = [figure for figure in figures.asked_for(FIGURES, found) if figure.value(found) is not None]
    if not figures.said(found, "why_not"):
        assert {figure.benchmark for figure in shown} == {part}
    assert all(figure.text in render(found) for figure in shown)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_lineage_of_real_processes_replays_exactly() -> None:
    live = measure(["population"], replace(SMALL, live_paced=True))["population"]["live"]
    assert live["exploits"] > 0
    assert live["segments_with_exact_lr"] == live["segments"] > live["members"] == live["lineages_replayed"] == 8
