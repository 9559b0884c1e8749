"""Studies before they begin, and the report of one."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from gputui.core.config import Workspace, locate
from gputui.machine.gpu_model import GpuFacts
from gputui.profiles.gpu_checks import GpuSituation
from gputui.runs.gpu_conditions import GpuCondition
from gputui.studies.launch import resolve_study
from gputui.studies.study_file import load_study
from gputui.ui.cli.context import Session
from gputui.ui.cli.study_launch import load_grid
from tests.homes import GIB, Home
from tests.stories import search
from tests.tables import table
from tests.texts import mentions
from tests.ui.cli.program import call, error_of, json_of, output_of

PROFILE = """
name: small
command: python train.py --lr {lr}
gpus: 1
params: {lr: 0.1}
"""
STUDY = """
profile: ./small.yaml
space: {lr: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]}
objective: {metric: loss}
sampler: grid
trials_per_gpu: 3
"""

FOUR_GPUS = GpuSituation([GpuCondition(GpuFacts(f"GPU-{index}", index, "H200"), None) for index in range(4)])


def test_trials_that_fit_on_a_gpu_together_are_counted(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(PROFILE)
    (tmp_path / "s.yaml").write_text(STUDY)
    for peak_gib, sharing in ((30, 2), (20, 3), (70, 1), (None, 1)):
        workspace = locate(tmp_path / str(peak_gib))
        home = Home(workspace)
        home.agent()
        home.gpus(2)
        home.run("small-1", "succeeded", name="small")
        home.attempt("small-1", 1, "succeeded", gpus=(0,))
        if peak_gib is not None:
            home.metrics("small-1", 1, [{"step": 1, "gpu_mem_peak": peak_gib * GIB}])
        home.close()
        arguments = ("study", "check", str(tmp_path / "s.yaml"), "--dry-run")
        plan = json_of(workspace, *arguments)
        counted = (plan["trials"], plan["trials_per_gpu"], plan["parallel"])
        assert counted == (8, sharing, 2 * sharing), peak_gib
        assert ("sharing a GPU" in output_of(workspace, *arguments)) is (sharing > 1), peak_gib


def test_a_grid_on_a_target_asks_for_no_gpu_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(PROFILE.replace("gpus: 1", "gpus: 4"))
    workspace = locate(tmp_path / "home")
    workspace.create()
    workspace.targets.write_text("lab: {kind: slurm}\n")
    arguments = ("study", "run", str(tmp_path / "small.yaml"), "--grid", "lr=1,2,3", "--on", "lab", "--parallel", "3")
    plan = json_of(workspace, *arguments, "--dry-run")
    assert (plan["target"], plan["parallel"], plan["gpus_per_trial"]) == ("lab", 3, 4)
    assert "--parallel" in error_of(workspace, *arguments[:-2], code=2)
    assert "--set" in error_of(workspace, *arguments[:3], "--set", "lr=1", code=2)
    assert f"\nfrom {workspace.targets}" in output_of(workspace, "target", "list")
    assert "gone" in error_of(workspace, *arguments[:6], "gone", code=2)


@table(
    ("metrics", "option", "metric", "direction"),
    [
        ("off", None, "loss", "minimize"),
        ("{source: jsonl, loss: train/loss}", None, "train/loss", "minimize"),
        ("{source: jsonl, best: {name: val/acc, mode: max}}", None, "val/acc", "maximize"),
        ("{source: jsonl, best: {name: val/acc, mode: max}}", "err", "err", "minimize"),
    ],
)
def test_a_grid_compares_what_the_profile_names(
    tmp_path: Path, metrics: str, option: str | None, metric: str, direction: str
) -> None:
    (tmp_path / "small.yaml").write_text(f"{PROFILE}metrics: {metrics}\n".replace("gpus: 1", "gpus: 0"))
    session = Session(locate(tmp_path / "home"))
    settings = {"grid": ("lr=1,2",), "changes": (), "over": None, "name": None, "parallel": None, "maximize": False}
    (objective,) = load_grid(
        session, [str(tmp_path / "small.yaml")], target=None, is_command=False, metric=option, **settings
    ).spec.objectives
    assert (objective.metric, objective.direction) == (metric, direction)


@table(
    ("gpus", "of_trial", "shell", "count"),
    [
        ("1", 1, "0,1,2,3", 1), ("4", 1, "2", 1), ("2", None, "1", 2), ("2", 2, "", 2), ("all", None, "0", 4),
        ("[1]", None, "junk", 1), ("0", None, "2", 0), ("0", 2, "1", 2), ("1", 1, None, 1),
    ],
)  # fmt: skip
def test_the_shells_gpus_are_not_those_of_trials(
    workspace: Workspace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gpus: str,
    of_trial: int | None,
    shell: str | None,
    count: int,
) -> None:
    (tmp_path / "small.yaml").write_text(PROFILE.replace("gpus: 1", f"gpus: {gpus}"))
    per_trial = "" if of_trial is None else f"gpus_per_trial: {of_trial}"
    (tmp_path / "s.yaml").write_text(STUDY.replace("trials_per_gpu: 3", per_trial))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if shell is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shell)
    study = load_study(tmp_path / "s.yaml", workspace, tmp_path)
    spec, base = resolve_study(study.spec, study.profile, FOUR_GPUS, run_seconds=None)
    is_pinned = gpus == "[1]"
    assert (spec.gpus_per_trial, base.gpus.count, base.gpus.shell) == (count, count, None)
    expected = ("GPU-1",) if is_pinned else ()
    assert base.gpus.uuids == expected
    grid = ("study", "run", str(tmp_path / "small.yaml"), "--grid", "lr=1,2", "--dry-run")
    for arguments in (("study", "run", str(tmp_path / "s.yaml"), "--dry-run"), grid):
        remarks = call(workspace, *arguments).stderr.splitlines()
        has_gpus = gpus != "0" or (count > 0 and arguments != grid)
        assert len(remarks) == (shell is not None and has_gpus), arguments
        assert not remarks or mentions(remarks[0], f"CUDA_VISIBLE_DEVICES={shlex.quote(shell or '')}", "ignored")


def test_a_grid_of_a_command_on_a_machine_without_gpus(home: Home, workspace: Workspace, tmp_path: Path) -> None:
    home.agent()
    (tmp_path / "a.py").write_text("")
    options = ("--dry-run", "--json", "--grid", "lr=1,2")
    plan = json.loads(output_of(workspace, "study", "run", *options, str(tmp_path / "a.py"), "--lr", "1"))
    assert (plan["gpus_per_trial"], plan["parallel"]) == (0, 1)


def test_a_report_is_printed_or_written_to_a_folder_or_json(home: Home, workspace: Workspace, tmp_path: Path) -> None:
    home.agent()
    search(home, state="finished", reason="its 14 trials are done")
    home.connection.execute("UPDATE studies SET problem = 'its process failed twice'")
    for arguments in (("study", "list"), ("study", "show")):
        assert "its 14 trials are done; its process failed twice" in output_of(workspace, *arguments), arguments
    assert json_of(workspace, "study", "show")["problem"] == "its process failed twice"
    lines = output_of(workspace, "study", "report").splitlines()
    assert lines[0] == "# Study lr-search-1"
    assert "## Best trials" in lines
    assert sum(line.startswith("| ") for line in lines) > 10

    report = json_of(workspace, "study", "report")
    assert report["id"] == "lr-search-1"
    assert report["best"][0]["command"].startswith("gputui run vit --set lr=")
    assert {trial["state"] for trial in report["not_complete"]} == {"pruned"}
    assert 0 < report["saved_share"] < 1
    assert {importance["name"] for importance in report["importances"]} == {"lr", "batch_size", "optimizer"}

    out = tmp_path / "out"
    output_of(workspace, "study", "report", "lr-search", "--out", str(out))
    names = {path.name for path in out.iterdir()}
    assert {"report.md", "report.html", "values.svg", "curves.svg", "over-lr.svg"} <= names
    assert (out / "report.html").read_text().count("<svg") == sum(name.endswith(".svg") for name in names)
