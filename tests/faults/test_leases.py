"""GPUs on a simulated machine: leased by UUID, never to two runs, queued for, respected when others use them."""

from __future__ import annotations

import fcntl
import json

import pytest

from gputui.runs.identity import environment_of
from tests.conftest import wait_until
from tests.machines import Machine
from tests.texts import mentions


@pytest.fixture
def simulated(machine: Machine) -> Machine:
    machine.workspace.scenario.write_text("gpus: 4\nmemory: 80GiB\n")
    return machine


def visible(machine: Machine, run_id: str) -> str:
    """CUDA_VISIBLE_DEVICES of the run's command."""
    started = json.loads((machine.workspace.run_dir(run_id) / "attempts/1/started.json").read_text())
    return environment_of(started["pid"])["CUDA_VISIBLE_DEVICES"]


def test_two_runs_never_hold_the_same_gpu_and_the_third_waits(simulated: Machine) -> None:
    profile = simulated.profile()
    long = ("--set", "steps=100000")
    simulated.gputui("run", profile, "--gpus", "2", "--name", "a", *long)
    simulated.gputui("run", profile, "--gpus", "2", "--name", "b", *long)
    simulated.gputui("run", profile, "--gpus", "1", "--name", "c", "--set", "steps=10")
    for name in ("a-1", "b-1"):
        simulated.wait_for(name, "running")
    waits = "SELECT state FROM runs WHERE run_id = 'c-1' AND waiting_for LIKE '0 of 1 GPU free%used by%'"
    assert wait_until(lambda: simulated.rows(waits), what="the reason") == [("queued",)]
    first = visible(simulated, "a-1").split(",")
    second = visible(simulated, "b-1").split(",")
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


def test_two_runs_share_a_gpu_by_their_parts_of_it(simulated: Machine) -> None:
    simulated.workspace.scenario.write_text("gpus: 1\nmemory: 80GiB\n")
    profile = simulated.profile()
    long = ("--set", "steps=100000")
    simulated.gputui("run", profile, "--gpus", "0.5", "--name", "a", *long)
    simulated.gputui("run", profile, "--gpus", "0.5", "--name", "b", *long)
    for name in ("a-1", "b-1"):
        simulated.wait_for(name, "running")
    assert visible(simulated, "a-1") == visible(simulated, "b-1")
    simulated.gputui("run", profile, "--gpus", "0.25", "--name", "c", "--set", "steps=10")
    waits = "SELECT state FROM runs WHERE run_id = 'c-1' AND waiting_for LIKE '%GPU 0 shared by 2 runs%'"
    assert wait_until(lambda: simulated.rows(waits), what="the reason") == [("queued",)]
    (gpu,) = simulated.json("gpus")
    assert gpu["run_ids"] == ["a-1", "b-1"]
    assert {line.split()[0]: line.split()[3] for line in simulated.gputui("ps").splitlines()[2:]} == {
        "a-1": "0.5", "b-1": "0.5",
    }  # fmt: skip
    # The next agent finds both runs, and lets a third join the one that goes on.
    simulated.kill_agent()
    simulated.gputui("stop", "a-1", "--now")
    simulated.wait_for("c-1", "succeeded")
    assert simulated.state("b-1") == "running"
    simulated.gputui("stop", "b-1", "--now")
    simulated.wait_for("b-1", "stopped")
    wait_until(lambda: not simulated.rows("SELECT * FROM leases"), what="the end of every lease")


@pytest.mark.long
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


def test_a_run_waits_in_the_queue_for_a_gpu_that_another_home_holds(simulated: Machine) -> None:
    simulated.workspace.scenario.write_text("gpus: 1\n")
    simulated.gputui("agent", "start")
    (gpu,) = wait_until(lambda: simulated.json("gpus"), what="the GPU")
    locks = simulated.workspace.state / "locks"
    locks.mkdir(mode=0o700)
    with (locks / f"gputui-{gpu['uuid']}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        simulated.gputui("run", simulated.profile(), "--gpus", "1", "--set", "steps=10")
        (waits,) = wait_until(
            lambda: simulated.rows("SELECT waiting_for FROM runs WHERE waiting_for LIKE '%held by%'"), what="the reason"
        )
        assert mentions(waits[0], "GPU 0", "another home")
        assert simulated.rows("SELECT count(*) FROM attempts") == [(0,)]
    simulated.wait_for("steps-1", "succeeded")
    assert simulated.rows("SELECT count(*) FROM incidents") == [(0,)]
    with (locks / f"gputui-{gpu['uuid']}.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
