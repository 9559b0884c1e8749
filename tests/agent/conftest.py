"""An empty store, and runs in it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from gputui.core.config import Workspace
from gputui.runs import repository
from gputui.runs.repository import transaction
from gputui.runs.spec import RunSpec
from gputui.runs.submission import SPEC_FILE, write_spec
from gputui.store.attempts import Attempt, get_attempt
from gputui.store.run_states import RunState
from gputui.store.runs import Run, get_run
from tests.stores import open_store

NOW = 1_790_000_000.0
SPEC = RunSpec(name="a", launcher="python", program=("x.py",), python="/p", workdir="/", loss="loss")


@pytest.fixture
def connection(workspace: Workspace) -> Iterator[sqlite3.Connection]:
    with closing(open_store(workspace.database)) as made:
        yield made


def run_of(connection: sqlite3.Connection, run_id: str = "a-1") -> Run:
    found = get_run(connection, run_id)
    assert found is not None
    return found


def attempt_of(connection: sqlite3.Connection, number: int = 1, run_id: str = "a-1") -> Attempt:
    found = get_attempt(connection, run_id, number)
    assert found is not None
    return found


def add_run(
    connection: sqlite3.Connection,
    run_id: str = "a-1",
    *states: RunState,
    spec: RunSpec = SPEC,
    workspace: Workspace | None = None,
    now: float = NOW,
) -> Run:
    """A queued run, moved through these states; with its folder where a workspace is given."""
    (sequence,) = connection.execute("SELECT coalesce(max(sequence), 0) + 1 FROM runs").fetchone()
    with transaction(connection):
        repository.insert_run(
            connection, run_id=run_id, sequence=sequence, name=spec.name, spec=spec, params=spec.params, now=now,
            actor="me",
        )  # fmt: skip
        for state in states:
            repository.move(connection, run_of(connection, run_id), state, cause="test", now=now)
    if workspace is not None:
        workspace.run_dir(run_id).mkdir(parents=True, exist_ok=True)
        write_spec(workspace.run_dir(run_id) / SPEC_FILE, spec)
    return run_of(connection, run_id)
