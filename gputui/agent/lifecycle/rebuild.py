"""Runs that the database does not know, because it was lost or set aside, are told again from their folders, so that
those alive are not orphaned."""

from __future__ import annotations

import json
import logging
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

from gputui.agent.context import AgentContext
from gputui.agent.lifecycle.attempt_launch import rank_output
from gputui.agent.lifecycle.run_files import open_metrics
from gputui.metrics.ingest import MetricsIngest
from gputui.redaction import Redactor, redact_params
from gputui.runs import repository
from gputui.runs.attempt_processes import processes_of
from gputui.runs.command import Launch
from gputui.runs.redaction import redact_launch, redact_spec, secrets_of
from gputui.runs.repository import transaction
from gputui.runs.spec import SpecError
from gputui.runs.submission import SPEC_FILE, read_spec
from gputui.store.events import add_event
from gputui.store.run_states import RunState
from gputui.store.runs import Run, get_run

log = logging.getLogger(__name__)


def rebuild(context: AgentContext) -> int:
    """Enter every run folder that the database does not know. A run comes back as its newest attempt left it: one
    that has ended stays so, for what was decided then, or asked for by a person, is lost; one that has not is adopted
    like any other. Returns how many were entered."""
    connection, now = context.connection, context.now()
    known = {row[0] for row in connection.execute("SELECT run_id FROM runs")}
    folders = sorted(
        (entry for entry in context.workspace.runs.iterdir() if entry.is_dir() and entry.name not in known),
        key=lambda entry: entry.stat().st_mtime,
    )
    entered = 0
    for folder in folders:
        try:
            _enter(connection, context.ingest, folder, now)
            entered += 1
        except (SpecError, OSError, ValueError, KeyError, TypeError, AttributeError, sqlite3.IntegrityError) as error:
            log.warning("%s cannot be read back: %s", folder, error)
    if entered:
        noun = "run was" if entered == 1 else "runs were"
        add_event(
            connection, "runs_rebuilt", f"{entered} {noun} read back from the run folders", now=now, severity="warning"
        )
    return entered


def _enter(connection: sqlite3.Connection, ingest: MetricsIngest, folder: Path, now: float) -> None:
    spec = read_spec(folder / SPEC_FILE)
    own = Redactor(secrets_of(spec))
    attempts = _attempts(folder)
    newest = attempts[-1] if attempts else None
    params = newest["params"] if newest else redact_params(spec.params)
    sequence = int(connection.execute("SELECT coalesce(max(sequence), 0) + 1 FROM runs").fetchone()[0])
    name = folder.name.rsplit("-", 1)[0]
    with transaction(connection):
        repository.insert_run(
            connection,
            run_id=folder.name,
            sequence=sequence,
            name=name,
            spec=redact_spec(spec),
            params=params,
            now=float(attempts[0]["created_at"]) if attempts else folder.stat().st_mtime,
            actor="agent",
            cause="read back from its folder",
        )
        open_metrics(ingest, folder.name, spec, folder)
        run = _get(connection, folder.name)
        if newest is None:
            repository.move(connection, run, RunState.STOPPED, cause="found in its folder, never started", now=now)
            return
        for record in attempts:
            repository.insert_attempt(
                connection,
                replace(_get(connection, folder.name), resume_from=record.get("resume_from")),
                number=int(record["attempt"]),
                gpus=tuple(record["gpus"]),
                launch=redact_launch(Launch.from_json(record), own),
                now=float(record["created_at"]),
            )
            ingest.readmit_attempt(
                folder.name,
                int(record["attempt"]),
                record.get("metrics_bytes") or 0,
                rank_output(spec, len(record["gpus"]), folder / "attempts" / str(record["attempt"])),
            )
            if record is not newest:
                repository.end_attempt(
                    connection,
                    folder.name,
                    int(record["attempt"]),
                    state="failed",
                    ended_at=float((record["exit"] or {}).get("ended_at") or now),
                    exit_record=record["exit"],
                )
        repository.move(connection, run, RunState.STARTING, cause="read back from its folder", now=now)
        if newest["exit"] is None:
            repository.take_leases(connection, folder.name, tuple(newest["gpus"]), now)
        else:
            _end(connection, _get(connection, folder.name), newest, now)


def _end(connection: sqlite3.Connection, run: Run, newest: dict[str, Any], now: float) -> None:
    ended = newest["exit"]
    if ended.get("stop_requested"):
        state, cause = RunState.STOPPED, "stopped"
    elif ended.get("code") == 0:
        state, cause = RunState.SUCCEEDED, "finished"
    else:
        state, cause = RunState.FAILED, "failed; why was lost with the database"
    ended_at = float(ended.get("ended_at") or now)
    repository.end_attempt(
        connection, run.run_id, int(newest["attempt"]), state=state, ended_at=ended_at, exit_record=ended
    )
    repository.move(connection, run, state, cause=cause, now=ended_at)


def _get(connection: sqlite3.Connection, run_id: str) -> Run:
    run = get_run(connection, run_id)
    assert run is not None
    return run


def _attempts(folder: Path) -> list[dict[str, Any]]:
    """The attempts that were begun, in order, each with its exit record or None. A plan of which nothing came was
    written by an agent that was killed right after."""
    found = []
    for entry in (folder / "attempts").iterdir() if (folder / "attempts").is_dir() else ():
        plan = entry / "attempt.json"
        if entry.name.isdigit() and plan.exists():
            record = json.loads(plan.read_text("utf-8"))
            ended = entry / "exit.json"
            record["exit"] = json.loads(ended.read_text("utf-8")) if ended.exists() else None
            begun = (entry / "started.json").exists() or processes_of(folder, int(entry.name))
            if record["exit"] is not None or begun:
                found.append(record)
    return sorted(found, key=lambda record: int(record["attempt"]))
