"""Runs with their newest attempts, now or at a past time ``at`` (UTC unix seconds; None is now),
which is reconstructed from transitions, attempts and decisions. All raise sqlite3.Error."""

from __future__ import annotations

import difflib
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.errors import ExplainedError
from gputui.store.attempts import Attempt, ended_seconds, is_by, read_attempts
from gputui.store.metrics.roles import NO_ROLES, MetricRoles
from gputui.store.placements import PlacementView
from gputui.store.queue import ORDER
from gputui.store.rows import json_items, json_mapping, named_rows, records
from gputui.store.run_history import TransitionView, read_decisions, read_transitions
from gputui.store.run_states import RunState

Json = Any

_OVER = tuple(str(state) for state in RunState if state.is_over)
LONGEST_NOTE = 500
"""Maximum length of a person's note on a run."""
KILL = "kill"
"""The value of ``stop_requested`` for a stop without a grace period."""
PHASE_OVER = "phase"
"""The value of ``stop_requested`` for the end of a phase of the profile, and the cause for which
the run is queued again."""
TIME_OVER = "time"
"""The value of ``stop_requested`` for the end of the run's time limit."""
QUEUED_WORDS = "in the queue"
"""What a queued run waited for at a past time, which is not recorded."""


_ALIVE = ("starting", "running")
_METRIC_PARAMETERS = ("best_metric", "metric_for_best_model", "monitor")  # of Lightning, Hugging Face and timm

_MATCHES_NAMED = 6  # runs of one name that an error lists: a line of a terminal
_NAMES_COMPARED = 500  # newest runs whose names may be meant: comparing them takes some milliseconds
_NEAREST_NAMED = 3  # more suggestions are none

_DERIVED = (
    "state", "params", "gpus", "placement", "holds_gpus", "stop", "tags", "metric", "roles", "unsound_since",
    "has_checkpoint",
)  # fmt: skip
"""The fields of `Run` that `_run` makes from columns of `_RUNS`."""

_USABLE = "gone_at IS NULL AND verdict NOT IN ('invalid', 'cut', 'left', 'struck')"

_RESUMABLE = f"""FROM checkpoints AS c WHERE c.run_id = r.run_id AND {_USABLE}
    AND origin IN ('run', 'named') AND c.attempt >= coalesce((SELECT max(number) FROM attempts
        WHERE run_id = r.run_id AND resumed_from IS NULL), 0)"""  # noqa: S608 - fixed names

_RUNS = f"""
SELECT r.*, r.spec AS spec_json,
    a.state AS attempt_state, a.started_at AS attempt_started_at,
    a.exited_at AS attempt_exited_at,
    CASE WHEN r.state IN ('starting', 'running', 'stopping') THEN a.last_step ELSE (
        SELECT s.last_step FROM attempts AS s WHERE s.run_id = r.run_id AND s.last_step IS NOT NULL
        ORDER BY s.number DESC LIMIT 1) END AS last_step,
    a.resumed_step AS attempt_resumed_step, a.gpus AS attempt_gpus,
    {", ".join(f"p.{name} AS placement_{name}" for name in PlacementView.__struct_fields__)},
    (SELECT json_group_array(gpu_uuid) FROM leases WHERE run_id = r.run_id) AS leased,
    (SELECT sum(coalesce(q.ran_seconds, e.exit ->> '$.ran_seconds',
            max(0.0, e.ended_at - coalesce(e.started_at, e.ended_at))))
        FROM attempts AS e LEFT JOIN placements AS q ON q.run_id = e.run_id AND q.attempt = e.number
        WHERE e.run_id = r.run_id AND e.ended_at IS NOT NULL) AS ended_seconds,
    CASE WHEN r.state = 'starting' OR (r.state = 'running' AND a.first_step_at IS NULL) THEN (
        SELECT b.first_step_at - b.started_at FROM runs AS p JOIN attempts AS b USING (run_id)
        WHERE p.profile = r.profile AND b.first_step_at >= b.started_at ORDER BY b.created_at DESC LIMIT 1)
        END AS usual_start_seconds,
    CASE WHEN r.state = 'running' AND a.first_step_at IS NULL THEN (
        SELECT n.text FROM observations AS n WHERE n.run_id = r.run_id AND n.attempt = r.attempt
        AND n.kind = 'no_metrics' AND NOT EXISTS
            (SELECT 1 FROM metric_sources AS m WHERE m.run_id = r.run_id AND m.line_count > 0) LIMIT 1)
        END AS no_metrics,
    CASE r.state WHEN 'stopping' THEN (
        SELECT max(at) FROM transitions WHERE run_id = r.run_id AND to_state = 'stopping') END AS stop_since,
    CASE r.state WHEN 'stopping' THEN (
        SELECT max(step) FROM checkpoints WHERE run_id = r.run_id AND {_USABLE}) END AS saved_step,
    CASE WHEN r.state NOT IN {_OVER} THEN NULL
        WHEN EXISTS (SELECT 1 {_RESUMABLE}) THEN 1
        WHEN r.attempt = 0 OR a.scanned_at >= a.ended_at THEN 0 END AS has_checkpoint,
    CASE WHEN r.state IN {_OVER} THEN (SELECT max(c.step) {_RESUMABLE}) END AS checkpoint_step,
    a.stop_requested, a.launch AS attempt_launch, a.exit AS attempt_exit, l.tags, l.note, t.state AS trial_state,
    z.size_bytes,
    {", ".join(f"o.{name} AS role_{name}" for name in MetricRoles.__struct_fields__)},
    (SELECT CASE json_array_length(spec, '$.objectives') WHEN 1 THEN spec ->> '$.objectives[0].metric' END
        FROM studies WHERE study_id = r.study_id AND json_valid(spec)) AS objective
FROM runs AS r
LEFT JOIN attempts AS a ON a.run_id = r.run_id AND a.number = r.attempt
LEFT JOIN placements AS p ON p.run_id = r.run_id AND p.attempt = r.attempt
LEFT JOIN run_labels AS l ON l.run_id = r.run_id
LEFT JOIN run_sizes AS z ON z.run_id = r.run_id
LEFT JOIN metric_roles AS o ON o.run_id = r.run_id
LEFT JOIN trials AS t ON t.study_id = r.study_id AND t.number = r.trial
"""  # noqa: S608 - fixed names


class StopRequest(NamedTuple):
    """A stop in progress.

    Attributes:
        since: When it began, UTC unix seconds.
        grace_seconds: How long the processes have after SIGTERM, None if that is unknown.
        is_kill: It kills at once.
        saved_step: The step of the newest checkpoint, None if that is unknown.
    """

    since: float
    grace_seconds: float | None = None
    is_kill: bool = False
    saved_step: int | None = None


class Run(Struct, frozen=True):
    """A run and its newest attempt. ``name``, ``tags`` and ``note`` are always the current ones.

    Attributes:
        params: parameters of the current or next attempt; the specification has the launch's.
        spec_json: the stored specification as text (`runs.stored_spec.spec_of`): a run with a bad one can
            still be stopped, removed and shown.
        last_step: the newest step of its attempt; without a live one, of the last attempt that made any.
        gpus: the leased GPUs if ``holds_gpus``, else those of its newest attempt.
        priority: higher goes first in the queue.
        gpu_count: the number of GPUs if exclude_gpu reduced it, else None.
        target: the name of its target, None for this machine.
        placement: that of the newest attempt, None in the past.
        ended_seconds: total duration of its ended attempts, None if none has ended.
        usual_start_seconds: before its attempt's first step, how long that took the profile's
            newest attempt.
        no_metrics: before its attempt's first step, what that printed or wrote without a metrics line, of a run of
            which none was ever read.
        stop: set while it stops.
        trial_state: of a trial of a study, its state there now, also in the past.
        metric: the only objective of its study, or the one that its profile or a parameter names to judge by.
        roles: the names of its losses and of its best metric.
        has_checkpoint: of a run that is over, whether one is there to resume from; None if that is unknown.
        checkpoint_step: the step of the newest of these; None if there is none, or it is unknown.
        unsound_since: the step since which its loss was no finite number when it ended.
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
    attempt_exited_at: float | None = None
    last_step: int | None = None
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
    no_metrics: str | None = None
    stop: StopRequest | None = None
    tags: tuple[str, ...] = ()
    note: str | None = None
    trial_state: str | None = None
    metric: str | None = None
    roles: MetricRoles = NO_ROLES
    unsound_since: int | None = None
    size_bytes: int | None = None
    has_checkpoint: bool | None = None
    checkpoint_step: int | None = None

    @property
    def is_renamed(self) -> bool:
        """True if a person has renamed it since its launch."""
        return is_renamed(self.run_id, self.name)

    def trained_seconds(self, now: float) -> float | None:
        """Total duration of its attempts, without the time in a target's queue; None before the first
        one."""
        if self.ended_at is not None or self.attempt_started_at is None or self.attempt_state not in _ALIVE:
            return self.ended_seconds
        if self.placement is not None:
            return (self.ended_seconds or 0.0) + self.placement.ran_seconds
        end = now
        if self.attempt_exited_at is not None:
            end = min(now, self.attempt_exited_at)
        return (self.ended_seconds or 0.0) + max(0.0, end - self.attempt_started_at)

    @property
    def has_exited(self) -> bool:
        """True if the command of its attempt has ended, and what that left is not examined yet."""
        return self.state.has_attempt and self.attempt_exited_at is not None

    @property
    def has_ended_there(self) -> bool:
        """True if the job of its attempt has ended on its target, and what that left is not examined yet."""
        is_expected = self.state in (RunState.STARTING, RunState.RUNNING)
        return is_expected and self.placement is not None and self.placement.state == "ended"

    @property
    def shown_state(self) -> str:
        """Its state, or ``ending`` between the end of an attempt and the decision what follows from it."""
        if self.state != RunState.STOPPING and (self.has_exited or self.has_ended_there):
            return "ending"
        return self.state

    @property
    def gpu_total(self) -> int | None:
        """The number of its GPUs, on a target those that it asked for; None if that is unknown."""
        if self.placement is None:
            return len(self.gpus)
        return self.placement.gpus

    def seen_until(self, now: float) -> float:
        """The time up to which its files are known here: on a target, until the last contact. A step
        that was not fetched yet is not missing."""
        if self.placement is None or self.placement.contact_at is None:
            return now
        return min(now, self.placement.contact_at)

    @property
    def reported_reason(self) -> str | None:
        """The reason if it says more than the state; else None."""
        if self.reason == self.state:
            return None
        return self.reason


def is_renamed(run_id: str, name: str) -> bool:
    """Return whether the name differs from that of the launch, which the id contains."""
    return name not in (run_id, run_id.rpartition("-")[0])


class RunLookupError(ExplainedError, LookupError):
    """The text names no one run; the message says what to do. ``candidates`` are the ids of those
    that it names, newest first, or similar ids and names."""

    is_refusal = True

    def __init__(self, message: str, candidates: list[str]) -> None:
        super().__init__(message)
        self.candidates = candidates


_PLAIN = tuple(name for name in Run.__struct_fields__ if name not in _DERIVED)
"""The fields of `Run` that are columns of `_RUNS`."""


def read_runs(
    connection: sqlite3.Connection,
    at: float | None = None,
    *,
    limit: int | None = None,
    active_only: bool = False,
    over_only: bool = False,
) -> list[Run]:
    """Runs, newest first; with ``active_only`` those that are not over, with ``over_only`` the
    others. At a past time, ``limit`` applies to runs that were over, and keeps the newest ends."""
    if at is None:
        where = ""
        if over_only:
            where = f"WHERE r.state IN {_OVER}"
        elif active_only:
            where = f"WHERE r.state NOT IN {_OVER}"
        most = -1 if limit is None else limit
        return _read(connection, f"{where} ORDER BY r.sequence DESC LIMIT ?", most)
    runs = _last_moves(connection, at)
    if active_only or over_only:
        runs = [past_run for past_run in runs if past_run.was_over == over_only]
    if limit is not None:
        over = sorted((past_run for past_run in runs if past_run.was_over), key=lambda past_run: -past_run.move.at)
        left_out = {past_run.run.run_id for past_run in over[limit:]}
        runs = [past_run for past_run in runs if past_run.run.run_id not in left_out]
    # Only the requested runs are reconstructed.
    return [_as_it_was(connection, past_run.run, past_run.move, at) for past_run in runs]


class _PastRun(NamedTuple):
    """A run as it is now, and its last transition before a past time."""

    run: Run
    move: TransitionView

    @property
    def was_over(self) -> bool:
        return RunState(self.move.to_state).is_over


def _last_moves(connection: sqlite3.Connection, at: float) -> list[_PastRun]:
    """The runs that there were at a past time, newest first."""
    newest = "SELECT max(transition_id) FROM transitions WHERE at <= ? GROUP BY run_id"
    query = f"SELECT * FROM transitions WHERE transition_id IN ({newest})"  # noqa: S608 - fixed names
    moves = {move.run_id: move for move in records(connection, TransitionView, query, at)}
    runs = [run for run in read_runs(connection) if run.created_at <= at]
    return [_PastRun(run, moves.get(run.run_id) or _move_of_row(run, at)) for run in runs]


def get_run(connection: sqlite3.Connection, run_id: str) -> Run | None:
    """The run with exactly this id, or None."""
    return next(iter(_read(connection, "WHERE r.run_id = ?", run_id)), None)


def active_run_count(connection: sqlite3.Connection) -> int:
    """Number of runs that are not over."""
    row = connection.execute(f"SELECT count(*) FROM runs WHERE state NOT IN {_OVER}").fetchone()  # noqa: S608
    return int(row[0])


def ended_since(connection: sqlite3.Connection, since: float) -> list[Run]:
    """The runs but trials that ended after ``since`` (UTC unix seconds), in the order of their launch."""
    return _read(connection, "WHERE r.ended_at > ? AND r.study_id IS NULL ORDER BY r.sequence", since)


def has_live_trials(connection: sqlite3.Connection, study_id: str, *, besides: str) -> bool:
    """Return whether a trial of the study, other than the run ``besides``, has begun and is not
    over."""
    row = connection.execute(
        "SELECT 1 FROM runs WHERE study_id = ? AND run_id != ? AND attempt > 0 AND ended_at IS NULL",
        (study_id, besides),
    ).fetchone()
    return row is not None


def queued_runs(connection: sqlite3.Connection) -> list[Run]:
    """The queued runs in the order of the queue."""
    return _read(connection, f"WHERE r.state = 'queued' ORDER BY {ORDER}")


def runs_mark(connection: sqlite3.Connection) -> tuple[int, ...]:
    """A value that changes when a run is added, removed, renamed, tagged, measured or changes its
    state. Until then, cached data of runs that are over are valid."""
    row: tuple[int, ...] = connection.execute(
        "SELECT (SELECT count(*) FROM runs), (SELECT coalesce(max(transition_id), 0) FROM transitions), "
        "(SELECT coalesce(max(change_id), 0) FROM run_labels), (SELECT count(*) FROM run_sizes)"
    ).fetchone()
    return row


def find_run(connection: sqlite3.Connection, name: str, at: float | None = None, *, only: bool = False) -> Run:
    """The run with the id ``name``, else the newest with that name, or the ``only`` one: what
    changes or removes a run asks for that. Raises RunLookupError, also if it was launched after
    ``at``."""
    # Names are valid UTF-8; a shell's argument need not be.
    text = name.strip().encode("utf-8", "replace").decode()
    condition = "WHERE r.run_id = ?1 OR r.name = ?1 ORDER BY r.run_id = ?1 DESC, r.sequence DESC LIMIT ?2"
    matches = _read(connection, condition, text, _MATCHES_NAMED)
    if not matches:
        nearest = _nearest_names(connection, text)
        hint = f"nearest: {', '.join(nearest)}" if nearest else "gputui ps lists them"
        raise RunLookupError(f"no run {name!r}; {hint}", nearest)
    ids = [run.run_id for run in matches]
    if only and len(ids) > 1 and ids[0] != text:
        raise RunLookupError(f"{name!r} is the name of {', '.join(ids)}; give the id of one", ids)
    run = matches[0]
    if at is None:
        return run
    if run.created_at > at:
        raise RunLookupError(f"no run {name!r}; gputui ps lists them", [])
    last_move = next(iter(read_transitions(connection, run.run_id, at, limit=1)), None)
    return _as_it_was(connection, run, last_move or _move_of_row(run, at), at)


def _nearest_names(connection: sqlite3.Connection, text: str) -> list[str]:
    """The ids and names that begin with a text, or are similar to it."""
    query = "SELECT run_id, name FROM runs ORDER BY sequence DESC LIMIT ?"
    names = connection.execute(query, (_NAMES_COMPARED,)).fetchall()
    ids = [run_id for run_id, _ in names]
    # A name of the launch is no run, but the beginning of the ids of several.
    options = list(dict.fromkeys([*ids, *(name for run_id, name in names if is_renamed(run_id, name))]))
    longer = [word for word in options if text and word.startswith(text)]
    similar = difflib.get_close_matches(text, options, n=_NEAREST_NAMED, cutoff=0.5)
    return list(dict.fromkeys(longer + similar))[:_NEAREST_NAMED]


def _read(connection: sqlite3.Connection, condition: str, *values: object) -> list[Run]:
    return [_run(row) for row in named_rows(connection, f"{_RUNS} {condition}", values)]


def _run(row: dict[str, Any]) -> Run:
    """A run from a row of `_RUNS`."""
    leased = json_items(row["leased"])
    params = json_mapping(row["params"])
    roles = MetricRoles(*(row[f"role_{name}"] for name in MetricRoles.__struct_fields__))
    metric_names = (params[name] for name in _METRIC_PARAMETERS if isinstance(params.get(name), str))
    has_checkpoint = None if row["has_checkpoint"] is None else bool(row["has_checkpoint"])
    return Run(
        **{name: row[name] for name in _PLAIN},
        state=RunState(row["state"]),
        params=params,
        gpus=leased or json_items(row["attempt_gpus"]),
        placement=_placement(row),
        holds_gpus=bool(leased),
        stop=_stop(row),
        tags=json_items(row["tags"]),
        metric=row["objective"] or roles.best or next(metric_names, None),
        roles=roles,
        unsound_since=json_mapping(row["attempt_exit"]).get("unsound_since"),
        has_checkpoint=has_checkpoint,
    )


def _stop(row: Mapping[str, Any]) -> StopRequest | None:
    if row["stop_since"] is None:
        return None
    grace = json_mapping(row["attempt_launch"]).get("grace_seconds")
    return StopRequest(row["stop_since"], grace, row["stop_requested"] == KILL, row["saved_step"])


def _placement(row: Mapping[str, Any]) -> PlacementView | None:
    if row["placement_state"] is None:
        return None
    placed = {name: row[f"placement_{name}"] for name in PlacementView.__struct_fields__}
    return PlacementView(**placed | {"nodes": json_items(placed["nodes"])})


def holders(runs: Iterable[Run]) -> dict[str, list[tuple[str, str]]]:
    """The runs that hold each GPU: (id, name) by UUID, in the order of their start."""
    by_gpu: dict[str, list[tuple[str, str]]] = {}
    holding = (run for run in runs if run.holds_gpus)
    for run in sorted(holding, key=lambda run: (run.attempt_started_at or 0.0, run.run_id)):
        for uuid in run.gpus:
            by_gpu.setdefault(uuid, []).append((run.run_id, run.name))
    return by_gpu


def _move_of_row(run: Run, at: float) -> TransitionView:
    """The transition of a run that has none: it was rebuilt from its folder."""
    state = RunState.QUEUED
    since = run.created_at
    if run.state.is_over and is_by(run.ended_at, at):
        state = run.state
        since = run.ended_at or at
    elif is_by(run.started_at, at):
        state = RunState.RUNNING
        since = run.started_at or at
    return TransitionView(0, run.run_id, at=since, from_state=None, to_state=state, cause=run.reason or "", actor="")


def _as_it_was(connection: sqlite3.Connection, run: Run, move: TransitionView, at: float) -> Run:
    """A run at a past time, from how it is now and its last transition before that time."""
    state = RunState(move.to_state)
    # A recovering run keeps its GPUs in the queue.
    is_waiting = state is RunState.QUEUED and move.from_state != RunState.RECOVERING
    holds_gpus = not state.is_over and not is_waiting
    if state.is_over and run.state == state and run.ended_at == move.at:
        return replace(run, holds_gpus=holds_gpus)
    attempts = read_attempts(connection, run.run_id, at)
    with_steps = attempts[-1:] if state.has_attempt else attempts
    started_at = run.started_at if is_by(run.started_at, at) else None
    past_run = replace(
        _without_later(run),
        state=state,
        started_at=started_at,
        ended_seconds=ended_seconds(attempts),
        last_step=_last_step(with_steps),
    )
    if attempts:
        past_run = _with_attempt(past_run, attempts[-1], is_holding=holds_gpus)
    return _with_move(_with_decisions(connection, past_run, at), move)


def _last_step(attempts: Sequence[Attempt]) -> int | None:
    """The last step of the newest of these attempts that made any."""
    steps = [attempt.last_step for attempt in attempts if attempt.last_step is not None]
    return steps[-1] if steps else None


def _with_decisions(connection: sqlite3.Connection, run: Run, at: float) -> Run:
    """The run with what was decided by then for the attempt after its newest one."""
    decisions = [decision for decision in read_decisions(connection, run.run_id, at) if decision.attempt == run.attempt]
    params = dict(run.params)
    for decision in decisions:
        params |= decision.params
    run = replace(run, params=params)
    if decisions and run.state is RunState.QUEUED:
        last = decisions[-1]
        return replace(run, not_before=last.at + last.delay_seconds, resume_from=last.resume_from)
    return run


def _with_move(run: Run, move: TransitionView) -> Run:
    """The run with what its last transition says of its state."""
    if run.state is RunState.QUEUED:
        return replace(run, waiting_for=QUEUED_WORDS)
    if run.state is RunState.STOPPING:
        return replace(run, stop=StopRequest(move.at))
    if run.state is RunState.RECOVERING:
        return replace(run, reason=move.cause)
    if run.state.is_over:
        return replace(run, ended_at=move.at, reason=move.cause)
    return run


def _without_later(run: Run) -> Run:
    """The run without an attempt, a request or a result."""
    names = (
        *("not_before", "ended_at", "reason", "waiting_for", "resume_from", "attempt_state", "attempt_started_at"),
        *("attempt_exited_at", "last_step", "attempt_resumed_step", "placement", "usual_start_seconds", "no_metrics"),
        *("stop", "size_bytes", "has_checkpoint", "checkpoint_step"),
    )
    nothing: dict[str, Any] = dict.fromkeys(names)
    return replace(run, attempt=0, gpus=(), holds_gpus=False, **nothing)


def _with_attempt(run: Run, attempt: Attempt, *, is_holding: bool) -> Run:
    return replace(
        run,
        attempt=attempt.number,
        params=attempt.params,
        gpus=attempt.gpus,
        holds_gpus=is_holding and bool(attempt.gpus),
        attempt_state=attempt.state,
        attempt_started_at=attempt.started_at,
        attempt_exited_at=attempt.exited_at,
        attempt_resumed_step=attempt.resumed_step,
    )
