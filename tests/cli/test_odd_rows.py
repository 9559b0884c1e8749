"""Rows of the database that somebody edited: each is shown as it is, and no command, agent or screen ends of it."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from tests.machine import Machine

_ODD = [
    ("runs", "state", "zombified"),
    ("runs", "spec", "no JSON"),
    ("runs", "params", "no JSON"),
    ("attempts", "state", "zombified"),
    ("attempts", "gpus", "no JSON"),
    ("attempts", "launch", "no JSON"),
    ("attempts", "exit", "[1, null]"),
    ("incidents", "kind", "zombified"),
    ("incidents", "evidence", "no JSON"),
    ("decisions", "verdict", "zombified"),
    ("decisions", "actions", "no JSON"),
    ("transitions", "to_state", "zombified"),
    ("checkpoints", "verdict", "zombified"),
    ("checkpoints", "origin", "zombified"),
    ("run_labels", "tags", "[1, null]"),
]


def edit(machine: Machine, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(machine.workspace.database, timeout=30)) as connection, connection:
        assert connection.execute(statement, values).rowcount > 0


def test_an_odd_row_is_shown_and_ends_nothing(machine: Machine) -> None:
    """All of them at once, of a run that met an incident; then the agent starts, and serves others as ever."""
    profile = machine.profile()
    machine.gputui("run", profile, "--wait")
    machine.gputui("run", profile, "--set", "fail_at=12", "--set", "steps=20", "--wait", code=None)
    machine.gputui("tag", "steps-2", "+odd")
    machine.kill_agent()
    for table, column, value in _ODD:
        edit(machine, f"UPDATE {table} SET {column} = ? WHERE run_id = 'steps-2'", value)
    states = {run["id"]: run["state"] for run in machine.json("ps")}
    assert states == {"steps-1": "succeeded", "steps-2": "unknown"}
    assert "zombified" in machine.gputui("ps")
    for words in (("show",), ("explain",), ("metrics",), ("logs",)):
        machine.gputui(*words, "steps-2")
    machine.gputui("--once")
    machine.gputui("run", profile, "--set", "steps=3", "--wait")
    assert machine.json("show", "steps-2")["state"] == "failed"


def test_a_living_run_whose_state_is_none_is_taken_over(machine: Machine) -> None:
    machine.gputui("run", machine.profile(), "--set", "steps=100000")
    machine.wait_for("steps-1", "running")
    machine.kill_agent()
    edit(machine, "UPDATE runs SET state = 'zombified'")
    machine.gputui("agent", "start")
    machine.wait_for("steps-1", "running")
    machine.finish("steps-1")
    assert machine.rows("SELECT count(*) FROM attempts") == [(1,)]


@pytest.mark.parametrize("is_alive", [True, False])
def test_a_run_whose_state_became_none_can_be_stopped(machine: Machine, is_alive: bool) -> None:
    """While the agent lives, which has not seen it happen."""
    steps = "100000" if is_alive else "3"
    machine.gputui("run", machine.profile(), "--set", f"steps={steps}")
    machine.wait_for("steps-1", "running" if is_alive else "succeeded")
    edit(machine, "UPDATE runs SET state = 'zombified'")
    machine.gputui("stop", "steps-1")
    machine.wait_for("steps-1", "stopped" if is_alive else "failed")
    machine.gputui("rm", "steps-1")
    assert machine.rows("SELECT count(*) FROM runs") == [(0,)]
