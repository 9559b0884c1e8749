"""Provokes one kind of incident on a machine of its own, and measures what gputui makes of it."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from benchmarks.scene import own_folder, wait_until
from gputui.store.run_states import RunState
from tests.faults.live import LIVE, REPORTED, Live, Provoked, heat_alert_at
from tests.machines import Machine

SECONDS = 90.0
"""The longest that any detection or next attempt may take."""

_OVER = {RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED}
_FAILURES = (AssertionError, OSError, sqlite3.Error, subprocess.SubprocessError, pytest.fail.Exception)


@dataclass(frozen=True)
class Drilled:
    """The result of a drill. Seconds count from the failure; None is unknown, or was not to be.
    ``problem`` says what kept it from being measured."""

    kind: str
    how: str
    expected: str
    taken: str = ""
    detected: bool = False
    detect_seconds: float | None = None
    next_step_seconds: float | None = None
    steps_lost: int | None = None
    right: bool = False
    problem: str | None = None


def drill(kind: str) -> Drilled:
    """Provoke a kind of tests.faults.live, wait until it is over, and end everything that was started for it."""
    live = LIVE[kind]
    drilled = Drilled(kind, live.how, _words(live.actions))
    with _machine() as machine:
        try:
            return _measured(machine, live, drilled)
        except _FAILURES as error:
            problem = (str(error) or type(error).__name__).strip().splitlines()[-1]
            return Drilled(kind, live.how, drilled.expected, problem=problem)


def _measured(machine: Machine, live: Live, drilled: Drilled) -> Drilled:
    provoked = live.provoke(machine)
    if live.actions == REPORTED:
        return _reported(machine, live, provoked, drilled)
    incident = _incident(machine, live, provoked)
    if incident is None:
        kinds = [row[0] for row in machine.rows("SELECT kind FROM incidents WHERE run_id = ?", provoked.run_id)]
        return Drilled(live.kind, live.how, drilled.expected, problem=f"was taken for {', '.join(kinds) or 'nothing'}")
    attempt, noticed_at, verdict = incident
    failed_at = _failed_at(machine, provoked)
    if live.actions != ("stop",):
        wait_until(lambda: _first_step_at(machine, provoked, attempt + 1), SECONDS, "the next attempt's first step")
    else:
        wait_until(lambda: machine.state(provoked.run_id) in _OVER, SECONDS, "the end of the run")
    attempts = machine.json("show", provoked.run_id)["attempts"]
    before = next(attempt_row for attempt_row in attempts if attempt_row["number"] == attempt)
    after = next((attempt_row for attempt_row in attempts if attempt_row["number"] == attempt + 1), None)
    applied = tuple(action["action"] for action in before["decision"]["actions"] if action["applied"])
    actions = applied if verdict == "retry" else ("stop",)
    first_step_at = _first_step_at(machine, provoked, attempt + 1)
    next_step_seconds = None if first_step_at is None else first_step_at - failed_at
    steps_lost = None if after is None else before["incident"]["lost_steps"]
    return Drilled(
        live.kind,
        live.how,
        drilled.expected,
        taken=_words(actions),
        detected=True,
        detect_seconds=noticed_at - failed_at,
        next_step_seconds=next_step_seconds,
        steps_lost=steps_lost,
        right=actions == live.actions and _goes_on_rightly(live, before, after),
    )


def _goes_on_rightly(live: Live, before: Mapping[str, Any], after: Mapping[str, Any] | None) -> bool:
    """Return whether the next attempt has the parameters and the checkpoint that the drill wants,
    or there is none."""
    if after is None:
        return live.actions == ("stop",)
    changes = {name: value for name, value in live.changed.items() if name in before["params"]}
    return after["params"] == {**before["params"], **changes} and (after["resumed_from"] is not None) == live.resumes


def _reported(machine: Machine, live: Live, provoked: Provoked, drilled: Drilled) -> Drilled:
    """A kind that is only reported: the run must continue to its end in its first attempt."""
    wait_until(lambda: machine.state(provoked.run_id) in _OVER, SECONDS, "the end of the run")
    reported_at = _observed_at(machine, provoked, live.kind)
    if live.kind == "overheating":
        reported_at = heat_alert_at(machine)
    continued = machine.state(provoked.run_id) == RunState.SUCCEEDED and not machine.rows("SELECT 1 FROM incidents")
    taken = _words(REPORTED) if reported_at is not None and continued else ""
    detect_seconds = None if reported_at is None else reported_at - _failed_at(machine, provoked)
    return Drilled(
        live.kind,
        live.how,
        drilled.expected,
        taken=taken,
        detected=reported_at is not None,
        detect_seconds=detect_seconds,
        right=reported_at is not None and continued,
    )


def _incident(machine: Machine, live: Live, provoked: Provoked) -> tuple[int, float, str] | None:
    """(attempt, when it was noticed, the verdict); None where the run has ended without one of this kind."""

    # A crash loop is a verdict on the last of several incidents.
    sought = "d.reason LIKE 'crash loop:%'" if live.kind == "crash_loop" else "i.kind = ?"
    values = () if live.kind == "crash_loop" else (live.kind,)
    rows: list[tuple[Any, ...]] = []

    def look() -> bool:
        over = machine.state(provoked.run_id) in _OVER
        rows[:] = machine.rows(
            "SELECT i.attempt, d.at, d.verdict FROM incidents i JOIN decisions d USING (incident_id) "
            f"WHERE i.run_id = ? AND {sought}",
            provoked.run_id,
            *values,
        )
        return bool(rows) or over

    wait_until(look, SECONDS, f"an incident {live.kind}")
    if not rows:
        return None
    attempt, decided_at, verdict = rows[0]
    return attempt, min(decided_at, _observed_at(machine, provoked, live.kind) or decided_at), verdict


def _observed_at(machine: Machine, provoked: Provoked, kind: str) -> float | None:
    rows = machine.rows("SELECT min(at) FROM observations WHERE run_id = ? AND kind = ?", provoked.run_id, kind)
    return None if rows[0][0] is None else float(rows[0][0])


def _failed_at(machine: Machine, provoked: Provoked) -> float:
    if provoked.at is not None:
        return provoked.at
    return float((machine.workspace.run_dir(provoked.run_id) / "failed-at").read_text())


def _first_step_at(machine: Machine, provoked: Provoked, attempt: int) -> float | None:
    rows = machine.rows("SELECT first_step_at FROM attempts WHERE run_id = ? AND number = ?", provoked.run_id, attempt)
    return rows[0][0] if rows else None


def _words(actions: tuple[str, ...]) -> str:
    return " + ".join(actions)


@contextmanager
def _machine() -> Iterator[Machine]:
    with own_folder("gputui-drill-") as folder, closing(Machine(folder)) as machine:
        yield machine
