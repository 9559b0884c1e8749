"""The phases of an attempt until its postmortem: an executor serves it (Serving), then its leftover processes are
killed and its metrics read (Sweeping).

A run counts as running once its metrics have a step, or its command has lived for a while.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gputui.agent.context import AgentContext
from gputui.agent.lifecycle.live_attempt import (
    LiveAttempt,
    Phase,
    Postmortem,
    Serving,
    Sweeping,
)
from gputui.agent.lifecycle.postmortem import begin_postmortem, postmortem_task
from gputui.agent.lifecycle.run_files import attempt_dir, read_executor_record
from gputui.agent.lifecycle.source_search import SourceSearches
from gputui.core import units
from gputui.metrics.ingest import IngestReport
from gputui.runs import repository
from gputui.runs.foreign_json import time_in
from gputui.runs.identity import ProcessIdentity
from gputui.store import placements
from gputui.store.attempts import Attempt, get_attempt
from gputui.store.events import NewEvent, add_event, has_event, last_kind
from gputui.store.metrics.step_lines import StepLines
from gputui.store.placements import PlacementView
from gputui.store.run_states import RunState
from gputui.store.runs import get_run

log = logging.getLogger(__name__)

# The age at which a command without steps counts as running.
ALIVE_SECONDS = 5.0
# Poll interval for the reports of a remote executor.
REPORTS_SECONDS = 1.0
# Minimum time between two starts of a replaceable executor.
REPLACE_SECONDS = 5.0
# An end that takes longer says what it waits for.
LATE_SECONDS = 5.0
_MOST_NAMED = 3  # more would not fit a line
# The sampler reads once a second by default, and needs time to start.
READING_SECONDS = 5.0


def serve(attempt: LiveAttempt, phase: Serving, context: AgentContext) -> Phase | None:
    """Store the executor's reports and whether the command shows activity. Raises sqlite3.Error.

    Returns:
        The next phase, which is Sweeping once the executor has ended; None if another executor is to take its place.
    """
    folder = attempt_dir(context.workspace, attempt.record.run_id, attempt.record.number)
    # Checked before the reports are read, so that the last one is not missed.
    is_alive = attempt.executor.is_alive
    now = context.monotonic()
    kind = attempt.executor.kind
    # Reports on a remote attempt may change for days: they are read once a second, and at the end.
    if kind.places_gpus or not is_alive or now - attempt.reports_read_at >= REPORTS_SECONDS:
        attempt.reports_read_at = now
        if not kind.places_gpus:
            _note_placement(attempt, folder, context)
        if attempt.record.started_at is None:
            _note_start(attempt, folder, context)
    if is_alive:
        attempt.seen_at = context.now()
        started_at = attempt.record.started_at
        if not phase.is_noted and started_at is not None and context.now() - started_at >= ALIVE_SECONDS:
            with repository.transaction(context.connection):
                cause = f"its command has lived for {ALIVE_SECONDS:.0f} s"
                note_running(context, attempt.record.run_id, attempt.record.number, cause)
            phase.is_noted = True
        return phase
    record = read_executor_record(folder / "exit.json")
    if not kind.is_replaceable or record is not None:
        exited_at = time_in((record or {}).get("ended_at")) or context.now()
        repository.set_attempt_exited(context.connection, attempt.record.run_id, attempt.record.number, exited_at)
        return Sweeping()
    # A replaceable executor without exit.json has not served the attempt to its end.
    attempt.executor.release()
    if now < attempt.served_since + REPLACE_SECONDS:
        return phase
    return None


def _note_placement(attempt: LiveAttempt, folder: Path, context: AgentContext) -> None:
    """Store the placement that the executor reports; a new state or restart becomes an event."""
    try:
        placement = PlacementView.from_json(read_executor_record(folder / "placement.json") or {})
    except ValueError:
        return
    if placement == attempt.placement:
        return
    run_id = attempt.record.run_id
    number = attempt.record.number
    with repository.transaction(context.connection) as connection:
        before = attempt.placement or placements.read(connection, run_id, number)
        placements.write(connection, run_id, number, placement)
        progress = (placement.state, placement.restarts)
        if before is None or (before.state, before.restarts) != progress:
            text: str = placement.state
            if placement.job:
                text = f"job {placement.job}: {text}"
            if placement.nodes:
                text += f" on {', '.join(placement.nodes)}"
            if placement.reason:
                text += f" ({placement.reason})"
            context.note("placed", text, run_id, number, key=placement.state)
    # Set last, so that a failed transaction is tried again.
    attempt.placement = placement


def _note_start(attempt: LiveAttempt, folder: Path, context: AgentContext) -> None:
    """Store when the command started, its executor's identity, and which limits of the launching
    shell it lacks."""
    started = read_executor_record(folder / "started.json")
    if started is None or (attempt.executor.kind.is_replaceable and started.get("at") is None):
        # The runner runs, but the command has not started on the target.
        return
    run_id = attempt.record.run_id
    number = attempt.record.number
    at = time_in(started.get("at")) or context.now()
    # One transaction, because nothing is read again once the attempt has a start.
    with repository.transaction(context.connection) as connection:
        repository.set_attempt_started(connection, run_id, number, at)
        if isinstance(chosen := started.get("resumed_from"), str):
            repository.set_resumed_from(connection, run_id, number, chosen)
        elif "resumed_from" in started:
            why = "its target has no valid checkpoint of this training"
            text = f"attempt {number} began from the start: {why}"
            event = NewEvent("no_checkpoint_there", text, severity="warning", run_id=run_id, attempt=number)
            add_event(connection, event, now=at)
        refreshed = get_attempt(connection, run_id, number)
        assert refreshed is not None
        if refreshed.executor is None and attempt.executor.identity is not None:
            repository.set_executor(connection, run_id, number, attempt.executor.identity)
    attempt.record = replace(refreshed, executor=attempt.executor.identity)


def note_report(context: AgentContext, report: IngestReport) -> None:
    """Store the results of reading metrics: runs with a first step are running, and each note
    becomes an event once per run. Raises sqlite3.Error."""
    if report.progress:
        with repository.transaction(context.connection):
            for run_id, attempt in sorted(report.progress):
                # The steps may have been made without an agent.
                first = StepLines(context.connection, run_id).first(attempt)
                first_at = None if first is None else first.at
                note_running(context, run_id, attempt, "first step read", first_at)
    for run_id, note in report.notes:
        # Each agent finds notes about a whole run again.
        if not has_event(context.connection, note.kind, run_id=run_id, key=note.key):
            context.note(note.kind, note.message, run_id, key=note.key, severity="warning")


def note_running(context: AgentContext, run_id: str, number: int, cause: str, at: float | None = None) -> None:
    """Move a run that is starting this attempt to running, inside the caller's transaction, now or at an earlier time
    (UTC unix seconds). After a retry, an event says that the run goes on."""
    run = get_run(context.connection, run_id)
    if run is None or run.state is not RunState.STARTING or run.attempt != number:
        return
    now = context.now()
    at = now if at is None else min(now, at)
    repository.move(context.connection, run, RunState.RUNNING, cause=cause, now=at)
    announced = last_kind(context.connection, run_id, ("decision", "requeued"))
    if announced is not None and announced[0] == "decision":
        text = _runs_again_text(context, run_id, number)
        event = NewEvent("runs_again", text, run_id=run_id, attempt=number)
        add_event(context.connection, event, now=at)


def _runs_again_text(context: AgentContext, run_id: str, number: int) -> str:
    """``runs again from step 49 400, batch_size 64``: from where, and what differs from the attempt before."""
    attempt = get_attempt(context.connection, run_id, number)
    before = get_attempt(context.connection, run_id, number - 1)
    text = "runs again"
    if attempt is None or before is None:
        return text
    if attempt.resumed_step is not None:
        text += f" from step {units.count(attempt.resumed_step)}"
    changed = [
        f"{name} {units.parameter(value)}" for name, value in attempt.params.items() if before.params.get(name) != value
    ]
    return ", ".join([text, *changed])


def sweep(
    attempt: LiveAttempt,
    phase: Sweeping,
    context: AgentContext,
    *,
    read_until: float,
    searches: SourceSearches,
) -> Sweeping | Postmortem:
    """Kill leftover processes, look for files with metrics a last time, read the rest of the metrics, and
    await another sample of the GPUs.

    Args:
        read_until: when reading of metrics ends in this turn (monotonic).

    Returns:
        Postmortem when all is done; until then the phase itself, for the next turn.

    Raises:
        SpecError: the run's specification cannot be read.
        sqlite3.Error: nothing can be stored now.
    """
    record = attempt.record

    def finish_reading() -> bool:
        """Read within the budget; return whether nothing is left."""
        report = read_rest(context, record.run_id, max(0.0, read_until - context.monotonic()))
        phase.is_reading_rest = report.more
        return not report.more and not report.awaits

    # Finish reading first, and await the sample: scanning for processes is expensive.
    if phase.is_reading_rest and not finish_reading():
        return phase
    if phase.ended_at is not None and not _gpus_were_sampled(record, phase, context):
        return phase
    exit_record = read_executor_record(attempt_dir(context.workspace, record.run_id, record.number) / "exit.json")
    attempt.executor.release()
    run_dir = context.workspace.run_dir(record.run_id)
    leftovers = attempt.executor.kind.processes(context.scanner.scan(), run_dir, record)
    identities = [process.identity for process in leftovers]
    if not _are_over(attempt, phase, identities, exit_record, context):
        return phase
    if phase.ended_at is None:
        phase.ended_at = context.now()
        phase.ended_clock = context.monotonic()
    if not _gpus_were_sampled(record, phase, context):
        phase.awaits = "for a reading of its GPUs"
        return phase
    # No process can write more now.
    phase.awaits = "for a look at the files that it wrote"
    if not searches.conclude(attempt):
        return phase
    phase.awaits = "for the rest of its metrics to be read"
    if not finish_reading():
        return phase
    survivor_pids = [process.pid for process in identities]
    task = postmortem_task(context, attempt, exit_record, survivor_pids)
    return begin_postmortem(phase, task, context)


def _are_over(
    attempt: LiveAttempt,
    phase: Sweeping,
    leftovers: list[ProcessIdentity],
    exit_record: Mapping[str, Any] | None,
    context: AgentContext,
) -> bool:
    """End the processes that the command left; return whether none is left, or only what cannot be killed."""
    # The executor has already sent SIGKILL to its survivors.
    survivors = (exit_record or {}).get("survivors")
    given_up = survivors if isinstance(survivors, list) else []
    if all(process.pid in given_up for process in leftovers):
        return True
    attempt.seen_at = context.now()
    if phase.end_leftovers(leftovers, context.monotonic()):
        return True
    pids = ", ".join(str(process.pid) for process in leftovers[:_MOST_NAMED])
    phase.awaits = f"for processes to end that its command left ({pids})"
    return False


def _gpus_were_sampled(record: Attempt, phase: Sweeping, context: AgentContext) -> bool:
    """Return whether the attempt's GPUs, if it has any, were sampled after its last process ended, or
    READING_SECONDS have passed because the driver hangs.

    A GPU that was lost together with the attempt is its cause, and the scheduler must see the memory that is
    free again.
    """
    if not record.gpus or context.monotonic() - phase.ended_clock >= READING_SECONDS:
        return True
    # A sample from the future was taken before the clock was set back.
    return phase.ended_at is not None and phase.ended_at < context.recorder.fast_at <= context.now()


def read_rest(context: AgentContext, run_id: str, budget_seconds: float) -> IngestReport:
    """Store the rest of an ended run's metrics within a budget. Raises sqlite3.Error."""
    report = context.ingest.finish(run_id, budget_seconds=budget_seconds)
    note_report(context, report)
    return report


def note_lateness(attempt: LiveAttempt, context: AgentContext) -> None:
    """Say in the run's row what its end waits for, once that takes long, and log it once. Raises
    sqlite3.Error."""
    now = context.monotonic()
    phase = attempt.phase
    if attempt.over_since is None:
        attempt.over_since = now
    seconds = now - attempt.over_since
    if seconds < LATE_SECONDS or isinstance(phase, Serving):
        return
    if isinstance(phase, Sweeping):
        awaits = phase.awaits
    elif phase.job.begun_at is None:
        awaits = f"for a thread; {', '.join(context.jobs.running()[:_MOST_NAMED])} take them"
    else:
        awaits = "for its logs and checkpoints to be read"
    run = get_run(context.connection, attempt.record.run_id)
    text = f"has ended, and waits {awaits}"
    if run is not None and run.waiting_for != text:
        repository.set_waiting_for(context.connection, run.run_id, text)
    if not attempt.is_late:
        attempt.is_late = True
        log.warning(
            "%s: attempt %d ended %.0f s ago and waits %s", run and run.run_id, attempt.record.number, seconds, awaits
        )
