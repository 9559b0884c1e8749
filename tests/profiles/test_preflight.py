"""Checks before a launch; each failure says what to do."""

from __future__ import annotations

import os
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.machine.gpu_model import GpuFacts
from gputui.profiles import preflight
from gputui.profiles.describe import describe, preview_launch
from gputui.profiles.gpu_checks import GpuSituation, likely_gpus
from gputui.profiles.interpreter_checks import check_interpreter
from gputui.profiles.params import UNDECIDED
from gputui.profiles.preflight import check, check_elsewhere, quick_checks
from gputui.runs.checks import CheckResult
from gputui.runs.gpu_conditions import GpuCondition
from gputui.runs.spec import CheckpointSpec, GpuRequest, MetricsSpec, RunSpec
from gputui.store.series import GpuSample
from tests.conftest import wait_until
from tests.tables import table
from tests.texts import mentions

GIB = 2**30
GPUS = [GpuFacts(uuid=f"GPU-{index}", index=index, name="H200", memory_total_bytes=80 * GIB) for index in range(4)]
RESUME = CheckpointSpec("{run_dir}/c", "*.pt", ("--resume", "{checkpoint}"))


@pytest.fixture
def spec(tmp_path: Path) -> RunSpec:
    """A run that passes every check."""
    (tmp_path / "train.py").write_text("")
    return RunSpec(
        "good", "torchrun", (str(tmp_path / "train.py"),), str(tmp_path), sys.executable,
        params={"batch_size": 128, "lr": 0.1}, env={"NCCL_DEBUG": "WARN"},
        args=("--batch-size", "{batch_size}", "--lr={lr}", "--out", "{run_dir}/out"),
        metrics=(MetricsSpec("jsonl", "{run_dir}/metrics.jsonl"),), checkpoints=RESUME,
    )  # fmt: skip


def quick(spec: RunSpec, name: str, gpus: GpuSituation | None = None) -> CheckResult:
    """The one answer of this name. Whatever warns or fails has a remedy."""
    results = quick_checks(spec, state=Path("/tmp"), gpus=gpus, environ={"PATH": os.environ["PATH"]})
    assert all(result.remedy for result in results if result.status in ("warn", "fail"))
    (result,) = [result for result in results if result.name == name]
    return result


def fake_python(folder: Path, script: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def _alive_in_group(group: int) -> list[int]:
    """PIDs of the group's processes that are more than a zombie."""
    alive = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, pgid = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(pgid) == group and state not in "ZX":
            alive.append(int(stat.parent.name))
    return alive


def test_code_to_be_copied_must_be_in_a_git_checkout(spec: RunSpec, tmp_path: Path) -> None:
    remote = replace(spec, target={"name": "k", "kind": "ssh", "host": "k"})

    def failed(first: RunSpec) -> list[str]:
        return [result.name for result in check_elsewhere(first, tmp_path) if result.status == "fail"]

    assert failed(remote) == ["code"]
    assert failed(replace(remote, workdir="{run_dir}/x")) == []
    assert failed(replace(remote, target={"name": "l", "kind": "slurm"})) == []
    (tmp_path / ".git").mkdir()
    assert failed(remote) == []


def test_a_good_run_passes_everything(spec: RunSpec, tmp_path: Path) -> None:
    results = check(spec, state=tmp_path)
    passed = ("program", "workdir", "placeholders", "parameters", "recovery", "metrics", "checkpoints", "resume",
              "disk", "port", "interpreter", "torch", "launcher")  # fmt: skip
    skipped = ("gpus", "memory", "sinks", "data")
    expected = dict.fromkeys(passed, "pass") | dict.fromkeys(skipped, "skip")
    assert {result.name: result.status for result in results} == expected
    program = {"name": "program", "status": "pass", "detail": str(tmp_path / "train.py"), "remedy": None}
    assert results[0].to_json() == program


COMMAND = {"launcher": "command", "python": None}
DATA = {"train_file": "", "output_dir": "out", "eval_path": "s3://bucket/x", "data": "digits"}
# check, status, changes to the good run, phrases of the detail and the remedy
CHECKS: list[tuple[str, str, dict[str, Any], tuple[str, ...]]] = [
    ("program", "fail", {"program": ("{tmp}/trian.py",)}, ("{tmp}/trian.py does not exist", "did you mean train.py?")),
    ("program", "fail", {"program": ("/gone/train.py",)}, ()),
    ("program", "fail", {"program": ("{tmp}",)}, ("no file that can be read",)),
    ("program", "pass", {**COMMAND, "program": ("sh", "-c", ":")}, ()),
    ("program", "pass", {**COMMAND, "program": ("/bin/sh",)}, ()),
    ("program", "pass", {**COMMAND, "program": ("./go.sh",)}, ()),
    ("program", "fail", {**COMMAND, "program": ("no-such-program",)}, ()),
    ("program", "fail", {**COMMAND, "program": ("./train.py",)}, ()),
    ("interpreter", "skip", {**COMMAND, "program": ("sh",)}, ()),
    ("interpreter", "fail", {"python": "/no/python"}, ("/no/python does not exist",)),
    ("interpreter", "fail", {"python": "{tmp}/train.py"}, ("not a program",)),
    ("workdir", "fail", {"workdir": "{tmp}/gone"}, ("does not exist",)),
    ("workdir", "fail", {"workdir": "{tmp}/train.py"}, ("no folder",)),
    ("workdir", "pass", {"workdir": "{run_dir}/x"}, ()),
    ("placeholders", "fail", {"args": ("--b", "{batch_sise}", "{batch_sise}"), "env": {"A": "{rundir}"}},
     ("{batch_sise} in args, {rundir} in env.A", "did you mean {batch_size} and {run_dir}?")),
    ("parameters", "warn", {"args": ("--lr", "{lr}")}, ("{batch_size}",)),
    ("parameters", "pass", {"args": ("--lr", "{lr}"), "env": {"BATCH": "{batch_size}"}}, ()),
    ("parameters", "pass", {"args": None}, ()),
    ("parameters", "fail", {"args": None, "params": {"lr": UNDECIDED}}, ("lr", UNDECIDED)),
    ("parameters", "skip", {"params": {}}, ()),
    ("data", "pass", {"params": {**DATA, "data_dir": "there"}}, ()),
    ("data", "warn", {"params": {**DATA, "data_dir": "data/cifar10"}},
     ("data_dir: {tmp}/data/cifar10", "--set data_dir=")),
    ("data", "warn", {"params": {"data_dir": "data/cifar10"}, "workdir": "{run_dir}"}, ("the run's own folder",)),
    ("recovery", "pass", {}, ("may change batch_size, lr",)),
    ("recovery", "pass", {"params": {"bs": 4, "learning_rate": 0.1}, "roles": {"batch_size": "bs"}},
     ("batch_size (bs)", "lr (learning_rate)")),
    ("recovery", "warn", {"params": {"lr": 0.1}}, ()),
    ("recovery", "warn", {"params": {"batch_size": "big"}}, ()),
    ("recovery", "skip", {"params": {}, "recovery": {"policy": "off"}}, ()),
    ("metrics", "warn", {"metrics": (MetricsSpec("csv", "logs/v_*/metrics.csv"),)}, ("logs/v_*/metrics.csv",)),
    ("metrics", "pass", {"metrics": (MetricsSpec("csv", "{run_dir}/log.csv"),), "workdir": "{run_dir}/x"}, ()),
    ("metrics", "skip", {"metrics": ()}, ()),
    ("checkpoints", "warn", {"checkpoints": CheckpointSpec("saved", "*.pt", ())}, ("saved is the folder of every",)),
    ("checkpoints", "pass", {"checkpoints": None}, ("those that runs write below /",)),
    ("resume", "pass", {"checkpoints": RESUME}, ()),
    ("resume", "pass", {"checkpoints": replace(RESUME, resume=()), "env": {"START_FROM": "{checkpoint}"}}, ()),
    ("resume", "pass", {"checkpoints": replace(RESUME, resume=("--load", "{run_dir}/c"))}, ()),
    ("resume", "warn", {"checkpoints": replace(RESUME, resume=())}, ()),
    ("resume", "warn", {"checkpoints": None}, ()),
]  # fmt: skip


@table(("name", "status", "changes", "phrases"), CHECKS)
def test_what_is_checked(
    spec: RunSpec, tmp_path: Path, name: str, status: str, changes: dict[str, Any], phrases: tuple[str, ...]
) -> None:
    folder = Path(spec.workdir)
    (folder / "there").mkdir(exist_ok=True)
    (folder / "go.sh").write_text("#!/bin/sh\n")
    (folder / "go.sh").chmod(0o755)
    placed = {
        key: value.replace("{tmp}", str(folder)) if isinstance(value, str) else value for key, value in changes.items()
    }
    if "program" in placed:
        placed["program"] = tuple(word.replace("{tmp}", str(folder)) for word in placed["program"])
    result = quick(replace(spec, **placed), name)
    assert result.status == status
    assert mentions(f"{result.detail}\n{result.remedy}", *(word.replace("{tmp}", str(folder)) for word in phrases))


def test_disk(spec: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda _: usage(100 * GIB, 90 * GIB, 10 * GIB))
    assert quick(spec, "disk").status == "pass"
    assert quick(replace(spec, disk_bytes=10 * GIB), "disk").status == "pass"
    result = quick(replace(spec, disk_bytes=20 * GIB), "disk")
    assert result.status == "fail"
    assert mentions(result.detail, "10 GiB free", "/tmp", "20 GiB needed")
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda _: usage(100 * GIB, 100 * GIB, 1000))
    assert quick(spec, "disk").status == "warn"
    monkeypatch.undo()
    missing = tmp_path / "not" / "made" / "yet"
    (result,) = [r for r in quick_checks(spec, state=missing) if r.name == "disk"]
    assert result.status == "pass"
    assert not missing.exists()


class TestProbe:
    @table(
        ("cuda", "gpus", "status", "detail"),
        [
            ("'13.0'", 1, "pass", "torch 2.99.0 built for CUDA 13.0"),
            ("None", 0, "pass", "torch 2.99.0 without CUDA"),
            ("None", 1, "fail", "torch 2.99.0 without CUDA, but the run asks for GPUs"),
        ],
    )
    def test_the_build_of_torch(
        self, spec: RunSpec, tmp_path: Path, cuda: str, gpus: int, status: str, detail: str
    ) -> None:
        package = tmp_path / "lib" / "torch"
        (package / "distributed").mkdir(parents=True)
        (package / "__init__.py").write_text("raise SystemExit('imported')")
        (package / "version.py").write_text(f"__version__ = '2.99.0'\ncuda: Optional[str] = {cuda}\n")
        (package / "distributed" / "__init__.py").write_text("")
        spec = replace(spec, gpus=GpuRequest(gpus), env={"PYTHONPATH": str(tmp_path / "lib")})
        launcher = check_interpreter(spec, os.environ)[2]
        assert (launcher.name, launcher.status) == ("launcher", "fail")
        (package / "distributed" / "run.py").write_text("")
        torch = check_interpreter(spec, os.environ)[1]
        assert (torch.status, torch.detail) == (status, detail)
        assert check_interpreter(spec, os.environ, simulated_gpus=True)[1].status == "pass"
        # A program of launcher python may not use torch even if it is installed.
        alone = check_interpreter(replace(spec, launcher="python"), os.environ)[1]
        expected = "warn" if status == "fail" else "pass"
        assert alone.status == expected

    def test_without_torch(self, spec: RunSpec, tmp_path: Path) -> None:
        """A bare interpreter: -S hides everything that is installed."""
        spec = replace(spec, python=fake_python(tmp_path, f'exec {sys.executable} -I -S "$@"'))
        interpreter, torch = check_interpreter(spec, os.environ)
        assert (interpreter.status, torch.status) == ("pass", "fail")
        assert mentions(torch.remedy, "pip install torch")
        assert check_interpreter(replace(spec, launcher="python"), os.environ)[1].status == "skip"

    def test_modules_are_found_without_being_imported(self, spec: RunSpec, tmp_path: Path) -> None:
        for name in ("pkg", "pkg/bare"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "__init__.py").write_text("raise SystemExit('imported')")
        (tmp_path / "pkg" / "train.py").write_text("raise SystemExit('imported')")
        (tmp_path / "pkg" / "__main__.py").write_text("raise SystemExit('imported')")
        for module, status in [("pkg.train", "pass"), ("pkg", "pass"), ("pkg.bare", "fail"), ("pkg.gone", "fail")]:
            result = check_interpreter(replace(spec, program=("-m", module)), os.environ)[-1]
            assert (result.name, result.status) == ("module", status), module
            assert result.status == "pass" or result.remedy

    def test_one_that_never_answers_is_ended(self, spec: RunSpec, tmp_path: Path) -> None:
        spec = replace(spec, python=fake_python(tmp_path, f"echo $$ > {tmp_path}/pid; sleep 600 & wait"))
        (result,) = check_interpreter(spec, os.environ, deadline_seconds=0.5)
        assert result.status == "fail"
        assert result.detail.endswith(" 0.5 s")
        pid = int((tmp_path / "pid").read_text())
        wait_until(lambda: not _alive_in_group(pid), what="the end of its whole process group")


def test_what_a_person_reads(spec: RunSpec) -> None:
    secret = "s3cretvalue99"
    checkpoints = replace(RESUME, resume=("--hub", secret))
    spec = replace(
        spec, gpus=GpuRequest(2), nproc=2, env={"HF_TOKEN": secret, "A": "b c"}, checkpoints=checkpoints
    )  # fmt: skip
    situation = GpuSituation([GpuCondition(gpu, GpuSample(gpu.uuid)) for gpu in GPUS])
    launch = preview_launch(spec, runs=Path("/state/runs"), gpus=likely_gpus(spec, situation))
    lines = describe(spec, launch, situation)
    rows = {title: rest.strip() for title, _, rest in (line.partition(" ") for line in lines) if title}
    assert (rows["GPUs"], rows["processes"]) == ("0 (GPU-0), 1 (GPU-1)", "2")
    assert mentions(rows["metrics"], "jsonl", "/state/runs/RUN/metrics.jsonl")
    assert rows["environment"] == "A='b c'"
    assert "HF_TOKEN='[redacted]'" in [line.strip() for line in lines]
    assert mentions(rows["checkpoints"], "--hub '[redacted]'")
    assert secret not in "\n".join(lines)
    assert rows["command"].startswith(f"{sys.executable} -m torch.distributed.run")
    assert launch.env["CUDA_VISIBLE_DEVICES"] == "GPU-0,GPU-1"
    for count, phrase in ((4, "the 4 GPUs"), (0, "no GPU")):
        spec = replace(spec, gpus=GpuRequest(count), nproc=1)
        preview = describe(spec, preview_launch(spec, runs=Path("/state/runs")))
        processes = next(line for line in preview if line.startswith("processes"))
        assert any("CUDA_VISIBLE_DEVICES=<" in line and phrase in line for line in preview)
        assert mentions(processes, "1")
        assert ("all 4 GPUs" in processes) == bool(count)
