"""Optuna's view of a study: rebuilt from the store at any moment, with nothing lost and nothing told twice."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from gputui.store.studies import RungValue, TrialRecord, TrialState
from gputui.studies import sampling
from gputui.studies.sampling import OptunaMirror, missing_library
from gputui.studies.spec import Constraints, Dimension, Objective, PrunerSpec, SamplerSpec, StudySpec
from tests.tables import table

SPACE = (
    Dimension("lr", "float", 1e-4, 1e-1, log=True),
    Dimension("width", "int", 16, 64, step=16),
    Dimension("act", "choice", choices=("relu", "gelu", None)),
)


def study(sampler: Any = "tpe", pruner: PrunerSpec | None = None, **changes: Any) -> StudySpec:
    values: dict[str, Any] = {
        "name": "s", "profile": "net", "space": SPACE, "objectives": (Objective("loss"),),
        "sampler": SamplerSpec(sampler), "pruner": pruner or PrunerSpec(),
    }  # fmt: skip
    return StudySpec(**{**values, **changes})


def record(number: int, params: Any, state: TrialState, sampler: Any = None, **changes: Any) -> TrialRecord:
    values: dict[str, Any] = {
        "study_id": "s-1", "number": number, "run_id": None, "state": state, "origin": "sampled", "params": params,
        "rung": None, "values": (), "constraints": (), "reason": None, "parent": None, "generation": None, "starts": 1,
        "command_id": 1, "sampler": sampler or {}, "created_at": 0.0, "ended_at": None,
    }  # fmt: skip
    return TrialRecord(**{**values, **changes})


def score(params: Any) -> float:
    return abs(math.log10(params["lr"]) + 2) + params["width"] / 100


class Story:
    """A study that is run, with a process that dies before each ask where ``dies``."""

    def __init__(self, spec: StudySpec, *, dies: bool) -> None:
        self.spec, self.dies = spec, dies
        self.trials: list[TrialRecord] = []
        self.rungs: list[RungValue] = []
        self.remembered: dict[str, Any] = {}
        self.mirror = OptunaMirror(spec, "s-1", {})

    def run(self, count: int) -> list[Any]:
        for number in range(count):
            if self.dies:
                self.mirror = OptunaMirror(self.spec, "s-1", json.loads(json.dumps(self.remembered)))
            self.mirror.sync(self.trials, self.rungs)
            params, of_trial, self.remembered = self.mirror.ask()
            kept = json.loads(json.dumps(of_trial))
            values = (score(params),) if len(self.spec.objectives) == 1 else (score(params), params["lr"])
            broken = (params["lr"] - 0.05,) if self.spec.constraints.count else ()
            self.trials.append(record(number, params, TrialState.COMPLETE, kept, values=values, constraints=broken))
        return [one.params for one in self.trials]


@table("kind", ["random", "tpe", "nsga2"])
def test_a_process_that_dies_each_time_asks_for_the_same_points(kind: str) -> None:
    several = (Objective("loss"), Objective("lr", "maximize"))
    spec = study(kind, objectives=several if kind == "nsga2" else (Objective("loss"),))
    one, other = Story(spec, dies=False).run(15), Story(spec, dies=True).run(15)
    assert one == other
    assert len({json.dumps(point, sort_keys=True) for point in one}) > 10


@table("kind", ["qmc", "cmaes", "gp"])
def test_other_samplers_go_on_after_a_death_with_new_points(kind: str) -> None:
    points = Story(study(kind), dies=True).run(12)
    assert len({json.dumps(point, sort_keys=True) for point in points}) >= 11


@table("kind", ["halving", "hyperband", "median"])
def test_a_process_that_dies_each_time_cuts_the_same_trials_short(kind: Any) -> None:
    spec = study("random", PrunerSpec(kind, length=27, rungs=27, startup=2))
    point = {"lr": 0.01, "width": 16, "act": None}

    def story(*, dies: bool) -> list[tuple[int, int]]:
        """(trial, rung) of all that are cut short; they run one after another."""
        trials: list[TrialRecord] = []
        rungs: list[RungValue] = []
        cut: list[tuple[int, int]] = []
        mirror = OptunaMirror(spec, "s-1", {})
        for number in range(20):
            trials.append(record(number, point, TrialState.RUNNING))
            for rung in range(1, 27):
                if dies:
                    mirror = OptunaMirror(spec, "s-1", {})
                mirror.sync(trials, rungs)
                value = (number * 7 % 20) / 20 + 1 / rung
                mirror.report(number, rung, value)
                rungs.append(RungValue(number, rung, rung, value, 1, 0.0))
                if mirror.should_prune(number):
                    cut.append((number, rung))
                    break
            is_cut = bool(cut) and cut[-1][0] == number
            state = TrialState.PRUNED if is_cut else TrialState.COMPLETE
            trials[-1] = record(number, point, state, values=() if is_cut else (float(number),))
        return cut

    found = story(dies=True)
    assert found == story(dies=False) and 5 < len(found) < 20


@table(
    ("state", "values", "name"),
    [
        (TrialState.INFEASIBLE, (), "PRUNED"), (TrialState.INFEASIBLE, (0.5,), "COMPLETE"),
        (TrialState.FAILED, (), "FAIL"), (TrialState.STOPPED, (), "FAIL"), (TrialState.LAUNCHING, (), "RUNNING"),
        (TrialState.ENQUEUED, (), "RUNNING"), (TrialState.PRUNING, (), "RUNNING"),
    ],
)  # fmt: skip
def test_a_withheld_value_is_no_value_for_the_sampler(state: TrialState, values: tuple[float, ...], name: str) -> None:
    mirror = OptunaMirror(study(constraints=Constraints(step_seconds=1.0)), "s-1", {})
    point = {"lr": 0.01, "width": 16, "act": None}
    mirror.sync([record(0, point, state, values=values, constraints=(0.5,) if values else ())], [])
    (found,) = mirror.study.get_trials(deepcopy=False)
    assert found.state.name == name and found.values == (list(values) or None)
    assert list(found.constraints.values()) == ([0.5] if values else [])


def test_what_is_not_installed_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling.importlib.util, "find_spec", lambda name: None)
    assert "[tune]" in (missing_library(study()) or "")
    assert missing_library(study("grid")) is None
    monkeypatch.setattr(sampling.importlib.util, "find_spec", lambda name: name == "optuna" or None)
    assert "cmaes" in (missing_library(study("cmaes")) or "")
