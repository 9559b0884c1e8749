"""The statements by which the agent writes runs, attempts and leases, in the caller's
transaction."""

from __future__ import annotations

import itertools
import json
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from gputui.core.redaction import BY_LOOK, redact_text
from gputui.runs.checkpoint_names import step_in_name
from gputui.runs.command import Launch
from gputui.runs.identity import ProcessIdentity
from gputui.runs.orphans import RunStatus
from gputui.runs.spec import RunSpec, Scalar
from gputui.store import alerts, checkpoints
from gputui.store.metrics.roles import set_roles
from gputui.store.rows import insert, records, update
from gputui.store.run_states import RunState, check_move
from gputui.store.runs import Run

_UNFIT_IN_NAME = re.compile(r"[^a-zA-Z0-9._-]+")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """A transaction that is rolled back on any error. Raises sqlite3.Error."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def fitting_name(text: str) -> str:
    """A valid run name, for folders and command lines, made of any text."""
    return _UNFIT_IN_NAME.sub("-", text).strip("-.")[:60].strip("-.") or "run"


def next_run_id(connection: sqlite3.Connection, name: str, taken_folders: set[str]) -> tuple[str, int]:
    """A new id ``NAME-N``, and the run's place in the order of all runs.

    N goes on from the highest that the name had; ids whose folder still exists, and names of other runs, are skipped.
    """
    sequence = connection.execute("SELECT coalesce(max(sequence), 0) + 1 FROM runs").fetchone()[0]
    # By id: a run that was renamed keeps the id of its launch.
    start = f"{name}-"
    rows = connection.execute(
        "SELECT run_id FROM runs WHERE substr(run_id, 1, ?1) = ?2 "
        "UNION SELECT name FROM runs WHERE substr(name, 1, ?1) = ?2",
        (len(start), start),
    )
    used_ids = taken_folders | {row[0] for row in rows}
    highest = connection.execute("SELECT highest FROM run_numbers WHERE name = ?", (name,)).fetchone() or (0,)
    number = next(number for number in itertools.count(highest[0] + 1) if f"{name}-{number}" not in used_ids)
    return f"{name}-{number}", int(sequence)


def _note_number(connection: sqlite3.Connection, run_id: str) -> None:
    """Store the number of an id as used."""
    name, _, number = run_id.rpartition("-")
    if number.isdecimal():
        connection.execute(
            "INSERT INTO run_numbers VALUES (?1, ?2) ON CONFLICT DO UPDATE SET highest = max(highest, ?2)",
            (name, int(number)),
        )


class NewRun(Struct, frozen=True):
    """A run to be stored.

    Attributes:
        sequence: its place in the order of all runs.
        spec: its specification without secrets.
        params: those of its first attempt, without secrets.
    """

    run_id: str
    sequence: int
    name: str
    spec: RunSpec
    params: Mapping[str, Scalar]


def insert_run(connection: sqlite3.Connection, new: NewRun, *, now: float, actor: str, cause: str = "launched") -> None:
    """Insert a run, which is queued."""
    spec = new.spec
    insert(
        connection,
        "runs",
        run_id=new.run_id,
        sequence=new.sequence,
        name=new.name,
        profile=spec.name,
        state=RunState.QUEUED,
        spec=json.dumps(spec.to_json()),
        params=json.dumps(dict(new.params)),
        created_at=now,
        queued_at=now,
        priority=spec.priority,
        target=spec.target and spec.target["name"],
        study_id=spec.study_id,
        trial=spec.trial,
    )
    _note_number(connection, new.run_id)
    _set_roles(connection, new.run_id, spec)
    insert(connection, "transitions", run_id=new.run_id, at=now, to_state=RunState.QUEUED, cause=cause, actor=actor)


def move(
    connection: sqlite3.Connection, run: Run, target: RunState, *, cause: str, actor: str = "agent", now: float
) -> None:
    """Move a run to another state and record the cause. Raises ForbiddenMoveError.

    What is learned late, or after a clock was set back, is recorded at the time of the move before it.
    """
    check_move(run.state, target)
    cause = redact_text(cause)
    changes: dict[str, object] = {"ended_at": now if target.is_over else None}
    if target is RunState.QUEUED and run.state is not RunState.RECOVERING:
        # A run that continues after an incident keeps its place in the queue.
        changes["queued_at"] = now
    reason = cause if target.is_over or target is RunState.RECOVERING else None
    update(connection, "runs", {"run_id": run.run_id}, state=target, reason=reason, waiting_for=None, **changes)
    forget_size(connection, run.run_id)
    states = {"from_state": run.state, "to_state": target}
    (before_at,) = connection.execute("SELECT max(at) FROM transitions WHERE run_id = ?", (run.run_id,)).fetchone()
    at = now if before_at is None else max(now, before_at)
    insert(connection, "transitions", run_id=run.run_id, at=at, cause=cause, actor=actor, **states)


def stop_reason_of_study(connection: sqlite3.Connection, run_id: str) -> str | None:
    """The reason why the run's study stopped it; None if it has no study or a person stopped it."""
    row = connection.execute(
        "SELECT t.cause, t.actor, r.study_id FROM transitions AS t JOIN runs AS r USING (run_id) "
        "WHERE t.run_id = ? AND t.to_state = 'stopping' ORDER BY t.transition_id DESC LIMIT 1",
        (run_id,),
    ).fetchone()
    if row is None:
        return None
    cause, actor, study_id = row
    if study_id is not None and actor == f"study {study_id}":
        return str(cause)
    return None


def delete_run(connection: sqlite3.Connection, run_id: str) -> None:
    """Delete a run with its leases, events and alerts. The janitor deletes its metrics."""
    release_leases(connection, run_id)
    connection.execute("DELETE FROM runs WHERE run_id = ?", (run_id,))
    connection.execute("DELETE FROM events WHERE run_id = ?", (run_id,))
    alerts.forget_run(connection, run_id)


def set_next_attempt(
    connection: sqlite3.Connection,
    run_id: str,
    *,
    params: Mapping[str, Scalar],
    resume_from: str | None,
    not_before: float | None,
) -> None:
    """Set what the run's next attempt starts with, and when."""
    text = json.dumps(dict(params))
    update(connection, "runs", {"run_id": run_id}, params=text, resume_from=resume_from, not_before=not_before)


def replace_next_attempt(
    connection: sqlite3.Connection, run_id: str, *, params: Mapping[str, Scalar], resume_from: str | None
) -> None:
    """Set what the run's next attempt starts with, instead of what recovery had decided for it:
    delay, environment and preconditions are dropped."""
    set_next_attempt(connection, run_id, params=params, resume_from=resume_from, not_before=None)
    drop_next_attempt(connection, run_id)


def set_spec(connection: sqlite3.Connection, run_id: str, spec: RunSpec) -> None:
    """Replace the specification of the run's next attempts, which has no secrets."""
    update(connection, "runs", {"run_id": run_id}, spec=json.dumps(spec.to_json()))
    _set_roles(connection, run_id, spec)


def _set_roles(connection: sqlite3.Connection, run_id: str, spec: RunSpec) -> None:
    """Store what a specification says of the run's metrics."""
    best = (None, None) if spec.best is None else (spec.best.name, spec.best.mode)
    set_roles(connection, run_id, spec.loss, *best)


def set_gpu_count(connection: sqlite3.Connection, run_id: str, count: int | None) -> None:
    """Set the number of GPUs of the run's next attempts; None for that of its specification."""
    update(connection, "runs", {"run_id": run_id}, gpu_count=count)


def set_waiting_for(connection: sqlite3.Connection, run_id: str, text: str | None) -> None:
    update(connection, "runs", {"run_id": run_id}, waiting_for=text)


def unmeasured_runs(connection: sqlite3.Connection) -> list[tuple[str, float]]:
    """The runs that are over and whose folders were not measured since, each with its end."""
    return connection.execute(
        "SELECT run_id, ended_at FROM runs WHERE ended_at IS NOT NULL AND run_id NOT IN (SELECT run_id FROM run_sizes)"
    ).fetchall()


def set_size(connection: sqlite3.Connection, run_id: str, ended_at: float, size_bytes: int) -> None:
    """Store what the folder of a run takes, unless the run has gone on since it ended."""
    connection.execute(
        "INSERT OR REPLACE INTO run_sizes SELECT run_id, ? FROM runs WHERE run_id = ? AND ended_at = ?",
        (size_bytes, run_id, ended_at),
    )


def forget_size(connection: sqlite3.Connection, run_id: str) -> None:
    """Let the folder of a run be measured again once it is over."""
    connection.execute("DELETE FROM run_sizes WHERE run_id = ?", (run_id,))


def run_statuses(connection: sqlite3.Connection) -> dict[str, RunStatus]:
    """State and newest attempt of every run."""
    rows = connection.execute("SELECT run_id, state, attempt FROM runs")
    return {run_id: RunStatus(RunState(state), attempt) for run_id, state, attempt in rows.fetchall()}


def insert_attempt(
    connection: sqlite3.Connection, run: Run, *, number: int, gpus: Sequence[str], launch: Launch, now: float
) -> None:
    """Add an attempt in state ``starting``, whose executor is not known yet."""
    resumed_step = None
    if run.resume_from is not None:
        resumed_step = checkpoints.step_of(connection, run.run_id, run.resume_from)
        resumed_step = step_in_name(PurePath(run.resume_from)) if resumed_step is None else resumed_step
    insert(
        connection,
        "attempts",
        run_id=run.run_id,
        number=number,
        state="starting",
        params=json.dumps(dict(run.params)),
        gpus=json.dumps(list(gpus)),
        launch=json.dumps(launch.to_json()),
        created_at=now,
        resumed_from=run.resume_from,
        resumed_step=resumed_step,
    )
    connection.execute(
        "UPDATE runs SET attempt = ?, started_at = coalesce(started_at, ?) WHERE run_id = ?", (number, now, run.run_id)
    )


def set_executor(connection: sqlite3.Connection, run_id: str, number: int, executor: ProcessIdentity) -> None:
    values = {"shim_pid": executor.pid, "shim_start_ticks": executor.start_ticks, "boot_id": executor.boot_id}
    update(connection, "attempts", {"run_id": run_id, "number": number}, **values)


def set_attempt_started(connection: sqlite3.Connection, run_id: str, number: int, at: float) -> None:
    connection.execute(
        "UPDATE attempts SET state = 'running', started_at = ? WHERE run_id = ? AND number = ? AND started_at IS NULL",
        (at, run_id, number),
    )


def set_attempt_exited(connection: sqlite3.Connection, run_id: str, number: int, at: float) -> None:
    """Store when the command of an attempt ended, before what it left is examined."""
    update(connection, "attempts", {"run_id": run_id, "number": number}, exited_at=at)


def set_resumed_from(connection: sqlite3.Connection, run_id: str, number: int, path: str) -> None:
    """Store the checkpoint of an attempt whose target chose it at the start."""
    step = step_in_name(PurePath(path))
    update(connection, "attempts", {"run_id": run_id, "number": number}, resumed_from=path, resumed_step=step)


def request_stop(connection: sqlite3.Connection, run_id: str, number: int, intent: str) -> None:
    """Store the intent before any signal: an exit status does not tell a stop from a crash."""
    update(connection, "attempts", {"run_id": run_id, "number": number}, stop_requested=intent)


def end_attempt(
    connection: sqlite3.Connection,
    run_id: str,
    number: int,
    *,
    state: str,
    ended_at: float,
    exit_record: Mapping[str, Any] | None,
) -> None:
    record = dict(exit_record or {})
    ends = {f"exit_{name}": record.get(name) for name in ("code", "signal") if isinstance(record.get(name), int)}
    ends["exit"] = json.dumps(BY_LOOK.value(record)) if record else None
    times = {"exited_at": ended_at, "ended_at": ended_at}
    update(connection, "attempts", {"run_id": run_id, "number": number}, state=state, **times, **ends)


class GpuHolders(NamedTuple):
    """The runs that lease a GPU, oldest first; ``shared_by`` and ``shares`` as in `GpuAvailability`."""

    run_ids: tuple[str, ...] = ()
    shared_by: str | None = None
    shares: Mapping[str, float] = {}


def leases(connection: sqlite3.Connection) -> dict[str, GpuHolders]:
    """The holders of each leased GPU, by UUID."""
    rows = connection.execute(
        "SELECT gpu_uuid, run_id, CASE WHEN share < 1 THEN coalesce(study_id, '') END, share "
        "FROM leases JOIN runs USING (run_id) ORDER BY gpu_uuid, since, run_id"
    )
    holders: dict[str, GpuHolders] = {}
    for uuid, run_id, shared_by, share in rows:
        before = holders.get(uuid, GpuHolders())
        shares = before.shares if shared_by is None else {**before.shares, run_id: share}
        holders[uuid] = GpuHolders((*before.run_ids, run_id), shared_by, shares)
    return holders


def cpu_ranks(connection: sqlite3.Connection) -> int:
    """The number of ranks of active attempts without GPUs on this machine."""
    alive = json.dumps([state for state in RunState if state.has_attempt])
    row = connection.execute(
        "SELECT coalesce(sum(spec ->> '$.nproc'), 0) FROM runs "
        "JOIN attempts ON attempts.run_id = runs.run_id AND attempts.number = runs.attempt "
        "WHERE runs.state IN (SELECT value FROM json_each(?)) AND attempts.gpus = '[]' AND runs.target IS NULL",
        (alive,),
    ).fetchone()
    return int(row[0])


def leases_in_use(connection: sqlite3.Connection) -> set[str]:
    """The leased GPUs without those of runs that wait for their next attempt."""
    rows = connection.execute(
        "SELECT gpu_uuid FROM leases JOIN runs USING (run_id) WHERE state NOT IN (?, ?)",
        (RunState.QUEUED, RunState.RECOVERING),
    )
    return {uuid for (uuid,) in rows.fetchall()}


def take_leases(
    connection: sqlite3.Connection, run_id: str, uuids: Sequence[str], now: float, *, share: float = 1.0
) -> None:
    """Lease more GPUs to a run, all or none.

    Raises:
        sqlite3.IntegrityError: others hold one, unless all take a ``share`` of it that leaves room, and are trials of
            one study or runs of none.
    """
    for uuid in sorted(uuids):
        lease = connection.execute(
            "SELECT share FROM leases WHERE gpu_uuid = ? AND run_id = ?", (uuid, run_id)
        ).fetchone()
        if lease is None or lease[0] != share:
            end_lease(connection, run_id, uuid)
            insert(connection, "leases", gpu_uuid=uuid, run_id=run_id, since=now, share=share)


def release_leases(connection: sqlite3.Connection, run_id: str, keep: Sequence[str] = ()) -> None:
    connection.execute(
        "DELETE FROM leases WHERE run_id = ? AND gpu_uuid NOT IN (SELECT value FROM json_each(?))",
        (run_id, json.dumps(list(keep))),
    )


def end_lease(connection: sqlite3.Connection, run_id: str, uuid: str) -> None:
    connection.execute("DELETE FROM leases WHERE run_id = ? AND gpu_uuid = ?", (run_id, uuid))


class NextAttempt(Struct, frozen=True):
    """What was decided for a run's next attempt, in a row that the attempt's start deletes.

    Attributes:
        env: overrides the profile's variables.
        preconditions: of its start.
        since: when both were decided (UTC unix seconds).
    """

    env: dict[str, str] = msgspec.field(default_factory=dict)
    preconditions: tuple[Mapping[str, Any], ...] = ()
    since: float = 0.0


def put_next_attempt(
    connection: sqlite3.Connection,
    run_id: str,
    *,
    env: Mapping[str, str],
    preconditions: Sequence[Mapping[str, Any]],
    now: float,
) -> None:
    """Replace the row. Works inside the caller's transaction."""
    drop_next_attempt(connection, run_id)
    if env or preconditions:
        text = json.dumps([dict(precondition) for precondition in preconditions])
        insert(connection, "next_attempts", run_id=run_id, env=json.dumps(dict(env)), preconditions=text, since=now)


def get_next_attempt(connection: sqlite3.Connection, run_id: str) -> NextAttempt:
    """The row of a run; an empty one if there is none."""
    query = "SELECT * FROM next_attempts WHERE run_id = ?"
    return next(iter(records(connection, NextAttempt, query, run_id)), NextAttempt())


def set_preconditions(connection: sqlite3.Connection, run_id: str, preconditions: Sequence[Mapping[str, Any]]) -> None:
    """Store the preconditions that are not met yet."""
    text = json.dumps([dict(precondition) for precondition in preconditions])
    update(connection, "next_attempts", {"run_id": run_id}, preconditions=text)


def drop_next_attempt(connection: sqlite3.Connection, run_id: str) -> None:
    connection.execute("DELETE FROM next_attempts WHERE run_id = ?", (run_id,))
