"""What the monitor makes of observations: shown once, ended if the policy says so, remembered by the next agent."""

from __future__ import annotations

import json
import sqlite3
from typing import Any, cast

import pytest
from msgspec.structs import replace

from gputui.agent.context import AgentContext
from gputui.agent.health.monitor import HealthMonitor
from gputui.agent.lifecycle.active_run import LiveAttempt
from gputui.agent.lifecycle.run_files import ResolvedRun
from gputui.core.config import Workspace
from gputui.core.redaction import BY_LOOK
from gputui.recovery.policies import POLICIES, Policy
from gputui.runs.executors.process import ExecutorProcess
from gputui.store.attempts import get_attempt
from gputui.store.run_states import RunState
from tests.agent.conftest import NOW, SPEC, add_run
from tests.conftest import wait_until
from tests.tables import table

STANDARD, OFF = POLICIES["standard"], POLICIES["off"]
BAD = [{"step": step, "loss": "NaN"} for step in range(9)]
JUMP = [{"step": step, "loss": 1.0 + step % 3 / 100} for step in range(99)] + [
    {"step": step, "loss": 9.0} for step in range(99, 140)
]
LONE = [{"step": step, "rank": 3} for step in range(30)]


class Machine:
    """A store with one living attempt on one GPU, and a clock that only moves when told."""

    def __init__(self, connection: sqlite3.Connection, workspace: Workspace) -> None:
        self.connection, self.workspace, self.now = connection, workspace, 0.0
        add_run(connection, "r", RunState.STARTING, RunState.RUNNING)
        connection.execute("UPDATE runs SET attempt = 1")
        connection.execute(
            "INSERT INTO attempts (run_id, number, state, params, gpus, launch, created_at, started_at) "
            "VALUES ('r', 1, 'running', '{}', '[\"GPU-a\"]', '{}', ?, ?)", (NOW, NOW),
        )  # fmt: skip
        connection.execute("INSERT INTO metric_sources (source_id, run_id, path, format) VALUES (1, 'r', 'p', 'jsonl')")
        self.asked: list[bool] = []
        self.begin(STANDARD)

    # The part of an executor that is used here.
    kind = property(lambda self: self)

    def processes(self, *_: object) -> list[object]:
        return []

    def ask_to_end(self, *, at_once: bool) -> None:
        self.asked.append(at_once)

    def begin(self, policy: Policy) -> None:
        """An agent begins to watch."""
        context = AgentContext.of(
            self.connection, self.workspace, wake=lambda: None, now=lambda: NOW + self.now, monotonic=lambda: self.now
        )
        record = get_attempt(self.connection, "r", 1)
        assert record is not None
        resolved = ResolvedRun(SPEC, policy, None, BY_LOOK)
        self.live = LiveAttempt(record, cast("ExecutorProcess", self), resolved=resolved)
        self.monitor = HealthMonitor(context)
        self.look()
        wait_until(lambda: bool(self.look() or self.live.watched), what="the history")

    def look(self, seconds: float = 2.0) -> None:
        self.now += seconds
        self.monitor.turn([self.live])

    def write(self, *lines: dict[str, Any]) -> None:
        (offset,) = self.connection.execute("SELECT byte_offset FROM metric_sources").fetchone()
        for place, line in enumerate(lines, offset):
            values = (place, line.get("rank"), line.get("step"), NOW + self.now, json.dumps(line))
            self.connection.execute("INSERT INTO metrics VALUES (1, 0, ?, 1, ?, ?, ?, ?)", values)
        self.connection.execute("UPDATE metric_sources SET byte_offset = ?", (offset + len(lines),))

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(query).fetchall()

    def observed(self) -> list[tuple[Any, ...]]:
        return self.rows("SELECT kind, step, ends FROM observations ORDER BY observation_id")


@pytest.fixture
def machine(connection: sqlite3.Connection, workspace: Workspace) -> Machine:
    return Machine(connection, workspace)


@pytest.mark.parametrize(("lines", "policy", "observed", "asked"), [
    (BAD, STANDARD, [("nan_loss", 0, 1)], [True]), (BAD, OFF, [("nan_loss", 0, 0)], []),
    (JUMP, STANDARD, [("loss_spike", 99, 0)], []),
    (JUMP, replace(STANDARD, ends_on=frozenset({"loss_spike"})), [("loss_spike", 99, 1)], [True]),
    (LONE, STANDARD, [("no_first_rank", None, 0)], []),
])  # fmt: skip
def test_a_finding_is_shown_once_or_ends_the_attempt(
    machine: Machine, lines: list[dict[str, Any]], policy: Policy, observed: list[object], asked: list[bool]
) -> None:
    machine.begin(policy)
    machine.write(*lines)
    for _ in range(3):
        machine.look()
    machine.write(*lines)
    machine.look()
    assert (machine.observed(), machine.asked) == (observed, asked)
    (severity, key, text), *others = machine.rows(
        "SELECT severity, key, message FROM events WHERE kind = 'observation'"
    )
    assert (severity, key, others) == ("error" if asked else "warning", cast("Any", observed[0])[0], [])
    assert text.endswith("; ending this attempt") is bool(asked)
    machine.begin(policy)
    machine.look()
    assert machine.observed() == observed and machine.asked == asked * 2, "the next agent acts on it, and tells nothing"


@table("events, said", [
    ([], 0), ([("lost", None)], 1), ([("xid", 79)], 1), ([("xid", 31)], 0), ([("lost", None), ("returned", None)], 0),
])  # fmt: skip
def test_an_attempt_that_waits_for_a_lost_gpu_is_ended(
    machine: Machine, events: list[tuple[str, int | None]], said: int
) -> None:
    machine.connection.execute("DELETE FROM gpu_events")
    machine.connection.execute("DELETE FROM events")
    machine.asked.clear()
    machine.begin(STANDARD)
    machine.write({"step": int(machine.now)})
    machine.look()
    rows = [(NOW + machine.now + place, "GPU-a", *event) for place, event in enumerate(events)]
    machine.connection.executemany("INSERT INTO gpu_events (at, uuid, event, code) VALUES (?, ?, ?, ?)", rows)
    for _ in range(9):
        machine.look()
    assert machine.asked == [], "not yet for 20 s"
    for _ in range(9):
        machine.look()
    told = machine.rows("SELECT message FROM events WHERE kind = 'gpu_unresponsive'")
    assert (len(told), machine.asked) == (said, [True] * said)
