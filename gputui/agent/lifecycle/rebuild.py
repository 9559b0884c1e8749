"""Rebuild the rows of runs from their folders after the database was lost or restored from a
backup, so that live runs stay supervised."""

from __future__ import annotations

import glob
import logging
import shutil
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from sqlite3 import Connection
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gputui.agent.context import AgentContext
from gputui.agent.health.incident_folder import read_back
from gputui.agent.lifecycle import checkpoint_survey
from gputui.agent.lifecycle.run_files import (
    EARLY_FILE,
    attempt_dir,
    attempt_numbers,
    open_metrics,
    rank_output,
    read_executor_record,
)
from gputui.agent.lifecycle.source_search import readmit_sources
from gputui.core.files import read_regular
from gputui.core.redaction import Redactor, redact_params
from gputui.metrics.files import has_wildcards
from gputui.metrics.sources import ATTEMPT_OUTPUT
from gputui.runs import repository
from gputui.runs.command import Launch
from gputui.runs.foreign_json import time_in
from gputui.runs.labels import read_labels, store_labels
from gputui.runs.logs import written_at
from gputui.runs.notices import skip_news
from gputui.runs.processes import processes_of
from gputui.runs.redaction import redact_launch, redact_spec, secrets_of
from gputui.runs.spec import RunSpec, Scalar, SpecError
from gputui.runs.submission import MAX_SPEC_BYTES, SPEC_FILE, read_spec, ticket_inodes
from gputui.store.attempts import get_attempt
from gputui.store.run_history import NewIncident, put_incident
from gputui.store.run_states import RunState
from gputui.store.runs import Run, get_run

log = logging.getLogger(__name__)


def rebuild(context: AgentContext) -> list[str]:
    """Add the runs and attempts that only the run folders know.

    A run has the state in which its newest attempt left it, with the incidents that its folder
    keeps. An ended run stays ended; a live one is adopted. The folder of a launch that a killed
    agent did not complete is deleted, because the launch command is repeated.

    Returns:
        The ids of changed runs that are over, whose metrics are still to be read (`execution.read_rest`).
    """
    tickets = ticket_inodes(context.workspace)
    folders = [entry for entry in context.workspace.runs.iterdir() if entry.is_dir()]
    changed = []
    for folder in sorted(folders, key=lambda entry: entry.stat().st_mtime):
        try:
            run = get_run(context.connection, folder.name)
            if run is None and _is_incomplete_launch(folder, tickets):
                shutil.rmtree(folder)
            elif _read_back(context, folder, run):
                changed.append(folder.name)
        except (SpecError, _DamagedPlanError, OSError, sqlite3.IntegrityError) as error:
            log.warning("%s cannot be read back: %s", folder, error)
    if changed:
        count = "1 run was" if len(changed) == 1 else f"{len(changed)} runs were"
        context.note("runs_rebuilt", f"{count} read back from the run folders", severity="warning")
        skip_news(context.connection, context.now())
    return [run_id for run_id in changed if _stored_run(context.connection, run_id).state.is_over]


def follow_moved_home(context: AgentContext) -> None:
    """Let the metrics sources in the folders of runs follow a home that was moved: later attempts
    write in the new place, and what was read of a file stays read. Raises sqlite3.Error."""
    runs = context.workspace.runs
    moved = []
    rows = context.connection.execute("SELECT source_id, run_id, path, format FROM metric_sources").fetchall()
    for source_id, run_id, path, kind in rows:
        former, folder, below = path.partition(f"/runs/{run_id}")
        if not folder or below[:1] not in ("", "/"):
            continue
        is_pattern = kind == ATTEMPT_OUTPUT or has_wildcards(below)
        here = str(runs.parent)
        if is_pattern:
            here = glob.escape(here)
        # A script may have a folder of this name, too.
        if former != here and not Path(former + folder).exists() and (runs / run_id).exists():
            moved.append((here + folder + below, source_id))
    with repository.transaction(context.connection) as connection:
        connection.executemany("UPDATE OR IGNORE metric_sources SET path = ? WHERE source_id = ?", moved)


def _is_incomplete_launch(folder: Path, tickets: Collection[int]) -> bool:
    """Return whether the folder has nothing but the ticket of a launch that was not completed."""
    content = list(folder.iterdir())
    has_only_spec = [entry.name for entry in content] == [SPEC_FILE]
    return not content or (has_only_spec and content[0].lstat().st_ino in tickets)


def _read_back(context: AgentContext, folder: Path, run: Run | None) -> bool:
    """Add a run, or those of its attempts that the database does not know because it was restored from a
    backup. Raises sqlite3.Error, and what reading the folder raises.

    Returns:
        Whether something was added.
    """
    newest_stored = 0 if run is None else run.attempt
    if run is not None and all(number <= newest_stored for number in attempt_numbers(folder)):
        return False
    attempts = _read_attempts(folder)
    if run is not None and (not attempts or attempts[-1].number <= newest_stored):
        return False
    spec = read_spec(folder / SPEC_FILE)
    cause = "read back from its folder"
    with repository.transaction(context.connection):
        if run is None:
            _insert_run(context, folder, spec, attempts, cause)
        else:
            cause = f"{cause}: attempt {attempts[-1].number} is newer than the database"
        if attempts:
            _insert_attempts(context, folder, spec, attempts, cause)
    return True


class _DamagedPlanError(Exception):
    """An attempt.json that is damaged or belongs to another run."""


class _Plan(Struct, frozen=True):
    """The part of attempt.json that `Launch` has not.

    Attributes:
        created_at: UTC unix seconds.
        gpus: UUIDs.
        metrics_bytes: the size of each metrics file at the attempt's begin.
        resume_from: the path of a checkpoint.
        gpu_share: the part of its GPU that it takes.
    """

    run_id: str
    created_at: float
    gpus: tuple[str, ...]
    params: Mapping[str, Scalar]
    metrics_bytes: Mapping[str, int]
    resume_from: str | None = None
    gpu_share: float = 1.0


class _Attempt(NamedTuple):
    """An attempt as read from its folder.

    ``started`` and ``ended`` are the records of its executor, None before it has written them.
    """

    number: int
    plan: _Plan
    launch: Launch
    started: Mapping[str, Any] | None
    ended: Mapping[str, Any] | None


def _read_attempts(folder: Path) -> list[_Attempt]:
    """The attempts that were started, in order. Raises _DamagedPlanError or OSError."""
    attempts = []
    for number in attempt_numbers(folder):
        attempt_folder = folder / "attempts" / str(number)
        started = read_executor_record(attempt_folder / "started.json")
        ended = read_executor_record(attempt_folder / "exit.json")
        # An agent may be killed after it wrote the plan and before it started the executor.
        if started is None and ended is None and not processes_of(folder, number):
            continue
        data = read_regular(attempt_folder / "attempt.json", MAX_SPEC_BYTES)
        try:
            plan = msgspec.json.decode(data, type=_Plan)
            launch = msgspec.json.decode(data, type=Launch)
        except msgspec.MsgspecError as error:
            raise _DamagedPlanError(f"{attempt_folder}/attempt.json is damaged: {error}") from error
        if plan.run_id != folder.name:
            raise _DamagedPlanError(f"it is the folder of {plan.run_id}")
        attempts.append(_Attempt(number, plan, launch, started, ended))
    return attempts


def _insert_run(context: AgentContext, folder: Path, spec: RunSpec, attempts: Sequence[_Attempt], cause: str) -> None:
    """Insert the row of a run, which is stopped if it has no attempts."""
    connection = context.connection
    run_id = folder.name
    now = context.now()
    if attempts:
        params = attempts[-1].plan.params
        created_at = attempts[0].plan.created_at
    else:
        params = redact_params(spec.params)
        created_at = folder.stat().st_mtime
    (highest,) = connection.execute("SELECT coalesce(max(sequence), 0) FROM runs").fetchone()
    repository.insert_run(
        connection,
        repository.NewRun(
            run_id=run_id, sequence=highest + 1, name=run_id.rsplit("-", 1)[0], spec=redact_spec(spec), params=params
        ),
        now=created_at,
        actor="agent",
        cause=cause,
    )
    if (labels := read_labels(folder)) is not None:
        store_labels(connection, run_id, labels)
    open_metrics(context.ingest, run_id, spec, folder)
    if not attempts:
        reason = "found in its folder, never started"
        repository.move(connection, _stored_run(connection, run_id), RunState.STOPPED, cause=reason, now=now)


def _insert_attempts(
    context: AgentContext, folder: Path, spec: RunSpec, attempts: Sequence[_Attempt], cause: str
) -> None:
    """Insert the attempts without a row, and move the run to where the newest one is."""
    connection = context.connection
    run_id = folder.name
    newest = attempts[-1]
    for attempt in attempts:
        row = get_attempt(connection, run_id, attempt.number)
        if row is None:
            _insert_attempt(context, folder, spec, attempt)
        if attempt is not newest and (row is None or row.ended_at is None):
            _end_attempt(context, run_id, attempt, "failed")
    checkpoint_survey.restore(connection, run_id, folder)
    run = _stored_run(connection, run_id)
    if run.state is not RunState.QUEUED:
        # Whatever the row says, it is older than the attempt.
        run = replace(run, state=RunState.UNKNOWN)
    repository.move(connection, run, RunState.STARTING, cause=cause, now=context.now())
    record = newest.ended
    if record is None:
        _take_leases(context, run_id, newest.plan)
        return
    state = RunState.FAILED
    end = "failed; why was lost with the database"
    incident = read_back(folder, newest.number, 0.0)
    if incident is not None:
        state, end = _decided_state(incident)
    elif record.get("stop_requested"):
        state = RunState.STOPPED
        end = "stopped"
    elif early := read_executor_record(folder / "attempts" / str(newest.number) / EARLY_FILE):
        newest = newest._replace(ended={**record, **early})
        state = RunState.STOPPED
        end = "ended early with exit code 0"
    elif record.get("code") == 0:
        state = RunState.SUCCEEDED
        end = "finished"
    ended_at = _end_attempt(context, run_id, newest, state)
    repository.move(connection, _stored_run(connection, run_id), state, cause=end, now=ended_at)
    repository.release_leases(connection, run_id)


def _take_leases(context: AgentContext, run_id: str, plan: _Plan) -> None:
    """Lease the GPUs of a living attempt to its run, and end those leases of other runs that are
    older than it."""
    connection = context.connection
    for uuid, lease in repository.leases(connection).items():
        if uuid in plan.gpus and plan.gpu_share == 1:
            for holder in lease.run_ids:
                repository.end_lease(connection, holder, uuid)
    repository.take_leases(connection, run_id, plan.gpus, context.now(), share=plan.gpu_share)


def _insert_attempt(context: AgentContext, folder: Path, spec: RunSpec, attempt: _Attempt) -> None:
    number = attempt.number
    plan = attempt.plan
    run = replace(_stored_run(context.connection, folder.name), params=plan.params, resume_from=plan.resume_from)
    launch = redact_launch(attempt.launch, Redactor(secrets_of(spec)))
    repository.insert_attempt(
        context.connection, run, number=number, gpus=plan.gpus, launch=launch, now=plan.created_at
    )
    output = rank_output(spec, len(plan.gpus), folder / "attempts" / str(number))
    context.ingest.readmit_attempt(folder.name, number, plan.metrics_bytes, output)
    readmit_sources(context, folder.name, number)


def _end_attempt(context: AgentContext, run_id: str, attempt: _Attempt, state: str) -> float:
    """Store the end of an attempt; return its time: if it is unknown, the last change of its files."""
    connection = context.connection
    number = attempt.number
    now = context.now()
    folder = attempt_dir(context.workspace, run_id, number)
    last_sign_at = max(attempt.plan.created_at, written_at(folder) or 0.0)
    ended_at = time_in((attempt.ended or {}).get("ended_at")) or min(now, last_sign_at)
    started_at = time_in((attempt.started or {}).get("at"))
    if started_at is not None:
        repository.set_attempt_started(connection, run_id, number, started_at)
    repository.end_attempt(connection, run_id, number, state=state, ended_at=ended_at, exit_record=attempt.ended)
    incident = read_back(context.workspace.run_dir(run_id), number, ended_at)
    if incident is not None:
        put_incident(connection, incident)
    return ended_at


def _decided_state(incident: NewIncident) -> tuple[RunState, str]:
    """The state of a run whose newest attempt ended so, and the cause."""
    if incident.verdict == "retry":
        lost = "the next attempt was lost with the database; gputui resume starts it"
        return RunState.FAILED, f"{incident.summary}; {lost}"
    state = RunState.STOPPED if incident.kind == "stopped_outside" else RunState.FAILED
    return state, f"{incident.summary}; {incident.reason}"


def _stored_run(connection: Connection, run_id: str) -> Run:
    run = get_run(connection, run_id)
    assert run is not None
    return run
