"""Rebuild the rows of runs from their folders after the database was lost or restored from a
backup, so that live runs stay supervised."""

from __future__ import annotations

import json
import logging
import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from sqlite3 import Connection
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gputui.agent.context import AgentContext
from gputui.agent.health.incident_folder import incident_folder
from gputui.agent.lifecycle import checkpoint_survey
from gputui.agent.lifecycle.run_files import attempt_numbers, open_metrics, rank_output, read_record
from gputui.core.config import read_regular
from gputui.core.redaction import Redactor, redact_params
from gputui.recovery.kinds import KINDS
from gputui.runs import repository
from gputui.runs.command import Launch
from gputui.runs.foreign_json import read_foreign_json, time_in
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
    decision is lost with the database; a live one is adopted. The folder of a launch that a killed
    agent did not complete is deleted, because the launch command is repeated.
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
    for run_id in known:
        if catch_up(context, _run(connection, run_id)):
            added.append(run_id)
    if added:
        count = "1 run was" if len(added) == 1 else f"{len(added)} runs were"
        text = f"{count} read back from the run folders"
        context.note("runs_rebuilt", text, severity="warning")
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


class _Attempt(Struct, frozen=True):
    """An attempt as read from its folder. ``created_at`` is UTC unix seconds. ``shares_gpus``: it
    shares their locks with other trials. ``metrics_bytes`` is the size of each metrics file at its
    begin. ``started_at`` is when the command started, None if it did not. ``exit_record`` is None
    while its executor runs."""

    number: int
    created_at: float
    gpus: tuple[str, ...]
    params: Mapping[str, Scalar]
    launch: Launch
    resume_from: str | None
    shares_gpus: bool
    metrics_bytes: Mapping[str, int]
    started_at: float | None
    exit_record: Mapping[str, Any] | None


def _read_attempts(folder: Path) -> list[_Attempt]:
    """The attempts that were started, in order. Raises _DamagedPlanError or OSError."""
    attempts = []
    for number in attempt_numbers(folder):
        own = folder / "attempts" / str(number)
        exit_record, started = read_record(own / "exit.json"), read_record(own / "started.json")
        # An agent may be killed after it wrote the plan and before it started the executor.
        if exit_record is None and started is None and not processes_of(folder, number):
            continue
        try:
            record = json.loads(read_regular(own / "attempt.json", MAX_SPEC_BYTES))
            if record["run_id"] != folder.name:
                raise _DamagedPlanError(f"it is the folder of {record['run_id']}")
            sizes = record["metrics_bytes"].items()
            attempt = _Attempt(
                number=number,
                created_at=float(record["created_at"]),
                gpus=tuple(record["gpus"]),
                params=dict(record["params"]),
                launch=Launch.from_json(record),
                resume_from=record.get("resume_from"),
                shares_gpus=bool(record.get("shares_gpus")),
                metrics_bytes={str(path): int(size) for path, size in sizes},
                started_at=time_in((started or {}).get("at")),
                exit_record=exit_record,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _DamagedPlanError(f"{own}/attempt.json is damaged: {error!r}") from error
        attempts.append(attempt)
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
            params=attempts[-1].params if attempts else redact_params(spec.params),
            now=attempts[0].created_at if attempts else folder.stat().st_mtime,
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
    run, now, record = _run(connection, run_id), context.now(), newest.exit_record
    if run.state is not RunState.QUEUED:
        # Whatever the row says, it is older than the attempt.
        run = replace(run, state=RunState.UNKNOWN)
    repository.move(connection, run, RunState.STARTING, cause=cause, now=now)
    if record is None:
        for uuid, lease in repository.leases(connection).items():
            for holder in lease.run_ids if uuid in newest.gpus and not newest.shares_gpus else ():
                repository.end_lease(connection, holder, uuid)
        shared = newest.shares_gpus
        repository.take_leases(connection, run_id, newest.gpus, now, shared=shared)
        return
    state, end = RunState.FAILED, "failed; why was lost with the database"
    if record.get("stop_requested"):
        state, end = RunState.STOPPED, "stopped"
    elif record.get("code") == 0:
        state, end = RunState.SUCCEEDED, "finished"
    ended_at = _end_attempt(context, run_id, newest, state)
    repository.move(connection, _run(connection, run_id), state, cause=end, now=ended_at)
    repository.release_leases(connection, run_id)


def _insert_attempt(context: AgentContext, folder: Path, spec: RunSpec, attempt: _Attempt) -> None:
    """Insert an attempt, and its incident if its incident folder can be read: without that,
    checkpoints that were saved after a NaN loss would count as sound."""
    connection, number = context.connection, attempt.number
    run = _run(connection, folder.name)
    run = replace(run, params=attempt.params, resume_from=attempt.resume_from)
    repository.insert_attempt(
        connection,
        run,
        number=number,
        gpus=attempt.gpus,
        launch=redact_launch(attempt.launch, Redactor(secrets_of(spec))),
        now=attempt.created_at,
    )
    output = rank_output(spec, len(attempt.gpus), folder / "attempts" / str(number))
    context.ingest.readmit_attempt(folder.name, number, attempt.metrics_bytes, output)
    try:
        decided = read_foreign_json(incident_folder(folder, number) / "decision.json")
        met = decided["incident"]
        at = datetime.fromisoformat(decided["ended_at"]).timestamp()
        row = [str(met["kind"]), met["rank"], met["step"], str(met["summary"])]
        row += [str(met["fingerprint"]), json.dumps(met["evidence_lines"])]
        row.append(json.dumps(met["witnesses"]))
    except (OSError, ValueError, KeyError, TypeError):
        return
    if row[0] in KINDS:
        connection.execute(
            "INSERT INTO incidents (run_id, attempt, at, kind, rank, step, summary, fingerprint, "
            "evidence, witnesses) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (folder.name, number, at, *row),
        )


def _end_attempt(context: AgentContext, run_id: str, attempt: _Attempt, state: str) -> float:
    """Store the end of an attempt; return its time, which is now if it is unknown."""
    connection, number, record = context.connection, attempt.number, attempt.exit_record
    ended_at = time_in((record or {}).get("ended_at")) or context.now()
    if attempt.started_at is not None:
        repository.set_attempt_started(connection, run_id, number, attempt.started_at)
    repository.end_attempt(connection, run_id, number, state=state, ended_at=ended_at, exit_record=record)
    return ended_at


def _run(connection: Connection, run_id: str) -> Run:
    run = get_run(connection, run_id)
    assert run is not None
    return run
