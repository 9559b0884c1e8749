"""Runs as they were at a past moment: from their moves, attempts, incidents and decisions.

Times are UTC unix seconds.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, replace

from gputui.store import queries
from gputui.store.events import EVENT_COLUMNS
from gputui.store.queries import OVER_STATES
from gputui.store.views import AttemptView, DecisionView, EventView, IncidentView, RunView

_HOLDING = ("starting", "running", "recovering", "stopping")

QUEUED_WORDS = "in the queue"
"""What a waiting run waited for is not recorded."""


@dataclass(frozen=True, slots=True)
class PastRun:
    """A run as it was. ``holds`` says whether its GPUs were leased to it then."""

    view: RunView
    holds: bool


@dataclass(frozen=True, slots=True)
class _Move:
    """The newest move of a run: where it came from and went, when, why."""

    origin: str | None
    state: str
    at: float
    cause: str


_MOVES = """
SELECT run_id, from_state, to_state, at, cause FROM transitions
WHERE transition_id IN (SELECT max(transition_id) FROM transitions WHERE at <= ? GROUP BY run_id)
"""


def runs(connection: sqlite3.Connection, at: float, limit: int) -> list[PastRun]:
    """The runs that there were: those that were not over, then the newest of those that were, at most ``limit`` of
    these. A run that was removed since is not known any more. Raises sqlite3.Error."""
    moves = {row[0]: _Move(*row[1:]) for row in connection.execute(_MOVES, (at,)).fetchall()}
    known = [run for run in queries.runs(connection) if run.created_at <= at]
    states = {run.run_id: moves.get(run.run_id) or _told_by_the_row(run, at) for run in known}
    over = [run for run in known if states[run.run_id].state in OVER_STATES]
    over.sort(key=lambda run: -states[run.run_id].at)
    queued = [run for run in reversed(known) if states[run.run_id].state == "queued"]
    others = [run for run in known if states[run.run_id].state not in (*OVER_STATES, "queued")]
    return [_as_it_was(connection, run, states[run.run_id], at) for run in (*others, *queued, *over[:limit])]


def run(connection: sqlite3.Connection, run_id: str, at: float) -> PastRun | None:
    """One run as it was; None where it is not known or did not exist yet."""
    try:
        found = queries.run(connection, run_id)
    except queries.RunLookupError:
        return None
    if found.run_id != run_id or found.created_at > at:
        return None
    row = connection.execute(
        "SELECT from_state, to_state, at, cause FROM transitions WHERE run_id = ? AND at <= ? "
        "ORDER BY transition_id DESC LIMIT 1",
        (run_id, at),
    ).fetchone()
    return _as_it_was(connection, found, _Move(*row) if row else _told_by_the_row(found, at), at)


def holders(found: Iterable[PastRun]) -> dict[str, tuple[str, str]]:
    """Which run held a GPU: (id, name) by UUID."""
    return {uuid: (each.view.run_id, each.view.name) for each in found if each.holds for uuid in each.view.gpus}


def attempts(connection: sqlite3.Connection, run_id: str, at: float) -> list[AttemptView]:
    """The attempts that there were, first to last, each without what came later."""
    return [attempt_at(each, at) for each in queries.attempts(connection, run_id) if each.created_at <= at]


def attempt_at(attempt: AttemptView, at: float) -> AttemptView:
    """An attempt without what happened after a moment."""
    started = attempt.started_at if _by(attempt.started_at, at) else None
    # When the first step was is not known of a run that was rebuilt from its folder.
    stepped = _by(attempt.first_step_at if attempt.first_step_at is not None else attempt.started_at, at)
    known = replace(
        attempt,
        started_at=started,
        first_step_at=attempt.first_step_at if stepped else None,
        first_step=attempt.first_step if stepped else None,
    )
    if _by(attempt.ended_at, at):
        return known
    return replace(
        known,
        state="starting" if started is None else "running",
        ended_at=None,
        exit_code=None,
        exit_signal=None,
        exit=None,
        last_step=None,
        stop_requested=None,
    )


def incidents(connection: sqlite3.Connection, run_id: str, at: float) -> list[IncidentView]:
    """The incidents that had been met, oldest first."""
    return [each for each in queries.incidents(connection, run_id) if each.at <= at]


def decisions(connection: sqlite3.Connection, run_id: str, at: float) -> list[DecisionView]:
    """What recovery had decided, oldest first."""
    return [each for each in queries.decisions(connection, run_id) if each.at <= at]


def sink_events(connection: sqlite3.Connection, run_id: str, at: float) -> list[EventView]:
    """What had been said of a run's sinks, oldest first."""
    return [each for each in queries.sink_events(connection, run_id) if each.at <= at]


def events(connection: sqlite3.Connection, at: float, limit: int) -> list[EventView]:
    """The newest sentences about what had happened, oldest first."""
    rows = connection.execute(
        f"SELECT {', '.join(EVENT_COLUMNS)} FROM events WHERE at <= ? "  # noqa: S608 - fixed words
        "ORDER BY at DESC, event_id DESC LIMIT ?",
        (at, limit),
    ).fetchall()
    return [EventView(*row) for row in reversed(rows)]


def _by(time: float | None, at: float) -> bool:
    return time is not None and time <= at


def _told_by_the_row(run: RunView, at: float) -> _Move:
    """For a run without moves, as one is whose history was lost and rebuilt from its folder."""
    if run.state in OVER_STATES and _by(run.ended_at, at):
        return _Move(None, run.state, run.ended_at or at, run.reason or "")
    if _by(run.started_at, at):
        return _Move(None, "running", run.started_at or at, "")
    return _Move(None, "queued", run.created_at, "")


def _as_it_was(connection: sqlite3.Connection, run: RunView, move: _Move, at: float) -> PastRun:
    is_over = move.state in OVER_STATES
    # A run that goes on after an incident keeps its GPUs while it waits for its turn.
    holds = move.state in _HOLDING or (move.state == "queued" and move.origin == "recovering")
    if is_over and run.state == move.state and run.ended_at == move.at:
        return PastRun(run, holds)
    found = queries.newest_attempt(connection, run.run_id, at)
    attempt = None if found is None else attempt_at(found, at)
    number = 0 if attempt is None else attempt.number
    decided = [each for each in decisions(connection, run.run_id, at) if each.attempt == number]
    params = run.params if attempt is None else attempt.params
    for decision in decided:
        params = {**params, **decision.params}
    is_again = move.state == "queued" and bool(decided)
    view = replace(
        run,
        state=move.state,
        attempt=number,
        params=params,
        not_before=decided[-1].at + decided[-1].delay_seconds if is_again else None,
        started_at=run.started_at if _by(run.started_at, at) else None,
        ended_at=move.at if is_over else None,
        reason=move.cause if is_over or move.state == "recovering" else None,
        waiting_for=QUEUED_WORDS if move.state == "queued" else None,
        resume_from=decided[-1].resume_from if is_again else None,
        attempt_state=None if attempt is None else attempt.state,
        attempt_started_at=None if attempt is None else attempt.started_at,
        attempt_last_step=None if attempt is None else attempt.last_step,
        attempt_resumed_step=None if attempt is None else attempt.resumed_step,
        gpus=() if attempt is None else attempt.gpus,
    )
    return PastRun(view, holds)
