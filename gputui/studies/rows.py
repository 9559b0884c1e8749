"""Writes to the tables of studies and trials, by the agent and by a study's process.

Every function works inside the caller's transaction. Only `StudyWriter.end_open` and `move` commit.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from gputui.core.config import PRIVATE_FILE_MODE, Workspace
from gputui.core.units import count, metric_value
from gputui.runs.repository import transaction
from gputui.store import commands
from gputui.store.attempts import alone_seconds, read_attempts
from gputui.store.commands import AgentVerb
from gputui.store.events import NewEvent, Severity, add_event
from gputui.store.rows import insert, update
from gputui.store.studies import (
    Importance,
    StudyRecord,
    StudyState,
    TrialRecord,
    TrialState,
    TrialWish,
    get_study,
    get_trial,
)
from gputui.studies.decide import Ruling
from gputui.studies.rungs import PassedRung
from gputui.studies.spec import StudySpec, study_spec

SPEC_FILE = "spec.json"
LOCK_FILE = "process.lock"
LOG_FILE = "process.log"
JOURNAL_FILE = "journal.log"
"""Optuna's storage in a study's folder: ``optuna-dashboard`` opens it by its path."""
PINS = "pins"
"""The folder of checkpoints that members of a population continue from."""


def begin_study(
    connection: sqlite3.Connection, study_id: str, spec: StudySpec, *, source: str, now: float, actor: str
) -> None:
    """Insert a running study."""
    connection.execute(
        "INSERT INTO studies (study_id, sequence, name, profile, state, spec, source, created_at) "
        "VALUES (?, (SELECT coalesce(max(sequence), 0) + 1 FROM studies), ?, ?, ?, ?, ?, ?)",
        (study_id, spec.name, spec.profile, StudyState.RUNNING, json.dumps(spec.to_json()), source, now),
    )
    cause = f"started by {actor}"
    states = {"from_state": None, "to_state": StudyState.RUNNING}
    insert(connection, "study_moves", study_id=study_id, at=now, cause=cause, actor=actor, **states)
    _add_move_event(connection, study_id, StudyState.RUNNING, cause=cause, actor=actor, now=now)


def move_study(
    connection: sqlite3.Connection, study: StudyRecord, target: StudyState, *, cause: str, actor: str, now: float
) -> None:
    """Change the state of a study and record the cause."""
    reason = None if target is StudyState.RUNNING else cause
    ended_at = now if target.is_over else None
    connection.execute(
        "UPDATE studies SET state = ?, reason = ?, ended_at = ? WHERE study_id = ?",
        (target, reason, ended_at, study.study_id),
    )
    states = {"from_state": study.state, "to_state": target}
    insert(connection, "study_moves", study_id=study.study_id, at=now, cause=cause, actor=actor, **states)
    _add_move_event(connection, study.study_id, target, cause=cause, actor=actor, now=now)


def _add_move_event(
    connection: sqlite3.Connection, study_id: str, target: StudyState, *, cause: str, actor: str, now: float
) -> None:
    severities: dict[StudyState, Severity] = {StudyState.FAILED: "error", StudyState.PAUSED: "warning"}
    text = f"study {cause}"
    # A person's cause is a verb with its subject, as paused by ada; one of the process is a reason.
    if actor == _process_actor(study_id):
        text = f"study {target}: {cause}"
    add_event(
        connection,
        NewEvent("study_moved", text, key=target, severity=severities.get(target, "info"), subject=study_id),
        now=now,
    )


def _process_actor(study_id: str) -> str:
    """The name under which the process of a study acts."""
    return f"study {study_id}"


def enqueue_point(connection: sqlite3.Connection, study_id: str, params: Mapping[str, Any]) -> None:
    """Ask the study's process for a trial at a point."""
    insert(connection, "trial_requests", study_id=study_id, params=json.dumps(dict(params)))


def enqueued_points(connection: sqlite3.Connection, study_id: str) -> list[tuple[int, dict[str, Any]]]:
    """The points that were asked for, each with the id of its request."""
    rows = connection.execute(
        "SELECT request_id, params FROM trial_requests WHERE study_id = ? ORDER BY request_id", (study_id,)
    )
    return [(request_id, json.loads(params)) for request_id, params in rows]


def enqueue_stopped(connection: sqlite3.Connection, study_id: str) -> None:
    """Enqueue the trials that were stopped together with a study again, each with its run."""
    connection.execute(
        "UPDATE trials SET state = 'enqueued', reason = NULL, command_id = NULL, starts = 0, ended_at = NULL "
        "WHERE study_id = ?1 AND state = 'stopped' AND ended_at >= "
        "(SELECT max(at) FROM study_moves WHERE study_id = ?1 AND to_state = 'stopping')",
        (study_id,),
    )


def forget_failed_launches(connection: sqlite3.Connection, study_id: str) -> None:
    """Let trials whose runs could not be launched be launched as often as at first."""
    connection.execute(
        "UPDATE trials SET starts = 0 WHERE study_id = ? AND state = 'launching' AND run_id IS NULL", (study_id,)
    )


def set_spec(connection: sqlite3.Connection, study_id: str, spec: StudySpec) -> None:
    """Replace a study's specification."""
    connection.execute("UPDATE studies SET spec = ? WHERE study_id = ?", (json.dumps(spec.to_json()), study_id))


def set_wish(connection: sqlite3.Connection, study_id: str, number: int, wish: TrialWish | None) -> None:
    """Store what a person wants of a trial."""
    connection.execute("UPDATE trials SET request = ? WHERE study_id = ? AND number = ?", (wish, study_id, number))


def cut_short(connection: sqlite3.Connection, study_id: str, number: int, reason: str) -> None:
    """Note that the run of a trial was asked to stop, so that its end makes the trial pruned."""
    connection.execute(
        "UPDATE trials SET state = 'pruning', reason = ? WHERE study_id = ? AND number = ?", (reason, study_id, number)
    )


def keep_cost(connection: sqlite3.Connection, run_id: str) -> None:
    """Add the GPU time of a run that is about to be removed to its study. Time on a shared GPU
    counts with the last of the runs that shared it."""
    gpu_seconds = 0.0
    for attempt in read_attempts(connection, run_id):
        if attempt.placement is not None:
            gpu_seconds += (attempt.gpu_count or 0) * attempt.placement.ran_seconds
        elif attempt.started_at is not None and attempt.ended_at is not None:
            gpu_seconds += len(attempt.gpus) * alone_seconds(attempt.started_at, attempt.ended_at, attempt.fellows)
    connection.execute(
        "UPDATE studies SET removed_gpu_seconds = removed_gpu_seconds + ? "
        "WHERE study_id = (SELECT study_id FROM runs WHERE run_id = ?)",
        (gpu_seconds, run_id),
    )


def set_importances(connection: sqlite3.Connection, study_id: str, shares: Sequence[Importance]) -> None:
    """Store what mattered for the objectives of a study."""
    text = json.dumps([asdict(share) for share in shares])
    connection.execute("UPDATE studies SET importances = ? WHERE study_id = ?", (text, study_id))


def adopt_run(connection: sqlite3.Connection, study_id: str, number: int, command_id: int, run_id: str) -> bool:
    """Store the run that a trial's launch made. Returns whether the trial still waits for this
    command."""
    changed = connection.execute(
        "UPDATE trials SET run_id = ?, state = 'running' "
        "WHERE study_id = ? AND number = ? AND command_id = ? AND state = 'launching'",
        (run_id, study_id, number, command_id),
    )
    return changed.rowcount == 1


# --- by a study's process ---------------------------------------------------------------------------------------------


class StudyWriter(Struct, frozen=True):
    """Writes for one study. ``now`` gives UTC unix seconds. ``ask…`` and ``set…`` belong in the
    caller's transaction, so that a decision and its command are stored together."""

    workspace: Workspace
    connection: sqlite3.Connection
    study_id: str
    now: Callable[[], float]

    @property
    def actor(self) -> str:
        """The author of its commands."""
        return _process_actor(self.study_id)

    def ask(self, verb: AgentVerb, run_id: str | None, arguments: Mapping[str, Any]) -> int:
        """Write a command for the agent; returns its ID."""
        return commands.submit(self.connection, verb, run_id, arguments, self.actor, now=self.now())

    def ask_stop(self, trial: TrialRecord, reason: str) -> None:
        """Ask to stop a trial's run at once, without a last checkpoint."""
        self.set_trial(trial, command_id=self.ask("stop", trial.run_id, {"now": True, "reason": reason}))

    def ring(self) -> None:
        """Wake the agent once its commands are committed. If this fails, the agent reads them a
        little later."""
        with suppress(OSError):
            self.workspace.doorbell.touch(mode=PRIVATE_FILE_MODE)

    def set_trial(self, trial: TrialRecord, **values: Any) -> None:
        """Set columns of a trial's row."""
        update(self.connection, "trials", {"study_id": self.study_id, "number": trial.number}, **values)

    def set_rungs(self, number: int, passed: Iterable[PassedRung]) -> None:
        """Store the values of a trial at rungs; the first one of a rung stays."""
        for rung in passed:
            insert(
                self.connection, "trial_rungs", "IGNORE", study_id=self.study_id, number=number, rung=rung.rung,
                step=rung.step, value=rung.value, attempt=rung.attempt, at=self.now(),
            )  # fmt: skip

    def end_open(self, trial: TrialRecord, ruling: Ruling) -> None:
        """End a trial in the table alone, so that one that is stopped may continue."""
        with transaction(self.connection):
            self.set_trial(trial, **verdict_columns(ruling, self.now()))
            note_end(self.connection, self.study_id, trial.number, self.now())

    def move(self, study: StudyRecord, target: StudyState, cause: str) -> bool:
        """Change the state of the study, unless a person has changed the study meanwhile or, where
        it would end, has asked for more; returns whether it changed."""
        with transaction(self.connection):
            current = get_study(self.connection, self.study_id)
            if current is None or current.state is not study.state:
                return False
            if target is StudyState.FINISHED and (
                current.spec_json != study.spec_json or enqueued_points(self.connection, self.study_id)
            ):
                return False
            if target in (StudyState.FINISHED, StudyState.FAILED):
                # The members of a stopped study still need their pins if it is resumed.
                shutil.rmtree(self.workspace.studies / self.study_id / PINS, ignore_errors=True)
            move_study(self.connection, study, target, cause=cause, actor=self.actor, now=self.now())
        return True

    def warn(self, sentence: str) -> None:
        """Record a warning about the study's journal."""
        now = self.now()
        add_event(
            self.connection,
            NewEvent("study_journal_repaired", sentence, severity="warning", subject=self.study_id),
            now=now,
        )

    def is_refused(self, command_id: int | None) -> bool:
        answer = None
        if command_id is not None:
            answer = commands.answer(self.connection, command_id)
        return answer is not None and answer.state == "refused"


def note_end(connection: sqlite3.Connection, study_id: str, number: int, now: float) -> None:
    """Record the end of a trial, the one event that its study has of it."""
    trial = get_trial(connection, study_id, number)
    study = get_study(connection, study_id)
    assert study is not None
    outcome = trial.reason or trial.state.word
    if trial.state is TrialState.PRUNED:
        (step,) = connection.execute(
            "SELECT max(step) FROM trial_rungs WHERE study_id = ? AND number = ?", (study_id, number)
        ).fetchone()
        outcome = "pruned" if step is None else f"pruned at step {count(step)}"
    elif not outcome.startswith(trial.state.word):
        outcome = f"{trial.state}: {outcome}"
    if trial.shown_value is not None:
        outcome += f", {study_spec(study).objectives[0].metric} {metric_value(trial.shown_value)}"
    severity: Severity = "info"
    if trial.state is TrialState.FAILED:
        severity = "warning"
    text = f"trial {number} · {outcome}"
    add_event(connection, NewEvent("trial_ended", text, key=trial.state, severity=severity, subject=study_id), now=now)


def verdict_columns(ruling: Ruling, at: float) -> dict[str, Any]:
    """The columns of a trial that is over since ``at`` (UTC unix seconds)."""
    return {
        "state": ruling.state,
        "reason": ruling.reason,
        "value": ruling.values[0] if ruling.values else None,
        "objective_values": json.dumps(ruling.values) if ruling.values else None,
        "constraint_values": json.dumps(ruling.constraints) if ruling.constraints else None,
        "ended_at": at,
    }
