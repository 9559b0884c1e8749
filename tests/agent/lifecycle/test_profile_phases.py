"""When the next phase of a run begins, and with what."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gputui.agent.lifecycle.profile_phases import next_phase
from gputui.config import Workspace
from gputui.runs import repository
from gputui.runs.repository import transaction
from gputui.runs.spec import Phase, RunSpec
from gputui.store.attempts import Attempt, get_attempt
from tests.machine import Machine
from tests.stores import open_store

PHASES = (Phase(10, {"lr": 0.1}), Phase(20, {"lr": 0.2}), Phase(None, {"lr": 0.3}))
SPEC = RunSpec("a", "python", ("x.py",), "/", "/p", phases=PHASES)


@pytest.fixture
def connection(workspace: Workspace) -> Iterator[sqlite3.Connection]:
    with closing(open_store(workspace.database)) as made:
        with transaction(made):
            repository.insert_run(made, run_id="a-1", sequence=1, name="a", spec=SPEC, params={}, now=1.0, actor="me")
        yield made


def attempt(connection: sqlite3.Connection, number: int, resumed_from: str | None = None) -> Attempt:
    connection.execute(
        "INSERT INTO attempts (run_id, number, state, params, gpus, launch, created_at, resumed_from) "
        "VALUES ('a-1', ?, 'running', '{}', '[]', '{}', 1, ?)",
        (number, resumed_from),
    )
    found = get_attempt(connection, "a-1", number)
    assert found is not None
    return found


def saved(connection: sqlite3.Connection, name: str, number: int, verdict: str = "valid", step: int = 0) -> None:
    connection.execute(
        "INSERT INTO checkpoints (run_id, path, attempt, origin, modified_ns, size_bytes, step, first_seen_at, "
        "is_settled, verdict, why, failed_starts) VALUES ('a-1', ?, ?, 'run', 1, 1, ?, 1, 1, ?, '', 0)",
        (f"/c/{name}", number, step, verdict),
    )


def test_a_phase_ends_with_its_checkpoint(connection: sqlite3.Connection) -> None:
    first = attempt(connection, 1)
    saved(connection, "step_5.pt", 1)
    saved(connection, "step_11.pt", 1, "struck")
    assert next_phase(connection, SPEC, first) is None
    saved(connection, "step_15.pt", 1)
    saved(connection, "step_10.pt", 1)
    assert next_phase(connection, SPEC, first) == (2, PHASES[1], "/c/step_10.pt")


def test_an_attempt_is_in_the_phase_of_the_checkpoint_that_it_began_from(connection: sqlite3.Connection) -> None:
    saved(connection, "step_20.pt", 1)
    second = attempt(connection, 2, "/c/step_10.pt")
    # What another attempt wrote is of another course.
    assert next_phase(connection, SPEC, second) is None
    saved(connection, "step_25.pt", 2)
    assert next_phase(connection, SPEC, second) == (3, PHASES[2], "/c/step_25.pt")
    assert next_phase(connection, SPEC, attempt(connection, 3, "/c/step_20.pt")) is None


def test_where_names_have_no_step_that_of_the_metrics_counts(connection: sqlite3.Connection) -> None:
    first = attempt(connection, 1)
    saved(connection, "last.pt", 1, step=12)
    assert next_phase(connection, SPEC, first) == (2, PHASES[1], "/c/last.pt")


@pytest.mark.long
def test_a_run_with_phases_goes_on_from_each_checkpoint_with_other_parameters(machine: Machine) -> None:
    path = machine.profile()
    with Path(path).open("a", encoding="utf-8") as file:
        file.write("phases: [{until: 20, params: {batch_size: 8}}, {params: {batch_size: 32}}]\n")
    machine.gputui("run", path, "--set", "steps=400", "--set", "seconds=0.1", "--wait", timeout=300)
    (shown,) = machine.json("ps")
    attempts = machine.json("show", shown["id"])["attempts"]
    assert [one["params"]["batch_size"] for one in attempts] == [8, 32]
    assert [one["resumed_from"] is not None and one["resumed_from"].endswith("step_000020.pt") for one in attempts] == [
        False, True
    ]  # fmt: skip
    assert shown["state"] == "succeeded"
    assert [step for attempt, step in machine.steps(shown["id"]) if attempt == 2] == list(range(20, 400))
