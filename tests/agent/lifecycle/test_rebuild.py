"""Runs are read back from their folders into an empty database."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.agent.context import AgentContext
from gputui.agent.lifecycle.rebuild import rebuild
from gputui.config import Workspace
from gputui.runs import repository
from gputui.runs.spec import RunSpec
from gputui.runs.submission import SPEC_FILE, ticket_path, write_spec, write_ticket
from gputui.store.attempts import read_attempts
from gputui.store.database import open_writer
from gputui.store.run_states import RunState
from gputui.store.runs import find_run

NOW = 1_800_000_000.0
PLAN = {"argv": ["python", "t.py"], "env": {}, "cwd": "/", "grace_seconds": 30.0, "gpus": ["GPU-1"]}


@pytest.fixture
def connection(workspace: Workspace) -> Iterator[sqlite3.Connection]:
    with closing(open_writer(workspace.database)) as connection:
        yield connection


@pytest.fixture
def context(connection: sqlite3.Connection, workspace: Workspace) -> AgentContext:
    return AgentContext.of(connection, workspace, wake=lambda: None, now=lambda: NOW, monotonic=time.monotonic)


def write_run(
    workspace: Workspace, run_id: str, *attempts: dict[str, Any], exits: dict[int, str], **of_spec: Any
) -> None:
    """A run's folder with these attempts, and of some the text of exit.json."""
    folder = workspace.run_dir(run_id)
    folder.mkdir()
    spec = RunSpec(name="net", launcher="python", program=("t.py",), workdir="/", python="python", params={"lr": 0.5})
    write_spec(folder / SPEC_FILE, replace(spec, **of_spec))
    for number, attempt in enumerate(attempts, start=1):
        own = folder / "attempts" / str(number)
        own.mkdir(parents=True)
        plan = {**PLAN, "attempt": number, "created_at": NOW - 1000 + number, "params": {"lr": 0.5}, **attempt}
        (own / "attempt.json").write_text(json.dumps(plan))
        if number in exits:
            (own / "exit.json").write_text(exits[number])


def test_each_attempt_keeps_its_own_parameters(context: AgentContext, workspace: Workspace) -> None:
    first, second = {"params": {"lr": 0.5}}, {"params": {"lr": 0.1}, "resume_from": "/ckpt/step-7"}
    write_run(workspace, "net-3", first, second, exits={1: '{"code": 1, "ended_at": 5.0}', 2: '{"code": 0}'})
    assert rebuild(context) == 1
    attempts = read_attempts(context.connection, "net-3")
    assert [dict(attempt.params) for attempt in attempts] == [{"lr": 0.5}, {"lr": 0.1}]
    assert [attempt.resumed_from for attempt in attempts] == [None, "/ckpt/step-7"]
    assert [attempt.ended_at for attempt in attempts] == [5.0, NOW]
    run = find_run(context.connection, "net-3")
    assert (run.state, run.attempt, dict(run.params)) == (RunState.SUCCEEDED, 2, {"lr": 0.1})


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
    assert rebuild(context) == 1
    assert find_run(context.connection, "net-1").state is state
    assert context.connection.execute("SELECT count(*) FROM leases").fetchone() == (0,)


def test_a_run_that_has_not_ended_keeps_its_gpus(context: AgentContext, workspace: Workspace) -> None:
    write_run(workspace, "net-1", {}, exits={})
    (workspace.run_dir("net-1") / "attempts" / "1" / "started.json").write_text("{}")
    assert rebuild(context) == 1
    assert find_run(context.connection, "net-1").state is RunState.STARTING
    assert context.connection.execute("SELECT gpu_uuid, run_id FROM leases").fetchall() == [("GPU-1", "net-1")]


def test_trials_that_share_a_gpu_keep_it_together(context: AgentContext, workspace: Workspace) -> None:
    for number in (1, 2):
        write_run(workspace, f"net-{number}", {"lock_group": "f" * 16}, exits={}, study_id="s-1", trials_per_gpu=2)
        (workspace.run_dir(f"net-{number}") / "attempts" / "1" / "started.json").write_text("{}")
    assert rebuild(context) == 2
    assert repository.leases(context.connection) == {"GPU-1": (("net-1", "net-2"), "s-1")}


def test_a_plan_of_which_nothing_was_started_is_no_attempt(context: AgentContext, workspace: Workspace) -> None:
    write_run(workspace, "net-1", {}, exits={})
    assert rebuild(context) == 1
    run = find_run(context.connection, "net-1")
    assert (run.state, run.attempt) == (RunState.STOPPED, 0)


@pytest.mark.parametrize("damage", [{"gpus": 3}, {"params": None}, {"attempt": "one"}, {"metrics_bytes": ["x"]}])
def test_a_damaged_plan_costs_its_own_run_only(
    context: AgentContext, workspace: Workspace, damage: dict[str, Any]
) -> None:
    write_run(workspace, "net-1", damage, exits={1: '{"code": 0}'})
    write_run(workspace, "net-2", {}, exits={1: '{"code": 0}'})
    assert rebuild(context) == 1
    assert context.connection.execute("SELECT run_id FROM runs").fetchall() == [("net-2",)]
    assert rebuild(context) == 0


def test_a_folder_that_a_cut_launch_made_is_deleted_and_a_copy_of_it_is_not(
    context: AgentContext, workspace: Workspace
) -> None:
    spec = RunSpec(name="net", launcher="python", program=("t.py",), workdir="/", python="python", params={"lr": 0.5})
    ticket = ticket_path(workspace, write_ticket(workspace, spec))
    for run_id in ("net-1", "net-2", "net-3", "net-4"):
        workspace.run_dir(run_id).mkdir()
    (workspace.run_dir("net-2") / SPEC_FILE).hardlink_to(ticket)
    (workspace.run_dir("net-3") / SPEC_FILE).write_bytes(ticket.read_bytes())
    (workspace.run_dir("net-4") / "notes.txt").write_text("mine")
    assert rebuild(context) == 1
    assert {path.name for path in workspace.runs.iterdir()} == {"net-3", "net-4"}
    found = find_run(context.connection, "net-3")
    assert found is not None and found.state is RunState.STOPPED
