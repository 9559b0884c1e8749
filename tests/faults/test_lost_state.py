"""What a person or a broken disk takes away: the database, a run's folder, the end of a pipe."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gputui.config import locate
from gputui.runs.identity import environment_of, is_alive
from tests.conftest import wait_until
from tests.machine import Machine

# Saves at steps 10 and 20, and says that it was wrong from step 15 on.
POISONED = """
import json, os, pathlib, sys, zipfile
if "--resume" in sys.argv:
    sys.exit(0)
folder = pathlib.Path(os.environ["GPUTUI_RUN_DIR"]) / "checkpoints"
folder.mkdir()
with open(os.environ["GPUTUI_METRICS"], "a") as out:
    for step in range(21):
        print(json.dumps({"step": step, "loss": 1.0}), file=out, flush=True)
        if step in (10, 20):
            with zipfile.ZipFile(folder / f"step_{step}.pt", "w") as archive:
                archive.writestr("weights", "w" * step)
raise FloatingPointError("loss is nan at step 15")
"""


def lose_database(machine: Machine) -> None:
    machine.kill_agent()
    for path in machine.workspace.state.glob("gputui.db*"):
        path.unlink()


def test_a_lost_database_keeps_what_lives_and_starts_nothing_that_was_over(machine: Machine) -> None:
    """Two runs that are over had the same GPU; a third one is alive on it; a fourth failed for good."""
    machine.workspace.scenario.write_text("gpus: 1\nmemory: 80GiB\n")
    profile = machine.profile()
    for name in ("a", "b"):
        machine.gputui("run", profile, "--gpus", "1", "--name", name, "--set", "steps=5", "--wait")
    machine.gputui("run", profile, "--name", "stopped", "--set", "steps=100000")
    wait_until(lambda: machine.steps("stopped-1"), what="a step")
    machine.gputui("stop", "stopped-1")
    machine.wait_for("stopped-1", "stopped")
    failing = machine.profile(
        "failing", f"name: failing\nlauncher: command\ncommand: {sys.executable} -c 1/0\ngpus: 0\nrecovery: off\n"
    )
    machine.gputui("run", failing, "--wait", code=1)
    machine.gputui("run", profile, "--gpus", "1", "--name", "alive", "--set", "steps=100000")
    wait_until(lambda: machine.steps("alive-1"), what="a step")
    shim = machine.shim("alive-1")
    lose_database(machine)
    machine.gputui("agent", "start")
    assert is_alive(shim)
    states = {run["id"]: (run["state"], run["attempt"]) for run in machine.json("ps")}
    assert states.pop("alive-1")[0] in ("starting", "running")
    assert states == {
        "a-1": ("succeeded", 1),
        "b-1": ("succeeded", 1),
        "stopped-1": ("stopped", 1),
        "failing-1": ("failed", 1),
    }
    assert machine.rows("SELECT run_id FROM leases") == [("alive-1",)]
    machine.gputui("stop", "alive-1", "--now")
    machine.wait_for("alive-1", "stopped")
    assert not is_alive(shim)


def test_a_lost_database_makes_no_poisoned_checkpoint_good(machine: Machine) -> None:
    """What the numbers were when it went wrong is told again by the evidence in the run's folder."""
    (machine.folder / "nan.py").write_text(POISONED)
    profile = machine.profile(
        "nan",
        f"""
        name: nan
        launcher: python
        script: nan.py
        python: {sys.executable}
        gpus: 0
        recovery: off
        metrics: {{source: jsonl, path: "{{run_dir}}/metrics.jsonl"}}
        checkpoints: {{dir: "{{run_dir}}/checkpoints", pattern: "step_*.pt", resume: "--resume {{checkpoint}}"}}
        """,
    )
    machine.gputui("run", profile, "--wait", code=1)
    before = machine.rows("SELECT kind, step FROM incidents")
    assert before[0][0] == "nan_loss"
    wait_until((machine.workspace.run_dir("nan-1") / "incidents/1/decision.json").exists)
    lose_database(machine)
    machine.gputui("agent", "start")
    assert machine.rows("SELECT kind, step FROM incidents") == before
    machine.gputui("resume", "nan-1")
    machine.wait_for("nan-1", "failed", "succeeded")
    ((base,),) = machine.rows("SELECT resumed_from FROM attempts WHERE number = 2")
    assert Path(base).name == "step_10.pt"
    machine.gputui("explain", "nan-1")


def test_a_run_whose_folder_is_gone_fails_and_stops_nobody(machine: Machine) -> None:
    profile = machine.profile()
    machine.gputui("run", profile, "--set", "steps=100000")
    shim = machine.shim("steps-1")
    machine.kill_agent()
    os.kill(shim.pid, 9)
    for process in machine.marked("steps-1"):
        os.kill(process.pid, 9)
    # As an agent leaves it that is killed between the attempt's row and its shim.
    folder = machine.workspace.run_dir("steps-1")
    subprocess.run(
        [sys.executable, "-c", "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); "
         "c.execute('UPDATE attempts SET shim_pid = NULL'); c.commit()", machine.workspace.database],
        check=True,
    )  # fmt: skip
    folder.rename(machine.folder / "elsewhere")
    machine.gputui("agent", "start")
    machine.gputui("run", profile, "--set", "steps=5", "--name", "other", "--wait")
    machine.wait_for("steps-1", "failed")
    assert "folder is gone" in machine.json("show", "steps-1")["reason"]


def test_a_run_whose_specification_is_gone_says_so_and_can_be_resumed_with_it(machine: Machine) -> None:
    machine.gputui("queue", "pause")
    machine.gputui("run", machine.profile(), "--set", "steps=5")
    spec = machine.workspace.run_dir("steps-1") / "spec.json"
    aside = spec.rename(machine.folder / "spec.json")
    machine.gputui("queue", "resume")
    machine.wait_for("steps-1", "failed")
    reason = machine.json("show", "steps-1")["reason"]
    assert str(spec.parent) in reason and spec.name in reason and "resume" in reason
    aside.rename(spec)
    machine.gputui("restart", "steps-1")
    machine.wait_for("steps-1", "succeeded")


def test_an_attempt_that_was_begun_is_never_begun_again(machine: Machine) -> None:
    """Its shim's name was never stored, and the shim is dead: the next attempt gets a folder of its own."""
    machine.gputui("run", machine.profile(), "--set", "seconds=0.05", "--set", "steps=40")
    wait_until(lambda: len(machine.steps("steps-1")) > 12, what="some steps")
    shim = machine.shim("steps-1")
    machine.kill_agent()
    os.kill(shim.pid, 9)
    for process in machine.marked("steps-1"):
        os.kill(process.pid, 9)
    subprocess.run(
        [sys.executable, "-c", "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); "
         "c.execute('UPDATE attempts SET shim_pid = NULL'); c.commit()", machine.workspace.database],
        check=True,
    )  # fmt: skip
    machine.gputui("agent", "start")
    machine.wait_for("steps-1", "succeeded")
    assert [attempt["state"] for attempt in machine.json("show", "steps-1")["attempts"]] == ["failed", "succeeded"]


def test_an_attempt_whose_command_lives_on_without_a_record_is_not_begun_again(machine: Machine) -> None:
    """A full disk took the shim's record and the agent's row; then both were killed, and the training lives."""
    machine.gputui("run", machine.profile(), "--set", "seconds=0.05", "--set", "steps=40")
    wait_until(lambda: len(machine.steps("steps-1")) > 12, what="some steps")
    shim = machine.shim("steps-1")
    machine.kill_agent()
    os.kill(shim.pid, signal.SIGSTOP)
    (process,) = [one for one in machine.marked("steps-1") if one != shim]
    os.kill(process.pid, signal.SIGSTOP)
    os.kill(shim.pid, signal.SIGKILL)
    (machine.workspace.run_dir("steps-1") / "attempts/1/started.json").unlink()
    subprocess.run(
        [sys.executable, "-c", "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); "
         "c.execute('UPDATE attempts SET shim_pid = NULL'); c.commit()", machine.workspace.database],
        check=True,
    )  # fmt: skip
    machine.gputui("agent", "start")
    machine.wait_for("steps-1", "succeeded")
    assert not is_alive(process)
    assert [attempt["state"] for attempt in machine.json("show", "steps-1")["attempts"]] == ["failed", "succeeded"]


@pytest.mark.parametrize("words", [["ps"], ["ps", "--json"], ["agent", "status", "--json"]])
def test_standard_output_may_be_closed(machine: Machine, words: list[str]) -> None:
    line = " ".join([sys.executable, "-m", "gputui", "--home", str(machine.folder / "home"), *words, ">&-"])
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_home_is_the_same_by_whichever_way_one_comes(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "link").symlink_to("home")
    assert locate(tmp_path / "link", {}) == locate(tmp_path / "home", {})
    xdg = {"HOME": "/h", "XDG_STATE_HOME": str(tmp_path / "link"), "XDG_CONFIG_HOME": "/c"}
    assert locate(None, xdg).state == tmp_path / "home" / "gputui"


def test_an_agent_started_from_inside_a_run_outlives_it_with_its_runs(machine: Machine) -> None:
    """The run's shim ends everything below it but what belongs to somebody else."""
    (machine.folder / "other").mkdir()
    other = Machine(machine.folder / "other")
    try:
        inner = other.profile()
        outer = machine.profile(
            "outer",
            f"name: outer\nlauncher: command\ngpus: 0\nrecovery: off\nenv: {{RANK: '0', WORLD_SIZE: '2'}}\n"
            f"command: {sys.executable} -m gputui --home {other.folder / 'home'} run {inner} --set steps=100000\n",
        )
        machine.gputui("run", outer, "--wait")
        agent, shim = wait_until(other.agent), other.shim("steps-1")
        machine.wait_for("outer-1", "succeeded")
        assert is_alive(agent) and is_alive(shim)
        environment = environment_of(shim.pid) or {}
        assert "RANK" not in environment and "GPUTUI_AGENT" not in environment
        other.gputui("stop", "steps-1")
        other.wait_for("steps-1", "stopped")
    finally:
        other.close()


@pytest.mark.parametrize("is_renamed", [False, True])
def test_a_copy_of_a_runs_folder_is_no_run(machine: Machine, is_renamed: bool) -> None:
    machine.gputui("run", machine.profile(), "--set", "steps=100000")
    wait_until(lambda: machine.steps("steps-1"), what="a step")
    shim = machine.shim("steps-1")
    if is_renamed:
        machine.gputui("stop", "steps-1")
        machine.wait_for("steps-1", "stopped")
    machine.kill_agent()
    folder = machine.workspace.run_dir("steps-1")
    copy = folder.with_name("steps-1.bak")
    if is_renamed:
        folder.rename(copy)
    else:
        shutil.copytree(folder, copy)
    machine.gputui("agent", "start")
    assert machine.rows("SELECT run_id FROM runs") == [("steps-1",)]
    assert is_alive(shim) != is_renamed
    if not is_renamed:
        machine.finish("steps-1")


def test_a_copied_home_ends_nothing_of_the_original(machine: Machine) -> None:
    machine.gputui("run", machine.profile(), "--set", "steps=100000")
    wait_until(lambda: machine.steps("steps-1"), what="a step")
    shim, agent = machine.shim("steps-1"), machine.agent()
    copy = Machine(machine.folder / "copied")
    try:
        shutil.copytree(machine.workspace.state.parent, copy.workspace.state.parent, dirs_exist_ok=True)
        assert copy.agent() is None
        copy.gputui("agent", "start")
        copy.wait_for("steps-1", "stopped")
        assert copy.rows("SELECT state, ended_at IS NULL FROM attempts") == [("stopped", 0)]
        copy.gputui("stop", "steps-1", code=3)
        assert is_alive(shim) and machine.agent() == agent
    finally:
        copy.close()
    machine.finish("steps-1")
