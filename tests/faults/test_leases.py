"""GPUs on a simulated machine: leased by UUID, never to two runs, queued for, respected when others use them."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from pathlib import Path

import pytest

from gputui.runs.identity import environment_of
from tests.conftest import wait_until
from tests.machine import Machine
from tests.texts import mentions


@pytest.fixture
def simulated(machine: Machine) -> Machine:
    machine.workspace.scenario.write_text("gpus: 4\nmemory: 80GiB\n")
    return machine


def visible(machine: Machine, run_id: str) -> str:
    """CUDA_VISIBLE_DEVICES of the run's command."""
    started = json.loads((machine.workspace.run_dir(run_id) / "attempts/1/started.json").read_text())
    return (environment_of(started["pid"]) or {})["CUDA_VISIBLE_DEVICES"]


def test_two_runs_never_hold_the_same_gpu_and_the_third_waits(simulated: Machine) -> None:
    profile = simulated.profile()
    long = ("--set", "steps=100000")
    simulated.gputui("run", profile, "--gpus", "2", "--name", "a", *long)
    simulated.gputui("run", profile, "--gpus", "2", "--name", "b", *long)
    simulated.gputui("run", profile, "--gpus", "1", "--name", "c", "--set", "steps=10")
    for name in ("a-1", "b-1"):
        simulated.wait_for(name, "running")
    assert simulated.state("c-1") == "queued"
    (waiting,) = wait_until(lambda: simulated.rows("SELECT waiting_for FROM runs WHERE waiting_for IS NOT NULL"))
    assert "waits for 1 GPU (0 free" in waiting[0] and "leased to" in waiting[0]
    first, second = visible(simulated, "a-1").split(","), visible(simulated, "b-1").split(",")
    assert len({*first, *second}) == 4
    uuids = {gpu["uuid"]: gpu["run_id"] for gpu in simulated.json("gpus")}
    assert {uuids[uuid] for uuid in first} == {"a-1"}
    assert {uuids[uuid] for uuid in second} == {"b-1"}
    simulated.gputui("stop", "a-1", "--now")
    simulated.wait_for("c-1", "succeeded")
    used = json.loads((simulated.workspace.run_dir("c-1") / "attempts/1/attempt.json").read_text())["gpus"]
    assert used[0] in first
    simulated.gputui("stop", "b-1", "--now")
    simulated.wait_for("b-1", "stopped")
    wait_until(lambda: not simulated.rows("SELECT * FROM leases"), what="the end of every lease")


def test_a_recovering_run_keeps_its_gpus(simulated: Machine) -> None:
    profile = simulated.profile()
    simulated.gputui("run", profile, "--gpus", "3", "--name", "a", "--set", "fail_at=25", "--set", "seconds=0.05")
    simulated.wait_for("a-1", "running")
    simulated.gputui("run", profile, "--gpus", "2", "--name", "b", "--set", "steps=10")
    simulated.wait_for("a-1", "succeeded")
    attempts = simulated.json("show", "a-1")["attempts"]
    assert len(attempts) == 2
    assert attempts[0]["gpus"] == attempts[1]["gpus"]
    simulated.wait_for("b-1", "succeeded")
    began = simulated.json("ps")[0]["started_at"]
    assert began > attempts[0]["ended_at"]


def test_chosen_gpus_and_their_order(simulated: Machine) -> None:
    simulated.gputui("run", simulated.profile(), "--gpus", "3,1", "--set", "steps=100000")
    simulated.wait_for("steps-1", "running")
    order = {gpu["uuid"]: gpu["index"] for gpu in simulated.json("gpus")}
    assert sorted(order[uuid] for uuid in visible(simulated, "steps-1").split(",")) == [1, 3]
    simulated.gputui("stop", "steps-1", "--now")


def test_other_peoples_processes_are_respected(simulated: Machine) -> None:
    simulated.workspace.scenario.write_text(
        "gpus: 2\nmemory: 80GiB\nforeign:\n  - {gpu: 0, memory: 30GiB, user: alice, command: python}\n"
    )
    simulated.gputui("run", simulated.profile(), "--gpus", "1", "--set", "steps=100000")
    simulated.wait_for("steps-1", "running")
    gpus = simulated.json("gpus")
    assert gpus[1]["run_id"] == "steps-1"
    assert gpus[0]["run_id"] is None
    assert gpus[0]["processes"][0]["user"] == "alice"
    simulated.gputui("run", simulated.profile(), "--gpus", "1", "--name", "waits")
    wait_until(
        lambda: any("alice" in (row[0] or "") for row in simulated.rows("SELECT waiting_for FROM runs")),
        what="the reason for waiting",
    )
    simulated.gputui("stop", "steps-1", "--now")
    simulated.wait_for("waits-1", "succeeded")


def test_a_lost_gpu_is_shown_and_not_used(simulated: Machine) -> None:
    simulated.workspace.scenario.write_text("gpus: 2\nmemory: 80GiB\nfaults:\n  - {kind: lost, gpu: 0}\n")
    simulated.gputui("agent", "start")
    wait_until(lambda: simulated.json("gpus")[0]["state"] == "lost", what="the loss")
    simulated.gputui("run", simulated.profile(), "--gpus", "1", "--wait", "--set", "steps=5")
    (attempt,) = simulated.json("show", "steps-1")["attempts"]
    assert attempt["gpus"] == [simulated.json("gpus")[1]["uuid"]]


def test_a_hung_driver_stops_nothing_else(simulated: Machine) -> None:
    """The driver hangs for a minute: the GPUs are shown as stale, and a CPU run starts, measures and ends meanwhile."""
    simulated.gputui("agent", "start")
    wait_until(lambda: simulated.json("gpus")[0]["state"] == "ok", what="the first sample")
    simulated.workspace.scenario.write_text("gpus: 4\nmemory: 80GiB\nfaults:\n  - {kind: hang, for: 60}\n")
    wait_until(lambda: simulated.json("gpus")[0]["state"] == "stale", what="the stall")
    simulated.gputui("run", simulated.profile(), "--wait")
    assert simulated.state("steps-1") == "succeeded"
    gpu = simulated.json("gpus")[0]
    assert gpu["state"] == "stale"
    assert gpu["age_seconds"] > 3
    assert simulated.rows("SELECT sampler_state FROM agent") == [("silent",)]


def test_ranks_are_told_on_their_gpus(simulated: Machine) -> None:
    script = simulated.folder / "ranks.py"
    script.write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    profile = simulated.profile(
        "ranks", f"name: ranks\nlauncher: torchrun\nscript: ranks.py\ngpus: 2\npython: {sys.executable}\n"
    )
    simulated.gputui("run", profile)
    wait_until(lambda: len(simulated.ranks("ranks-1")) == 2, what="two ranks")
    held = {gpu["uuid"] for gpu in simulated.json("gpus") if gpu["run_id"] == "ranks-1"}
    assert len(held) == 2

    def ranks() -> list[int] | None:
        found = sorted(gpu["rank"] for gpu in simulated.json("gpus") if gpu["rank"] is not None)
        return found if len(found) == 2 else None

    assert wait_until(ranks, what="the ranks on the GPUs") == [0, 1]
    simulated.gputui("stop", "ranks-1")
    simulated.wait_for("ranks-1", "stopped")
    assert not simulated.marked("ranks-1")


def test_a_run_waits_in_the_queue_for_a_gpu_that_another_home_holds(simulated: Machine) -> None:
    simulated.workspace.scenario.write_text("gpus: 1\n")
    simulated.gputui("agent", "start")
    (gpu,) = wait_until(lambda: simulated.json("gpus"), what="the GPU")
    locks = simulated.workspace.state / "locks"
    locks.mkdir(mode=0o700)
    with (locks / f"{gpu['uuid']}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        simulated.gputui("run", simulated.profile(), "--gpus", "1", "--set", "steps=10")
        (waits,) = wait_until(
            lambda: simulated.rows("SELECT waiting_for FROM runs WHERE waiting_for LIKE '%held by%'"), what="the reason"
        )
        assert mentions(waits[0], "GPU 0", f"(pid {os.getpid()})")
        assert simulated.rows("SELECT count(*) FROM attempts") == [(0,)]
    simulated.wait_for("steps-1", "succeeded")
    assert simulated.rows("SELECT count(*) FROM incidents") == [(0,)]
    with (locks / f"{gpu['uuid']}.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_the_shim_holds_what_its_agent_has_locked(simulated: Machine) -> None:
    simulated.gputui("run", simulated.profile(), "--gpus", "2", "--set", "steps=100000")
    simulated.wait_for("steps-1", "running")
    simulated.kill_agent()
    paths = json.loads((simulated.workspace.run_dir("steps-1") / "attempts/1/attempt.json").read_text())["lock_files"]
    assert len(paths) == 2
    for path in paths:
        with Path(path).open() as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    simulated.gputui("stop", "steps-1", "--now")
