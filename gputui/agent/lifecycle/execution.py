"""Starting and Running: an executor serves the attempt, as far as is known. A run is running once its metrics have a
step (`note_report`), or for a command without steps once it lives and writes (`step`)."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

from gputui.agent.context import AgentContext
from gputui.agent.lifecycle.active_run import Adopting, LiveAttempt, Phase, Running, Starting, Sweeping
from gputui.agent.lifecycle.attempt_launch import attempt_dir, read_record
from gputui.metrics.report import IngestReport
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

# A command without steps counts as running once it has lived so long and written something; a silent one later.
ALIVE_SECONDS = 5.0
SILENT_SECONDS = 60.0
# How often files are looked at that tell whether the command does something, and where an attempt elsewhere is.
ALIVE_LOOK_SECONDS = 1.0
# A replaceable executor is started again this long after it was, at the earliest.
REPLACE_SECONDS = 5.0


def step(attempt: LiveAttempt, phase: Starting | Running, context: AgentContext) -> Phase:
    """Store what the executor reports, and whether its command does something. Sweeping once the executor has ended;
    Adopting instead if another one may take its place. Raises sqlite3.Error."""
    folder = attempt_dir(context.workspace, attempt.record.run_id, attempt.record.number)
    # Determined before its reports are read: what it wrote last must not be missed.
    is_alive = attempt.executor.is_alive
    _note_reports(attempt, folder, context, is_alive=is_alive)
    if not is_alive:
        return _after_executor(attempt, phase, folder, context)
    return _after_start(attempt, phase, folder, context) if isinstance(phase, Starting) else phase


def _after_executor(attempt: LiveAttempt, phase: Starting | Running, folder: Path, context: AgentContext) -> Phase:
    """The phase after the executor's end. One that may be replaced has served the attempt to its end only if it left
    exit.json; otherwise another takes its place, but not at once if it lived for less than REPLACE_SECONDS."""
    if not attempt.executor.kind.is_replaceable or (folder / "exit.json").exists():
        return Sweeping()
    attempt.executor.release()
    return phase if context.monotonic() < attempt.served_since + REPLACE_SECONDS else Adopting()


def _after_start(attempt: LiveAttempt, phase: Starting, folder: Path, context: AgentContext) -> Starting | Running:
    """Running once the command was seen to do something. An exit.json changes nothing while its executor lives."""
    if context.monotonic() - phase.looked_at < ALIVE_LOOK_SECONDS:
        return phase
    phase.looked_at = context.monotonic()
    return Running() if _is_seen_alive(attempt, folder, context) else phase


def _note_reports(attempt: LiveAttempt, folder: Path, context: AgentContext, *, is_alive: bool) -> None:
    """Store the executor's reports on the start of the command and, of an attempt that is elsewhere, on its place.
    Those of an attempt elsewhere may change for days: they are read once a second, and after the executor's end."""
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
    # Only what was stored is known: a failed transaction is tried again.
    attempt.placement = placement


def _note_start(attempt: LiveAttempt, folder: Path, context: AgentContext) -> None:
    """Store when the command was started and by which process, and which limits of the launching shell it lacks."""
    started = read_record(folder / "started.json")
    if started is None or (attempt.executor.kind.is_replaceable and started.get("at") is None):
        # The executor is there; what it serves has not begun where it is to run.
        return
    run_id, number = attempt.record.run_id, attempt.record.number
    at = time_in(started.get("at")) or context.now()
    refused = [str(name) for name in started.get("refused") or ()]
    # One transaction: once the attempt has a start, no later look notes the rest.
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
    """Whether the command lives and writes: then it is running, whether it reports steps or not."""
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
    """Whether the file is there and not empty."""
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def note_report(connection: sqlite3.Connection, report: IngestReport, now: float) -> None:
    """Record what one round of reading metrics showed: runs whose first step was read are running, and each note
    becomes an event, once a run. ``now`` is UTC unix seconds. Raises sqlite3.Error."""
    if report.progress:
        with transaction(connection):
            for progress in report.progress:
                _note_running(connection, progress.run_id, progress.attempt, cause="first step read", now=now)
    for run_id, note in report.notes:
        # What is true of all of a run is found again by each agent.
        if not has_event(connection, note.kind, run_id=run_id, key=note.key):
            add_event(
                connection, note.kind, note.text, now=now, key=note.key, severity="warning", run_id=run_id
            )  # fmt: skip


def _note_running(connection: sqlite3.Connection, run_id: str, attempt: int, *, cause: str, now: float) -> None:
    """Move a run that is starting with this attempt to running, inside the caller's transaction."""
    run = get_run(connection, run_id)
    if run is not None and run.state is RunState.STARTING and run.attempt == attempt:
        repository.move(connection, run, RunState.RUNNING, cause=cause, now=now)
