"""What every launcher keeps to, and that nobody else knows one by its name."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

import gputui
from gputui.profiles.draft import draft
from gputui.profiles.interpreter_checks import check_interpreter
from gputui.recovery.classify import classify
from gputui.recovery.evidence import ExitRecord, collect
from gputui.recovery.findings import reports_of
from gputui.runs.launchers import LAUNCHERS
from gputui.runs.launchers.base import OUTPUT, Invocation, Launcher, Node, Placement
from gputui.runs.launchers.reports import LauncherReport
from gputui.runs.spec import GpuRequest, RunSpec

INVOCATION = Invocation(("train.py", "--lr", "0.1"), "/runs/r-1/attempts/2", "r-1.2")
EVERY = pytest.mark.parametrize("launcher", LAUNCHERS.values(), ids=LAUNCHERS)


def spec(launcher: Launcher) -> RunSpec:
    python = None if launcher.takes_command else "/venv/bin/python"
    return RunSpec(name="a", launcher=launcher.name, program=("train.py",), workdir="/", python=python, nproc=2)


@EVERY
def test_the_program_comes_last_with_its_arguments(launcher: Launcher) -> None:
    for ranks in (1, 2):
        argv = launcher.argv(spec(launcher), Placement.here(("GPU-a", "GPU-b")[:ranks], ranks, 29501), INVOCATION)
        assert argv[-3:] == INVOCATION.words
        assert (argv[0] == "/venv/bin/python") is not launcher.takes_command


@EVERY
def test_a_specification_with_it_survives_being_stored(launcher: Launcher) -> None:
    assert RunSpec.from_json(spec(launcher).to_json()) == spec(launcher)


@EVERY
def test_only_files_that_are_there_hold_what_the_first_rank_printed(launcher: Launcher, tmp_path: Path) -> None:
    assert launcher.log_files(tmp_path, 2) == []
    pattern = launcher.rank_output(2)
    file = tmp_path / pattern.replace("*", "id").replace("{stream}", "stderr")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("x")
    assert launcher.log_files(tmp_path, 2) == [file]
    assert launcher.starts_ranks or pattern == OUTPUT


@EVERY
def test_evidence_always_gives_a_report(launcher: Launcher, tmp_path: Path) -> None:
    def reports() -> list[LauncherReport]:
        return reports_of(collect(tmp_path, exit=ExitRecord(code=1), ended_at=None, launcher=launcher.name))

    assert [report.root for report in reports()] == [None]
    (tmp_path / "output.log").write_text("step 1\n")
    (report,) = reports()
    assert (report.root, report.rest) == (None, "step 1\n")


def test_a_world_of_two_machines() -> None:
    placement = Placement((Node("kepler", ("0",), 2), Node("tycho", ("1", "2"), 3)), 29500)
    assert (placement.ranks, placement.endpoint) == (5, "kepler:29500")


def test_a_name_is_written_in_its_launchers_file_alone() -> None:
    root = Path(gputui.__file__).parent
    # What launchers write about an end is data about texts, and a library is named where scripts are looked through.
    others = {root / "runs" / "launchers" / "reports.py", root / "cli" / "init.py"}
    others |= {root / "profiles" / "draft.py", root / "profiles" / "draft_subject.py"}
    for name in (name for name, one in LAUNCHERS.items() if one.starts_ranks):
        own = root / "runs" / "launchers" / f"{name}.py"
        holders = {file for file in root.rglob("*.py") if f'"{name}"' in file.read_text("utf-8")}
        assert holders - others == {own}


def test_accelerate_takes_only_the_gpus_that_it_was_given() -> None:
    accelerate = LAUNCHERS["accelerate"]
    argv = accelerate.argv(spec(accelerate), Placement.here(("GPU-a", "GPU-b"), 2, 29501), INVOCATION)
    assert argv[1:3] == ("-m", "accelerate.commands.launch")
    assert {"--multi_gpu", "--num_processes=2", "--gpu_ids=all", "--main_process_port=29501"} <= set(argv)
    # Fewer than two processes are refused with --multi_gpu.
    assert "--multi_gpu" not in accelerate.argv(spec(accelerate), Placement.here((), 1, 29501), INVOCATION)
    assert (accelerate.rank_output(2) == OUTPUT, accelerate.rank_output(1)) == (False, OUTPUT)


class TestDeepspeed:
    deepspeed = LAUNCHERS["deepspeed"]

    def argv(self, *gpus: str, words: tuple[str, ...] = ("train.py",)) -> tuple[str, ...]:
        invocation = replace(INVOCATION, words=words)
        return self.deepspeed.argv(spec(self.deepspeed), Placement.here(gpus, 2, 29501), invocation)

    @pytest.mark.parametrize(("gpus", "listed"), [(("GPU-a", "GPU-b"), ["GPU-a", "GPU-b"]), ((), ["0", "1"])])
    def test_the_world_is_the_gpus_of_the_attempt_or_the_ranks_of_a_cpu_run(
        self, gpus: tuple[str, ...], listed: list[str]
    ) -> None:
        (world,) = [word for word in self.argv(*gpus) if word.startswith("--world_info=")]
        assert json.loads(base64.urlsafe_b64decode(world.partition("=")[2])) == {"127.0.0.1": listed}
        assert "--master_port=29501" in self.argv(*gpus)
        environment = self.deepspeed.environment(Placement.here(gpus, 2, 29501), INVOCATION)
        assert environment.get("DS_ACCELERATOR") == (None if gpus else "cpu")

    def test_a_module_is_named_its_way(self) -> None:
        assert self.argv(words=("-m", "pkg.train", "--lr", "1"))[-4:] == ("--module", "pkg.train", "--lr", "1")

    def test_its_report_says_how_a_process_ended_and_not_which(self, tmp_path: Path) -> None:
        """It names the command that it started last, whichever ended."""
        line = "[E launch.py:325:h] ['/v/python', '-u', 'train.py', '--local_rank=1'] exits with return code = -9"
        (tmp_path / "output.log").write_text(f"step 1\n{line}\n")
        evidence = collect(tmp_path, exit=ExitRecord(code=247), ended_at=None, launcher=self.deepspeed.name)
        assert [report.root for report in reports_of(evidence)] == [None]
        incident = classify(evidence)
        assert (incident.kind, incident.rank) == ("killed", None)

    def test_one_process_for_each_gpu(self) -> None:
        wanted = replace(spec(self.deepspeed), gpus=GpuRequest(2))
        assert [one.status for one in self.deepspeed.checks(wanted)] == ["pass"]
        assert [one.status for one in self.deepspeed.checks(replace(wanted, nproc=4))] == ["pass", "fail"]

    @pytest.mark.skipif(importlib.util.find_spec("deepspeed") is not None, reason="deepspeed is installed")
    def test_its_absence_is_said_in_one_line(self) -> None:
        results = check_interpreter(replace(spec(self.deepspeed), python=sys.executable), os.environ)
        (failed,) = [one for one in results if one.status == "fail"]
        assert failed.name == "launcher" and "deepspeed" in failed.detail and "\n" not in failed.detail
        assert failed.remedy is not None and "pip install 'deepspeed'" in failed.remedy

    def test_a_typed_line_becomes_a_profile_unless_it_says_more_than_one_can(self, tmp_path: Path) -> None:
        (tmp_path / "train.py").write_text("print(1)\n")
        for options, launcher in (((), "deepspeed"), (("--num_gpus=2",), "deepspeed"), (("--hostfile=h",), "command")):
            made = draft(["deepspeed", *options, "train.py", "--lr", "0.1"], tmp_path, gpus=4)
            assert f"launcher: {launcher}\n" in made.text
