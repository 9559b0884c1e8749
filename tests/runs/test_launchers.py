"""Launchers: their commands, and the reports and tracebacks that they leave, as text."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.recovery.classify import classify
from gputui.recovery.evidence import ExitRecord, collect
from gputui.recovery.findings import reports_of
from gputui.recovery.stacks import fatal_where
from gputui.recovery.tracebacks import last_chain
from gputui.runs.launchers import LAUNCHERS
from gputui.runs.launchers.base import OUTPUT, Invocation, Launcher, Placement
from gputui.runs.launchers.reports import LauncherReport, parse_reports
from gputui.runs.spec import GpuRequest, RunSpec
from tests.recovery.attempts import lay_out, recorded, report, traceback
from tests.tables import table

INVOCATION = Invocation(("train.py", "--lr", "0.1"), "/runs/r-1/attempts/2", "r-1.2")
EVERY = table("launcher", LAUNCHERS.values())

RECORDED = {case.name: case.files["output.log"] for case in recorded() if "output.log" in case.files}


def spec(launcher: Launcher) -> RunSpec:
    python = None if launcher.takes_command else "/venv/bin/python"
    return RunSpec(name="a", launcher=launcher.name, program=("train.py",), workdir="/", python=python, nproc=2)


def single_report(text: str) -> LauncherReport:
    launcher_report, *rest = parse_reports(text)
    assert not rest
    return launcher_report


@EVERY
def test_the_program_comes_last_with_its_arguments(launcher: Launcher) -> None:
    for ranks in (1, 2):
        argv = launcher.argv(spec(launcher), Placement.here(("GPU-a", "GPU-b")[:ranks], ranks, 29501), INVOCATION)
        assert argv[-3:] == INVOCATION.argv
        assert (argv[0] == "/venv/bin/python") is not launcher.takes_command


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

    def argv(self, *gpus: str, program: tuple[str, ...] = ("train.py",)) -> tuple[str, ...]:
        invocation = replace(INVOCATION, argv=program)
        return self.deepspeed.argv(spec(self.deepspeed), Placement.here(gpus, 2, 29501), invocation)

    @pytest.mark.parametrize(("gpus", "listed"), [(("GPU-a", "GPU-b"), ["GPU-a", "GPU-b"]), ((), ["0", "1"])])
    def test_the_world_is_the_gpus_of_the_attempt_or_the_ranks_of_a_cpu_run(
        self, gpus: tuple[str, ...], listed: list[str]
    ) -> None:
        (world,) = [word for word in self.argv(*gpus) if word.startswith("--world_info=")]
        assert json.loads(base64.urlsafe_b64decode(world.partition("=")[2])) == {"127.0.0.1": listed}
        assert "--master_port=29501" in self.argv(*gpus)
        environment = self.deepspeed.environment(Placement.here(gpus, 2, 29501), INVOCATION)
        expected = None if gpus else "cpu"
        assert environment.get("DS_ACCELERATOR") == expected

    def test_a_module_is_named_its_way(self) -> None:
        assert self.argv(program=("-m", "pkg.train", "--lr", "1"))[-4:] == ("--module", "pkg.train", "--lr", "1")

    def test_its_report_says_how_a_process_ended_and_not_which(self, tmp_path: Path) -> None:
        """It names the command that it started last, whichever ended."""
        line = "[E launch.py:325:h] ['/v/python', '-u', 'train.py', '--local_rank=1'] exits with return code = -9"
        lay_out(tmp_path, {"output.log": f"step 1\n{line}\n"})
        evidence = collect(tmp_path, exit=ExitRecord(code=247), ended_at=None, launcher=self.deepspeed.name)
        assert [report.root for report in reports_of(evidence)] == [None]
        incident = classify(evidence)
        assert (incident.kind, incident.rank) == ("killed", None)

    def test_one_process_for_each_gpu(self) -> None:
        two_gpus = replace(spec(self.deepspeed), gpus=GpuRequest(2))
        assert [check.status for check in self.deepspeed.checks(two_gpus)] == ["pass"]
        assert [check.status for check in self.deepspeed.checks(replace(two_gpus, nproc=4))] == ["pass", "fail"]


# --- reports ----------------------------------------------------------------------------------------------------------


def test_a_report_names_every_failed_rank() -> None:
    report = single_report(RECORDED["oom"])
    assert report.root is not None
    assert (report.root.rank, report.root.exit_code) == (1, 1)
    assert report.root.traceback is not None
    assert report.root.traceback.splitlines()[-1].startswith("torch.OutOfMemoryError: ")
    assert [(report.rank, report.exit_code) for report in report.others] == [(0, -15)]
    assert report.signalled == {report.others[0].pid}
    assert report.forced == frozenset()
    assert report.got_signal is None
    assert report.root.at is not None
    assert "Root Cause" not in report.rest
    assert "ChildFailedError" in report.rest


def test_a_stop_leaves_no_report() -> None:
    report = single_report(RECORDED["stopped_rank_forced"])
    assert report.root is None
    assert report.failures == ()
    assert report.got_signal == 15
    assert len(report.signalled) == 2
    assert len(report.forced) == 1


def test_the_reports_of_all_launchers_of_a_command_are_read_with_what_was_printed_before_each() -> None:
    text = (
        "stage 1\n" + report({0: 1}, root=0) + "stage 2\n" + report({0: -15, 1: -9}, root=1) + "make: *** [t] Error 1\n"
    )
    first, second, behind = parse_reports(text)
    assert first.root is not None
    assert first.root.rank == 0
    assert first.rest.startswith("stage 1\n")
    assert second.root is not None
    assert second.root.exit_code == -9
    assert second.rest.startswith("stage 2\n")
    assert behind.root is None
    assert behind.rest == "make: *** [t] Error 1\n"


@table("line, rank, code", [
    ("[rank: 1] Child process with PID 77 terminated with code -9. Forcefully terminating all other", 1, -9),
    ("torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL", 1, -9),
    ("torch.multiprocessing.spawn.ProcessExitedException: process 3 terminated with exit code 7", 3, 7),
    ("-- Process 2 terminated with the following error:", 2, 1),
])  # fmt: skip
def test_other_launchers_name_the_rank_that_ended_first(line: str, rank: int, code: int) -> None:
    (launcher_report,) = parse_reports(f"step 1\n{line}\n")
    assert launcher_report.root is not None
    assert (launcher_report.root.rank, launcher_report.root.exit_code) == (
        rank,
        code,
    )


# --- tracebacks -------------------------------------------------------------------------------------------------------


def test_a_chain_is_read_from_the_first_cause_to_the_last_exception() -> None:
    text = (
        traceback("KeyError: 'a'", function="load")
        + "\nDuring handling of the above exception, another exception occurred:\n\n"
        + traceback("ValueError: b", function="main")
        + "\nThe above exception was the direct cause of the following exception:\n\n"
        + traceback("RuntimeError: c\n  more")
    )
    chain = last_chain(text)
    assert chain is not None
    assert [raised.text for raised in chain.raised] == ["KeyError: 'a'", "ValueError: b", "RuntimeError: c\n  more"]
    assert chain.raised[0].where == "train.py:88 in load"


def test_prefixes_of_ranks_and_of_torchrun_are_taken_off() -> None:
    text = "".join(f"[default1]:{line}\n" for line in traceback("ValueError: b", rank=1).splitlines())
    chain = last_chain(text)
    assert chain is not None
    assert chain.ranked
    assert chain.raised[-1].text == "ValueError: b"


def test_frames_of_libraries_are_passed_over() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/home/me/train.py", line 12, in fit\n    loss.backward()\n'
        '  File "/venv/lib/python3.11/site-packages/torch/_tensor.py", line 581, in backward\n    engine()\n'
        "RuntimeError: element 0 of tensors does not require grad\n"
    )
    chain = last_chain(text)
    assert chain is not None
    assert chain.raised[-1].where == "train.py:12 in fit"
    assert chain.raised[-1].path[-1] == "torch/_tensor.py in backward"


def test_the_fault_handlers_own_frames() -> None:
    text = (
        "Fatal Python error: Segmentation fault\n\n"
        'Thread 0x00007f (most recent call first):\n  File "/usr/lib/python3.11/threading.py", line 327 in wait\n\n'
        "Current thread 0x00007e [python] (most recent call first):\n"
        '  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at\n'
        '  File "/home/me/train.py", line 35 in main\n'
    )
    assert fatal_where(text) == "train.py:35 in main"
    without_frames = "Fatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n  <no frame>\n"
    assert fatal_where("nothing\n") is fatal_where(without_frames) is None
