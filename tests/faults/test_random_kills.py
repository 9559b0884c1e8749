"""The main job under fire: a real DDP run of the shipped profile, a rank killed from outside, and the agent killed at a
random moment while the run goes on. Nothing may be lost, doubled or left over."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from tests.conftest import wait_until
from tests.faults.jobs import steps_by_attempt
from tests.machines import Machine

STEPS = 60


def assert_complete(machine: Machine, run_id: str, last: int) -> None:
    by_attempt = steps_by_attempt(machine, run_id)
    for attempt, steps in by_attempt.items():
        assert steps == list(range(steps[0], steps[0] + len(steps))), f"attempt {attempt}: {steps}"
    assert by_attempt[max(by_attempt)][-1] == last
    written = (machine.workspace.run_dir(run_id) / "metrics.jsonl").read_bytes().count(b"\n")
    ((stored, rejected),) = machine.rows(
        "SELECT (SELECT count(*) FROM metrics JOIN metric_sources USING (source_id) WHERE run_id = ?), "
        "(SELECT sum(rejected_count) FROM metric_sources WHERE run_id = ?)",
        run_id,
        run_id,
    )
    assert stored + rejected == written
    wait_until(lambda: not machine.marked(run_id), what="the end of every process")
    assert machine.rows("SELECT * FROM leases") == []
    assert machine.rows("PRAGMA integrity_check") == [("ok",)]


@pytest.mark.long
@pytest.mark.timeout(400)
def test_an_out_of_memory_error_is_recovered_with_a_smaller_batch(machine: Machine) -> None:
    machine.gputui("run", "digits-ddp", "--set", "inject=oom@step=40", "--set", "steps=150", "--wait", timeout=300)
    record = machine.json("show", "digits-ddp-1")
    first, second = record["attempts"]
    assert record["state"] == "succeeded"
    assert first["incident"]["kind"] == "cuda_oom"
    assert (first["params"]["batch_size"], first["params"]["grad_accum"]) == (16, 3)
    assert (second["params"]["batch_size"], second["params"]["grad_accum"]) == (12, 4)
    assert second["resumed_from"].endswith("step_00000030.pt")
    accuracy = machine.json("metrics", "digits-ddp-1", "test_accuracy")[-1]["value"]
    assert accuracy >= 0.95
    story = " ".join(machine.gputui("explain", "digits-ddp-1").split())
    assert "ran out of GPU memory" in story
    assert "batch_size 16 → 12" in story
    assert "grad_accum 3 → 4" in story
    assert "step_00000030.pt" in story
    assert_complete(machine, "digits-ddp-1", 150)
    assert {attempt: (steps[0], steps[-1]) for attempt, steps in steps_by_attempt(machine, "digits-ddp-1").items()} == {
        1: (1, 39),
        2: (31, 150),
    }


@pytest.mark.long
@pytest.mark.timeout(400)
def test_ranks_and_agents_killed_at_random_lose_nothing(machine: Machine) -> None:
    """Two runs at a time; ``make chaos`` does more for longer. In one of them a rank is killed in mid-run; all along,
    the agent is killed at random moments and another one is started."""
    chance = random.Random(20261121)
    machine.gputui("agent", "start")
    # Slow enough that the run still trains when each new agent starts.
    runs = {"killed": "slow@step=1,rank=0,seconds=0.15,times=always", "spared": "none"}
    for name, inject in runs.items():
        changes = [f"steps={STEPS}", "checkpoint_every=5", "lr=0.01", f"inject={inject}"]
        machine.gputui("run", "digits-ddp", "--name", name, *(word for change in changes for word in ("--set", change)))
    killed_agents = 0
    rank_killed = False
    rank_dies_after = chance.randint(8, 30)
    agent_dies_at = time.monotonic() + chance.uniform(0.0, 6.0)
    deadline = time.monotonic() + 300
    while not all(machine.state(f"{name}-1") in ("succeeded", "failed", "stopped") for name in runs):
        assert time.monotonic() < deadline, machine.rows("SELECT run_id, state, reason, waiting_for FROM runs")
        if not rank_killed and len(machine.steps("killed-1")) > rank_dies_after:
            os.kill(machine.ranks("killed-1")[chance.randint(0, 1)], signal.SIGKILL)
            rank_killed = True
        if time.monotonic() > agent_dies_at:
            machine.kill_agent()
            killed_agents += 1
            machine.gputui("agent", "start")
            agent_dies_at = time.monotonic() + chance.uniform(1.0, 8.0)
        time.sleep(0.1)
    for name in runs:
        assert machine.state(f"{name}-1") == "succeeded", machine.gputui("explain", f"{name}-1")
        assert_complete(machine, f"{name}-1", STEPS)
    assert machine.rows("SELECT run_id FROM incidents") == [("killed-1",)]
    died, went_on = (attempt["incident"] for attempt in machine.json("show", "killed-1")["attempts"])
    assert died["kind"] == "killed"
    assert went_on is None
    assert killed_agents >= 2
    assert rank_killed
