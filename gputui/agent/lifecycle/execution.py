"""The phases Starting, Running and Sweeping: an executor serves the attempt, and ends.

A run counts as running once its metrics have a step (`note_report`), or, for a command without
steps, once it has lived for a while and written output. After the executor's end, leftover
processes are killed and all metrics read, before the postmortem.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gputui.agent.context import AgentContext
from gputui.agent.lifecycle.active_run import Adopting, LiveAttempt, Phase, Postmortem, Running, Starting, Sweeping
from gputui.agent.lifecycle.postmortem import begin_postmortem, evidence_to_read
from gputui.agent.lifecycle.run_files import attempt_dir, read_record, resolved_run
from gputui.metrics.batch import IngestReport
from gputui.runs import repository
from gputui.runs.foreign_json import time_in
from gputui.runs.logs import rank_logs
from gputui.runs.repository import transaction
from gputui.store import placements
from gputui.store.attempts import get_attempt
from gputui.store.events import has_event
from gputui.store.placements import PlacementView
from gputui.store.run_states import RunState
from gputui.store.runs import get_run

# The age at which a command without steps counts as running: with output, and without.
ALIVE_SECONDS = 5.0
SILENT_SECONDS = 60.0
# Poll interval for a command's output and for the reports of a remote executor.
ALIVE_LOOK_SECONDS = 1.0
# Minimum time between two starts of a replaceable executor.
REPLACE_SECONDS = 5.0
# The sampler reads once a second by default, and needs time to start.
READING_SECONDS = 5.0


def serve(attempt: LiveAttempt, phase: Starting | Running, context: AgentContext) -> Phase:
    """Store the executor's reports and whether the command shows activity. Return the next phase:
    Sweeping once the executor has ended, or Adopting if another one takes its place. Raises
    sqlite3.Error."""
    folder = attempt_dir(context.workspace, attempt.record.run_id, attempt.record.number)
    # Checked before the reports are read, so that the last one is not missed.
    is_alive, now = attempt.executor.is_alive, context.monotonic()
    kind = attempt.executor.kind
    # Reports on a remote attempt may change for days: they are read once a second, and at the end.
    if kind.places_gpus or not is_alive or now - attempt.reports_read_at >= ALIVE_LOOK_SECONDS:
        attempt.reports_read_at = now
        if not kind.places_gpus:
            _note_placement(attempt, folder, context)
        if attempt.record.started_at is None:
            _note_start(attempt, folder, context)
    if is_alive:
        if isinstance(phase, Running) or now - phase.looked_at < ALIVE_LOOK_SECONDS:
            return phase
        phase.looked_at = now
        return Running() if _is_seen_alive(attempt, folder, context) else phase
    if not kind.is_replaceable or (folder / "exit.json").exists():
        return Sweeping()
    # A replaceable executor without exit.json has not served the attempt to its end.
    attempt.executor.release()
    return phase if now < attempt.served_since + REPLACE_SECONDS else Adopting()


def _note_placement(attempt: LiveAttempt, folder: Path, context: AgentContext) -> None:
    """Store the placement that the executor reports; a new state or restart becomes an event."""
    try:
        placement = PlacementView.from_json(read_record(folder / "placement.json") or {})
    except ValueError:
        return
    if placement == attempt.placement:
        return
    run_id, number = attempt.record.run_id, attempt.record.number
    with transaction(context.connection) as connection:
        before = attempt.placement or placements.read(connection, run_id, number)
        placements.write(connection, run_id, number, placement)
        told = (placement.state, placement.restarts)
        if before is None or (before.state, before.restarts) != told:
            where = f" on {', '.join(placement.nodes)}" if placement.nodes else ""
            reason = f" ({placement.reason})" if placement.reason else ""
            job = f"job {placement.job}: " if placement.job else ""
            text = f"{job}{placement.state}{where}{reason}"
            context.note("placed", text, run_id, number, key=placement.state)
    # Set last, so that a failed transaction is tried again.
    attempt.placement = placement


def _note_start(attempt: LiveAttempt, folder: Path, context: AgentContext) -> None:
    """Store when the command started, its executor's identity, and which limits of the launching
    shell it lacks."""
    started = read_record(folder / "started.json")
    if started is None or (attempt.executor.kind.is_replaceable and started.get("at") is None):
        # The courier runs, but the command has not started on the target.
        return
    run_id, number = attempt.record.run_id, attempt.record.number
    at = time_in(started.get("at")) or context.now()
    # One transaction, because nothing is read again once the attempt has a start.
    with transaction(context.connection) as connection:
        repository.set_attempt_started(connection, run_id, number, at)
        if isinstance(chosen := started.get("resumed_from"), str):
            repository.set_resumed_from(connection, run_id, number, chosen)
        elif "resumed_from" in started:
            why = "its target has no valid checkpoint of this training"
            text = f"attempt {number} began from the start: {why}"
            context.note("no_checkpoint_there", text, run_id, number, severity="warning", at=at)
        refreshed = get_attempt(connection, run_id, number)
        assert refreshed is not None
        if refreshed.executor is None and attempt.executor.identity is not None:
            repository.set_executor(connection, run_id, number, attempt.executor.identity)
        if refused := [str(name) for name in started.get("refused") or ()]:
            text = (
                f"the agent may not set {', '.join(refused)} as in the shell that launched it; "
                "run gputui agent stop in that shell, and the next agent may"
            )
            context.note("limits_refused", text, run_id, number, severity="warning", at=at)
    attempt.record = replace(refreshed, executor=attempt.executor.identity)


def _is_seen_alive(attempt: LiveAttempt, folder: Path, context: AgentContext) -> bool:
    """Whether the command has lived long enough, and written output, to count as running; if so,
    store that."""
    record = attempt.record
    age = 0.0 if record.started_at is None else context.now() - record.started_at
    cause = f"its command has lived for {SILENT_SECONDS:.0f} s"
    if age < SILENT_SECONDS:
        paths = [log.path for log in rank_logs(folder)]
        if age < ALIVE_SECONDS or not any(path.stat().st_size for path in paths if path.exists()):
            return False
        cause = "its command wrote its first output"
    with transaction(context.connection):
        _note_running(context, record.run_id, record.number, cause)
    return True


def note_report(context: AgentContext, report: IngestReport) -> None:
    """Store the results of reading metrics: runs with a first step are running, and each note
    becomes an event once per run. Raises sqlite3.Error."""
    if report.progress:
        with transaction(context.connection):
            for run_id, attempt in sorted(report.progress):
                _note_running(context, run_id, attempt, "first step read")
    for run_id, note in report.notes:
        # Each agent finds notes about a whole run again.
        if not has_event(context.connection, note.kind, run_id=run_id, key=note.key):
            context.note(note.kind, note.text, run_id, key=note.key, severity="warning")


def _note_running(context: AgentContext, run_id: str, attempt: int, cause: str) -> None:
    """Move a run that is starting this attempt to running, inside the caller's transaction."""
    run = get_run(context.connection, run_id)
    if run is not None and run.state is RunState.STARTING and run.attempt == attempt:
        now = context.now()
        repository.move(context.connection, run, RunState.RUNNING, cause=cause, now=now)


# --- sweeping -----------------------------------------------------------------------------------


def sweep(attempt: LiveAttempt, phase: Sweeping, context: AgentContext, *, read_until: float) -> Sweeping | Postmortem:
    """Kill leftover processes, read metrics until ``read_until`` (monotonic), and await another
    sample of the GPUs. Return Postmortem when all is done. Raises SpecError if the run's
    specification cannot be read, and sqlite3.Error."""
    # Finish reading first: scanning for processes is expensive.
    if phase.is_reading_rest and not _read_rest(attempt, phase, context, read_until):
        return phase
    record = attempt.record
    folder = attempt_dir(context.workspace, record.run_id, record.number)
    exit_record: dict[str, Any] | None = read_record(folder / "exit.json")
    attempt.executor.release()
    run_dir = context.workspace.run_dir(record.run_id)
    left = attempt.executor.kind.processes(context.scanner.scan(), run_dir, record)
    identities = [process.identity for process in left]
    # The executor has already sent SIGKILL to its survivors.
    survivors = (exit_record or {}).get("survivors")
    given_up = survivors if isinstance(survivors, list) else []
    is_left = any(process.pid not in given_up for process in identities)
    if is_left and not phase.end_leftovers(identities, context.monotonic()):
        return phase
    has_failed = exit_record is None or exit_record.get("code") != 0
    if record.gpus and has_failed and not _gpus_were_read(attempt, phase, context):
        return phase
    # From here on, no process can write more.
    if not _read_rest(attempt, phase, context, read_until):
        return phase
    if attempt.resolved is None:
        run = get_run(context.connection, record.run_id)
        assert run is not None
        attempt.resolved = resolved_run(context.workspace, run)
    pids = [process.pid for process in identities]
    kind = attempt.executor.kind
    task = evidence_to_read(context, attempt.resolved, record, kind, exit_record, pids)
    return begin_postmortem(phase, task, context)


def _read_rest(attempt: LiveAttempt, phase: Sweeping, context: AgentContext, read_until: float) -> bool:
    """Store the rest of the attempt's metrics; True if nothing is left."""
    budget = max(0.0, read_until - context.monotonic())
    report = context.ingest.finish(attempt.record.run_id, budget_seconds=budget)
    note_report(context, report)
    phase.is_reading_rest = report.more
    return not report.more and not report.awaits


def _gpus_were_read(attempt: LiveAttempt, phase: Sweeping, context: AgentContext) -> bool:
    """Whether the GPUs were sampled after an unrequested end, or READING_SECONDS have passed
    because the driver hangs. A GPU that was lost together with the attempt is its cause."""
    if phase.ended_at is None:
        fresh = get_attempt(context.connection, attempt.record.run_id, attempt.record.number)
        if fresh is not None and fresh.stop_requested is not None:
            return True
        phase.ended_at, phase.ended_clock = context.now(), context.monotonic()
    # A sample from the future was taken before the clock was set back.
    was_read = phase.ended_at < context.recorder.fast_at <= context.now()
    return was_read or context.monotonic() - phase.ended_clock >= READING_SECONDS


def read_rest(context: AgentContext, run_id: str, budget_seconds: float) -> bool:
    """Store the rest of an ended run's metrics within a budget; True if nothing is left. Raises
    sqlite3.Error."""
    report = context.ingest.finish(run_id, budget_seconds=budget_seconds)
    note_report(context, report)
    return not report.more and not report.awaits
