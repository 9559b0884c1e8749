"""A script that really leaks, watched by a real agent whose times are seconds instead of quarters of an hour."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import wait_until
from tests.faults.jobs import impatient_agent, leaks
from tests.machine import Machine
from tests.texts import mentions

RUNS = {
    "leaks": ("all",),
    "reported": ("all", "{policy: standard, ends_on: []}"),
    "restarted": ("all", "standard", ""),  # it could not resume
    "reads": ("the page cache",),
    "caches": ("a cache for a while",),
}


def observed(machine: Machine, run_id: str) -> list[tuple[str, int]]:
    found = machine.rows("SELECT kind, ends FROM observations WHERE run_id = ? ORDER BY observation_id", run_id)
    return [(row[0], row[1]) for row in found if row[0] == "memory_leak"]


@pytest.fixture
def finished(machine: Machine) -> Iterator[Machine]:
    """A machine on which the impatient agent has watched all RUNS."""
    with impatient_agent(machine) as agent:
        for name, about in RUNS.items():
            machine.gputui("run", leaks(machine, name, *about))
        for name in ("reported", "restarted"):
            wait_until(lambda run_id=f"{name}-1": observed(machine, run_id), 60, f"the leak of {name}")
            (machine.workspace.run_dir(f"{name}-1") / "enough").touch()
        for name in RUNS:
            assert machine.wait_for(f"{name}-1", "succeeded", "failed") == "succeeded"
        yield machine
        agent.kill()


@pytest.mark.long
def test_a_leak_is_ended_with_a_fresh_checkpoint_before_the_memory_is_gone(finished: Machine) -> None:
    first, second = finished.json("show", "leaks-1")["attempts"]
    incident = first["incident"]
    assert (incident["kind"], incident["rank"]) == ("memory_leak", None)
    assert incident["kind"] == "memory_leak"
    assert any(mentions(line, "an hour", "memory", "full in") for line in incident["evidence"]), incident
    assert observed(finished, "leaks-1")[-1] == ("memory_leak", 1)
    assert [action["action"] for action in first["decision"]["actions"] if action["applied"]] == ["restart"]
    # What it saved when it was asked to end is where it goes on: no step is lost.
    saved = first["last_step"] + 1
    assert second["resumed_from"].endswith(f"step_{saved:06d}.pt") and second["state"] == "succeeded"
    assert second["params"] == first["params"]
    assert [step for _, step in finished.steps("leaks-1")] == list(range(saved + 20))
    assert incident["lost_steps"] == 0

    # The same under a policy that only tells of it, and what looks like it.
    assert observed(finished, "reported-1") == observed(finished, "restarted-1") == [("memory_leak", 0)]
    told = finished.rows("SELECT severity FROM events WHERE run_id = 'reported-1' AND key = 'memory_leak'")
    assert told == [("warning",)]
    for name in ("reads", "caches"):
        assert observed(finished, f"{name}-1") == []
    assert finished.rows("SELECT DISTINCT run_id FROM incidents") == [("leaks-1",)]
