"""The queue as a person uses it: order, priorities, moving, pausing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import wait_until
from tests.machines import Machine


@pytest.fixture
def busy(machine: Machine) -> Machine:
    """One GPU, held by a long run; three others wait in the order a, b, c."""
    machine.workspace.scenario.write_text("gpus: 1\nmemory: 80GiB\n")
    profile = machine.profile()
    machine.gputui("run", profile, "--gpus", "1", "--name", "long", "--set", "steps=100000")
    machine.wait_for("long-1", "running")
    for name in "abc":
        machine.gputui("run", profile, "--gpus", "1", "--name", name, "--set", "steps=3")
    return machine


def order(machine: Machine) -> list[str]:
    return [entry["id"] for entry in machine.json("queue")["runs"]]


def started_runs(machine: Machine) -> list[str]:
    return [row[0] for row in machine.rows("SELECT run_id FROM attempts ORDER BY created_at")]


def test_order_priorities_and_moves(busy: Machine) -> None:
    assert order(busy) == ["a-1", "b-1", "c-1"]
    urgent = busy.profile("urgent", Path(busy.profile()).read_text() + "priority: 5\n")
    busy.gputui("run", urgent, "--gpus", "1", "--name", "urgent", "--set", "steps=3")
    busy.gputui("run", urgent, "--gpus", "1", "--name", "low", "--priority", "-3", "--set", "steps=3")
    assert order(busy) == ["urgent-1", "a-1", "b-1", "c-1", "low-1"]
    assert busy.json("queue", "move", "c-1", "--first")["position"] == 1
    busy.gputui("queue", "move", "urgent-1", "--last")
    busy.gputui("queue", "move", "low-1", "--priority", "1")
    expected = ["c-1", "low-1", "a-1", "b-1", "urgent-1"]
    assert order(busy) == expected
    listed = busy.gputui("queue").splitlines()
    assert [line.split()[1] for line in listed[1:]] == expected
    wait_until(lambda: "used by long-1" in busy.gputui("queue"), what="the reason")
    assert "is running" in busy.gputui("queue", "move", "long-1", "--first", code=3)
    assert "give one of" in busy.gputui("queue", "move", "a-1", code=2)
    busy.gputui("stop", "long-1", "--now")
    for run_id in expected:
        busy.wait_for(run_id, "succeeded")
    assert started_runs(busy) == ["long-1", *expected]
    assert busy.gputui("queue").strip() == "the queue is empty"


def test_a_paused_queue_lets_running_runs_go_on_and_starts_nothing(busy: Machine) -> None:
    busy.gputui("queue", "pause")
    assert json.loads(busy.gputui("queue", "--json", "pause"))["paused"] is True
    busy.gputui("run", busy.profile(), "--name", "cpu", "--set", "steps=3")
    busy.gputui("stop", "long-1", "--now")
    busy.wait_for("long-1", "stopped")
    busy.kill_agent()
    busy.gputui("agent", "start")
    wait_until(
        lambda: all(
            "paused" in (row[0] or "") for row in busy.rows("SELECT waiting_for FROM runs WHERE state='queued'")
        ),
        what="the reason",
    )
    assert started_runs(busy) == ["long-1"]
    assert busy.json("queue")["paused"] is True
    assert "the queue was paused by" in busy.gputui("ps")
    busy.gputui("queue", "resume")
    for run_id in ("a-1", "b-1", "c-1", "cpu-1"):
        busy.wait_for(run_id, "succeeded")
    assert busy.json("queue") == {"paused": False, "paused_at": None, "paused_by": None, "runs": []}
