"""What every launcher keeps to, and that nobody else knows one by its name."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.recovery.classify import classify
from gputui.recovery.evidence import ExitRecord, collect
from gputui.recovery.findings import reports_of
from gputui.runs.launchers import LAUNCHERS
from gputui.runs.launchers.base import OUTPUT, Invocation, Launcher, Placement
from gputui.runs.spec import GpuRequest, RunSpec
from tests.tables import table

INVOCATION = Invocation(("train.py", "--lr", "0.1"), "/runs/r-1/attempts/2", "r-1.2")
EVERY = table("launcher", LAUNCHERS.values())


def spec(launcher: Launcher) -> RunSpec:
    python = None if launcher.takes_command else "/venv/bin/python"
    return RunSpec(name="a", launcher=launcher.name, program=("train.py",), workdir="/", python=python, nproc=2)


@EVERY
def test_the_program_comes_last_with_its_arguments(launcher: Launcher) -> None:
    for ranks in (1, 2):
        argv = launcher.argv(spec(launcher), Placement.here(("GPU-a", "GPU-b")[:ranks], ranks, 29501), INVOCATION)
        assert argv[-3:] == INVOCATION.words
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
