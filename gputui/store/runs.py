"""Runs with their newest attempts, now or at a past time.

Readers take ``at``, UTC unix seconds; None is now. A past run is reconstructed from transitions, attempts and decisions
up to that time; removed runs are unknown. Every function raises sqlite3.Error.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from gputui.store import json_columns, placements
from gputui.store.attempts import attempt_at, ended_seconds, is_by, newest_attempt, read_attempts
from gputui.store.database import named_rows
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
"""Maximum length of a person's note on a run."""
KILL = "kill"
"""The value of ``stop_requested`` for a stop without a grace period."""
QUEUED_WORDS = "in the queue"
"""What a queued run waited for at a past time, which is not recorded."""


class StopRequest(NamedTuple):
    """A stop in progress: its begin (UTC unix seconds), its grace period (None if unknown), and whether it kills at
    once. ``saved_step`` is the step of the newest checkpoint, None if unknown; ``has_checkpoints``: the profile names
    checkpoints."""

    since: float
    grace_seconds: float | None = None
    is_kill: bool = False
    saved_step: int | None = None
    has_checkpoints: bool = True


_ALIVE = ("starting", "running")
_METRIC_PARAMETERS = ("best_metric", "metric_for_best_model", "monitor")


class Run(Struct, frozen=True):
    """A run and its newest attempt. ``name``, ``tags`` and ``note`` are always the current ones.

    Attributes:
        params: parameters of the current or next attempt; the specification has those of the launch.
        spec_json: the stored specification as text, so that a run whose specification cannot be parsed
            (`runs.spec.spec_of`) can still be stopped, removed and shown.
        gpus: the leased GPUs if ``holds_gpus``, else those of its newest attempt.
        priority: higher goes first in the queue.
        gpu_count: the number of GPUs if exclude_gpu reduced it, else None.
        target: the name of its target, None for this machine; placement: that of the newest attempt, None in the past.
        ended_seconds: total duration of its ended attempts, None if none has ended.
        usual_start_seconds: while it starts, the time to the first step of the profile's newest attempt.
        stop: set while it stops.
        trial_state: of a trial of a study, its state there now, also in the past.
        metric: the only objective of its study, or the metric that a parameter names as the one to judge by.
        unsound_since: the step since which its loss was no finite number when it ended; None if it was one.
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
    trial_state: str | None = None
    metric: str | None = None
    unsound_since: int | None = None

    @property
    def is_renamed(self) -> bool:
        """Whether a person has renamed it since its launch."""
        return is_renamed(self.run_id, self.name)

    def trained_seconds(self, now: float) -> float | None:
        """Total duration of its attempts, without the time between them; None before the first one."""
        if self.ended_at is not None or self.attempt_started_at is None or self.attempt_state not in _ALIVE:
            return self.ended_seconds
        return (self.ended_seconds or 0.0) + max(0.0, now - self.attempt_started_at)

    @property
    def told_reason(self) -> str | None:
        """The reason if it says more than the state; else None."""
        return None if self.reason == self.state else self.reason


def is_renamed(run_id: str, name: str) -> bool:
    """Whether the name differs from that of the launch, which the id contains."""
    return name not in (run_id, run_id.rpartition("-")[0])


class RunLookupError(LookupError):
    """The text does not name one run; the message says what to do. ``candidates`` are the ids of the runs that it
    names, newest first, or similar ids and names, best first."""

    def __init__(self, message: str, candidates: list[str]) -> None:
        super().__init__(message)
        self.candidates = candidates


_PLAIN = (
    "run_id", "sequence", "name", "profile", "attempt", "spec_json", "created_at", "queued_at", "not_before",
    "started_at", "ended_at", "reason", "waiting_for", "resume_from", "attempt_state", "attempt_started_at",
    "attempt_last_step", "attempt_resumed_step", "priority", "gpu_count", "target", "study_id", "trial",
    "ended_seconds", "usual_start_seconds", "trial_state", "unsound_since",
)  # fmt: skip
"""The fields of `Run` that are columns of this query."""

_RUNS = f"""
SELECT r.*, r.spec AS spec_json,
    a.state AS attempt_state, a.started_at AS attempt_started_at, a.last_step AS attempt_last_step,
    a.resumed_step AS attempt_resumed_step, a.gpus AS attempt_gpus,
    {", ".join(f"p.{name} AS placement_{name}" for name in PlacementView.__struct_fields__)},
    (SELECT json_group_array(gpu_uuid) FROM leases WHERE run_id = r.run_id) AS leased,
    (SELECT sum(max(0.0, ended_at - coalesce(started_at, ended_at))) FROM attempts WHERE run_id = r.run_id
        AND ended_at IS NOT NULL) AS ended_seconds,
    CASE r.state WHEN 'starting' THEN (
        SELECT b.first_step_at - b.started_at FROM runs AS p JOIN attempts AS b USING (run_id)
        WHERE p.profile = r.profile AND b.first_step_at >= b.started_at ORDER BY b.created_at DESC LIMIT 1)
        END AS usual_start_seconds,
    CASE r.state WHEN 'stopping' THEN (
        SELECT max(at) FROM transitions WHERE run_id = r.run_id AND to_state = 'stopping') END AS stop_since,
    CASE WHEN json_valid(a.launch) THEN a.launch ->> '$.grace_seconds' END AS grace_seconds,
    a.stop_requested, l.tags, l.note,
    CASE r.state WHEN 'stopping' THEN (
        SELECT max(step) FROM checkpoints WHERE run_id = r.run_id AND gone_at IS NULL
        AND verdict NOT IN ('invalid', 'cut', 'left', 'struck')) END AS saved_step,
    CASE WHEN r.state = 'stopping' AND json_valid(r.spec) THEN r.spec ->> '$.checkpoints' IS NOT NULL END
        AS has_checkpoints,
    t.state AS trial_state,
    (SELECT CASE json_array_length(spec, '$.objectives') WHEN 1 THEN spec ->> '$.objectives[0].metric' END
        FROM studies WHERE study_id = r.study_id AND json_valid(spec)) AS objective,
    CASE WHEN json_valid(a.exit) THEN a.exit ->> '$.unsound_since' END AS unsound_since
FROM runs AS r
LEFT JOIN attempts AS a ON a.run_id = r.run_id AND a.number = r.attempt
LEFT JOIN placements AS p ON p.run_id = r.run_id AND p.attempt = r.attempt
LEFT JOIN run_labels AS l ON l.run_id = r.run_id
LEFT JOIN trials AS t ON t.study_id = r.study_id AND t.number = r.trial
"""  # noqa: S608 - fixed names


def read_runs(
    connection: sqlite3.Connection,
    at: float | None = None,
    *,
    limit: int | None = None,
    active_only: bool = False,
    over_only: bool = False,
) -> list[Run]:
    """Runs, newest first; with ``active_only`` those that are not over, with ``over_only`` the others. At a past time,
    ``limit`` applies to runs that were over, and keeps the newest ends."""
    if at is not None:
        return _runs_at(connection, at, limit, active_only=active_only, over_only=over_only)
    where = f"WHERE r.state {'' if over_only else 'NOT '}IN {_OVER}" if active_only or over_only else ""
    return _read(connection, f"{where} ORDER BY r.sequence DESC LIMIT ?", -1 if limit is None else limit)


def get_run(connection: sqlite3.Connection, run_id: str) -> Run | None:
    """The run with exactly this id, or None."""
    return next(iter(_read(connection, "WHERE r.run_id = ?", run_id)), None)


def runs_in(connection: sqlite3.Connection, *states: str) -> list[Run]:
    """The runs in any of these states, in the order of their launch."""
    marks = ", ".join("?" * len(states))
    return _read(connection, f"WHERE r.state IN ({marks}) ORDER BY r.sequence", *states)


def active_run_count(connection: sqlite3.Connection) -> int:
    """Number of runs that are not over."""
    over = json.dumps([state for state in RunState if state.is_over])
    row = connection.execute("SELECT count(*) FROM runs WHERE state NOT IN (SELECT value FROM json_each(?))", (over,))
    return int(row.fetchone()[0])


def has_live_trials(connection: sqlite3.Connection, study_id: str, *, besides: str) -> bool:
    """Whether a trial of the study, other than the run ``besides``, has begun and is not over."""
    row = connection.execute(
        "SELECT 1 FROM runs WHERE study_id = ? AND run_id != ? AND attempt > 0 AND ended_at IS NULL",
        (study_id, besides),
    ).fetchone()
    return row is not None


def queued_runs(connection: sqlite3.Connection) -> list[Run]:
    """The queued runs in the order of the queue."""
    return _read(connection, f"WHERE r.state = 'queued' ORDER BY {ORDER}")


def runs_mark(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """A value that changes when a run is added, removed, renamed, tagged or changes its state. Until then, cached data
    of runs that are over are valid."""
    row = connection.execute(
        "SELECT (SELECT count(*) FROM runs), (SELECT coalesce(max(transition_id), 0) FROM transitions), "
        "(SELECT coalesce(max(change_id), 0) FROM run_labels)"
    ).fetchone()
    return row[0], row[1], row[2]


def find_run(connection: sqlite3.Connection, wanted: str, at: float | None = None, *, only: bool = False) -> Run:
    """The run with the id ``wanted``, else the newest with that name, or the ``only`` one: what changes or removes a
    run asks for that. Raises RunLookupError, also if it was launched after ``at``."""
    run = _find(connection, wanted, only)
    if at is None:
        return run
    if run.created_at > at:
        raise _not_found(wanted, [])
    row = connection.execute(
        "SELECT from_state, to_state, at, cause FROM transitions WHERE run_id = ? AND at <= ? "
        "ORDER BY transition_id DESC LIMIT 1",
        (run.run_id, at),
    ).fetchone()
    return _as_it_was(connection, run, _move(*row) if row else _move_of_row(run, at), at)


def _find(connection: sqlite3.Connection, wanted: str, only: bool) -> Run:
    # Names are valid UTF-8; a shell's argument need not be.
    text = wanted.strip().encode("utf-8", "replace").decode()
    found = _read(
        connection, "WHERE r.run_id = ?1 OR r.name = ?1 ORDER BY r.run_id = ?1 DESC, r.sequence DESC LIMIT 6", text
    )
    ids = [run.run_id for run in found]
    if only and len(ids) > 1 and ids[0] != text:
        raise RunLookupError(f"{wanted!r} is the name of {', '.join(ids)}; give the id of one", ids)
    if found:
        return found[0]
    names = connection.execute("SELECT run_id, name FROM runs ORDER BY sequence DESC LIMIT 500").fetchall()
    words = list(dict.fromkeys(word for pair in names for word in pair))
    longer = [word for word in words if text and word.startswith(text)]
    near = difflib.get_close_matches(text, words, n=3, cutoff=0.5)
    raise _not_found(wanted, list(dict.fromkeys(longer + near))[:3])


def _not_found(wanted: str, nearest: list[str]) -> RunLookupError:
    hint = f"nearest: {', '.join(nearest)}" if nearest else "gputui ps lists them"
    return RunLookupError(f"no run {wanted!r}; {hint}", nearest)


def _read(connection: sqlite3.Connection, condition: str, *values: object) -> list[Run]:
    return [_run(row) for row in named_rows(connection, f"{_RUNS} {condition}", *values)]


def _run(row: Mapping[str, Any]) -> Run:
    leased, state = json_columns.items(row["leased"]), RunState(row["state"])
    params, reason, note = json_columns.mapping(row["params"]), row["reason"], row["note"]
    if state is RunState.UNKNOWN:
        reason = f"the database says {row['state']!r}, which is no state; gputui stop {row['run_id']} ends it"
    if note is not None and len(note) > LONGEST_NOTE:
        # Another program may have written a note of any length.
        note = f"{note[: LONGEST_NOTE - 1]}…"
    stop = placement = None
    if row["stop_since"] is not None:
        is_kill = row["stop_requested"] == KILL
        has_checkpoints = row["has_checkpoints"] != 0
        stop = StopRequest(row["stop_since"], row["grace_seconds"], is_kill, row["saved_step"], has_checkpoints)
    if row["placement_state"] is not None:
        placement = placements.from_row([row[f"placement_{name}"] for name in PlacementView.__struct_fields__])
    named = (params[name] for name in _METRIC_PARAMETERS if isinstance(params.get(name), str))
    return Run(
        **{name: row[name] for name in _PLAIN} | {"reason": reason},
        state=state,
        params=params,
        gpus=tuple(leased or json_columns.items(row["attempt_gpus"])),
        placement=placement,
        holds_gpus=bool(leased),
        stop=stop,
        tags=tuple(str(tag) for tag in json_columns.items(row["tags"])),
        note=note,
        metric=row["objective"] or next(named, None),
    )


def holders(runs: Iterable[Run]) -> dict[str, list[tuple[str, str]]]:
    """The runs that hold each GPU: (id, name) by UUID, in the order of their start."""
    by_gpu: dict[str, list[tuple[str, str]]] = {}
    for run in sorted(runs, key=lambda run: (run.attempt_started_at or 0.0, run.run_id)):
        for uuid in run.gpus if run.holds_gpus else ():
            by_gpu.setdefault(uuid, []).append((run.run_id, run.name))
    return by_gpu


# --- the past -------------------------------------------------------------------------------------------------------


class _Move(Struct, frozen=True):
    """A run's newest transition."""

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
    runs = [run for run in read_runs(connection) if run.created_at <= at]
    moved = [(run, moves.get(run.run_id) or _move_of_row(run, at)) for run in runs]
    if active_only or over_only:
        moved = [pair for pair in moved if pair[1].state.is_over == over_only]
    if limit is not None:
        # Only the requested runs are reconstructed.
        over = sorted((pair for pair in moved if pair[1].state.is_over), key=lambda pair: -pair[1].at)
        left_out = {run.run_id for run, _ in over[limit:]}
        moved = [pair for pair in moved if pair[0].run_id not in left_out]
    return [_as_it_was(connection, run, move, at) for run, move in moved]


def _move_of_row(run: Run, at: float) -> _Move:
    """The transition of a run without any, whose history was lost and rebuilt from its folder."""
    if run.state.is_over and is_by(run.ended_at, at):
        return _Move(None, run.state, run.ended_at or at, run.reason or "")
    if is_by(run.started_at, at):
        return _Move(None, RunState.RUNNING, run.started_at or at, "")
    return _Move(None, RunState.QUEUED, run.created_at, "")


def _as_it_was(connection: sqlite3.Connection, run: Run, move: _Move, at: float) -> Run:
    is_over, is_queued = move.state.is_over, move.state is RunState.QUEUED
    # A recovering run keeps its GPUs in the queue.
    holds = not is_over and (not is_queued or move.origin == RunState.RECOVERING)
    if is_over and run.state == move.state and run.ended_at == move.at:
        return replace(run, holds_gpus=holds)
    newest = newest_attempt(connection, run.run_id, at)
    attempt = None if newest is None else attempt_at(newest, at)
    number = 0 if attempt is None else attempt.number
    decided = [
        decision_row for decision_row in read_decisions(connection, run.run_id, at) if decision_row.attempt == number
    ]
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
