"""The begin of a run's next phase, and its parameters."""

from __future__ import annotations

import sqlite3

import pytest

from gputui.agent.lifecycle.run_files import next_phase
from gputui.runs.spec import Phase, RunSpec
from gputui.store import checkpoints
from gputui.store.attempts import Attempt
from tests.homes import add_attempt, add_run, attempt_of
from tests.ledgers import ledger_row

PHASES = (Phase(10, {"lr": 0.1}), Phase(20, {"lr": 0.2}), Phase(None, {"lr": 0.3}))
SPEC = RunSpec("a", "python", ("x.py",), "/", "/p", phases=PHASES)


@pytest.fixture(autouse=True)
def run(connection: sqlite3.Connection) -> None:
    add_run(connection, spec=SPEC)


def attempt(connection: sqlite3.Connection, number: int, resumed_from: str | None = None) -> Attempt:
    add_attempt(connection, number=number, resumed_from=resumed_from)
    return attempt_of(connection, number)


def saved(connection: sqlite3.Connection, name: str, number: int, verdict: str = "valid", step: int = 0) -> None:
    checkpoints.save(connection, "a-1", (), [ledger_row(name, attempt=number, step=step, verdict=verdict)])


def test_a_phase_ends_with_its_checkpoint(connection: sqlite3.Connection) -> None:
    first = attempt(connection, 1)
    saved(connection, "step_5.pt", 1)
    saved(connection, "step_11.pt", 1, "struck")
    assert next_phase(connection, SPEC, first) is None
    saved(connection, "step_15.pt", 1)
    saved(connection, "step_10.pt", 1)
    assert next_phase(connection, SPEC, first) == (2, "/c/step_10.pt")


def test_an_attempt_is_in_the_phase_of_the_checkpoint_that_it_began_from(connection: sqlite3.Connection) -> None:
    saved(connection, "step_20.pt", 1)
    second = attempt(connection, 2, "/c/step_10.pt")
    # Lines of another attempt belong to another lineage.
    assert next_phase(connection, SPEC, second) is None
    saved(connection, "step_25.pt", 2)
    assert next_phase(connection, SPEC, second) == (3, "/c/step_25.pt")
    assert next_phase(connection, SPEC, attempt(connection, 3, "/c/step_20.pt")) is None
