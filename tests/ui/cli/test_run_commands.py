"""`gputui run` of scripts and commands without a profile."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from gputui.core.config import Workspace
from tests.conftest import wait_until
from tests.machines import STEPS_SCRIPT, Machine
from tests.tables import table
from tests.ui.cli.program import error_of, output_of

SCRIPT = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', type=float, default=0.1)\n"
ERRORS = [
    (("trian.py",), "train.py"), (("nothing",), "file or program"), (("LR=1", "train.py"), "LR=1"), ((), "PROFILE"),
    (("--gpus", "1"), "PROFILE"), (("--set", "x=1", "train.py"), "typed"), (("run.yaml",), "run.yaml"),
    (("digits-ddp", "train.py"), "digits-ddp"), (("train.py", "--gpus", "2"), "--gpus"),
]  # fmt: skip


def _in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "train.py").write_text(SCRIPT)
    (folder / "plain.py").write_text("print(1)\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)


def test_a_script_is_a_whole_run(machine: Machine) -> None:
    script = machine.folder / "count.py"
    # The script saves beside itself a file that looks like one of torch.
    text = STEPS_SCRIPT.replace('run_dir / "checkpoints"', 'pathlib.Path("saved")')
    script.write_text(text.replace('writestr("step"', 'writestr("archive/data.pkl"'))
    before = {path.name for path in machine.folder.iterdir()}
    arguments = ("--name", "mine", "--set", "steps=100000", "--json", "count.py", "--steps", "3", "--seconds=0.02")
    assert json.loads(machine.gputui("run", *arguments))["id"] == "mine-1"
    wait_until(lambda: machine.steps("mine-1")[-1:] >= [(1, 30)], what="steps")
    wait_until(lambda: machine.rows("SELECT 1 FROM checkpoints WHERE run_id = 'mine-1'"), what="a checkpoint")
    os.kill(machine.marked("mine-1")[-1].pid, signal.SIGKILL)
    wait_until(lambda: machine.steps("mine-1")[-1][0] == 2, what="a second attempt")
    assert next(step for attempt, step in machine.steps("mine-1") if attempt == 2) >= 10, "it was resumed"
    run = machine.json("show", "mine-1")
    assert run["params"]["steps"] == 100000
    assert run["params"]["batch_size"] == 16
    assert machine.finish("mine-1", attempt=2) > 1
    assert "count.py --steps 3" in machine.gputui("explain", "mine-1")
    assert "count.py --steps 3" in machine.gputui("show", "mine-1")
    machine.gputui("restart", "mine-1")
    machine.wait_for("mine-1", "succeeded")
    assert {path.name for path in machine.folder.iterdir()} == before | {"saved"}, "gputui writes nothing there"


def test_any_command_runs_where_and_as_it_was_typed(machine: Machine) -> None:
    program = 'pwd; echo "$@"; echo "$COLOUR"; exit 3'
    arguments = ("run", "--wait", "--", "bash", "-c", program, "name", "--lr", "1e-3", "two words")
    machine.gputui(*arguments, code=1)
    (run,) = json.loads(machine.gputui("ps", "--json"))
    logs = machine.gputui("logs", run["id"])
    assert f"{machine.folder}\n" in logs
    assert "--lr 1e-3 two words" in logs
    assert "code 3" in machine.gputui("explain")


PLANS = [
    # arguments of `run --dry-run`, the end of the command
    (("train.py",), "train.py --lr 0.1"),
    (("plain.py", "--gpus", "2"), "plain.py --gpus 2"),
    (("--", "python", "train.py", "--lr", "0.2"), "train.py --lr 0.2"),
    (("--set", "lr=0.3", "python", "train.py", "--lr=0.2"), "train.py --lr=0.3"),
    (("--gpus", "0", "--", "echo", "--dry-run"), "echo --dry-run"),
    (("./run.sh", "4"), "./run.sh 4"),
    (("run.sh",), "./run.sh"),
]


@table(("arguments", "ending"), PLANS)
def test_what_a_command_is(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], ending: str
) -> None:
    _in_folder(tmp_path, monkeypatch)
    command = next(
        line for line in output_of(workspace, "run", "--dry-run", *arguments).splitlines() if line.startswith("command")
    )
    assert command.endswith(ending), command


def test_a_name_of_both_is_the_profile(workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _in_folder(tmp_path, monkeypatch)
    (tmp_path / "profiles").mkdir(exist_ok=True)
    (tmp_path / "profiles" / "env.yaml").write_text("command: echo of the profile\ngpus: 0\n")
    assert "echo of the profile" in output_of(workspace, "run", "env", "--dry-run")
    assert "of the profile" not in output_of(workspace, "run", "--dry-run", "--", "env")


@table(
    ("arguments", "limit"),
    [((), "8 h"), (("--time", "90s"), "1 min 30 s"), (("--time", "1d"), "1 d")],
)
def test_the_profile_limits_the_time_unless_the_command_does(
    workspace: Workspace, tmp_path: Path, arguments: tuple[str, ...], limit: str
) -> None:
    profile = tmp_path / "night.yaml"
    profile.write_text("command: echo done\ngpus: 0\ntime: 8h\n")
    lines = output_of(workspace, "run", "--dry-run", str(profile), *arguments).splitlines()
    assert [line.split(maxsplit=2)[2] for line in lines if line.startswith("time limit")] == [limit]


@table(("arguments", "mentioned"), ERRORS)
def test_what_cannot_be_run(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], mentioned: str
) -> None:
    _in_folder(tmp_path, monkeypatch)
    text = error_of(workspace, "run", "--dry-run", *arguments, code=2)
    assert mentioned in text
    assert len(text.splitlines()) == 1


def test_a_program_that_is_not_there_is_not_launched(machine: Machine) -> None:
    for word in ("./nothing", "nothing"):
        assert word in machine.gputui("run", "--", word, code=3)
    assert json.loads(machine.gputui("ps", "--json")) == []


def test_a_command_gets_one_gpu_or_as_many_as_asked_for(machine: Machine) -> None:
    machine.workspace.scenario.write_text("gpus: 4\nmemory: 80GiB\n")
    program = ("bash", "-c", 'echo "visible:$CUDA_VISIBLE_DEVICES"')
    for options, count in (((), 1), (("--gpus", "2"), 2), (("--gpus", "0"), 0)):
        machine.gputui("run", "--name", "seen", *options, "--wait", "--", *program)
        line = next(line for line in machine.gputui("logs").splitlines() if "visible:" in line)
        assert len([uuid for uuid in line.partition("visible:")[2].split(",") if uuid]) == count
