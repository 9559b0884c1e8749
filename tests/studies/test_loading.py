"""The study's file: every mistake at once with its place, and what a valid one becomes."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from gputui.core.config import Workspace
from gputui.core.yaml_forms.problems import ProfileError
from gputui.profiles.loading import load
from gputui.profiles.params import ParameterError
from gputui.profiles.targets import find_target
from gputui.studies.launch import impossible_budget
from gputui.studies.loading import StudyFile, grid_source, read_study
from gputui.studies.spec import Budget, Dimension, StudySpec
from tests.tables import table

PROFILE = """
name: net
launcher: python
script: net.py
gpus: 0
params:
  lr: 0.1
  batch_size: 16
  steps: {default: 100, min: 1}
  width: {default: 64, multiple_of: 8}
  optimizer: {default: adam, choices: [adam, sgd]}
  seed: 0
"""

LR = "lr: {type: float, min: 1e-4, max: 1e-1, log: true}"
STUDY = f"""
profile: ./net.yaml
space:
  {LR}
objective: {{metric: loss}}
budget: {{trials: 4}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text("")
    (tmp_path / "net.yaml").write_text(PROFILE)
    return tmp_path


def read(text: str, folder: Path, workspace: Workspace) -> StudyFile:
    return read_study(text, folder / "study.yaml", workspace, folder)


def problems(text: str, folder: Path, workspace: Workspace) -> list[tuple[int | None, str]]:
    with pytest.raises(ProfileError) as caught:
        read(text, folder, workspace)
    return [(one.line, one.key) for one in caught.value.problems]


def test_a_study_keeps_what_its_file_says_through_the_store(folder: Path, workspace: Workspace) -> None:
    text = """
name: best-net
profile: ./net.yaml
params: {steps: 270}
space:
  lr: {type: float, min: 1e-4, max: 1e-1, log: true}
  batch_size: [8, 16]
objective:
  - {metric: val/loss, over: mean of 5}
  - {metric: seconds, direction: maximize, over: last}
sampler: nsga2
constraints: {memory: 20GiB, step_time: 0.5}
budget: {trials: 40, wall: 10h}
parallel: 2
"""
    spec = read(text, folder, workspace).spec
    assert msgspec.convert(json.loads(json.dumps(spec.to_json())), StudySpec) == spec
    assert [one.over for one in spec.objectives] == ["mean of 5", "last"] and spec.objectives[0].mean_of == 5
    assert spec.budget.wall_seconds == 36000 and spec.constraints.memory_bytes == 20 * 2**30
    assert spec.tuned == ("lr", "batch_size") and spec.priority < 0


def test_every_mistake_of_the_form_is_named_with_its_line(folder: Path, workspace: Workspace) -> None:
    text = """profile: ./nt.yaml
space:
  lr: {type: float, min: 1}
  width: {type: choice}
  steps: {type: int, min: 1.5, max: 3}
objective: {metrc: loss}
sampler: tpee
budget: {wall: soon}
"""
    assert set(problems(text, folder, workspace)) == {
        (1, "profile"), (3, "space.lr"), (4, "space.width"), (5, "space.steps"), (6, "objective"),
        (6, "objective.metrc"), (7, "sampler"), (8, "budget.wall"),
    }  # fmt: skip


@table(
    ("text", "key"),
    [
        (STUDY.replace("lr:", "lrr:"), "space.lrr"),
        (STUDY + "params: {lr: 0.2}\n", "params.lr"),
        (STUDY + "params: {steps: 0}\n", "params.steps"),
        (STUDY.replace("lr: {type: float", "steps: {type: float"), "space.steps.type"),
        (STUDY.replace(LR, "optimizer: [adam, lamb]"), "space.optimizer"),
        (STUDY.replace(LR, "width: {type: int, min: 8, max: 64}"), "space.width"),
        (STUDY + "sampler: grid\n", "space.lr"),
        (STUDY + "sampler: cmaes\n", "sampler"),
        (STUDY + "sampler: nsga2\n", "sampler"),
        (STUDY.replace("{trials: 4}", "{gpu_hours: 4}"), "budget.gpu_hours"),
        (STUDY.replace("budget: {trials: 4}", ""), ""),
        (STUDY + "stop_after: 0\n", "stop_after"),
        (STUDY + "pruner: hyperband\n", "pruner"),
        (STUDY + "pruner: {kind: median, length: lr}\n", "pruner.length"),
        (STUDY + "gpus_per_trial: 1\ntrials_per_gpu: 0\n", "trials_per_gpu"),
        (STUDY + "gpus_per_trial: 2\ntrials_per_gpu: 2\n", "trials_per_gpu"),
        (STUDY + "trials_per_gpu: 2\n", "trials_per_gpu"),
        (STUDY + "priority: 5\n", "priority"),
        (STUDY + "rerun: -1\n", "rerun"),
        (STUDY.replace("objective: {metric: loss}", "objective: loss"), "objective"),
        (STUDY.replace("{metric: loss}", "[{metric: loss}, {metric: loss}]"), "objective.1.metric"),
        (STUDY.replace(LR, "seed: {type: int, min: 0, max: 9999999}") + "sampler: grid\n", "sampler"),
        (STUDY.replace(LR, "seed: [1, 2]").replace("budget: {trials: 4}", "sampler: random"), ""),
        (STUDY + "pbt: {members: 4, every: 10, length: 10}\n", "pbt.every pbt"),
        (STUDY + "pbt: {members: 4, every: 10, length: lr}\n", "pbt.length pbt"),
        (STUDY + "pbt: {members: 4, every: 10, length: stepz}\n", "pbt.length pbt"),
        (STUDY + "sampler: tpe\npbt: {members: 4, every: 10}\n", "sampler pbt"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_where_it_stands(
    text: str, key: str, folder: Path, workspace: Workspace
) -> None:
    # The profile of a population without checkpoints is a mistake of its own.
    assert {found for _, found in problems(text, folder, workspace)} == set(key.split(" "))


@table("text, keys", [
    ("target: lab\nparallel: 2\n", ""), ("target: gone\nparallel: 2\n", "target"), ("target: lab\n", "target"),
    ("target: lab\nparallel: 2\nbudget: {gpu_hours: 4}\n", "budget.gpu_hours"),
    ("target: lab\nparallel: 2\npbt: {members: 4, every: 10}\n", "pbt"),
    ("target: far\nparallel: 2\ngpus_per_trial: 1\ntrials_per_gpu: 2\n", "trials_per_gpu"),
])  # fmt: skip
def test_a_study_on_a_target_has_what_a_target_can_keep(
    text: str, keys: str, folder: Path, workspace: Workspace
) -> None:
    workspace.targets.write_text("lab: {kind: slurm}\nfar: {kind: ssh, host: k}\n")
    text = (STUDY.partition("budget")[0] if "budget" in text else STUDY) + text
    if keys:
        assert {found for _, found in problems(text, folder, workspace)} == {keys}
    else:
        assert read(text, folder, workspace).spec.target == find_target("lab", {}, workspace)


def test_what_the_profiles_own_ladders_change_cannot_be_tuned(folder: Path, workspace: Workspace) -> None:
    assert read(STUDY, folder, workspace)
    own = "recovery: {ladders: {nan_loss: [{lower_lr: 10}]}}\n"
    (folder / "net.yaml").write_text(PROFILE + own)
    assert problems(STUDY, folder, workspace) == [(4, "space.lr")]
    assert read(STUDY.replace(LR, "batch_size: [8]"), folder, workspace)


def test_what_the_profiles_phases_change_cannot_be_tuned(folder: Path, workspace: Workspace) -> None:
    phases = 'checkpoints: {pattern: "*.pt", resume: "--resume {checkpoint}"}\nphases: [{params: {lr: 0.2}}]\n'
    (folder / "net.yaml").write_text(PROFILE + phases)
    assert problems(STUDY, folder, workspace) == [(4, "space.lr")]


CONDITIONS = """
profile: ./net.yaml
space:
  optimizer: [adam, sgd]
  lr: {type: choice, values: [0.1, 0.2], when: {optimizer: sgd}}
  width: {type: int, min: 8, max: 16, step: 8, when: {optimizer: [sgd, adam], lr: 0.2}}
objective: {metric: loss}
sampler: grid
"""


def test_a_point_has_only_the_parameters_that_apply_to_it(folder: Path, workspace: Workspace) -> None:
    spec = read(CONDITIONS, folder, workspace).spec
    assert spec.grid() == [
        {"optimizer": "adam"}, {"optimizer": "sgd", "lr": 0.1},
        {"optimizer": "sgd", "lr": 0.2, "width": 8}, {"optimizer": "sgd", "lr": 0.2, "width": 16},
    ]  # fmt: skip
    assert msgspec.convert(json.loads(json.dumps(spec.to_json())), StudySpec) == spec


@table(("condition", "place"), [
    ("optimizer: lamb", "optimizer"), ("optimizer: [sgd, 1]", "optimizer"), ("width: 8", "width"), ("lr: 0.1", "lr"),
    ("gone: 1", "gone"),
])  # fmt: skip
def test_a_condition_names_values_of_parameters_above_it(
    condition: str, place: str, folder: Path, workspace: Workspace
) -> None:
    text = CONDITIONS.replace("when: {optimizer: sgd}", f"when: {{{condition}}}")
    assert problems(text, folder, workspace) == [(5, f"space.lr.when.{place}")]


def test_a_typed_grid_is_a_study_whose_values_are_those_of_the_parameters(folder: Path, workspace: Workspace) -> None:
    profile = load(folder / "net.yaml")
    values = {"lr": ["0.1", "5e-2"], "batch_size": ["8", "16"]}
    source = grid_source(profile, values, {"objective": {"metric": "loss"}, "parallel": None})
    spec = read(source, folder, workspace).spec
    assert spec.grid() == [
        {"lr": 0.1, "batch_size": 8}, {"lr": 0.1, "batch_size": 16},
        {"lr": 0.05, "batch_size": 8}, {"lr": 0.05, "batch_size": 16},
    ]  # fmt: skip
    with pytest.raises(ParameterError) as caught:
        grid_source(profile, {"lrr": ["1"], "batch_size": ["x"]}, {})
    assert len(caught.value.problems) == 2


def test_a_grid_ends_where_its_steps_do() -> None:
    assert Dimension("x", "float", 0.0, 0.3, step=0.1).grid() == (0.0, 0.1, 0.2, 0.3)
    assert Dimension("x", "int", 1, 6, step=2).grid() == (1, 3, 5)
    assert Dimension("x", "int", 1, 3).grid() == (1, 2, 3)
    assert Dimension("x", "float", 0.0, 1.0).grid() is None


def test_a_budget_into_which_no_run_fits_is_refused() -> None:
    spec = StudySpec("s", "net", (), (), gpus_per_trial=2, budget=Budget(gpu_hours=1.0, wall_seconds=3600.0))
    assert impossible_budget(spec, None) == impossible_budget(spec, 1800.0) == []
    assert [one.partition(":")[0] for one in impossible_budget(spec, 1801.0)] == ["budget.gpu_hours"]
    assert [one.partition(":")[0] for one in impossible_budget(spec, 3601.0)] == ["budget.wall", "budget.gpu_hours"]
