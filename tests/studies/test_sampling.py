"""Optuna's view of a study: rebuilt from the store at any moment, with nothing lost and nothing told twice."""

from __future__ import annotations

import importlib.metadata
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gputui.store.studies import RungValue, TrialRecord, TrialState
from gputui.studies import sampling
from gputui.studies.sampling import OptunaMirror, install_command, missing_library
from gputui.studies.spec import Constraints, Dimension, Objective, PrunerSpec, SamplerSpec, StudySpec

pytest.importorskip("optuna")

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


@pytest.mark.parametrize("kind", ["random", "tpe", "nsga2"])
def test_a_process_that_dies_each_time_asks_for_the_same_points(kind: str) -> None:
    several = (Objective("loss"), Objective("lr", "maximize"))
    spec = study(kind, objectives=several if kind == "nsga2" else (Objective("loss"),))
    one, other = Story(spec, dies=False).run(15), Story(spec, dies=True).run(15)
    assert one == other
    assert len({json.dumps(point, sort_keys=True) for point in one}) > 10


@pytest.mark.parametrize("kind", ["qmc", "cmaes", "gp"])
def test_other_samplers_go_on_after_a_death_with_new_points(kind: str) -> None:
    if missing_library(study(kind)) is not None:
        pytest.skip("its library is not installed")
    points = Story(study(kind), dies=True).run(12)
    assert len({json.dumps(point, sort_keys=True) for point in points}) >= 11


def test_another_seed_gives_other_points() -> None:
    assert Story(study(), dies=False).run(3) != Story(study(seed=1), dies=False).run(3)


def test_nothing_that_is_kept_is_a_pickle() -> None:
    story = Story(study("cmaes"), dies=False)
    story.run(12)
    assert not [key for one in story.trials for key in one.sampler if key.startswith("cma:")]


def test_trials_that_run_report_and_end_after_a_death_as_before() -> None:
    spec = study(pruner=PrunerSpec("median", length=10, rungs=10, startup=2))
    trials = [
        record(0, {"lr": 0.01, "width": 16, "act": "relu"}, TrialState.COMPLETE, values=(0.1,)),
        record(1, {"lr": 0.01, "width": 16, "act": None}, TrialState.COMPLETE, values=(0.2,)),
        record(2, {"lr": 0.1, "width": 64, "act": "relu"}, TrialState.RUNNING),
    ]
    rungs = [RungValue(0, 1, 1, 0.1, 1, 0.0), RungValue(1, 1, 1, 0.2, 1, 0.0), RungValue(2, 1, 1, 0.9, 1, 0.0)]
    mirror = OptunaMirror(spec, "s-1", {})
    mirror.sync(trials, rungs)
    assert mirror.should_prune(2)
    good = OptunaMirror(spec, "s-1", {})
    good.sync(trials, rungs[:2])
    good.report(2, 1, 0.05)
    assert not good.should_prune(2)
    good.sync([*trials[:2], record(2, trials[2].params, TrialState.PRUNED)], rungs)
    good.sync([*trials[:2], record(2, trials[2].params, TrialState.PRUNED)], rungs)
    states = [one.state.name for one in good.study.get_trials(deepcopy=False)]
    assert states == ["COMPLETE", "COMPLETE", "PRUNED"]


def test_hyperbands_brackets_stay_the_same_after_a_death() -> None:
    spec = study("random", PrunerSpec("hyperband", length=27, rungs=27))
    trials = [record(n, {"lr": 0.01, "width": 16, "act": None}, TrialState.RUNNING) for n in range(30)]
    rungs = [RungValue(n, r, r, float(n), 1, 0.0) for n in range(30) for r in (1, 3)]
    found: list[list[bool]] = []
    for _ in range(2):
        mirror = OptunaMirror(spec, "s-1", {})
        mirror.sync(trials, rungs)
        found.append([])
        for number in range(30):
            mirror.report(number, 9, float(number))
            found[-1].append(mirror.should_prune(number))
    assert found[0] == found[1] and any(found[0]) and not all(found[0])


@pytest.mark.parametrize("kind", ["halving", "hyperband", "median"])
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


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, 'pip install "gputui[tune]"'),
        ({"url": "https://example.org/gputui.whl", "archive_info": {}}, 'pip install "gputui[tune]"'),
        ({"url": "file:///home/me/my%20code/gputui", "dir_info": {"editable": True}},
         "pip install -e '/home/me/my code/gputui[tune]'"),
        ({"url": "file:///src/gputui", "dir_info": {}}, 'pip install "gputui[tune]"'),
    ],
)  # fmt: skip
def test_a_checkout_is_installed_from_its_folder(
    origin: dict[str, Any] | None, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if origin is not None:
        (tmp_path / "direct_url.json").write_text(json.dumps(origin))
    found = importlib.metadata.PathDistribution(tmp_path)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: found)
    assert install_command() == command


def test_cma_es_does_not_load_what_it_does_not_use() -> None:
    pytest.importorskip("cmaes")
    code = (
        "import sys; from gputui.studies.sampling import OptunaMirror; from gputui.studies.spec import *\n"
        "space = tuple(Dimension(name, 'float', 0.0, 1.0) for name in 'ab')\n"
        "spec = StudySpec('s', 'net', space, (Objective('loss'),), SamplerSpec('cmaes', 1))\n"
        "mirror = OptunaMirror(spec, 's-1', {})\n"
        "for _ in range(3):\n"
        "    mirror.ask(); mirror.study.tell(mirror.size - 1, 0.5)\n"
        "assert 'cmaes' in sys.modules and 'scipy.stats' not in sys.modules\n"
        "import scipy.stats\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
