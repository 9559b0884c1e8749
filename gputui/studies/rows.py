"""Studies and trials as rows: what the agent and a study's process write.

Every function works inside the caller's transaction; none commits.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Mapping
from typing import Any

from gputui.store.attempts import fellows, read_attempts
from gputui.store.costs import alone_seconds
from gputui.store.events import add_event
from gputui.store.studies import StudyRecord, StudyState, TrialState
from gputui.studies.spec import StudySpec

SPEC_FILE = "spec.json"
LOCK_FILE = "process.lock"
LOG_FILE = "process.log"


def begin_study(
    connection: sqlite3.Connection,
    study_id: str,
    spec: StudySpec,
    *,
    source: str,
    now: float,
    actor: str,
) -> None:
    """A new study, running."""
    connection.execute(
        "INSERT INTO studies (study_id, sequence, name, profile, state, spec, source, created_at) "
        "VALUES (?, (SELECT coalesce(max(sequence), 0) + 1 FROM studies), ?, ?, ?, ?, ?, ?)",
        (study_id, spec.name, spec.profile, StudyState.RUNNING, json.dumps(spec.to_json()), source, now),
    )
    _move(connection, study_id, None, StudyState.RUNNING, "begun", actor, now)


def move_study(
    connection: sqlite3.Connection, study: StudyRecord, target: StudyState, *, cause: str, actor: str, now: float
) -> None:
    """Move a study to another state and note why."""
    connection.execute(
        "UPDATE studies SET state = ?, reason = ?, ended_at = ? WHERE study_id = ?",
        (target, None if target is StudyState.RUNNING else cause, now if target.is_over else None, study.study_id),
    )
    _move(connection, study.study_id, study.state, target, cause, actor, now)


def _move(
    connection: sqlite3.Connection,
    study_id: str,
    origin: StudyState | None,
    target: StudyState,
    cause: str,
    actor: str,
    now: float,
) -> None:
    connection.execute(
        "INSERT INTO study_moves (study_id, at, from_state, to_state, cause, actor) VALUES (?, ?, ?, ?, ?, ?)",
        (study_id, now, origin, target, cause, actor),
    )
    severity = {StudyState.FAILED: "error", StudyState.PAUSED: "warning"}.get(target, "info")
    text = f"study {target}: {cause}"
    add_event(connection, "study_moved", text, now=now, key=target, severity=severity, subject=study_id)


def insert_trial(
    connection: sqlite3.Connection,
    study_id: str,
    number: int,
    params: Mapping[str, Any],
    *,
    state: TrialState,
    origin: str,
    now: float,
    sampler: Mapping[str, Any] | None = None,
    command_id: int | None = None,
    parent: int | None = None,
) -> None:
    """A new trial. Raises sqlite3.IntegrityError where another has its number."""
    connection.execute(
        "INSERT INTO trials (study_id, number, state, origin, params, sampler, starts, command_id, parent, created_at) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            study_id,
            number,
            state,
            origin,
            json.dumps(dict(params)),
            json.dumps(dict(sampler or {})),
            int(command_id is not None),
            command_id,
            parent,
            now,
        ),
    )


def take_up_stopped(connection: sqlite3.Connection, study_id: str) -> None:
    """The trials that were stopped together with a study wait for their launch again, each in its run."""
    connection.execute(
        "UPDATE trials SET state = 'enqueued', reason = NULL, command_id = NULL, starts = 0, ended_at = NULL "
        "WHERE study_id = ?1 AND state = 'stopped' AND ended_at >= "
        "(SELECT max(at) FROM study_moves WHERE study_id = ?1 AND to_state = 'stopping')",
        (study_id,),
    )


def next_number(connection: sqlite3.Connection, study_id: str) -> int:
    """The number of the study's next trial."""
    row = connection.execute("SELECT coalesce(max(number), -1) + 1 FROM trials WHERE study_id = ?", (study_id,))
    return int(row.fetchone()[0])


def keep_cost(connection: sqlite3.Connection, run_id: str) -> None:
    """What a run that is about to be removed took counts for its study still; the time on a shared GPU counts with the
    run that is removed last."""
    taken = 0.0
    for attempt in read_attempts(connection, run_id):
        if attempt.started_at is not None and attempt.ended_at is not None:
            stays = fellows(connection, run_id, attempt.number)
            others = [(stay.begin, math.inf if stay.end is None else stay.end) for stay in stays]
            taken += len(attempt.gpus) * alone_seconds(attempt.started_at, attempt.ended_at, others)
    connection.execute(
        "UPDATE studies SET removed_gpu_seconds = removed_gpu_seconds + ? "
        "WHERE study_id = (SELECT study_id FROM runs WHERE run_id = ?)",
        (taken, run_id),
    )


def adopt_run(connection: sqlite3.Connection, study_id: str, number: int, command_id: int, run_id: str) -> bool:
    """The run that a trial's launch made; whether the trial still waits for the run of this command."""
    changed = connection.execute(
        "UPDATE trials SET run_id = ?, state = 'running' "
        "WHERE study_id = ? AND number = ? AND command_id = ? AND state = 'launching'",
        (run_id, study_id, number, command_id),
    )
    return changed.rowcount == 1
