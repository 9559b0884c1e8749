"""Watching many attempts at once: no turn of the agent is long, and none of them is forgotten."""

from __future__ import annotations

import time

import pytest

from gputui.agent import slices
from gputui.agent.context import AgentContext
from gputui.agent.health.monitor import HealthMonitor
from gputui.agent.lifecycle.active_run import LiveAttempt
from gputui.agent.lifecycle.run_files import resolved_run
from gputui.config import Workspace
from gputui.runs import repository
from gputui.runs.command import Launch
from gputui.runs.executors.process import ExecutorProcess
from gputui.runs.repository import transaction
from gputui.runs.spec import RunSpec
from gputui.runs.submission import SPEC_FILE, write_spec
from gputui.store.attempts import get_attempt
from gputui.store.run_states import RunState
from gputui.store.runs import get_run
from tests.conftest import wait_until
from tests.stores import open_store

SPEC = RunSpec(name="a", launcher="command", program=("sleep", "infinity"), workdir="/")


def live(context: AgentContext, run_id: str, sequence: int) -> LiveAttempt:
    """A run in its first attempt, whose executor is gone."""
    workspace, now = context.workspace, time.time()
    workspace.run_dir(run_id).mkdir(parents=True)
    write_spec(workspace.run_dir(run_id) / SPEC_FILE, SPEC)
    with transaction(context.connection) as connection:
        repository.insert_run(
            connection, run_id=run_id, sequence=sequence, name="a", spec=SPEC, params={}, now=now, actor="me"
        )
        run = get_run(connection, run_id)
        assert run is not None
        launch = Launch(SPEC.program, {}, "/", 1.0)
        repository.insert_attempt(connection, run, number=1, gpus=(), launch=launch, now=now)
        repository.move(connection, run, RunState.STARTING, cause="test", now=now)
    record, run = (
        get_attempt(context.connection, run_id, 1),
        get_run(context.connection, run_id),
    )
    assert record is not None and run is not None
    return LiveAttempt(record, ExecutorProcess(None), resolved=resolved_run(workspace, run))


def test_many_attempts_are_looked_at_one_turn_after_the_other(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "TURN_SECONDS", 0.0)
    context = AgentContext.of(open_store(workspace.database), workspace, wake=lambda: None)
    context.turn.begin()
    attempts = [live(context, f"a-{number}", number) for number in range(1, 6)]
    watching = HealthMonitor(context)
    watching.turn(attempts)
    assert sum(bool(attempt.history or attempt.watched) for attempt in attempts) == 1 and len(watching.waiting) == 4
    turns = 1

    def are_all_watched() -> bool:
        nonlocal turns
        turns += bool(watching.waiting)
        watching.turn(attempts)
        return all(attempt.watched is not None for attempt in attempts)

    wait_until(are_all_watched, 30, "all of them")
    assert turns >= len(attempts)
    # What is over by the time its turn comes is left out.
    watching.due = 0.0
    watching.turn(attempts)
    watching.turn([])
    assert not watching.waiting
