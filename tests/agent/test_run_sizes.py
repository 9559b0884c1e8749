"""Sizes of runs, measured once they are over."""

from __future__ import annotations

import sqlite3

import pytest

from gputui.agent.context import AgentContext
from gputui.agent.maintenance import SIZES_SECONDS, RunSizes
from gputui.core.config import Workspace
from gputui.runs import repository
from gputui.store.run_states import RunState
from gputui.store.runs import get_run, read_runs, runs_mark
from tests.conftest import wait_until
from tests.homes import NOW, add_run

MIB = 1 << 20


@pytest.fixture
def sizes(workspace: Workspace, connection: sqlite3.Connection) -> RunSizes:
    return RunSizes(AgentContext.of(connection, workspace, wake=lambda: None, now=lambda: NOW))


def measured(sizes: RunSizes, run_id: str = "a-1") -> int | None:
    """The size of a run after a look."""
    begin = sizes.next_at

    def look() -> bool:
        sizes.poll(begin)
        return sizes.next_at > begin

    wait_until(look, what="the end of a look")
    run = get_run(sizes.context.connection, run_id)
    assert run is not None and sizes.next_at == begin + SIZES_SECONDS
    return run.size_bytes


def test_a_run_is_measured_when_it_is_over(sizes: RunSizes) -> None:
    context = sizes.context
    add_run(context.connection, "b-1", RunState.STARTING, workspace=context.workspace)
    run = add_run(context.connection, "a-1", RunState.STOPPED, workspace=context.workspace)
    model = context.workspace.run_dir("a-1") / "model.pt"
    model.write_bytes(b"x" * MIB)
    assert run.size_bytes is None
    mark = runs_mark(context.connection)
    first = measured(sizes)
    assert first is not None and MIB <= first < 2 * MIB and runs_mark(context.connection) != mark
    assert measured(sizes, "b-1") is None
    # The run is resumed, and ends again.
    run = read_runs(context.connection, over_only=True)[0]
    repository.move(context.connection, run, RunState.QUEUED, cause="test", now=NOW + 1)
    assert measured(sizes) is None
    model.write_bytes(b"x" * 3 * MIB)
    run = next(run for run in read_runs(context.connection) if run.run_id == "a-1")
    repository.move(context.connection, run, RunState.STOPPED, cause="test", now=NOW + 2)
    second = measured(sizes)
    assert second is not None and second == first + 2 * MIB


def test_what_was_measured_before_a_run_went_on_is_dropped(sizes: RunSizes) -> None:
    connection = sizes.context.connection
    run = add_run(connection, "a-1", RunState.STOPPED, workspace=sizes.context.workspace)
    assert run.ended_at is not None
    repository.set_size(connection, "a-1", run.ended_at - 1, 5)
    assert repository.unmeasured_runs(connection) == [("a-1", run.ended_at)]
    connection.execute("DELETE FROM runs")
    repository.set_size(connection, "a-1", run.ended_at, 5)
    assert connection.execute("SELECT count(*) FROM run_sizes").fetchone() == (0,)
