"""Rebuild the rows of runs from their folders after the database was lost, so that live runs stay supervised."""

from __future__ import annotations

import json
import logging
import shutil
import sqlite3
from collections.abc import Mapping, Set
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gputui.agent.context import AgentContext
from gputui.agent.health.incident_folder import incident_folder
from gputui.agent.lifecycle import checkpoint_survey
from gputui.agent.lifecycle.attempt_launch import rank_output, read_record
from gputui.agent.lifecycle.run_files import open_metrics
from gputui.core.config import read_regular
from gputui.core.redaction import Redactor, redact_params
from gputui.metrics.ingest import MetricsIngest
from gputui.recovery.kinds import KINDS
from gputui.runs import repository
from gputui.runs.command import Launch
from gputui.runs.foreign_json import read_foreign_json, time_in
from gputui.runs.labels import read_labels, store_labels
from gputui.runs.processes import processes_of
from gputui.runs.redaction import redact_launch, redact_spec, secrets_of
from gputui.runs.repository import transaction
from gputui.runs.spec import RunSpec, Scalar, SpecError
from gputui.runs.submission import MAX_SPEC_BYTES, SPEC_FILE, read_spec, ticket_inodes
from gputui.store.attempts import get_attempt
from gputui.store.events import add_event
from gputui.store.run_states import RunState
from gputui.store.runs import Run, get_run

log = logging.getLogger(__name__)

_CAUSE = "read back from its folder"


def rebuild(context: AgentContext) -> list[str]:
    """Add the runs whose folders the database does not know; return the ids of those that have ended, whose metrics are
    still to be read (`sweep.read_rest`).

    A run has the state in which its newest attempt left it. An ended run stays ended, because the decision is lost with
    the database; a live one is adopted. The folder of a launch that a killed agent did not complete is deleted, because
    the launch command is repeated.
    """
    connection, now = context.connection, context.now()
    known = {row[0] for row in connection.execute("SELECT run_id FROM runs")}
    folders = [entry for entry in context.workspace.runs.iterdir() if entry.is_dir() and entry.name not in known]
    tickets = ticket_inodes(context.workspace)
    added = []
    for folder in sorted(folders, key=lambda entry: entry.stat().st_mtime):
        try:
            if _is_cut_launch(folder, tickets):
                shutil.rmtree(folder)
                continue
            spec, attempts = read_spec(folder / SPEC_FILE), _read_attempts(folder)
            with transaction(connection):
                _insert(connection, context.ingest, folder, spec, attempts, now)
            added.append(folder.name)
        except (SpecError, _DamagedPlanError, OSError, sqlite3.IntegrityError) as error:
            log.warning("%s cannot be read back: %s", folder, error)
    for run_id in known:
        run = _run(connection, run_id)
        if catch_up(context, run) and _run(connection, run_id).state.is_over:
            added.append(run_id)
    if added:
        text = f"{len(added)} {'run was' if len(added) == 1 else 'runs were'} read back from the run folders"
        add_event(connection, "runs_rebuilt", text, now=now, severity="warning")
    return [run_id for run_id in added if _run(connection, run_id).state.is_over]


def _is_cut_launch(folder: Path, tickets: Set[int]) -> bool:
    """Whether a launch was interrupted before its run was stored: the folder is empty, or contains only a specification
    that is still hard-linked to a ticket. ``tickets``: inodes of the tickets. Raises OSError."""
    content = list(folder.iterdir())
    is_made_for_launch = [entry.name for entry in content] == [SPEC_FILE] and content[0].lstat().st_ino in tickets
    return is_made_for_launch or not content


def catch_up(context: AgentContext, run: Run) -> bool:
    """Add the attempts of a run that are on the disk and not in the database, as when that was restored from a backup,
    and move the run to where the newest of them is; False if there are none. Raises sqlite3.Error."""
    connection, now = context.connection, context.now()
    folder = context.workspace.run_dir(run.run_id)
    try:
        if not any(
            int(path.name) > run.attempt for path in (folder / "attempts").glob("[0-9]*") if path.name.isdigit()
        ):
            return False
        found = _read_attempts(folder)
        newer = [attempt for attempt in found if attempt.number > run.attempt]
        if not newer:
            return False
        spec = read_spec(folder / SPEC_FILE)
    except (SpecError, _DamagedPlanError, OSError) as error:
        log.warning("%s cannot be compared with its folder: %s", run.run_id, error)
        return False
    newest = newer[-1]
    with transaction(connection):
        for attempt in found:
            row = get_attempt(connection, run.run_id, attempt.number)
            if row is None:
                _insert_attempt(connection, context.ingest, folder, spec, attempt)
            if attempt is not newest and (row is None or row.ended_at is None):
                _end_attempt(connection, run.run_id, attempt, "failed", now)
        checkpoint_survey.restore(connection, run.run_id, folder)
        behind = replace(_run(connection, run.run_id), state=RunState.UNKNOWN)
        cause = f"{_CAUSE}: attempt {newest.number} is newer than the database"
        if newest.exit_record is None:
            repository.move(connection, behind, RunState.STARTING, cause=cause, now=now)
            for uuid, holders in repository.leases(connection).items():
                for holder in holders.run_ids if uuid in newest.gpus and not newest.shares_gpus else ():
                    repository.end_lease(connection, holder, uuid)
            repository.take_leases(connection, run.run_id, newest.gpus, now, shared=newest.shares_gpus)
        else:
            state, ended = _outcome(newest.exit_record)
            _end_attempt(connection, run.run_id, newest, state, now)
            repository.move(connection, behind, state, cause=f"{ended}; {cause}", now=newest.ended_at(now))
            repository.release_leases(connection, run.run_id)
        add_event(connection, "runs_rebuilt", cause, now=now, severity="warning", run_id=run.run_id)
    return True


class _DamagedPlanError(Exception):
    """An attempt.json that is damaged or belongs to another run."""


class _Attempt(Struct, frozen=True):
    """An attempt as read from its folder. ``created_at`` is UTC unix seconds. ``shares_gpus``: it shares their locks
    with other trials. ``metrics_bytes`` is the size of each metrics file at its begin. ``started_at`` is when the
    command started, None if it did not. ``exit_record`` is None while its executor runs."""

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

    def ended_at(self, now: float) -> float:
        """UTC unix seconds; ``now`` if it is unknown."""
        return time_in((self.exit_record or {}).get("ended_at")) or now


def _read_attempts(folder: Path) -> list[_Attempt]:
    """The attempts that were started, in order. Raises _DamagedPlanError or OSError."""
    attempts = []
    for entry in (folder / "attempts").iterdir() if (folder / "attempts").is_dir() else ():
        plan = entry / "attempt.json"
        if not entry.name.isdigit() or not plan.exists():
            continue
        exit_record, started = read_record(entry / "exit.json"), read_record(entry / "started.json")
        # An agent may be killed after it wrote the plan and before it started the executor.
        if exit_record is not None or started is not None or processes_of(folder, int(entry.name)):
            attempts.append(_read_attempt(plan, time_in((started or {}).get("at")), exit_record))
    return sorted(attempts, key=lambda attempt: attempt.number)


def _read_attempt(plan: Path, started_at: float | None, exit_record: Mapping[str, Any] | None) -> _Attempt:
    try:
        record = json.loads(read_regular(plan, MAX_SPEC_BYTES))
        run_id = plan.parent.parent.parent.name
        if record["run_id"] != run_id:
            raise _DamagedPlanError(f"it is a copy of {record['run_id']}, or that run's folder under another name")
        return _Attempt(
            number=int(record["attempt"]),
            created_at=float(record["created_at"]),
            gpus=tuple(record["gpus"]),
            params=dict(record["params"]),
            launch=Launch.from_json(record),
            resume_from=record.get("resume_from"),
            shares_gpus=bool(record.get("shares_gpus")),
            metrics_bytes={str(path): int(size) for path, size in record["metrics_bytes"].items()},
            started_at=started_at,
            exit_record=exit_record,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _DamagedPlanError(f"{plan} is damaged: {error!r}") from error


def _insert(
    connection: sqlite3.Connection,
    ingest: MetricsIngest,
    folder: Path,
    spec: RunSpec,
    attempts: list[_Attempt],
    now: float,
) -> None:
    """Insert the rows of one run, its attempts and its leases."""
    newest = attempts[-1] if attempts else None
    (sequence,) = connection.execute("SELECT coalesce(max(sequence), 0) + 1 FROM runs").fetchone()
    labels = read_labels(folder)
    repository.insert_run(
        connection,
        run_id=folder.name,
        sequence=sequence,
        name=folder.name.rsplit("-", 1)[0],
        spec=redact_spec(spec),
        params=redact_params(spec.params) if newest is None else newest.params,
        now=folder.stat().st_mtime if newest is None else attempts[0].created_at,
        actor="agent",
        cause=_CAUSE,
    )
    if labels is not None:
        store_labels(connection, folder.name, labels)
    open_metrics(ingest, folder.name, spec, folder)
    queued = _run(connection, folder.name)
    if newest is None:
        repository.move(connection, queued, RunState.STOPPED, cause="found in its folder, never started", now=now)
        return
    for attempt in attempts:
        _insert_attempt(connection, ingest, folder, spec, attempt)
        if attempt is not newest:
            _end_attempt(connection, folder.name, attempt, "failed", now)
    checkpoint_survey.restore(connection, folder.name, folder)
    repository.move(connection, queued, RunState.STARTING, cause=_CAUSE, now=now)
    if newest.exit_record is None:
        repository.take_leases(connection, folder.name, newest.gpus, now, shared=newest.shares_gpus)
    else:
        state, cause = _outcome(newest.exit_record)
        _end_attempt(connection, folder.name, newest, state, now)
        starting = _run(connection, folder.name)
        repository.move(connection, starting, state, cause=cause, now=newest.ended_at(now))


def _insert_attempt(
    connection: sqlite3.Connection, ingest: MetricsIngest, folder: Path, spec: RunSpec, attempt: _Attempt
) -> None:
    run = replace(_run(connection, folder.name), params=attempt.params, resume_from=attempt.resume_from)
    launch = redact_launch(attempt.launch, Redactor(secrets_of(spec)))
    repository.insert_attempt(
        connection, run, number=attempt.number, gpus=attempt.gpus, launch=launch, now=attempt.created_at
    )
    output = rank_output(spec, len(attempt.gpus), folder / "attempts" / str(attempt.number))
    ingest.readmit_attempt(folder.name, attempt.number, attempt.metrics_bytes, output)
    _insert_incident(connection, folder, attempt.number)


def _insert_incident(connection: sqlite3.Connection, folder: Path, attempt: int) -> None:
    """Restore an attempt's incident from its incident folder, if that is readable. Without it, checkpoints that were
    saved after a NaN loss would count as sound."""
    try:
        decided = read_foreign_json(incident_folder(folder, attempt) / "decision.json")
        met = decided["incident"]
        at = datetime.fromisoformat(decided["ended_at"]).timestamp()
        row = (str(met["kind"]), met["rank"], met["step"], str(met["summary"]), str(met["fingerprint"]))
        lines, witnesses = json.dumps(met["evidence_lines"]), json.dumps(met["witnesses"])
    except (OSError, ValueError, KeyError, TypeError):
        return
    if row[0] in KINDS:
        connection.execute(
            "INSERT INTO incidents (run_id, attempt, at, kind, rank, step, summary, fingerprint, evidence, witnesses) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (folder.name, attempt, at, *row, lines, witnesses),
        )


def _end_attempt(connection: sqlite3.Connection, run_id: str, attempt: _Attempt, state: str, now: float) -> None:
    if attempt.started_at is not None:
        repository.set_attempt_started(connection, run_id, attempt.number, attempt.started_at)
    repository.end_attempt(
        connection,
        run_id,
        attempt.number,
        state=state,
        ended_at=attempt.ended_at(now),
        exit_record=attempt.exit_record,
    )


def _outcome(exit_record: Mapping[str, Any]) -> tuple[RunState, str]:
    """State and cause of a run whose newest attempt has ended."""
    if exit_record.get("stop_requested"):
        return RunState.STOPPED, "stopped"
    if exit_record.get("code") == 0:
        return RunState.SUCCEEDED, "finished"
    return RunState.FAILED, "failed; why was lost with the database"


def _run(connection: sqlite3.Connection, run_id: str) -> Run:
    run = get_run(connection, run_id)
    assert run is not None
    return run
