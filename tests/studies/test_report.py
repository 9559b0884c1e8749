"""A study's report: its values, and a command that is the winner's."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from gputui.store.studies import StudyRecord, StudyState, TrialState
from gputui.studies.report import markdown, saved_share, winner_command
from gputui.studies.spec import Dimension, Objective, PrunerSpec, StudySpec
from tests.studies.test_analysis import trial

SPEC = StudySpec(
    name="lr", profile="net",
    space=(Dimension("lr", "float", 0.001, 1.0), Dimension("kind", "choice", choices=("a b",))),
    objectives=(Objective("loss"),), pruner=PrunerSpec("median", length=100.0, rungs=10), params={"steps": 50},
)  # fmt: skip
STUDY = StudyRecord("lr-1", 1, "lr", "net", StudyState.FINISHED, "its 4 trials are done", "{}", "", 0.0, 7200.0)
TRIALS = [
    trial(0, 0.5, params={"lr": 0.1, "kind": "a b"}),
    trial(1, 0.25, params={"lr": 0.012345678, "kind": "a b"}),
    trial(2, state=TrialState.FAILED, params={"lr": 0.9, "kind": "a b"}),
]


def test_the_command_sets_the_winners_point_and_the_studys_own_values() -> None:
    words = shlex.split(winner_command(SPEC, TRIALS[1]))
    assert words == ["gputui", "run", "net", "--set", "steps=50", "--set", "lr=0.0123457", "--set", "kind=a b"]
    assert winner_command(SPEC, TRIALS[1]) in markdown(STUDY, SPEC, TRIALS, gpu_hours=1.5, now=9000.0)


def test_rows_are_those_of_the_trials_best_first() -> None:
    lines = markdown(STUDY, SPEC, TRIALS, gpu_hours=1.5, now=9000.0).splitlines()
    best = [line.split("|")[1].strip() for line in lines[lines.index("## Best trials") :] if line.startswith("| ")]
    assert best[:4] == ["trial", "---", "1", "0"]
    rest = [line.split("|")[1].strip() for line in lines[lines.index("## Not complete") :] if line.startswith("| ")]
    assert rest == ["trial", "---", "2"]


def test_what_pruning_saved_is_the_share_of_rungs() -> None:
    pruned = replace(trial(3, state=TrialState.PRUNED), rung=2)
    assert saved_share(SPEC, [*TRIALS, pruned]) == pytest.approx(0.8 / 3)
    assert saved_share(SPEC, TRIALS) is None


def test_without_a_complete_trial_there_is_no_winner() -> None:
    text = markdown(STUDY, SPEC, TRIALS[2:], gpu_hours=0.0, now=9000.0)
    assert "gputui run" not in text and "## Best trials" not in text
