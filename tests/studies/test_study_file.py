"""The study's file: every mistake at once with its place, and what a valid one becomes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gputui.core.config import Workspace, shipped_studies
from gputui.core.yaml_forms.file import parse_file
from gputui.core.yaml_forms.problems import ProfileError
from gputui.profiles.init.command_profile import command_profile
from gputui.profiles.params import Parameter, ParameterError
from gputui.profiles.profile_file import load
from gputui.profiles.targets import find_target
from gputui.store.studies import StudyRecord, StudyState
from gputui.studies.launch import impossible_budget
from gputui.studies.spec import Budget, Dimension, StudySpec, study_spec
from gputui.studies.study_file import grid_source, json_schema, load_study, read_study
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
LADDERS = "recovery: {ladders: {nan_loss: [{lower_lr: 10}]}}\n"
CHECKPOINTS = 'checkpoints: {pattern: "*.pt", resume: "--resume {checkpoint}"}\n'
PHASES = CHECKPOINTS + "phases: [{params: {lr: 0.2}}]\n"

LR = "lr: {type: float, min: 1e-4, max: 1e-1, log: true}"
LOSS = "objective: {metric: loss}\n"
TRIALS = "budget: {trials: 4}\n"
STUDY = f"profile: ./net.yaml\nspace:\n  {LR}\n{LOSS}{TRIALS}"
PBT = "pbt: {members: 4, every: 10"
CONDITIONS = """profile: ./net.yaml
space:
  optimizer: [adam, sgd]
  lr: {type: choice, values: [0.1, 0.2], when: {optimizer: sgd}}
  width: {type: int, min: 8, max: 16, step: 8, when: {optimizer: [sgd, adam], lr: 0.2}}
objective: {metric: loss}
sampler: grid
"""
FLOAT = "lr: {type: float, min:"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text("")
    (tmp_path / "net.yaml").write_text(PROFILE)
    return tmp_path


def read(text: str, folder: Path, workspace: Workspace) -> StudySpec:
    return read_study(text, folder / "study.yaml", workspace, folder).spec


def problems(text: str, folder: Path, workspace: Workspace) -> set[str]:
    with pytest.raises(ProfileError) as caught:
        read(text, folder, workspace)
    return {f"{problem.line} {problem.key}".strip() for problem in caught.value.problems}


def stored(spec: StudySpec) -> StudySpec:
    """The study as another process reads it."""
    text = json.dumps(spec.to_json())
    return study_spec(
        StudyRecord(
            "s-1",
            1,
            "s",
            profile="net",
            state=StudyState.RUNNING,
            reason=None,
            spec_json=text,
            source="",
            created_at=0.0,
            ended_at=None,
        )
    )


def acceptance(text: str, folder: Path, workspace: Workspace) -> tuple[bool, bool]:
    """Return whether the loader takes a study's file, and whether its JSON Schema does."""
    validator = pytest.importorskip("jsonschema").Draft202012Validator(json.loads(json.dumps(json_schema())))
    data = json.loads(json.dumps(parse_file(text, folder / "study.yaml").data))
    try:
        read(text, folder, workspace)
    except ProfileError:
        return False, validator.is_valid(data)
    return True, validator.is_valid(data)


def test_a_study_keeps_what_its_file_says_through_the_store(folder: Path, workspace: Workspace) -> None:
    text = """
name: best-net
description: all keys
profile: ./net.yaml
params: {steps: 270}
space:
  lr: {type: float, min: 1e-4, max: 1e-1, log: true}
  batch_size: [8, 16]
objective:
  - {metric: val/loss, over: mean of 5}
  - {metric: seconds, direction: maximize, over: last}
sampler: nsga2
pruner: off
constraints: {memory: 20GiB, step_time: 0.5}
budget: {trials: 40, wall: 10h}
parallel: 2
"""
    spec = read(text, folder, workspace)
    assert stored(spec) == spec
    assert [(objective.over, objective.mean_of) for objective in spec.objectives] == [("mean of 5", 5), ("last", None)]
    assert spec.budget.wall_seconds == 36000
    assert spec.constraints.memory_bytes == 20 * 2**30
    assert spec.tuned == ("lr", "batch_size")
    assert spec.priority < 0
    assert spec.rerun == 0
    pruned = read(STUDY + "pruner: {kind: median, length: steps}\nparams: {steps: 270}\n", folder, workspace)
    assert (pruned.pruner.length, pruned.rerun, pruned.name) == (270, 2, "study")


def test_every_mistake_is_named_with_its_line_also_where_the_profile_is_missing(
    folder: Path, workspace: Workspace
) -> None:
    text = """profile: ./nt.yaml
space:
  lr: {type: float, min: 1}
  width: {type: choice}
  steps: {type: int, min: 1.5, max: 3}
objective: {metrc: loss}
sampler: tpee
budget: {wall: soon}
pruner: {kind: median, length: steps}
"""
    assert problems(text, folder, workspace) == {
        "1 profile", "3 space.lr", "4 space.width", "5 space.steps", "6 objective", "6 objective.metrc", "7 sampler",
        "8 budget.wall",
    }  # fmt: skip


@table("text, where", [
    (STUDY.replace("lr:", "lrr:"), "3 space.lrr"),
    (STUDY.replace(LR, "lr: {type: float, min: 0.1, max: 1, name: x}"), "3 space.lr.name"),
    (STUDY.replace(LR, "lr: {type: float, min: 0.1, max: true}"), "3 space.lr.max"),
    (STUDY.replace(LR, "lr: [0.1, [0.2]]"), "3 space.lr"),
    (STUDY.replace(LR, "steps: {type: int, min: 1.0, max: 3}"), "3 space.steps"),
    (STUDY.replace(LR, "steps: {type: float, min: 1, max: 9}"), "3 space.steps.type"),
    (STUDY.replace(LR, "optimizer: [adam, lamb]"), "3 space.optimizer"),
    (STUDY.replace(LR, "width: {type: int, min: 8, max: 64}"), "3 space.width"),
    (STUDY.replace(LR, "seed: {type: int, min: 0, max: 9999999}") + "sampler: grid\n", "6 sampler"),
    (STUDY.replace(LOSS, "objective: loss\n"), "4 objective"), (STUDY.replace(LOSS, "objective: []\n"), "4 objective"),
    (STUDY.replace(LOSS, "objective: {metric: loss, over: mean of 0}\n"), "4 objective.over"),
    (STUDY.replace(LOSS, "objective: [{metric: loss}, {metric: loss}]\n"), "4 objective.1.metric"),
    (STUDY.replace(TRIALS, "budget: {gpu_hours: 4}\n"), "5 budget.gpu_hours"),
    (STUDY.replace("trials: 4", "trials: '4'") + "constraints: {memory: 1}\n", "5 budget.trials, 6 constraints.memory"),
    (STUDY.replace(TRIALS, ""), "1"),
    *((f"{STUDY}{line}\n", f"6 {where}") for line, where in [
        ("params: {lr: 0.2}", "params.lr"), ("params: {steps: 0}", "params.steps"), ("parallel: 1.0", "parallel"),
        ("sampler: cmaes", "sampler"), ("sampler: nsga2", "sampler"), ("sampler: {startup: 3}", "sampler"),
        ("sampler: {kind: tpe, startup: 0}", "sampler.startup"), ("stop_after: 0", "stop_after"),
        ("pruner: hyperband", "pruner"), ("pruner: {kind: median, length: lr}", "pruner.length"),
        ("pruner: {kind: median, length: stepz}", "pruner.length"), ("pruner: {kind: none, eta: 1}", "pruner.eta"),
        ("trials_per_gpu: 2", "trials_per_gpu"), ("priority: 5", "priority"), ("rerun: -1", "rerun"),
        ("params: {steps: []}", "params.steps"), ("target: {kind: slurm}", "target"), ("nme: x", "nme"),
    ]),
    (STUDY + "sampler: grid\n", "3 space.lr"),
    (STUDY + "gpus_per_trial: 2\ntrials_per_gpu: 2\n", "7 trials_per_gpu"),
])  # fmt: skip
def test_a_mistake_is_named_where_it_stands(text: str, where: str, folder: Path, workspace: Workspace) -> None:
    assert problems(text, folder, workspace) == set(where.split(", "))


@table("more, where", [
    ("parallel: 2\ntarget: lab", ""), ("parallel: 2\ntarget: gone", "7 target"), ("seed: 1\ntarget: lab", "7 target"),
    ("parallel: 2\ntarget: lab\npbt: {members: 4, every: 10}", "8 pbt"),
    ("parallel: 2\ntarget: far\ngpus_per_trial: 1\ntrials_per_gpu: 2", "9 trials_per_gpu"),
    ("seed: 1\nbudget: {gpu_hours: 4}\nparallel: 2\ntarget: lab", "7 budget.gpu_hours"),
    ("gpus_per_trial: 1\nbudget: {gpu_hours: 4}\nparallel: 2\ntarget: lab", ""),
])  # fmt: skip
def test_a_study_on_a_target_has_what_a_target_can_keep(
    more: str, where: str, folder: Path, workspace: Workspace
) -> None:
    workspace.targets.write_text("lab: {kind: slurm}\nfar: {kind: ssh, host: k}\n")
    (folder / "net.yaml").write_text(PROFILE + CHECKPOINTS)
    _share = "warm_start: 1\n" if "budget" in more else TRIALS
    text = STUDY.replace(TRIALS, _share) + more
    if where:
        assert problems(text, folder, workspace) == {where}
    else:
        assert read(text, folder, workspace).target == find_target("lab", {}, workspace)


@table("profile, text, where", [
    (LADDERS, STUDY, "3 space.lr"), (LADDERS, STUDY.replace(LR, "batch_size: [8]"), ""), (PHASES, STUDY, "3 space.lr"),
    (CHECKPOINTS, f"{STUDY}{PBT}}}\n", ""), ("", f"{STUDY}{PBT}}}\n", "6 pbt"),
    *((CHECKPOINTS, f"{STUDY}{PBT}, {key}}}\n", f"6 pbt.{where}") for key, where in [
        ("length: 10", "every"), ("length: lr", "length"), ("length: stepz", "length"), ("factors: [0]", "factors.0"),
    ]),
    (CHECKPOINTS, f"{STUDY}sampler: tpe\n{PBT}}}\n", "6 sampler"),
    (CHECKPOINTS, CONDITIONS.replace("sampler: grid", f"{PBT}}}"), "4 space.lr.when, 5 space.width.when"),
])  # fmt: skip
def test_a_profile_may_forbid_what_a_study_tunes(
    profile: str, text: str, where: str, folder: Path, workspace: Workspace
) -> None:
    (folder / "net.yaml").write_text(PROFILE + profile)
    if where:
        assert problems(text, folder, workspace) == set(where.split(", "))
    else:
        assert read(text, folder, workspace)


def test_a_point_has_only_the_parameters_that_apply_to_it(folder: Path, workspace: Workspace) -> None:
    spec = read(CONDITIONS, folder, workspace)
    assert spec.grid() == [
        {"optimizer": "adam"}, {"optimizer": "sgd", "lr": 0.1},
        {"optimizer": "sgd", "lr": 0.2, "width": 8}, {"optimizer": "sgd", "lr": 0.2, "width": 16},
    ]  # fmt: skip
    assert stored(spec) == spec
    for condition in ("optimizer: lamb", "optimizer: [sgd, 1]", "width: 8", "lr: 0.1", "gone: 1"):
        text = CONDITIONS.replace("when: {optimizer: sgd}", f"when: {{{condition}}}")
        assert problems(text, folder, workspace) == {f"4 space.lr.when.{condition.partition(':')[0]}"}, condition


def test_a_typed_grid_is_a_study_whose_values_are_those_of_the_parameters(folder: Path, workspace: Workspace) -> None:
    profile = load(folder / "net.yaml")
    values = {"lr": ["0.1", "5e-2"], "batch_size": ["8", "16"]}
    settings = {"objective": {"metric": "loss"}, "parallel": None}
    spec = read(grid_source(profile, values, {"steps": "200"}, settings), folder, workspace)
    assert spec.params == {"steps": 200}
    assert spec.grid() == [{"lr": lr, "batch_size": size} for lr in (0.1, 0.05) for size in (8, 16)]
    with pytest.raises(ParameterError) as caught:
        grid_source(profile, {"lrr": ["1"], "batch_size": ["x"], "lr": ["1"]}, {"steps": "x", "lr": "1"}, {})
    assert len(caught.value.problems) == 4


def test_a_default_that_is_a_whole_number_by_chance_is_named_with_its_remedy(
    folder: Path, workspace: Workspace
) -> None:
    (folder / "net.yaml").write_text(PROFILE.replace("lr: 0.1", "lr: 1"))
    with pytest.raises(ProfileError) as caught:
        read(STUDY, folder, workspace)
    assert "1.0" in str(caught.value)
    with pytest.raises(ParameterError) as unfit:
        Parameter("lr", 1).parse("0.1")
    assert "1.0" in str(unfit.value)


def test_a_grid_ends_where_its_steps_do() -> None:
    assert Dimension("x", "float", 0.0, 0.3, step=0.1).grid() == (0.0, 0.1, 0.2, 0.3)
    assert Dimension("x", "int", 1, 6, step=2).grid() == (1, 3, 5)
    assert Dimension("x", "int", 1, 3).grid() == (1, 2, 3)
    assert Dimension("x", "float", 0.0, 1.0).grid() is None


def test_a_budget_into_which_no_run_fits_is_refused() -> None:
    spec = StudySpec("s", "net", (), (), gpus_per_trial=2, budget=Budget(gpu_hours=1.0, wall_seconds=3600.0))
    for seconds, keys in ((None, []), (1800.0, []), (1801.0, ["gpu_hours"]), (3601.0, ["wall", "gpu_hours"])):
        assert [problem.partition(":")[0] for problem in impossible_budget(spec, seconds)] == [
            f"budget.{key}" for key in keys
        ]


@table("takes, old, new", [
    (True, "", [
        "name:", "gpus_per_trial:", "name: a-b", "parallel:", "description:", "target:", "pbt:", "sampler: qmc",
        "pruner: off", "pruner: none", "pruner: {kind: none}", "pruner: {kind: median, length: 9}", "stop_after:",
        "pruner: {kind: patient, length: steps, by: epoch}", "sampler: {kind: tpe, startup:}", "constraints: {}",
        "constraints: {memory: 1.5 GB, step_time: 0.1}", "constraints: {memory: ' 10gib '}", "params: {seed: 3}",
    ]),
    (False, "", [
        "name: -a", "name: ''", "nme: a", "seed:", "priority: 0", "parallel: 0", "rerun: -1", "trials_per_gpu: 0",
        "pruner:", "pruner: median", "pruner: {kind: median}", "pruner: {kind: median, length:}", "pruner: on",
        *(f"pruner: {{kind: median, length: {length}}}" for length in ("0", "-1", "''", "[]", "true")),
        "pruner: {kind: percentile, length: 9, percentile: 0}", "pruner: {kind: halving, length: 9, eta: 11}",
        "sampler: {startup: 3}", "sampler: off", "sampler: tpee", "sampler: {kind: tpe, startup: 0}", "target: ''",
        "constraints: {memory: 0GiB}", "constraints: {memory: 10}", "constraints: {step_time: 0}", "constraints:",
        "params: {seed: [1]}", "params: {seed: {a: 1}}", "params: [seed]", "target: 3", 'description: "\\0"',
        *(f"{PBT}, {key}}}" for key in ("quantile: 0", "factors: []", "factors: [0]", "length: 0")),
    ]),
    (True, LR, [
        "lr: [0.1, 0.2]", "lr: {type: choice, values: [0.1], log: false, min:}", "steps: {type: int, min: 1, max: 9}",
        f"{FLOAT} 0, max: 1, step: 0.1}}", "optimizer: {type: choice, values: [adam], when: {}}",
    ]),
    (False, LR, [
        "lr: []", "lr: [0.1, 0.1]", "lr: [0.1, [0.2]]", "lr: {type: choice}", "lr: {values: [0.1]}", "lr:",
        "lr: {type: choice, values: [0.1], min: 0}", "lr: {type: choice, values: [0.1], log: true}", "lr: [1, 1.0]",
        f"{FLOAT} 0.1}}", f"{FLOAT}, max: 1}}", f"{FLOAT} 0, max: 1, log: true}}", f"{FLOAT} '1', max: 2}}",
        f"{FLOAT} 1, max: 2, log: true, step: 0.1}}", f"{FLOAT} 1, max: 2, values: [1]}}",
        f"{FLOAT} 1, max: 2, step: 0}}", "steps: {type: int, min: 1.5, max: 3}", f"{FLOAT} 1, max: 2, name: x}}",
    ]),
    (True, LOSS, ["objective: [{metric: loss}]\n", "objective: {metric: loss, over: mean of 5}\n"]),
    (False, LOSS, [
        "", "objective: loss\n", "objective: []\n", "objective: {metric: ''}\n", "objective:\n",
        "objective: {metric: loss, over: mean of 0}\n", "objective: {metric: loss, over: first}\n",
        "objective: [" + ", ".join(f"{{metric: m{number}}}" for number in range(5)) + "]\n",
    ]),
    (True, TRIALS, ["budget: {trials: 4, wall: 1.5 h}\n", "budget: {wall: 30m, trials:}\n"]),
    (False, TRIALS, [
        "budget: {wall: 0h}\n", "budget: {wall: soon}\n", "budget: {trials: 0}\n", "budget:\n",
        "budget: {gpu_hours: 0}\n", "budget: {trials: 4, hours: 1}\n",
    ]),
])  # fmt: skip
def test_loader_and_json_schema_take_the_same_files(
    takes: bool, old: str, new: list[str], folder: Path, workspace: Workspace
) -> None:
    (folder / "net.yaml").write_text(PROFILE + CHECKPOINTS)
    for file in new:
        text = STUDY.replace(old, file) if old else f"{STUDY}{file}\n"
        assert acceptance(text, folder, workspace) == (takes, takes), file


def test_only_the_loader_compares_keys_with_each_other_and_with_the_profile(folder: Path, workspace: Workspace) -> None:
    for line in ("params: {lr: 0.2}", "params: {gone: 1}", "parallel: 1.0", "sampler: nsga2", f"{PBT}}}"):
        assert acceptance(f"{STUDY}{line}\n", folder, workspace) == (False, True), line


def test_members_of_the_shipped_population_have_a_value_and_a_checkpoint_at_each_milestone(
    workspace: Workspace, tmp_path: Path
) -> None:
    study = load_study(shipped_studies() / "gpt2-pbt.yaml", workspace, tmp_path)
    spec = study.spec
    defaults = {name: parameter.default for name, parameter in study.profile.parameters.items()}
    assert spec.pbt is not None
    assert spec.parallel == spec.pbt.members
    for name in ("validate_every", "checkpoint_every"):
        assert spec.pbt.every % int(str(spec.params[name])) == 0
    assert int(str(spec.params["steps"])) % spec.pbt.every == 0
    assert spec.pbt.members * spec.gpus_per_trial == study.profile.form.gpus.count
    # A member alone takes as many tokens a step as the profile does on all its GPUs.
    assert spec.params["grad_accum"] == int(str(defaults["grad_accum"])) * spec.pbt.members
    assert {"lr", "weight_decay"} == set(spec.tuned)
    assert spec.params["schedule"] == "constant"


def test_a_grid_over_options_of_a_command(folder: Path, workspace: Workspace) -> None:
    (folder / "train.py").write_text("print(1)\n")
    profile = command_profile(["train.py", "--lr", "0.1", "--name=x"], folder)
    source = grid_source(profile, {"lr": ["0.1", "0.2"]}, {"name": "y"}, {"objective": {"metric": "loss"}})
    study = read_study(source, folder / "--grid", workspace, folder)
    assert study.profile.typed == profile.typed
    assert study.spec.profile == profile.name
    assert study.spec.grid() == [{"lr": 0.1}, {"lr": 0.2}]
    assert study.spec.params == {"name": "y"}
    with pytest.raises(ProfileError):
        read_study(source.replace("train.py", "gone.py"), folder / "--grid", workspace, folder)
