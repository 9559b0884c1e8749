"""From a profile to a specification: paths, interpreters, processes, GPUs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gputui.machine.gpu_model import GpuFacts
from gputui.profiles import resolve as resolving
from gputui.profiles.describe import preview_launch
from gputui.profiles.profile_file import load
from gputui.profiles.resolve import ResolveError, resolve, wants_gpus
from gputui.runs.command import build_launch
from gputui.runs.launchers.base import Placement
from gputui.runs.spec import GpuRequest, RunSpec, Scalar
from tests.tables import table
from tests.texts import mentions

UUIDS = [f"GPU-0000000{index}-aaaa-bbbb-cccc-dddddddddddd" for index in range(4)]
FOUR = [GpuFacts(uuid=uuid, index=index, name="H200") for index, uuid in enumerate(UUIDS)]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def spec_of(
    folder: Path,
    text: str,
    *,
    overrides: dict[str, Scalar] | None = None,
    gpus: str | None = None,
    inventory: list[GpuFacts] | None = FOUR,
    environ: dict[str, str] | None = None,
    file: str = "x.yaml",
) -> RunSpec:
    path = folder / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return resolve(
        load(path), overrides=overrides, gpus_override=gpus, inventory=inventory,
        environ={"HOME": "/home/anna", "PATH": "/usr/bin:/bin", **(environ or {})},
    )  # fmt: skip


def make_program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_the_example_of_the_documentation(project: Path) -> None:
    python = make_program(project / ".venv" / "bin" / "python")
    spec = spec_of(
        project,
        """
name: resnet18-cifar10
launcher: torchrun
script: train.py
python: .venv/bin/python
workdir: .
gpus: 2
requires: {gpu_memory: 10GiB, disk: 20GiB}
params: {batch_size: 128, lr: 0.1, gradient_checkpointing: false}
args: --batch-size {batch_size} --lr {lr}
env: {NCCL_DEBUG: WARN}
metrics: {source: jsonl, path: "{run_dir}/metrics.jsonl"}
checkpoints: {dir: "{run_dir}/checkpoints", pattern: "step_*.pt", resume: "--resume {checkpoint}"}
alerts: standard
recovery: standard
""",
        overrides={"lr": "0.05"},
    )
    assert spec.program == (str(project / "train.py"),)
    assert spec.workdir == str(project)
    assert spec.python == str(python)
    assert spec.profile_path == str(project / "x.yaml")
    assert (spec.nproc, spec.gpus) == (2, GpuRequest(2, (), 10 * 2**30))
    assert spec.disk_bytes == 20 * 2**30
    assert spec.params == {"batch_size": 128, "lr": 0.05, "gradient_checkpointing": False}
    assert spec.checkpoints is not None
    assert spec.checkpoints.resume == ("--resume", "{checkpoint}")
    launch = build_launch(
        spec, run_id="r-1", run_dir="/runs/r-1", attempt=2, params=spec.params,
        placement=Placement.here(tuple(UUIDS[:2]), 2, 1234), checkpoint="/runs/r-1/checkpoints/step_5.pt",
    )  # fmt: skip
    assert launch.argv[-6:] == (
        "--batch-size", "128", "--lr", "0.05", "--resume", "/runs/r-1/checkpoints/step_5.pt",
    )  # fmt: skip


def test_a_specification_survives_being_stored(project: Path) -> None:
    spec = spec_of(
        project,
        "script: a.py\nparams: {a: 1, b: null}\nenv: {A: b}\nrecovery: off\nalerts: off\ngates: {gpu_utilization: 70}\n"
        "metrics:\n- {source: output, patterns: ['(?P<epoch>x)'], step: epoch, units: {t: ms}}\n- {source: jsonl}\n"
        "checkpoints: {pattern: '*.pt'}\ngpus: [1, 3]\n",
    )
    assert RunSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert spec.recovery == {"policy": "off"}
    assert spec.alerts is None
    assert spec.gates == {"gpu_utilization": 70.0}


@table(
    ("text", "file", "field", "expected"),
    [
        ("", "x.yaml", "metrics", "{run_dir}/metrics.jsonl"),
        ("metrics: {source: jsonl}", "x.yaml", "metrics", "{run_dir}/metrics.jsonl"),
        ("metrics: off", "x.yaml", "metrics", ""),
        ("script: ~/a.py", "x.yaml", "program", "/home/anna/a.py"),
        ("workdir: ~/data", "x.yaml", "workdir", "/home/anna/data"),
        ("script: ../src/train.py", "profiles/x.yaml", "program", "PROJECT/src/train.py"),
        ("", "profiles/x.yaml", "workdir", "PROJECT/profiles"),
    ],
)  # fmt: skip
def test_paths(project: Path, text: str, file: str, field: str, expected: str) -> None:
    script = "" if "script:" in text else "script: a.py\n"
    spec = spec_of(project, script + text, file=file)
    found = {
        "metrics": "".join(str(source.path) for source in spec.metrics),
        "program": spec.program[0],
        "workdir": spec.workdir,
    }
    assert found[field] == expected.replace("PROJECT", str(project))


class TestModules:
    def test_a_package_around_a_folder_of_profiles(self, project: Path) -> None:
        (project / "pkg" / "sub").mkdir(parents=True)
        (project / "pkg" / "sub" / "__main__.py").write_text("")
        spec = spec_of(project, "module: pkg.sub", file="profiles/x.yaml")
        assert spec.workdir == str(project)

    def test_a_shipped_profile_of_an_installed_gputui(
        self, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing is written beside the program; and another interpreter finds the module all the same."""
        site = tmp_path / "site-packages"
        shipped = site / "gputui" / "shipped_profiles"
        (site / "trainer").mkdir(parents=True)
        (site / "trainer" / "__main__.py").write_text("")
        shipped.mkdir(parents=True)
        monkeypatch.setattr(resolving, "shipped_profiles", lambda: shipped)
        monkeypatch.setattr(resolving, "__file__", str(site / "gputui" / "profiles" / "resolve.py"))
        assert spec_of(shipped, "module: trainer").workdir == "{run_dir}"
        assert spec_of(shipped, "script: plain.py").workdir == "{run_dir}"
        venv = tmp_path / "venv"
        make_program(venv / "bin" / "python")
        assert spec_of(shipped, "module: trainer", environ={"VIRTUAL_ENV": str(venv)}).workdir == str(site)


class TestInterpreters:
    def test_the_active_environment_goes_before(self, project: Path, tmp_path: Path) -> None:
        python = tmp_path / "venv" / "bin" / "python"
        assert (
            spec_of(project, "script: a.py", environ={"VIRTUAL_ENV": str(tmp_path / "venv")}).python == sys.executable
        )
        make_program(python)
        assert spec_of(project, "script: a.py", environ={"VIRTUAL_ENV": str(tmp_path / "venv")}).python == str(python)

    def test_links_stay_links(self, project: Path) -> None:
        """A virtual environment is known by the path of its interpreter, which is a link to another one."""
        link = project / "env" / "bin" / "python"
        link.parent.mkdir(parents=True)
        link.symlink_to(sys.executable)
        assert spec_of(project, "script: a.py\npython: env/bin/python").python == str(link)

    def test_from_the_workdir_then_from_the_profiles_folder(self, project: Path) -> None:
        text = "script: a.py\nworkdir: sub\npython: env/bin/python"
        assert spec_of(project, text).python == str(project / "sub" / "env" / "bin" / "python"), "for the message"
        beside = make_program(project / "env" / "bin" / "python")
        assert spec_of(project, text).python == str(beside)
        inside = make_program(project / "sub" / "env" / "bin" / "python")
        assert spec_of(project, text).python == str(inside)

    def test_a_command_is_the_whole_command(self, project: Path) -> None:
        """F6: ``make … EPOCHS=3000 --epochs 3000`` was what make refused."""
        spec = spec_of(project, "command: make train 'EPOCHS={epochs}'\nparams: {epochs: 3000, lr: 0.1}")
        assert preview_launch(spec, runs=project).argv == ("make", "train", "EPOCHS=3000")
        behind = spec_of(project, "command: make train\nargs: 'EPOCHS={epochs}'\nparams: {epochs: 3000}")
        assert preview_launch(behind, runs=project).argv == ("make", "train", "EPOCHS=3000")


@table(
    ("text", "override", "nproc", "count"),
    [
        ("gpus: 2", None, 2, 2),
        ("gpus: [3, 1]", None, 2, 2),
        ("gpus: 2\nnproc: 4", None, 4, 2),
        ("gpus: 0", None, 1, 0),
        ("gpus: 0\nnproc: 2", None, 2, 0),
        ("gpus: 0\nnproc: 2", "3", 3, 3),
        ("gpus: 2", "0", 1, 0),
        ("gpus: 2", "all", 4, 4),
        ("gpus: 2\nlauncher: python", None, 1, 2),
    ],
)
def test_processes(project: Path, text: str, override: str | None, nproc: int, count: int) -> None:
    spec = spec_of(project, f"script: a.py\n{text}", gpus=override)
    assert (spec.nproc, spec.gpus.count) == (nproc, count)


def test_indices_become_uuids_in_the_order_asked(project: Path) -> None:
    spec = spec_of(project, "script: a.py\nvisible: index", gpus="3,0")
    assert spec.gpus.uuids == (UUIDS[3], UUIDS[0])
    assert spec.visible == "index"


def test_a_machine_without_gpus_refuses_with_a_way_out(project: Path) -> None:
    with pytest.raises(ResolveError) as caught:
        spec_of(project, "script: a.py\ngpus: 2", inventory=[])
    assert mentions(str(caught.value), "gpus: ", "--gpus 0")
    assert caught.value.is_refusal
    assert spec_of(project, "script: a.py\ngpus: 2", inventory=[], gpus="0").gpus == GpuRequest()


def test_whether_gpus_are_wanted(project: Path) -> None:
    (project / "x.yaml").write_text("script: a.py\ngpus: 0")
    profile = load(project / "x.yaml")
    assert [wants_gpus(profile, text) for text in (None, "0", "2", "all", "0,", "nonsense")] == [
        False, False, True, True, True, False,
    ]  # fmt: skip
    (project / "x.yaml").write_text("script: a.py")
    assert wants_gpus(load(project / "x.yaml"), None)
    assert not wants_gpus(load(project / "x.yaml"), "0")


def test_everything_wrong_at_once(project: Path) -> None:
    with pytest.raises(ResolveError) as caught:
        spec_of(project, "script: a.py\nparams: {lr: 0.1}", overrides={"lrr": "1", "lr": "x"}, gpus="7,")
    unknown, wrong, gpu = caught.value.problems
    assert mentions(unknown, "lrr: ", "lr?") and mentions(wrong, "lr: ", "number", "'x'")
    assert mentions(gpu, "--gpus: ", "GPU 7", "0, 1, 2, 3")
    assert not caught.value.is_refusal


@table(("asked", "least"), [("4", 2), ("1", 1), ("0", None)])
def test_with_how_few_gpus_recovery_may_go_on(tmp_path: Path, asked: str, least: int | None) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("launcher: command\ncommand: [a]\ngpus: 4\nmin_gpus: 2\n")
    assert resolve(load(path), gpus_override=asked).gpus.min_count == least
