"""The supervisor's own promises, where whole runs would show them only by chance."""

from __future__ import annotations

import selectors
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.agent.guarding import TROUBLE_SECONDS
from gputui.agent.live_attempt import LiveAttempt
from gputui.agent.recorder import Recorder
from gputui.agent.supervisor import Supervisor
from gputui.config import Workspace
from gputui.metrics.ingest import MetricsIngest
from gputui.runs import repository
from gputui.runs.command import Launch
from gputui.runs.repository import AttemptRecord, transaction
from gputui.runs.spec import RunSpec
from gputui.runs.states import RunState
from gputui.runs.submission import SPEC_FILE, write_spec
from gputui.store import queries
from tests.stores import open_store


class Clock:
    def __init__(self) -> None:
        self.wall = 1_790_000_000.0
        self.monotonic = 1000.0


class Troubled(Supervisor):
    """One whose look at a run meets something that nobody foresaw."""

    trouble: Exception = ValueError("an odd file")
    looks = 0

    def _check(self, live: LiveAttempt) -> None:
        self.looks += 1
        raise self.trouble


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def connection(workspace: Workspace) -> Iterator[sqlite3.Connection]:
    made = open_store(workspace.database)
    yield made
    made.close()


def supervisor(
    kind: type[Supervisor], workspace: Workspace, connection: sqlite3.Connection, clock: Clock
) -> Supervisor:
    with selectors.DefaultSelector() as selector:
        return kind(
            connection,
            workspace,
            MetricsIngest(connection),
            Recorder(connection, workspace.runs, lambda: clock.wall),
            selector,
            lambda: clock.wall,
            lambda: clock.monotonic,
            on_start=lambda _run: None,
            on_end=lambda _run: None,
            wake=lambda: None,
        )


def recovering_run(connection: sqlite3.Connection, not_before: float, now: float) -> None:
    spec = RunSpec(name="a", launcher="python", program=("x.py",), python="/p", workdir="/")
    with transaction(connection):
        repository.insert_run(connection, run_id="a-1", sequence=1, name="a", spec=spec, params={}, now=now, actor="me")
        for target in (RunState.STARTING, RunState.RECOVERING):
            run = repository.get_run(connection, "a-1")
            assert run is not None
            repository.move(connection, run, target, cause="test", now=now)
        repository.set_next_attempt(connection, "a-1", params={}, resume_from=None, not_before=not_before)


def queued_run(connection: sqlite3.Connection, workspace: Workspace, now: float) -> Path:
    """A run that may start; its folder."""
    spec = RunSpec(name="a", launcher="python", program=("x.py",), python="/p", workdir="/")
    with transaction(connection):
        repository.insert_run(connection, run_id="a-1", sequence=1, name="a", spec=spec, params={}, now=now, actor="me")
    folder = workspace.run_dir("a-1")
    folder.mkdir()
    write_spec(folder / SPEC_FILE, spec)
    return folder


def test_a_run_whose_specification_is_damaged_is_given_up_with_the_reason(
    workspace: Workspace, connection: sqlite3.Connection, clock: Clock
) -> None:
    (queued_run(connection, workspace, clock.wall) / SPEC_FILE).write_text("{")
    supervisor(Supervisor, workspace, connection, clock).turn()
    assert state(connection) == "failed"
    assert "cannot start: cannot read" in queries.events(connection)[-1].message


def test_what_may_pass_is_tried_again_and_said_once(
    workspace: Workspace, connection: sqlite3.Connection, clock: Clock
) -> None:
    (queued_run(connection, workspace, clock.wall) / "attempts").write_text("no folder")
    made = supervisor(Supervisor, workspace, connection, clock)
    for _ in range(3):
        made.needs_schedule = True
        made.turn()
    assert state(connection) == "queued"
    (event,) = queries.events(connection)
    assert event.severity == "warning" and event.message.startswith("cannot start: ")


def state(connection: sqlite3.Connection) -> str:
    return str(connection.execute("SELECT state FROM runs").fetchone()[0])


def test_what_nobody_foresaw_in_one_run_is_told_once_and_left_alone_for_a_while(
    workspace: Workspace, connection: sqlite3.Connection, clock: Clock
) -> None:
    made = supervisor(Troubled, workspace, connection, clock)
    launch = Launch(("x",), {}, "/", 1.0)
    record = AttemptRecord("a-1", 1, "running", {}, (), launch, 0.0, 0.0, None, None, None, None, None, None)
    made.live["a-1"] = LiveAttempt(record, None)
    for _ in range(3):
        made.turn()
    (event,) = queries.events(connection)
    assert "an odd file" in event.message
    assert made.looks == 1
    clock.monotonic += TROUBLE_SECONDS + 1
    made.turn()
    assert made.looks == 2 and len(queries.events(connection)) == 1
    made.trouble = sqlite3.IntegrityError("NOT NULL constraint failed: incidents.at")
    clock.monotonic += TROUBLE_SECONDS + 1
    made.turn()
    assert any("NOT NULL" in event.message for event in queries.events(connection))
    made.trouble = sqlite3.OperationalError("database or disk is full")
    clock.monotonic += TROUBLE_SECONDS + 1
    with pytest.raises(sqlite3.OperationalError):
        made.turn()


def test_a_wait_ends_when_it_should_although_the_wall_clock_was_set_back(
    workspace: Workspace, connection: sqlite3.Connection, clock: Clock
) -> None:
    recovering_run(connection, clock.wall + 5, clock.wall)
    made = supervisor(Supervisor, workspace, connection, clock)
    made.turn()
    assert state(connection) == "recovering"
    clock.wall -= 3600
    clock.monotonic += 4
    made.turn()
    assert state(connection) == "recovering"
    clock.monotonic += 2
    made.turn()
    assert state(connection) != "recovering"


def test_a_wait_ends_at_once_when_the_wall_clock_jumps_ahead(
    workspace: Workspace, connection: sqlite3.Connection, clock: Clock
) -> None:
    recovering_run(connection, clock.wall + 5, clock.wall)
    made = supervisor(Supervisor, workspace, connection, clock)
    made.turn()
    clock.wall += 3600
    made.turn()
    assert state(connection) != "recovering"
