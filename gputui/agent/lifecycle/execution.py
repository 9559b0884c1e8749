"""The phases Starting and Running: an executor serves the attempt. A run counts as running once its metrics have a step
(`note_report`), or, for a command without steps, once it has lived for a while and written output (`step`)."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from msgspec.structs import replace

from gputui.agent.context import AgentContext
from gputui.agent.lifecycle.active_run import Adopting, LiveAttempt, Phase, Running, Starting, Sweeping
from gputui.agent.lifecycle.attempt_launch import attempt_dir, read_record
from gputui.metrics.batch import IngestReport
from gputui.runs import repository
from gputui.runs.foreign_json import time_in
from gputui.runs.logs import rank_logs
from gputui.runs.repository import transaction
from gputui.store import placements
from gputui.store.attempts import Attempt, get_attempt
from gputui.store.events import add_event, has_event
from gputui.store.placements import PlacementView
from gputui.store.run_states import RunState
from gputui.store.runs import get_run

# The age at which a command without steps counts as running if it has written output, and if it has not.
ALIVE_SECONDS = 5.0
SILENT_SECONDS = 60.0
# Poll interval for a command's output and for the reports of a remote executor.
ALIVE_LOOK_SECONDS = 1.0
# Minimum time between two starts of a replaceable executor.
REPLACE_SECONDS = 5.0


def step(attempt: LiveAttempt, phase: Starting | Running, context: AgentContext) -> Phase:
    """Store the executor's reports and whether the command shows activity. Return the next phase: Sweeping once the
    executor has ended, or Adopting if another one takes its place. Raises sqlite3.Error."""
    folder = attempt_dir(context.workspace, attempt.record.run_id, attempt.record.number)
    # Checked before the reports are read, so that the last one is not missed.
    is_alive = attempt.executor.is_alive
    _note_reports(attempt, folder, context, is_alive=is_alive)
    if is_alive:
        # An exit.json changes nothing while its executor lives.
        if isinstance(phase, Running) or context.monotonic() - phase.looked_at < ALIVE_LOOK_SECONDS:
            return phase
        phase.looked_at = context.monotonic()
        return Running() if _is_seen_alive(attempt, folder, context) else phase
    if not attempt.executor.kind.is_replaceable or (folder / "exit.json").exists():
        return Sweeping()
    # A replaceable executor without exit.json has not served the attempt to its end.
    attempt.executor.release()
    return phase if context.monotonic() < attempt.served_since + REPLACE_SECONDS else Adopting()


def _note_reports(attempt: LiveAttempt, folder: Path, context: AgentContext, *, is_alive: bool) -> None:
    """Store the executor's reports on the start of the command and, for a remote attempt, on its placement. Reports on
    a remote attempt may change for days: they are read once a second, and after the executor's end."""
    if not attempt.executor.kind.places_gpus:
        if is_alive and context.monotonic() - attempt.reports_read_at < ALIVE_LOOK_SECONDS:
            return
        attempt.reports_read_at = context.monotonic()
        _note_placement(attempt, folder, context)
    if attempt.record.started_at is None:
        _note_start(attempt, folder, context)


def _note_placement(attempt: LiveAttempt, folder: Path, context: AgentContext) -> None:
    """Store the placement that the executor reports; a new state or restart becomes an event."""
    reported = read_record(folder / "placement.json")
    if reported is None:
        return
    try:
        placement = PlacementView.from_json(reported)
    except ValueError:
        return
    if placement == attempt.placement:
        return
    run_id, number = attempt.record.run_id, attempt.record.number
    with transaction(context.connection) as connection:
        before = attempt.placement or placements.read(connection, run_id, number)
        placements.write(connection, run_id, number, placement)
        if before is None or (before.state, before.restarts) != (placement.state, placement.restarts):
            where = f" on {', '.join(placement.nodes)}" if placement.nodes else ""
            reason = f" ({placement.reason})" if placement.reason else ""
            job = f"job {placement.job}: " if placement.job else ""
            text = f"{job}{placement.state}{where}{reason}"
            add_event(connection, "placed", text, now=context.now(), key=placement.state, run_id=run_id, attempt=number)
    # Set last, so that a failed transaction is tried again.
    attempt.placement = placement


def _note_start(attempt: LiveAttempt, folder: Path, context: AgentContext) -> None:
    """Store when the command started, its executor's identity, and which limits of the launching shell it lacks."""
    started = read_record(folder / "started.json")
    if started is None or (attempt.executor.kind.is_replaceable and started.get("at") is None):
        # The courier runs, but the command has not started on the target.
        return
    run_id, number = attempt.record.run_id, attempt.record.number
    at = time_in(started.get("at")) or context.now()
    refused = [str(name) for name in started.get("refused") or ()]
    # One transaction, because nothing is read again once the attempt has a start.
    with transaction(context.connection) as connection:
        repository.set_attempt_started(connection, run_id, number, at)
        if "resumed_from" in started:
            _note_choice_there(connection, attempt.record, started["resumed_from"], at)
        refreshed = get_attempt(connection, run_id, number)
        if refreshed is not None and refreshed.executor is None and attempt.executor.identity is not None:
            repository.set_executor(connection, run_id, number, attempt.executor.identity)
        if refused:
            add_event(
                connection,
                "limits_refused",
                f"the agent may not set {', '.join(refused)} as in the shell that launched it; "
                "run gputui agent stop in that shell, and the next agent may",
                now=at,
                severity="warning",
                run_id=run_id,
                attempt=number,
            )
    if refreshed is not None:
        attempt.record = replace(refreshed, executor=attempt.executor.identity)


def _note_choice_there(connection: sqlite3.Connection, attempt: Attempt, path: object, at: float) -> None:
    """Store the checkpoint that the target chose for an attempt. Works inside the caller's transaction."""
    if isinstance(path, str):
        repository.set_resumed_from(connection, attempt.run_id, attempt.number, path)
        return
    add_event(
        connection,
        "no_checkpoint_there",
        f"attempt {attempt.number} began from the start: its target has no valid checkpoint of this training",
        now=at,
        severity="warning",
        run_id=attempt.run_id,
        attempt=attempt.number,
    )


def _is_seen_alive(attempt: LiveAttempt, folder: Path, context: AgentContext) -> bool:
    """Whether the command has lived long enough, and written output, to count as running; if so, store that."""
    record = attempt.record
    if record.started_at is None:
        return False
    age = context.now() - record.started_at
    if age >= ALIVE_SECONDS and any(_has_bytes(log.path) for log in rank_logs(folder)):
        cause = "its command wrote its first output"
    elif age >= SILENT_SECONDS:
        cause = f"its command has lived for {SILENT_SECONDS:.0f} s"
    else:
        return False
    with transaction(context.connection) as connection:
        _note_running(connection, record.run_id, record.number, cause=cause, now=context.now())
    return True


def _has_bytes(path: Path) -> bool:
    """Whether the file exists and is not empty."""
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def note_report(connection: sqlite3.Connection, report: IngestReport, now: float) -> None:
    """Store the results of reading metrics: runs with a first step are running, and each note becomes an event once per
    run. ``now`` is UTC unix seconds. Raises sqlite3.Error."""
    if report.progress:
        with transaction(connection):
            for run_id, attempt in sorted(report.progress):
                _note_running(connection, run_id, attempt, cause="first step read", now=now)
    for run_id, note in report.notes:
        # Each agent finds notes about a whole run again.
        if not has_event(connection, note.kind, run_id=run_id, key=note.key):
            add_event(
                connection, note.kind, note.text, now=now, key=note.key, severity="warning", run_id=run_id
            )  # fmt: skip


def _note_running(connection: sqlite3.Connection, run_id: str, attempt: int, *, cause: str, now: float) -> None:
    """Move a run that is starting this attempt to running, inside the caller's transaction."""
    run = get_run(connection, run_id)
    if run is not None and run.state is RunState.STARTING and run.attempt == attempt:
        repository.move(connection, run, RunState.RUNNING, cause=cause, now=now)
