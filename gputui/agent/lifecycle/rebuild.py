"""Rebuild the rows of runs from their folders after the database was lost or restored from a
backup, so that live runs stay supervised."""

from __future__ import annotations

import logging
import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from sqlite3 import Connection
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gputui.agent.context import AgentContext
from gputui.agent.lifecycle import checkpoint_survey
from gputui.agent.lifecycle.run_files import attempt_numbers, open_metrics, rank_output, read_record
from gputui.core.config import read_regular
from gputui.core.redaction import Redactor, redact_params
from gputui.runs import repository
from gputui.runs.command import Launch
from gputui.runs.foreign_json import time_in
from gputui.runs.identity import is_held
from gputui.runs.labels import read_labels, store_labels
from gputui.runs.processes import processes_of
from gputui.runs.redaction import redact_launch, redact_spec, secrets_of
from gputui.runs.spec import RunSpec, Scalar, SpecError
from gputui.runs.submission import MAX_SPEC_BYTES, SPEC_FILE, read_spec, ticket_inodes
from gputui.store.attempts import get_attempt
from gputui.store.run_states import RunState
from gputui.store.runs import Run, get_run

log = logging.getLogger(__name__)

_CAUSE = "read back from its folder"


def rebuild(context: AgentContext) -> list[str]:
    """Add the runs whose folders the database does not know; return the ids of those that have
    ended, whose metrics are still to be read (`execution.read_rest`).

    A run has the state in which its newest attempt left it. An ended run stays ended, because the
    incident and the decision are lost with the database; a live one is adopted. The folder of a
    launch that a killed agent did not complete is deleted, because the launch command is repeated.
    """
    connection, runs = context.connection, context.workspace.runs
    known = {row[0] for row in connection.execute("SELECT run_id FROM runs")}
    unknown = [entry for entry in runs.iterdir() if entry.is_dir() and entry.name not in known]
    tickets = ticket_inodes(context.workspace)
    added = []
    for folder in sorted(unknown, key=lambda entry: entry.stat().st_mtime):
        try:
            content = list(folder.iterdir())
            is_ticket = [entry.name for entry in content] == [SPEC_FILE]
            if not content or (is_ticket and content[0].lstat().st_ino in tickets):
                shutil.rmtree(folder)
                continue
            _insert(context, folder, read_spec(folder / SPEC_FILE), _read_attempts(folder))
            added.append(folder.name)
        except (SpecError, _DamagedPlanError, OSError, sqlite3.IntegrityError) as error:
            log.warning("%s cannot be read back: %s", folder, error)
    added += [run_id for run_id in known if catch_up(context, _run(connection, run_id))]
    if added:
        count = "1 run was" if len(added) == 1 else f"{len(added)} runs were"
        context.note("runs_rebuilt", f"{count} read back from the run folders", severity="warning")
    return [run_id for run_id in added if _run(connection, run_id).state.is_over]


def catch_up(context: AgentContext, run: Run) -> bool:
    """Add the attempts of a run that are on the disk and not in the database, as when that was
    restored from a backup, and move the run to where the newest of them is; False if there are
    none. Raises sqlite3.Error."""
    connection, folder = context.connection, context.workspace.run_dir(run.run_id)
    row = get_attempt(connection, run.run_id, run.attempt)
    own = folder / "attempts" / str(run.attempt)
    # The id of a removed run is given again, and the attempts of that run begin with 1 as well.
    is_other = row is not None and row.ended_at is not None and not (own / "exit.json").exists()
    is_other = is_other and is_held(own / "attempt.lock")
    oldest = run.attempt + (not is_other)
    if all(number < oldest for number in attempt_numbers(folder)):
        return False
    try:
        attempts = _read_attempts(folder)
        if not attempts or attempts[-1].number < oldest:
            return False
        spec = read_spec(folder / SPEC_FILE)
    except (SpecError, _DamagedPlanError, OSError) as error:
        log.warning("%s cannot be compared with its folder: %s", run.run_id, error)
        return False
    cause = f"{_CAUSE}: attempt {attempts[-1].number} is newer than the database"
    with repository.transaction(connection):
        if is_other:
            connection.execute("DELETE FROM attempts WHERE run_id = ? AND number >= ?", (run.run_id, run.attempt))
        _insert_attempts(context, folder, spec, attempts, cause)
        context.note("runs_rebuilt", cause, run.run_id, severity="warning")
    return True


class _DamagedPlanError(Exception):
    """An attempt.json that is damaged or belongs to another run."""


class _Plan(Struct, frozen=True):
    """The part of attempt.json that `Launch` has not. ``created_at`` is UTC unix seconds;
    ``metrics_bytes`` is the size of each metrics file at the attempt's begin."""

    run_id: str
    created_at: float
    gpus: tuple[str, ...]
    params: Mapping[str, Scalar]
    metrics_bytes: Mapping[str, int]
    resume_from: str | None = None
    shares_gpus: bool = False


class _Attempt(NamedTuple):
    """An attempt as read from its folder. ``started`` and ``ended`` are the records of its
    executor, None before it has written them."""

    number: int
    plan: _Plan
    launch: Launch
    started: Mapping[str, Any] | None
    ended: Mapping[str, Any] | None


def _read_attempts(folder: Path) -> list[_Attempt]:
    """The attempts that were started, in order. Raises _DamagedPlanError or OSError."""
    attempts = []
    for number in attempt_numbers(folder):
        own = folder / "attempts" / str(number)
        started, ended = read_record(own / "started.json"), read_record(own / "exit.json")
        # An agent may be killed after it wrote the plan and before it started the executor.
        if started is None and ended is None and not processes_of(folder, number):
            continue
        data = read_regular(own / "attempt.json", MAX_SPEC_BYTES)
        try:
            plan = msgspec.json.decode(data, type=_Plan)
            launch = msgspec.json.decode(data, type=Launch)
        except msgspec.MsgspecError as error:
            raise _DamagedPlanError(f"{own}/attempt.json is damaged: {error}") from error
        if plan.run_id != folder.name:
            raise _DamagedPlanError(f"it is the folder of {plan.run_id}")
        attempts.append(_Attempt(number, plan, launch, started, ended))
    return attempts


def _insert(context: AgentContext, folder: Path, spec: RunSpec, attempts: Sequence[_Attempt]) -> None:
    """Insert the rows of one run, its attempts and its leases."""
    now = context.now()
    with repository.transaction(context.connection) as connection:
        (highest,) = connection.execute("SELECT coalesce(max(sequence), 0) FROM runs").fetchone()
        repository.insert_run(
            connection,
            run_id=folder.name,
            sequence=highest + 1,
            name=folder.name.rsplit("-", 1)[0],
            spec=redact_spec(spec),
            params=attempts[-1].plan.params if attempts else redact_params(spec.params),
            now=attempts[0].plan.created_at if attempts else folder.stat().st_mtime,
            actor="agent",
            cause=_CAUSE,
        )
        if (labels := read_labels(folder)) is not None:
            store_labels(connection, folder.name, labels)
        open_metrics(context.ingest, folder.name, spec, folder)
        if attempts:
            _insert_attempts(context, folder, spec, attempts, _CAUSE)
        else:
            run, cause = _run(connection, folder.name), "found in its folder, never started"
            repository.move(connection, run, RunState.STOPPED, cause=cause, now=now)


def _insert_attempts(
    context: AgentContext, folder: Path, spec: RunSpec, attempts: Sequence[_Attempt], cause: str
) -> None:
    """Insert the attempts without a row, and move the run to where the newest one is."""
    connection, run_id, newest = context.connection, folder.name, attempts[-1]
    for attempt in attempts:
        row = get_attempt(connection, run_id, attempt.number)
        if row is None:
            _insert_attempt(context, folder, spec, attempt)
        if attempt is not newest and (row is None or row.ended_at is None):
            _end_attempt(context, run_id, attempt, "failed")
    checkpoint_survey.restore(connection, run_id, folder)
    run = _run(connection, run_id)
    if run.state is not RunState.QUEUED:
        # Whatever the row says, it is older than the attempt.
        run = replace(run, state=RunState.UNKNOWN)
    repository.move(connection, run, RunState.STARTING, cause=cause, now=context.now())
    if newest.ended is None:
        _take_leases(context, run_id, newest.plan)
        return
    state, end = RunState.FAILED, "failed; why was lost with the database"
    if newest.ended.get("stop_requested"):
        state, end = RunState.STOPPED, "stopped"
    elif newest.ended.get("code") == 0:
        state, end = RunState.SUCCEEDED, "finished"
    ended_at = _end_attempt(context, run_id, newest, state)
    repository.move(connection, _run(connection, run_id), state, cause=end, now=ended_at)
    repository.release_leases(connection, run_id)


def _take_leases(context: AgentContext, run_id: str, plan: _Plan) -> None:
    """Lease the GPUs of a living attempt to its run, and end those leases of other runs that are
    older than it."""
    connection = context.connection
    for uuid, lease in repository.leases(connection).items():
        for holder in lease.run_ids if uuid in plan.gpus and not plan.shares_gpus else ():
            repository.end_lease(connection, holder, uuid)
    repository.take_leases(connection, run_id, plan.gpus, context.now(), shared=plan.shares_gpus)


def _insert_attempt(context: AgentContext, folder: Path, spec: RunSpec, attempt: _Attempt) -> None:
    number, plan = attempt.number, attempt.plan
    run = replace(_run(context.connection, folder.name), params=plan.params, resume_from=plan.resume_from)
    launch = redact_launch(attempt.launch, Redactor(secrets_of(spec)))
    repository.insert_attempt(
        context.connection, run, number=number, gpus=plan.gpus, launch=launch, now=plan.created_at
    )
    output = rank_output(spec, len(plan.gpus), folder / "attempts" / str(number))
    context.ingest.readmit_attempt(folder.name, number, plan.metrics_bytes, output)


def _end_attempt(context: AgentContext, run_id: str, attempt: _Attempt, state: str) -> float:
    """Store the end of an attempt; return its time, which is now if it is unknown."""
    connection, number = context.connection, attempt.number
    ended_at = time_in((attempt.ended or {}).get("ended_at")) or context.now()
    started_at = time_in((attempt.started or {}).get("at"))
    if started_at is not None:
        repository.set_attempt_started(connection, run_id, number, started_at)
    repository.end_attempt(connection, run_id, number, state=state, ended_at=ended_at, exit_record=attempt.ended)
    return ended_at


def _run(connection: Connection, run_id: str) -> Run:
    run = get_run(connection, run_id)
    assert run is not None
    return run
