"""Losses by a person or a broken disk: the database, a run's folder, the end of a pipe."""

from __future__ import annotations

import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from gputui.runs.identity import is_alive
from tests.conftest import wait_until
from tests.machines import Machine

# Saves at steps 10 and 20, then fails and says that its loss was NaN at step 15: the checkpoint of step 20 is bad.
POISONED = """
import json, os, pathlib, sys, time, zipfile
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
            time.sleep(0.05)  # the times of files differ by some milliseconds at least
raise FloatingPointError("loss is nan at step 15")
"""


def lose_database(machine: Machine) -> None:
    machine.kill_agent()
    for path in machine.workspace.state.glob("gputui.db*"):
        path.unlink()


def finished_runs(machine: Machine) -> list[object]:
    """The rows of the runs that are over."""
    fields = ("id", "step", "total_steps", "loss", "started_at")
    runs = [[run[field] for field in fields] for run in machine.json("ps") if run["ended_at"] is not None]
    attempts = machine.rows(
        "SELECT run_id, a.started_at, a.ended_at, first_step, last_step FROM attempts AS a "
        "JOIN runs AS r USING (run_id) WHERE r.ended_at IS NOT NULL ORDER BY run_id"
    )
    return [sorted(runs), attempts]


def reasons_of_ends(machine: Machine) -> list[object]:
    """Why runs failed, from their rows, incidents and decisions."""
    return [
        machine.rows("SELECT run_id, reason FROM runs WHERE state = 'failed'"),
        machine.rows("SELECT run_id, attempt, kind, summary, evidence FROM incidents"),
        machine.rows("SELECT run_id, attempt, verdict, reason FROM decisions"),
    ]


def cut_launch(machine: Machine) -> None:
    """Leave the run as an agent does that is killed between the attempt's row and its shim."""
    shim = machine.shim("steps-1")
    machine.kill_agent()
    os.kill(shim.pid, 9)
    for process in machine.marked("steps-1"):
        os.kill(process.pid, 9)
    with closing(sqlite3.connect(machine.workspace.database)) as connection, connection:
        connection.execute("UPDATE attempts SET shim_pid = NULL")


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
    before = finished_runs(machine)
    reasons = reasons_of_ends(machine)
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
    assert reasons_of_ends(machine) == reasons
    wait_until(lambda: finished_runs(machine) == before, what="the metrics of ended runs")
    machine.gputui("stop", "alive-1", "--now")
    machine.wait_for("alive-1", "stopped")
    assert not is_alive(shim)


@pytest.mark.long
def test_a_lost_database_makes_no_poisoned_checkpoint_good(machine: Machine) -> None:
    """The evidence in the run's folder tells again which numbers were bad."""
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
    assert machine.rows("SELECT kind FROM incidents") == [("nan_loss",)]
    lose_database(machine)
    machine.gputui("agent", "start")
    assert machine.rows("SELECT kind FROM incidents") == [("nan_loss",)]
    assert machine.rows("SELECT state FROM runs") == [("failed",)]
    machine.gputui("resume", "nan-1")
    machine.wait_for("nan-1", "failed", "succeeded")
    ((base,),) = machine.rows("SELECT resumed_from FROM attempts WHERE number = 2")
    assert Path(base).name == "step_10.pt"
    machine.gputui("explain", "nan-1")


def test_a_run_whose_folder_is_gone_fails_and_stops_nobody(machine: Machine) -> None:
    profile = machine.profile()
    machine.gputui("run", profile, "--set", "steps=100000")
    cut_launch(machine)
    folder = machine.workspace.run_dir("steps-1")
    folder.rename(machine.folder / "elsewhere")
    machine.gputui("agent", "start")
    machine.gputui("run", profile, "--set", "steps=5", "--name", "other", "--wait")
    machine.wait_for("steps-1", "failed")
    assert "folder is gone" in machine.json("show", "steps-1")["reason"]


def test_an_attempt_that_was_begun_is_never_begun_again(machine: Machine) -> None:
    """Its shim's name was never stored, and the shim is dead: the next attempt gets a folder of its own."""
    machine.gputui("run", machine.profile(), "--set", "seconds=0.05", "--set", "steps=40")
    wait_until(lambda: len(machine.steps("steps-1")) > 12, what="some steps")
    cut_launch(machine)
    machine.gputui("agent", "start")
    machine.wait_for("steps-1", "succeeded")
    assert [attempt["state"] for attempt in machine.json("show", "steps-1")["attempts"]] == ["failed", "succeeded"]


def test_a_restored_database_neither_starts_a_second_training_nor_removes_a_living_one(machine: Machine) -> None:
    """One was queued in the backup, the other had ended. Both live now."""
    machine.gputui("run", machine.profile(), "--name", "over", "--set", "steps=12", "--wait")
    machine.gputui("queue", "pause")
    machine.gputui("run", machine.profile(), "--name", "queued", "--set", "steps=100000")
    backup = machine.folder / "backup.db"
    with closing(sqlite3.connect(machine.workspace.database)) as connection, closing(sqlite3.connect(backup)) as copy:
        connection.backup(copy)
    machine.gputui("queue", "resume")
    machine.gputui("resume", "over-1", "--set", "steps=100000")
    attempts = {"queued-1": 1, "over-1": 2}
    shims = {}
    for run_id in attempts:
        wait_until(lambda run_id=run_id: len(machine.steps(run_id)) > 5, what="steps")
        shims[run_id] = machine.shim(run_id)
    lose_database(machine)
    backup.rename(machine.workspace.database)
    assert "stop it first" in machine.gputui("rm", "over-1", code=3)
    machine.gputui("queue", "resume")
    wait_until(
        lambda: {run["id"]: run["attempt"] for run in machine.json("ps")} == attempts, what="the living attempts"
    )
    assert all(is_alive(shim) for shim in shims.values())
    for run_id in shims:
        folder = machine.workspace.run_dir(run_id) / "attempts"
        assert len(list(folder.iterdir())) == attempts[run_id]
        machine.gputui("stop", run_id, "--now")
        machine.wait_for(run_id, "stopped")
        assert not is_alive(shims[run_id])
