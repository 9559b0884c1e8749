"""From a profile to a specification: paths, interpreters, processes, GPUs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gputui.machine.gpu_model import GpuFacts
from gputui.profiles import resolve as resolving
from gputui.profiles.describe import describe, preview_launch
from gputui.profiles.gpu_checks import GpuSituation, check_gpus
from gputui.profiles.interpreter_checks import chosen_interpreter
from gputui.profiles.profile_file import load
from gputui.profiles.resolve import GpuChoice, ResolveError, resolve, wants_gpus
from gputui.runs.gpu_conditions import GpuCondition
from gputui.runs.spec import GpuRequest, RunSpec, Scalar
from gputui.store.series import GpuSample
from tests.tables import table
from tests.texts import mentions

UUIDS = [f"GPU-0000000{index}-aaaa-bbbb-cccc-dddddddddddd" for index in range(4)]
FOUR = [GpuFacts(uuid=uuid, index=index, name="H200") for index, uuid in enumerate(UUIDS)]
OWN = str(Path(sys.executable).parent)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


OF_FOUR = GpuSituation([GpuCondition(gpu, GpuSample(gpu.uuid)) for gpu in FOUR])


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
    environ = {"HOME": "/home/anna", "PATH": "/usr/bin:/bin", **(environ or {})}
    return resolve(load(path), GpuChoice(gpus, inventory), overrides=overrides, environ=environ)


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
    assert (spec.program, spec.workdir) == ((str(project / "train.py"),), str(project))
    assert (spec.python, spec.profile_path) == (str(python), str(project / "x.yaml"))
    assert (spec.nproc, spec.gpus, spec.disk_bytes) == (2, GpuRequest(2, (), 10 * 2**30), 20 * 2**30)
    assert spec.params == {"batch_size": 128, "lr": 0.05, "gradient_checkpointing": False}
    assert spec.checkpoints is not None
    assert spec.checkpoints.resume == ("--resume", "{checkpoint}")
    argv = preview_launch(spec, runs=project).argv
    assert argv[-4:] == ("--batch-size", "128", "--lr", "0.05")


def test_a_specification_survives_being_stored(project: Path) -> None:
    spec = spec_of(
        project,
        "script: a.py\nparams: {a: 1, b: null}\nenv: {A: b}\nrecovery: off\nalerts: off\ngates: {gpu_utilization: 70}\n"
        "metrics:\n- {source: output, patterns: ['(?P<epoch>x)'], step: epoch, units: {t: ms}}\n- {source: jsonl}\n"
        "checkpoints: {pattern: '*.pt'}\ngpus: [1, 3]\n",
    )
    assert RunSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert (spec.recovery, spec.alerts, spec.gates) == ({"policy": "off"}, None, {"gpu_utilization": 70.0})


@table(
    ("text", "file", "field", "expected"),
    [
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
    fields = {
        "metrics": "".join(str(source.path) for source in spec.metrics),
        "program": spec.program[0],
        "workdir": spec.workdir,
    }
    assert fields[field] == expected.replace("PROJECT", str(project))


def test_a_module_is_found_around_a_folder_of_profiles_or_where_gputui_is_installed(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (project / "pkg" / "sub", tmp_path / "site-packages" / "trainer"):
        module.mkdir(parents=True)
        (module / "__main__.py").touch()
    assert spec_of(project, "module: pkg.sub", file="profiles/x.yaml").workdir == str(project)
    # Nothing is written beside an installed program, and an interpreter other than gputui's finds the module too.
    site = tmp_path / "site-packages"
    shipped = site / "gputui" / "shipped_profiles"
    shipped.mkdir(parents=True)
    monkeypatch.setattr(resolving, "shipped_profiles", lambda: shipped)
    monkeypatch.setattr(resolving, "INSTALLED", site)
    for text in ("module: trainer", "script: plain.py"):
        assert spec_of(shipped, text).workdir == "{run_dir}"
    make_program(tmp_path / "venv" / "bin" / "python")
    environ = {"VIRTUAL_ENV": str(tmp_path / "venv")}
    assert spec_of(shipped, "module: trainer", environ=environ).workdir == str(site)


@table(
    ("environ", "python", "origin"),
    [
        # Folders of {tmp}; of shims/ the python is a script, three/ has python3 only, gone/ has none.
        ({"VIRTUAL_ENV": "venv", "CONDA_PREFIX": "conda", "PATH": "shims"}, "venv/bin/python", "VIRTUAL_ENV"),
        ({"VIRTUAL_ENV": "gone", "CONDA_PREFIX": "conda", "PATH": OWN}, "conda/bin/python", "CONDA_PREFIX"),
        ({"VIRTUAL_ENV": "", "CONDA_PREFIX": "gone", "PATH": "gone:shims:conda/bin"}, "shims/python", "PATH"),
        ({"VIRTUAL_ENV": OWN.removesuffix("/bin"), "PATH": "shims"}, sys.executable, "VIRTUAL_ENV"),
        # gputui's own interpreter, by each of its names.
        ({"PATH": OWN}, sys.executable, "gputui"), ({"PATH": "linked:gone"}, sys.executable, "gputui"),
        # It is first on PATH, as where gputui is installed beside the person's own packages.
        ({"PATH": f"{OWN}:shims"}, sys.executable, "gputui"), ({"PATH": "linked:shims"}, sys.executable, "gputui"),
        ({"PATH": "three"}, "three/python3", "PATH"), ({"PATH": f"{OWN}:three"}, sys.executable, "gputui"),
        ({"PATH": "three:shims"}, "shims/python", "PATH"),
        ({"PATH": "gone"}, sys.executable, "gputui"), ({"PATH": ""}, sys.executable, "gputui"),
    ],
)  # fmt: skip
def test_which_interpreter_without_a_key(
    project: Path, tmp_path: Path, environ: dict[str, str], python: str, origin: str
) -> None:
    for place in ("venv/bin", "conda/bin", "shims"):
        make_program(tmp_path / place / "python")
    make_program(tmp_path / "three" / "python3")
    (tmp_path / "linked").symlink_to(OWN)
    absolute = {
        name: ":".join(str(tmp_path / part) if part else "" for part in value.split(":"))
        for name, value in environ.items()
    }
    spec = spec_of(project, "script: a.py", environ=absolute)
    assert (spec.python, spec.python_origin) == (str(tmp_path / python), origin)
    check = chosen_interpreter(spec)
    expected = "warn" if origin == "gputui" else "pass"
    assert check.status == expected
    assert str(spec.python) in check.detail


def test_the_trainer_runs_on_the_active_environment_or_on_gputuis_own(project: Path, tmp_path: Path) -> None:
    make_program(tmp_path / "shims" / "python")
    environ = {"PATH": str(tmp_path / "shims")}
    spec = spec_of(project, "module: trainer", environ=environ)
    assert (spec.python, spec.python_origin) == (sys.executable, "trainer")
    # A package `trainer` in the person's folder takes precedence over gputui's.
    (project / "trainer.py").touch()
    assert spec_of(project, "module: trainer", environ=environ).python_origin == "PATH"
    (tmp_path / "active" / "bin").mkdir(parents=True)
    make_program(tmp_path / "active" / "bin" / "python")
    environ["CONDA_PREFIX"] = str(tmp_path / "active")
    assert spec_of(project, "module: trainer", environ=environ).python_origin == "CONDA_PREFIX"


def test_which_interpreter_a_key_names(project: Path) -> None:
    # A virtual environment is known by the path of its interpreter, which is a link to another one.
    link = project / "linked" / "bin" / "python"
    link.parent.mkdir(parents=True)
    link.symlink_to(sys.executable)
    assert spec_of(project, "script: a.py\npython: linked/bin/python").python == str(link)
    # From the working directory, then from the folder of the profile; the first is named where neither is there.
    inside, beside = (project / folder / "env" / "bin" / "python" for folder in ("sub", "."))
    for expected, program in ((inside, None), (beside, beside), (inside, inside)):
        if program is not None:
            make_program(program)
        assert spec_of(project, "script: a.py\nworkdir: sub\npython: env/bin/python").python == str(expected)


def test_a_command_is_the_whole_command(project: Path) -> None:
    """F6: ``make … EPOCHS=3000 --epochs 3000`` was what make refused."""
    for text in ("make train 'EPOCHS={epochs}'\nparams: {epochs: 3000, lr: 0.1}",
                 "make train\nargs: 'EPOCHS={epochs}'\nparams: {epochs: 3000}"):  # fmt: skip
        spec = spec_of(project, f"command: {text}")
        assert preview_launch(spec, runs=project).argv == ("make", "train", "EPOCHS=3000")


@table(
    ("text", "override", "nproc", "count", "least"),
    [
        ("gpus: 2", None, 2, 2, None), ("gpus: [3, 1]", None, 2, 2, None), ("gpus: 2\nnproc: 4", None, 4, 2, None),
        ("gpus: 0", None, 1, 0, None), ("gpus: 0\nnproc: 2", None, 2, 0, None), ("gpus: 0\nnproc: 2", "3", 3, 3, None),
        ("gpus: 2", "0", 1, 0, None), ("gpus: 2", "all", 4, 4, None), ("gpus: 2\nlauncher: python", None, 1, 2, None),
        # The least number of GPUs with which recovery may go on.
        ("gpus: 4\nmin_gpus: 2", "4", 4, 4, 2), ("gpus: 4\nmin_gpus: 2", "1", 1, 1, 1),
        ("gpus: 4\nmin_gpus: 2", "0", 1, 0, None),
    ],
)  # fmt: skip
def test_processes_and_gpus(
    project: Path, text: str, override: str | None, nproc: int, count: int, least: int | None
) -> None:
    spec = spec_of(project, f"script: a.py\n{text}", gpus=override)
    assert (spec.nproc, spec.gpus.count, spec.gpus.min_count) == (nproc, count, least)


def test_gpus_that_are_there_and_that_are_not(project: Path) -> None:
    spec = spec_of(project, "script: a.py\nvisible: index", gpus="3,0")
    assert (spec.gpus.uuids, spec.visible) == ((UUIDS[3], UUIDS[0]), "index")
    with pytest.raises(ResolveError) as caught:
        spec_of(project, "script: a.py\ngpus: 2", inventory=[])
    assert mentions(str(caught.value), "gpus: ", "--gpus 0")
    assert caught.value.is_refusal
    assert spec_of(project, "script: a.py\ngpus: 2", inventory=[], gpus="0").gpus == GpuRequest()


@table(
    ("text", "shell", "override", "uuids", "count"),
    [
        ("gpus: 1", "2,1", None, (UUIDS[2], UUIDS[1]), 2), ("gpus: 2", UUIDS[3], None, (UUIDS[3],), 1),
        ("gpus: [0]", "1", None, (UUIDS[1],), 1), ("gpus: 2", "", None, (), 0), ("gpus: all", "-1", None, (), 0),
        # The number at the launch beats the variable, and a profile with `gpus: 0` keeps running on the CPU.
        ("gpus: 1", "2", "0,", (UUIDS[0],), 1), ("gpus: 1", "2", "2", (), 2), ("gpus: 0", "2", None, (), 0),
    ],
)  # fmt: skip
def test_gpus_of_the_launching_shell(
    project: Path, text: str, shell: str, override: str | None, uuids: tuple[str, ...], count: int
) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": shell}
    spec = spec_of(project, f"script: a.py\n{text}", gpus=override, environ=environ)
    assert (spec.gpus.uuids, spec.gpus.count, spec.nproc) == (uuids, count, max(1, count))
    is_heeded = override is None and text != "gpus: 0"
    said = check_gpus(spec, OF_FOUR).detail, "\n".join(describe(spec, preview_launch(spec, runs=project)))
    for note in said:
        assert mentions(note, "CUDA_VISIBLE_DEVICES=", "of the launching shell") is is_heeded
    # Inside a run the variable is gputui's own.
    inside = spec_of(project, f"script: a.py\n{text}", gpus=override, environ={**environ, "GPUTUI_RUN_DIR": "/r"})
    assert inside.gpus.shell is None


def test_a_gpu_of_the_launching_shell_that_is_not_there(project: Path) -> None:
    with pytest.raises(ResolveError) as caught:
        spec_of(project, "script: a.py", environ={"CUDA_VISIBLE_DEVICES": "7"})
    assert mentions(str(caught.value), "CUDA_VISIBLE_DEVICES: GPU 7")
    assert caught.value.is_refusal


@table(
    ("override", "shell", "source"),
    [
        ("junk", None, "--gpus"), ("0,0", None, "--gpus"), ("MIG-1234", "0", "--gpus"), ("7,", "0", "--gpus"),
        (None, "0,0", "CUDA_VISIBLE_DEVICES"), (None, "MIG-1234", "CUDA_VISIBLE_DEVICES"),
        (None, "7", "CUDA_VISIBLE_DEVICES"),
    ],
)  # fmt: skip
def test_a_problem_names_where_the_gpus_were_given(
    project: Path, override: str | None, shell: str | None, source: str
) -> None:
    environ = {} if shell is None else {"CUDA_VISIBLE_DEVICES": shell}
    with pytest.raises(ResolveError) as caught:
        spec_of(project, "script: a.py", gpus=override, environ=environ)
    assert caught.value.problems[0].startswith(f"{source}: ")


def test_whether_gpus_are_wanted(project: Path) -> None:
    path = project / "x.yaml"
    for gpus, with_gpus, without_gpus in (
        ("gpus: 0", ("2", "all", "0,"), (None, "0", "nonsense")),
        ("", (None,), ("0",)),
    ):
        path.write_text(f"script: a.py\n{gpus}")
        assert all(wants_gpus(load(path), text) for text in with_gpus), gpus
        assert not any(wants_gpus(load(path), text) for text in without_gpus), gpus


def test_everything_wrong_at_once(project: Path) -> None:
    with pytest.raises(ResolveError) as caught:
        spec_of(project, "script: a.py\nparams: {lr: 0.1}", overrides={"lrr": "1", "lr": "x"}, gpus="7,")
    unknown, wrong, gpu = caught.value.problems
    assert mentions(unknown, "lrr: ", "lr?")
    assert mentions(wrong, "lr: ", "number", "'x'")
    assert mentions(gpu, "--gpus: ", "GPU 7", "0, 1, 2, 3")
    assert not caught.value.is_refusal
