"""Runs with their newest attempts, as they are or as they were at a past moment.

Readers take ``at``, UTC unix seconds; None is now. A past run is worked out from the moves, attempts and decisions up
to that moment. A run that was removed since is not known any more. Every function raises sqlite3.Error.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from gputui.store import json_columns, placements
from gputui.store.attempts import attempt_at, ended_seconds, is_by, newest_attempt, read_attempts
from gputui.store.placements import PlacementView
from gputui.store.queue import ORDER
from gputui.store.run_history import read_decisions
from gputui.store.run_states import RunState

if TYPE_CHECKING:
    import sqlite3

Json = Any

_OVER = tuple(str(state) for state in RunState if state.is_over)
_KNOWN = tuple(str(state) for state in RunState if state is not RunState.UNKNOWN)
LONGEST_NOTE = 500
"""Characters of the note that a person gives a run."""
KILL = "kill"
"""What an attempt's row has as ``stop_requested`` where a stop gives no grace."""
QUEUED_WORDS = "in the queue"
"""What a waiting run waited for at a past moment is not recorded."""


class StopRequest(NamedTuple):
    """A stop under way: since when (UTC unix seconds), after how many seconds what is left is killed (None is
    unknown), and whether it is killed at once. ``saved_step`` is that of its newest checkpoint, None if none is known;
    ``has_checkpoints`` is off where its profile names no place for them."""

    since: float
    grace_seconds: float | None = None
    is_kill: bool = False
    saved_step: int | None = None
    has_checkpoints: bool = True


_ALIVE = ("starting", "running")


@dataclass(frozen=True, slots=True)
class Run:
    """A run and its newest attempt.

    ``params`` are those of the attempt that is running or will start
    next; the specification keeps the launch's. ``gpus`` are the GPUs it leases where ``holds_gpus``, else those of its
    newest attempt. ``spec_json`` is the stored specification as text, which `runs.spec.spec_of` parses once: a run
    whose row cannot be understood can still be stopped, removed and shown. A higher ``priority`` goes first in the
    queue. ``gpu_count`` is set where exclude_gpu left its next attempts fewer GPUs than the specification asks for.
    ``target`` is the name of where it runs, None for this machine; ``placement`` its newest attempt's, None at a past
    moment. ``study_id`` and ``trial`` are those that it is of. ``ended_seconds`` is how long its ended attempts ran
    together, None if none has ended. ``usual_start_seconds`` is known while it starts: what the newest attempt of
    the profile took to its first step. ``stop`` is known while it stops. ``name``, ``tags`` and ``note`` are those of
    now, also at a past moment.
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
    ended_seconds: float | None = None
    usual_start_seconds: float | None = None
    stop: StopRequest | None = None
    tags: tuple[str, ...] = ()
    note: str | None = None

    @property
    def is_renamed(self) -> bool:
        """Whether a person gave it another name than that of its launch."""
        return is_renamed(self.run_id, self.name)

    def trained_seconds(self, now: float) -> float | None:
        """How long its attempts ran together, without what lay between them; None before the first has started."""
        if self.ended_at is not None or self.attempt_started_at is None or self.attempt_state not in _ALIVE:
            return self.ended_seconds
        return (self.ended_seconds or 0.0) + max(0.0, now - self.attempt_started_at)

    @property
    def told_reason(self) -> str | None:
        """The reason, where it says more than the state does."""
        return None if self.reason == self.state else self.reason


def is_renamed(run_id: str, name: str) -> bool:
    """Whether a name is another than that of the launch, which the id keeps."""
    return name not in (run_id, run_id.rpartition("-")[0])


class RunLookupError(LookupError):
    """The typed text names no single run; the message says what to do."""


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
    (SELECT json_group_array(gpu_uuid) FROM leases WHERE run_id = r.run_id), r.study_id, r.trial,
    (SELECT sum(max(0.0, ended_at - coalesce(started_at, ended_at))) FROM attempts WHERE run_id = r.run_id
        AND ended_at IS NOT NULL),
    CASE r.state WHEN 'starting' THEN (
        SELECT b.first_step_at - b.started_at FROM runs AS p JOIN attempts AS b USING (run_id)
        WHERE p.profile = r.profile AND b.first_step_at >= b.started_at ORDER BY b.created_at DESC LIMIT 1) END,
    CASE r.state WHEN 'stopping' THEN (
        SELECT max(at) FROM transitions WHERE run_id = r.run_id AND to_state = 'stopping') END,
    CASE WHEN json_valid(a.launch) THEN a.launch ->> '$.grace_seconds' END, a.stop_requested, l.tags, l.note,
    CASE r.state WHEN 'stopping' THEN (
        SELECT max(step) FROM checkpoints WHERE run_id = r.run_id AND verdict NOT IN ('invalid', 'cut', 'struck')) END,
    CASE WHEN r.state = 'stopping' AND json_valid(r.spec) THEN r.spec ->> '$.checkpoints' IS NOT NULL END
FROM runs AS r
LEFT JOIN attempts AS a ON a.run_id = r.run_id AND a.number = r.attempt
LEFT JOIN placements AS p ON p.run_id = r.run_id AND p.attempt = r.attempt
LEFT JOIN run_labels AS l ON l.run_id = r.run_id
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


def unknown_runs(connection: sqlite3.Connection) -> list[Run]:
    """The runs whose state is a word that this gputui does not know, in the order they were launched."""
    rows = connection.execute(f"{_RUNS} WHERE r.state NOT IN {_KNOWN} ORDER BY r.sequence")
    return [_run(row) for row in rows]


def queued_runs(connection: sqlite3.Connection) -> list[Run]:
    """The runs that wait, in the order in which they are served."""
    return [_run(row) for row in connection.execute(f"{_RUNS} WHERE r.state = 'queued' ORDER BY {ORDER}")]


def runs_mark(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """Moves when a run was added, removed, renamed, tagged, or went from state to state: what is known of runs that are
    over holds as long as it does not."""
    row = connection.execute(
        "SELECT (SELECT count(*) FROM runs), (SELECT coalesce(max(transition_id), 0) FROM transitions), "
        "(SELECT coalesce(max(change_id), 0) FROM run_labels)"
    ).fetchone()
    return row[0], row[1], row[2]


def find_run(connection: sqlite3.Connection, wanted: str, at: float | None = None) -> Run:
    """The run meant by ``wanted``: its id, else the only one whose id begins so, else the newest with that name.

    Raises RunNotFoundError, also if it had not been launched by ``at``, or AmbiguousRunError.
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
    return _as_it_was(connection, found, _move(*row) if row else _move_of_row(found, at), at)


def _find(connection: sqlite3.Connection, wanted: str) -> Run:
    # What a shell passed on that is no UTF-8 is no run's name either.
    text = wanted.strip().encode("utf-8", "replace").decode()
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
    stop = None if row[38] is None else StopRequest(row[38], row[39], row[40] == KILL, row[43], row[44] != 0)
    tags = tuple(str(tag) for tag in json_columns.items(row[41]))
    last = (placement, bool(leased), *row[34:38], stop, tags, _shortened(row[42]))
    run = Run(*[*row[:4], RunState(row[4]), row[5], params, *row[7:20], gpus, *row[21:24], *last])
    if run.state is not RunState.UNKNOWN:
        return run
    return replace(run, reason=f"the database says {row[4]!r}, which is no state; gputui stop {run.run_id} ends it")


def _shortened(note: str | None) -> str | None:
    # One that was not written by this gputui may be of any length.
    return note if note is None or len(note) <= LONGEST_NOTE else f"{note[: LONGEST_NOTE - 1]}…"


def holders(found: Iterable[Run]) -> dict[str, list[tuple[str, str]]]:
    """Which runs hold a GPU: (id, name) of each by UUID, the first one first."""
    held: dict[str, list[tuple[str, str]]] = {}
    for run in sorted(found, key=lambda run: (run.attempt_started_at or 0.0, run.run_id)):
        for uuid in run.gpus if run.holds_gpus else ():
            held.setdefault(uuid, []).append((run.run_id, run.name))
    return held


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
    found = [(run, moves.get(run.run_id) or _move_of_row(run, at)) for run in known]
    if active_only or over_only:
        found = [one for one in found if one[1].state.is_over == over_only]
    if limit is not None:
        # What a run was like is worked out for those alone that are asked for.
        over = sorted((one for one in found if one[1].state.is_over), key=lambda one: -one[1].at)
        left_out = {run.run_id for run, _ in over[limit:]}
        found = [one for one in found if one[0].run_id not in left_out]
    return [_as_it_was(connection, run, move, at) for run, move in found]


def _move_of_row(run: Run, at: float) -> _Move:
    """For a run without moves, as one is whose history was lost and rebuilt from its folder."""
    if run.state.is_over and is_by(run.ended_at, at):
        return _Move(None, run.state, run.ended_at or at, run.reason or "")
    if is_by(run.started_at, at):
        return _Move(None, RunState.RUNNING, run.started_at or at, "")
    return _Move(None, RunState.QUEUED, run.created_at, "")


def _as_it_was(connection: sqlite3.Connection, run: Run, move: _Move, at: float) -> Run:
    is_over, is_queued = move.state.is_over, move.state is RunState.QUEUED
    # A run that continues after an incident keeps its GPUs while it waits for its turn.
    holds = not is_over and (not is_queued or move.origin == RunState.RECOVERING)
    if is_over and run.state == move.state and run.ended_at == move.at:
        return replace(run, holds_gpus=holds)
    found = newest_attempt(connection, run.run_id, at)
    attempt = None if found is None else attempt_at(found, at)
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
        started_at=run.started_at if is_by(run.started_at, at) else None,
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
        ended_seconds=ended_seconds(read_attempts(connection, run.run_id, at)),
        usual_start_seconds=None,
        stop=StopRequest(move.at) if move.state is RunState.STOPPING else None,
    )
