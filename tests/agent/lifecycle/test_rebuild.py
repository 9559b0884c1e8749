"""Runs are read back from their folders into an empty database."""

from __future__ import annotations

import json
import sqlite3
import time
from typing import Any

import pytest

from gputui.agent.context import AgentContext
from gputui.agent.lifecycle.rebuild import rebuild
from gputui.agent.lifecycle.run_files import EARLY_FILE
from gputui.core.config import Workspace
from gputui.runs.repository import next_run_id
from gputui.runs.spec import RunSpec
from gputui.runs.submission import SPEC_FILE, write_spec
from gputui.store.attempts import read_attempts
from gputui.store.run_states import RunState
from gputui.store.runs import find_run

NOW = 1_800_000_000.0
PLAN = {"argv": ["python", "t.py"], "env": {}, "cwd": "/", "grace_seconds": 30.0, "gpus": ["GPU-1"],
        "metrics_bytes": {}, "params": {"lr": 0.5}}  # fmt: skip


@pytest.fixture
def context(connection: sqlite3.Connection, workspace: Workspace) -> AgentContext:
    return AgentContext.of(connection, workspace, wake=lambda: None, now=lambda: NOW, monotonic=time.monotonic)


def write_run(workspace: Workspace, run_id: str, *attempts: dict[str, Any], exits: dict[int, str]) -> None:
    """A run's folder with these attempts, and of some the text of exit.json."""
    folder = workspace.run_dir(run_id)
    folder.mkdir()
    write_spec(folder / SPEC_FILE, RunSpec("net", "python", ("t.py",), "/", "python", params={"lr": 0.5}))
    for number, attempt in enumerate(attempts, start=1):
        attempt_folder = folder / "attempts" / str(number)
        attempt_folder.mkdir(parents=True)
        plan = {**PLAN, "run_id": run_id, "attempt": number, "created_at": NOW - 1000 + number, **attempt}
        (attempt_folder / "attempt.json").write_text(json.dumps(plan))
        if number in exits:
            (attempt_folder / "exit.json").write_text(exits[number])


def test_each_attempt_keeps_its_own_parameters(context: AgentContext, workspace: Workspace) -> None:
    first = {"params": {"lr": 0.5}}
    second = {"params": {"lr": 0.1}, "resume_from": "/ckpt/step-7"}
    write_run(workspace, "net-3", first, second, exits={1: '{"code": 1, "ended_at": 5.0}', 2: '{"code": 0}'})
    assert rebuild(context) == ["net-3"]
    attempts = read_attempts(context.connection, "net-3")
    assert [dict(attempt.params) for attempt in attempts] == [{"lr": 0.5}, {"lr": 0.1}]
    assert [attempt.resumed_from for attempt in attempts] == [None, "/ckpt/step-7"]
    # An end without a time is dated by the last change of the attempt's files; here there are none.
    assert [attempt.ended_at for attempt in attempts] == [5.0, NOW - 998]
    run = find_run(context.connection, "net-3")
    assert (run.state, run.attempt, dict(run.params)) == (RunState.SUCCEEDED, 2, {"lr": 0.1})


def test_an_early_end_stays_one(context: AgentContext, workspace: Workspace) -> None:
    write_run(workspace, "net-1", {}, exits={1: '{"code": 0, "ended_at": 9.0}'})
    (workspace.run_dir("net-1") / "attempts" / "1" / EARLY_FILE).write_text('{"short_of": [53, 500]}')
    rebuild(context)
    assert find_run(context.connection, "net-1").state is RunState.STOPPED
    (attempt,) = read_attempts(context.connection, "net-1")
    assert attempt.exit is not None
    assert attempt.exit["short_of"] == [53, 500]


@pytest.mark.parametrize(
    ("exit_record", "state"),
    [
        ('{"code": 0}', RunState.SUCCEEDED),
        ('{"code": 1}', RunState.FAILED),
        ('{"code": 1, "stop_requested": "stop"}', RunState.STOPPED),
        # A damaged record: the executor has ended, and nothing says how.
        ('{"code": ', RunState.FAILED),
    ],
)
def test_a_run_that_ended_stays_ended(
    context: AgentContext, workspace: Workspace, exit_record: str, state: RunState
) -> None:
    write_run(workspace, "net-1", {}, exits={1: exit_record})
    assert rebuild(context) == ["net-1"]
    assert find_run(context.connection, "net-1").state is state
    assert context.connection.execute("SELECT count(*) FROM leases").fetchone() == (0,)


def test_a_run_that_has_not_ended_keeps_its_gpus(context: AgentContext, workspace: Workspace) -> None:
    write_run(workspace, "net-1", {}, exits={})
    (workspace.run_dir("net-1") / "attempts" / "1" / "started.json").write_text("{}")
    assert rebuild(context) == []
    assert find_run(context.connection, "net-1").state is RunState.STARTING
    assert context.connection.execute("SELECT gpu_uuid, run_id FROM leases").fetchall() == [("GPU-1", "net-1")]


def test_a_plan_of_which_nothing_was_started_is_no_attempt(context: AgentContext, workspace: Workspace) -> None:
    write_run(workspace, "net-1", {}, exits={})
    assert rebuild(context) == ["net-1"]
    run = find_run(context.connection, "net-1")
    assert (run.state, run.attempt) == (RunState.STOPPED, 0)


def test_a_damaged_plan_costs_its_own_run_only(context: AgentContext, workspace: Workspace) -> None:
    write_run(workspace, "net-1", {"gpus": 3}, exits={1: '{"code": 0}'})
    write_run(workspace, "net-2", {}, exits={1: '{"code": 0}'})
    assert rebuild(context) == ["net-2"]
    assert context.connection.execute("SELECT run_id FROM runs").fetchall() == [("net-2",)]
    assert rebuild(context) == []


@pytest.mark.parametrize("row_state", ["queued", "running", "recovering", "succeeded"])
@pytest.mark.parametrize(
    ("exit_record", "state"), [(None, RunState.STARTING), ('{"code": 0, "ended_at": 9.0}', RunState.SUCCEEDED)]
)
def test_attempts_that_a_restored_database_does_not_know_are_those_of_the_disk(
    context: AgentContext, workspace: Workspace, row_state: str, exit_record: str | None, state: RunState
) -> None:
    """Neither is a second training begun beside a living one, nor is that removed."""
    write_run(workspace, "net-1", {}, exits={1: '{"code": 1, "ended_at": 5.0}'})
    rebuild(context)
    context.connection.execute("UPDATE attempts SET ended_at = NULL, state = 'running'")
    context.connection.execute("UPDATE runs SET state = ?", (row_state,))
    assert rebuild(context) == []
    folder = workspace.run_dir("net-1") / "attempts" / "2"
    folder.mkdir()
    plan = {**PLAN, "run_id": "net-1", "attempt": 2, "created_at": NOW - 500}
    (folder / "attempt.json").write_text(json.dumps(plan))
    # An attempt that was prepared and never started does not count.
    assert rebuild(context) == []
    (folder / "started.json").write_text("{}")
    if exit_record is not None:
        (folder / "exit.json").write_text(exit_record)
    expected = [] if exit_record is None else ["net-1"]
    assert rebuild(context) == expected
    run = find_run(context.connection, "net-1")
    assert (run.state, run.attempt) == (state, 2)
    ended = [attempt.ended_at for attempt in read_attempts(context.connection, "net-1")]
    assert ended == [5.0, None if exit_record is None else 9.0]
    leases = context.connection.execute("SELECT gpu_uuid FROM leases").fetchall()
    assert leases == ([("GPU-1",)] if exit_record is None else [])
    assert rebuild(context) == []


def test_ids_go_on_behind_those_that_were_read_back(context: AgentContext, workspace: Workspace) -> None:
    write_run(workspace, "net-3", {}, exits={1: '{"code": 0}'})
    write_run(workspace, "net-x", {}, exits={1: '{"code": 0}'})
    assert set(rebuild(context)) == {"net-3", "net-x"}
    assert next_run_id(context.connection, "net", {"net-3", "net-x"})[0] == "net-4"
