"""How long a run may train, and when it may begin."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.runs import repository
from gputui.runs.repository import transaction
from gputui.runs.scheduler import why_not_yet
from gputui.store.attempts import seconds_since_asked
from gputui.store.rows import insert, update
from gputui.store.run_states import RunState
from tests.conftest import wait_until
from tests.homes import NOW, SPEC, add_run, run_of
from tests.machines import Machine
from tests.tables import table
from tests.texts import mentions

Change = Callable[[sqlite3.Connection], object]


def ends_as(*states: RunState) -> Change:
    def move(connection: sqlite3.Connection) -> None:
        with transaction(connection):
            for state in states:
                repository.move(connection, run_of(connection, "b-1"), state, cause="test", now=NOW)

    return move


def removed(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM runs WHERE run_id = 'b-1'")


def test_what_a_run_has_trained_counts_from_when_a_person_started_it(connection: sqlite3.Connection) -> None:
    add_run(connection, "a-1")

    def attempt(number: int, begin: float, end: float | None) -> None:
        begun = {"created_at": NOW + begin, "started_at": NOW + begin, "ended_at": None if end is None else NOW + end}
        texts = {"state": "running", "params": "{}", "gpus": "[]", "launch": "{}"}
        insert(connection, "attempts", run_id="a-1", number=number, **texts, **begun)

    def queued(at: float, actor: str) -> None:
        moves = {"from_state": "stopped", "to_state": "queued", "cause": "x", "actor": actor}
        insert(connection, "transitions", run_id="a-1", at=NOW + at, **moves)

    assert seconds_since_asked(connection, "a-1", NOW + 5) == 0
    attempt(1, 10, 40)
    # The next attempt has the rest of the limit; the time between two attempts does not count.
    queued(50, "agent")
    attempt(2, 60, None)
    assert seconds_since_asked(connection, "a-1", NOW + 100) == 30 + 40
    update(connection, "attempts", {"run_id": "a-1", "number": 2}, ended_at=NOW + 100)
    queued(200, "me")
    attempt(3, 210, None)
    assert seconds_since_asked(connection, "a-1", NOW + 215) == 5


@table(
    ("change", "after", "after_any"),
    [
        (ends_as(), ("b-1", "to succeed"), ("b-1", "to end")),
        (ends_as(RunState.STARTING, RunState.SUCCEEDED), None, None),
        (ends_as(RunState.STARTING, RunState.FAILED), ("b-1", "failed"), None),
        (ends_as(RunState.STOPPED), ("b-1", "stopped"), None),
        (removed, ("b-1", "removed"), None),
    ],
)
def test_a_run_follows_another_one_that_succeeded_or_ended_in_any_way(
    connection: sqlite3.Connection, change: Change, after: tuple[str, ...] | None, after_any: tuple[str, ...] | None
) -> None:
    connection.execute("DELETE FROM runs")
    add_run(connection, "b-1")
    change(connection)
    for spec, mentioned in (
        (replace(SPEC, after=("b-1",)), after),
        (replace(SPEC, after_any=("b-1",)), after_any),
    ):
        run = add_run(connection, f"c-{len(spec.after)}", spec=spec)
        why = why_not_yet(connection, run, NOW)
        assert why is None if mentioned is None else mentions(why or "", *mentioned)


def test_a_run_begins_at_its_time_and_is_not_held_up_again(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = add_run(connection, spec=replace(SPEC, begin_at=NOW + 60))
    assert mentions(why_not_yet(connection, run, NOW) or "", "begins")
    assert why_not_yet(connection, run, NOW + 60) is None
    assert why_not_yet(connection, replace(run, attempt=1), NOW) is None


def test_a_run_is_stopped_at_its_limit_saves_and_goes_on_with_another_one(machine: Machine) -> None:
    profile = Path(machine.profile())
    profile.write_text(f"{profile.read_text()}time: 2s\n")
    machine.gputui("run", str(profile), "--set", "steps=100000")
    assert mentions(machine.gputui("show", "steps-1"), "time limit")

    def wait_for_end(number: int) -> tuple[int, int]:
        query = "SELECT first_step, last_step FROM attempts WHERE number = ? AND ended_at NOTNULL AND state = 'stopped'"
        ((first, last),) = wait_until(lambda: machine.rows(query, number), what=f"the end of attempt {number}")
        return first, last

    # The time that was used before the agent was killed is in the store.
    wait_until(lambda: machine.rows("SELECT 1 FROM attempts WHERE started_at NOTNULL"), what="the start")
    machine.kill_agent()
    machine.gputui("agent", "start")
    _, last = wait_for_end(1)
    machine.wait_for("steps-1", "stopped")
    ((reason,),) = machine.rows("SELECT reason FROM runs")
    assert mentions(reason, "time limit", "2 s")
    assert "lost" not in reason
    assert machine.rows("SELECT count(*) FROM incidents") == [(0,)]
    assert "time limit" in machine.gputui("explain", "steps-1")
    machine.gputui("resume", "steps-1")
    first_again, last_again = wait_for_end(2)
    assert last_again > first_again >= last
    assert "8x" in machine.gputui("run", machine.profile(), "--time", "8x", code=2)


def test_a_run_waits_for_its_time(machine: Machine) -> None:
    machine.gputui("run", machine.profile(), "--begin", "in 2h", "--set", "steps=3")
    (entry,) = machine.json("queue")["runs"]
    assert mentions(entry["waiting_for"], "begins")
    assert "--begin" in machine.gputui("run", machine.profile(), "--begin", "yesterday", code=2)
