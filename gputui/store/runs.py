"""Runs, attempts, incidents, decisions and moves, as they are or as they were at a past moment.

Every reader takes ``at``, UTC unix seconds; None is now. The past is told by the moves, attempts, incidents and
decisions up to it. A run that was removed since is not known any more. Every function raises sqlite3.Error.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gputui.store import json_columns, placements
from gputui.store.placements import PlacementView
from gputui.store.queue import ORDER
from gputui.store.run_states import RunState

if TYPE_CHECKING:
    import sqlite3

Json = Any

_OVER = tuple(str(state) for state in RunState if state.is_over)
QUEUED_WORDS = "in the queue"
"""What a waiting run waited for at a past moment is not recorded."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run and its newest attempt.

    ``params`` are those of the attempt that is running or will start
    next; the specification keeps the launch's. ``gpus`` are the GPUs it leases where ``holds_gpus``, else those of its
    newest attempt. ``spec_json`` is the stored specification as text, which `runs.spec.spec_of` parses once: a run
    whose row cannot be understood can still be stopped, removed and shown. A higher ``priority`` goes first in the
    queue. ``gpu_count`` is set where exclude_gpu left its next attempts fewer GPUs than the specification asks for.
    ``target`` is the name of where it runs, None for this machine; ``placement`` its newest attempt's, None at a past
    moment. ``study_id`` and ``trial`` are those that it is of.
    """

    run_id: str
    sequence: int
    name: str
    profile: str
    state: RunState
    attempt: int
    params: Mapping[str, Json]
    spec_json: str
    created_at: float
    queued_at: float | None = None
    not_before: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    reason: str | None = None
    waiting_for: str | None = None
    resume_from: str | None = None
    attempt_state: str | None = None
    attempt_started_at: float | None = None
    attempt_last_step: int | None = None
    attempt_resumed_step: int | None = None
    gpus: tuple[str, ...] = ()
    priority: int = 0
    gpu_count: int | None = None
    target: str | None = None
    placement: PlacementView | None = None
    holds_gpus: bool = False
    study_id: str | None = None
    trial: int | None = None

    @property
    def told_reason(self) -> str | None:
        """The reason, where it says more than the state does."""
        return None if self.reason == self.state else self.reason


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a run: what it was started with and how it ended. ``executor`` is who serves it, as the fields of
    a `runs.identity.ProcessIdentity`, None until that is known."""

    run_id: str
    number: int
    state: str
    params: Mapping[str, Json]
    gpus: tuple[str, ...]
    launch: Mapping[str, Json]
    created_at: float
    started_at: float | None = None
    first_step_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    exit: Mapping[str, Json] | None = None
    resumed_from: str | None = None
    resumed_step: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    stop_requested: str | None = None
    executor: tuple[int, int, str] | None = None


@dataclass(frozen=True, slots=True)
class IncidentView:
    """Why an attempt ended, with its evidence. ``witnesses``, of which there may be fewer, say whose each line of it
    is (`recovery.classify.Witness`)."""

    incident_id: int
    run_id: str
    attempt: int
    at: float
    kind: str
    rank: int | None
    step: int | None
    summary: str
    evidence: tuple[Json, ...]
    witnesses: tuple[Json, ...] = ()


@dataclass(frozen=True, slots=True)
class DecisionView:
    """What recovery decided about an incident. ``params`` are the parameters that it changed."""

    decision_id: int
    incident_id: int
    run_id: str
    attempt: int
    at: float
    rung: int
    verdict: str
    actions: tuple[Json, ...]
    params: Mapping[str, Json]
    resume_from: str | None
    delay_seconds: float
    reason: str
    outcome: str | None


@dataclass(frozen=True, slots=True)
class TransitionView:
    """One move of a run from state to state."""

    transition_id: int
    run_id: str
    at: float
    from_state: str | None
    to_state: str
    cause: str
    actor: str


class RunLookupError(LookupError):
    """A run could not be told from what was typed; the text says what to do."""


class RunNotFoundError(RunLookupError):
    """No run matches. ``nearest`` holds ids and names that look like what was typed, best first."""

    def __init__(self, wanted: str, nearest: list[str]) -> None:
        hint = f"nearest: {', '.join(nearest)}" if nearest else "gputui ps lists them"
        super().__init__(f"no run {wanted!r}; {hint}")
        self.nearest = nearest


class AmbiguousRunError(RunLookupError):
    """Several runs begin with what was typed. ``candidates`` holds their ids, newest first."""

    def __init__(self, wanted: str, candidates: list[str]) -> None:
        super().__init__(f"{wanted!r} could be {', '.join(candidates)}; type more of the id")
        self.candidates = candidates


_RUNS = """
SELECT r.run_id, r.sequence, r.name, r.profile, r.state, r.attempt, r.params, r.spec, r.created_at, r.queued_at,
    r.not_before, r.started_at, r.ended_at, r.reason, r.waiting_for, r.resume_from,
    a.state, a.started_at, a.last_step, a.resumed_step, a.gpus,
    r.priority, r.gpu_count, r.target,
    p.job, p.state, p.reason, p.expected_start, p.nodes, p.limit_at, p.restarts, p.contact_at, p.problem,
    (SELECT json_group_array(gpu_uuid) FROM leases WHERE run_id = r.run_id), r.study_id, r.trial
FROM runs AS r
LEFT JOIN attempts AS a ON a.run_id = r.run_id AND a.number = r.attempt
LEFT JOIN placements AS p ON p.run_id = r.run_id AND p.attempt = r.attempt
"""


def read_runs(
    connection: sqlite3.Connection,
    at: float | None = None,
    *,
    limit: int | None = None,
    active_only: bool = False,
    over_only: bool = False,
) -> list[Run]:
    """Runs, newest first; ``active_only`` leaves out those that have ended, ``over_only`` the others. At a past moment
    ``limit`` bounds those that were over, to the newest ends."""
    if at is not None:
        return _runs_at(connection, at, limit, active_only=active_only, over_only=over_only)
    where = f"WHERE r.state {'' if over_only else 'NOT '}IN {_OVER}" if active_only or over_only else ""
    query = f"{_RUNS} {where} ORDER BY r.sequence DESC LIMIT ?"
    return [_run(row) for row in connection.execute(query, (-1 if limit is None else limit,))]


def get_run(connection: sqlite3.Connection, run_id: str) -> Run | None:
    """The run with this very id."""
    row = connection.execute(f"{_RUNS} WHERE r.run_id = ?", (run_id,)).fetchone()
    return None if row is None else _run(row)


def runs_in(connection: sqlite3.Connection, *states: str) -> list[Run]:
    """The runs in any of these states, in the order they were launched."""
    marks = ", ".join("?" * len(states))
    return [_run(row) for row in connection.execute(f"{_RUNS} WHERE r.state IN ({marks}) ORDER BY r.sequence", states)]


def queued_runs(connection: sqlite3.Connection) -> list[Run]:
    """The runs that wait, in the order in which they are served."""
    return [_run(row) for row in connection.execute(f"{_RUNS} WHERE r.state = 'queued' ORDER BY {ORDER}")]


def runs_mark(connection: sqlite3.Connection) -> tuple[int, int]:
    """Moves when a run was added, removed, or went from state to state: what is known of runs that are over holds as
    long as it does not."""
    row = connection.execute(
        "SELECT (SELECT count(*) FROM runs), (SELECT coalesce(max(transition_id), 0) FROM transitions)"
    ).fetchone()
    return row[0], row[1]


def find_run(connection: sqlite3.Connection, wanted: str, at: float | None = None) -> Run:
    """The run meant by ``wanted``: its id, else the only one whose id begins so, else the newest with that name.

    Raises RunNotFoundError, also where it had not been launched by ``at``, or AmbiguousRunError.
    """
    found = _find(connection, wanted)
    if at is None:
        return found
    if found.created_at > at:
        raise RunNotFoundError(wanted, [])
    row = connection.execute(
        "SELECT from_state, to_state, at, cause FROM transitions WHERE run_id = ? AND at <= ? "
        "ORDER BY transition_id DESC LIMIT 1",
        (found.run_id, at),
    ).fetchone()
    return _as_it_was(connection, found, _move(*row) if row else _told_by_the_row(found, at), at)


def _find(connection: sqlite3.Connection, wanted: str) -> Run:
    text = wanted.strip()
    exact = get_run(connection, text)
    if exact is not None:
        return exact
    candidates = []
    if text:
        candidates = connection.execute(
            f"{_RUNS} WHERE substr(r.run_id, 1, ?) = ? ORDER BY r.sequence DESC LIMIT 6", (len(text), text)
        ).fetchall()
    if len(candidates) == 1:
        return _run(candidates[0])
    row = connection.execute(f"{_RUNS} WHERE r.name = ? ORDER BY r.sequence DESC LIMIT 1", (text,)).fetchone()
    if row is not None:
        return _run(row)
    if candidates:
        raise AmbiguousRunError(wanted, [found[0] for found in candidates])
    known = connection.execute("SELECT run_id, name FROM runs ORDER BY sequence DESC LIMIT 500").fetchall()
    words = list(dict.fromkeys(word for found in known for word in found))
    raise RunNotFoundError(wanted, difflib.get_close_matches(text, words, n=3, cutoff=0.5))


def _run(row: Any) -> Run:
    leased = json_columns.items(row[33])
    params, gpus = json_columns.mapping(row[6]), tuple(leased or json_columns.items(row[20]))
    placement = None if row[25] is None else placements.from_row(row[24:33])
    last = (placement, bool(leased), *row[34:])
    return Run(*[*row[:4], RunState(row[4]), row[5], params, *row[7:20], gpus, *row[21:24], *last])


def holders(found: Iterable[Run]) -> dict[str, tuple[str, str]]:
    """Which run holds a GPU: (id, name) by UUID."""
    return {uuid: (run.run_id, run.name) for run in found if run.holds_gpus for uuid in run.gpus}


_ATTEMPTS = (
    "SELECT run_id, number, state, params, gpus, launch, created_at, started_at, first_step_at, ended_at, "
    "exit_code, exit_signal, exit, resumed_from, resumed_step, first_step, last_step, stop_requested, "
    "shim_pid, shim_start_ticks, boot_id FROM attempts"
)


def read_attempts(connection: sqlite3.Connection, run_id: str, at: float | None = None) -> list[Attempt]:
    """The attempts of a run, first to last; at a past moment each without what came later."""
    found = [_attempt(row) for row in connection.execute(f"{_ATTEMPTS} WHERE run_id = ? ORDER BY number", (run_id,))]
    return found if at is None else [_attempt_at(one, at) for one in found if one.created_at <= at]


def get_attempt(connection: sqlite3.Connection, run_id: str, number: int) -> Attempt | None:
    row = connection.execute(f"{_ATTEMPTS} WHERE run_id = ? AND number = ?", (run_id, number)).fetchone()
    return None if row is None else _attempt(row)


def newest_attempt(connection: sqlite3.Connection, run_id: str, at: float) -> Attempt | None:
    """The newest attempt that there was at a moment (UTC unix seconds), as it is known now."""
    row = connection.execute(
        f"{_ATTEMPTS} WHERE run_id = ? AND created_at <= ? ORDER BY number DESC LIMIT 1", (run_id, at)
    ).fetchone()
    return None if row is None else _attempt(row)


def _attempt(row: Any) -> Attempt:
    exit_report = json_columns.optional_mapping(row[12])
    values = [
        *row[:3],
        json_columns.mapping(row[3]),
        tuple(json_columns.items(row[4])),
        json_columns.mapping(row[5]),
        *row[6:12],
        exit_report,
        *row[13:18],
        None if row[18] is None else tuple(row[18:]),
    ]
    return Attempt(*values)


def read_incidents(
    connection: sqlite3.Connection,
    run_id: str | None = None,
    at: float | None = None,
    *,
    limit: int | None = None,
    after_id: int = 0,
) -> list[IncidentView]:
    """Incidents with an id above ``after_id``, oldest first; ``limit`` keeps the newest so many."""
    columns = "incident_id, run_id, attempt, at, kind, rank, step, summary, evidence, witnesses"
    rows = newest_rows(connection, "incidents", "incident_id", columns, run_id, at, limit, after_id)
    return [IncidentView(*row[:8], *(tuple(json_columns.items(text)) for text in row[8:10])) for row in rows]


def read_decisions(
    connection: sqlite3.Connection,
    run_id: str | None = None,
    at: float | None = None,
    *,
    limit: int | None = None,
    after_id: int = 0,
) -> list[DecisionView]:
    """What recovery decided, in the same manner."""
    columns = (
        "decision_id, incident_id, run_id, attempt, at, rung, verdict, actions, params, resume_from, "
        "delay_seconds, reason, outcome"
    )
    rows = newest_rows(connection, "decisions", "decision_id", columns, run_id, at, limit, after_id)
    return [
        DecisionView(*[*row[:7], tuple(json_columns.items(row[7])), json_columns.mapping(row[8]), *row[9:]])
        for row in rows
    ]


def read_transitions(
    connection: sqlite3.Connection,
    run_id: str | None = None,
    at: float | None = None,
    *,
    limit: int | None = None,
    after_id: int = 0,
) -> list[TransitionView]:
    """Moves of runs from state to state, in the same manner."""
    columns = "transition_id, run_id, at, from_state, to_state, cause, actor"
    rows = newest_rows(connection, "transitions", "transition_id", columns, run_id, at, limit, after_id)
    return [TransitionView(*row) for row in rows]


def newest_rows(
    connection: sqlite3.Connection,
    table: str,
    key: str,
    columns: str,
    run_id: str | None,
    at: float | None,
    limit: int | None,
    after_id: int,
) -> list[Any]:
    """Rows of a table that only grows, oldest first, in the manner of `read_incidents`. Names are the program's own."""
    where, arguments = f"{key} > ?", [after_id]
    for condition, value in (("run_id = ?", run_id), ("at <= ?", at)):
        if value is not None:
            where += f" AND {condition}"
            arguments.append(value)  # type: ignore[arg-type]
    order = key if at is None else f"at DESC, {key}"
    rows = connection.execute(
        f"SELECT {columns} FROM {table} WHERE {where} ORDER BY {order} DESC LIMIT ?",  # noqa: S608
        (*arguments, -1 if limit is None else limit),
    ).fetchall()
    rows.reverse()
    return rows


# --- the past -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Move:
    """The newest move of a run: where it came from and went, when, why."""

    origin: str | None
    state: RunState
    at: float
    cause: str


def _move(origin: str | None, state: str, at: float, cause: str) -> _Move:
    return _Move(origin, RunState(state), at, cause)


_MOVES = """
SELECT run_id, from_state, to_state, at, cause FROM transitions
WHERE transition_id IN (SELECT max(transition_id) FROM transitions WHERE at <= ? GROUP BY run_id)
"""


def _runs_at(
    connection: sqlite3.Connection, at: float, limit: int | None, *, active_only: bool, over_only: bool
) -> list[Run]:
    moves = {row[0]: _move(*row[1:]) for row in connection.execute(_MOVES, (at,)).fetchall()}
    known = [run for run in read_runs(connection) if run.created_at <= at]
    found = [(run, moves.get(run.run_id) or _told_by_the_row(run, at)) for run in known]
    if active_only or over_only:
        found = [one for one in found if one[1].state.is_over == over_only]
    if limit is not None:
        # What a run was like is worked out for those alone that are asked for.
        over = sorted((one for one in found if one[1].state.is_over), key=lambda one: -one[1].at)
        left_out = {run.run_id for run, _ in over[limit:]}
        found = [one for one in found if one[0].run_id not in left_out]
    return [_as_it_was(connection, run, move, at) for run, move in found]


def _attempt_at(attempt: Attempt, at: float) -> Attempt:
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


def _by(time: float | None, at: float) -> bool:
    return time is not None and time <= at


def _told_by_the_row(run: Run, at: float) -> _Move:
    """For a run without moves, as one is whose history was lost and rebuilt from its folder."""
    if run.state.is_over and _by(run.ended_at, at):
        return _Move(None, run.state, run.ended_at or at, run.reason or "")
    if _by(run.started_at, at):
        return _Move(None, RunState.RUNNING, run.started_at or at, "")
    return _Move(None, RunState.QUEUED, run.created_at, "")


def _as_it_was(connection: sqlite3.Connection, run: Run, move: _Move, at: float) -> Run:
    is_over, is_queued = move.state.is_over, move.state is RunState.QUEUED
    # A run that goes on after an incident keeps its GPUs while it waits for its turn.
    holds = not is_over and (not is_queued or move.origin == RunState.RECOVERING)
    if is_over and run.state == move.state and run.ended_at == move.at:
        return replace(run, holds_gpus=holds)
    found = newest_attempt(connection, run.run_id, at)
    attempt = None if found is None else _attempt_at(found, at)
    number = 0 if attempt is None else attempt.number
    decided = [each for each in read_decisions(connection, run.run_id, at) if each.attempt == number]
    params = run.params if attempt is None else attempt.params
    for decision in decided:
        params = {**params, **decision.params}
    is_again = is_queued and bool(decided)
    return replace(
        run,
        state=move.state,
        attempt=number,
        params=params,
        not_before=decided[-1].at + decided[-1].delay_seconds if is_again else None,
        started_at=run.started_at if _by(run.started_at, at) else None,
        ended_at=move.at if is_over else None,
        reason=move.cause if is_over or move.state is RunState.RECOVERING else None,
        waiting_for=QUEUED_WORDS if is_queued else None,
        resume_from=decided[-1].resume_from if is_again else None,
        attempt_state=None if attempt is None else attempt.state,
        attempt_started_at=None if attempt is None else attempt.started_at,
        attempt_last_step=None if attempt is None else attempt.last_step,
        attempt_resumed_step=None if attempt is None else attempt.resumed_step,
        gpus=() if attempt is None else attempt.gpus,
        placement=None,
        holds_gpus=holds,
    )
