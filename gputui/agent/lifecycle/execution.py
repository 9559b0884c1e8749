"""The phases of an attempt: an executor serves it (Serving), its leftover processes are killed and
its metrics read (Sweeping), and a job examines what it left (Postmortem).

A run counts as running once its metrics have a step, or its command has lived for a while.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gputui.agent.context import AgentContext
from gputui.agent.health.gpu_reports import gpu_use, hardware_evidence
from gputui.agent.jobs import JobTimeoutError
from gputui.agent.lifecycle import checkpoint_survey
from gputui.agent.lifecycle.live_attempt import (
    LiveAttempt,
    Phase,
    Postmortem,
    PostmortemResult,
    PostmortemTask,
    Serving,
    Sweeping,
)
from gputui.agent.lifecycle.run_files import attempt_dir, read_record
from gputui.agent.lifecycle.source_search import SourceSearches
from gputui.core import units
from gputui.metrics.ingest import IngestReport
from gputui.recovery.checkpoints.choices import CheckpointChoice, choose
from gputui.recovery.checkpoints.ledger import attempt_ended
from gputui.recovery.checkpoints.resumable import candidates
from gputui.recovery.checkpoints.search import CheckpointSearch, unmatched, unsound_loss_of
from gputui.recovery.classify import Incident, classify, outcome
from gputui.recovery.evidence import Evidence, ExitRecord, ObservedCause, collect
from gputui.recovery.kinds import kind_of
from gputui.runs import repository
from gputui.runs.executors.process import is_of_former_boot
from gputui.runs.foreign_json import time_in
from gputui.runs.learned_checkpoints import LEARNED
from gputui.runs.logs import written_at
from gputui.store import placements
from gputui.store.agent import read_agent
from gputui.store.attempts import fellows, get_attempt
from gputui.store.events import add_event, has_event, last_kind
from gputui.store.metrics import watched
from gputui.store.metrics.step_lines import ALL_RANKS, LineFilter, StepLines
from gputui.store.placements import PlacementView
from gputui.store.rollups import sampled_around
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
_MOST_NAMED = 3
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
    record = read_record(folder / "exit.json")
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
        placement = PlacementView.from_json(read_record(folder / "placement.json") or {})
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
    started = read_record(folder / "started.json")
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
            add_event(
                connection, "no_checkpoint_there", text, now=at, severity="warning", run_id=run_id, attempt=number
            )
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
            context.note(note.kind, note.text, run_id, key=note.key, severity="warning")


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
        add_event(context.connection, "runs_again", text, now=at, run_id=run_id, attempt=number)


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
    has_ended = phase.ended_at is not None
    if has_ended and record.gpus and not _gpus_were_sampled(phase.ended_at or 0.0, phase.ended_clock, context):
        return phase
    folder = attempt_dir(context.workspace, record.run_id, record.number)
    exit_record: dict[str, Any] | None = read_record(folder / "exit.json")
    attempt.executor.release()
    run_dir = context.workspace.run_dir(record.run_id)
    leftovers = attempt.executor.kind.processes(context.scanner.scan(), run_dir, record)
    identities = [process.identity for process in leftovers]
    # The executor has already sent SIGKILL to its survivors.
    survivors = (exit_record or {}).get("survivors")
    given_up = survivors if isinstance(survivors, list) else []
    is_left = any(process.pid not in given_up for process in identities)
    if is_left:
        attempt.seen_at = context.now()
    if is_left and not phase.end_leftovers(identities, context.monotonic()):
        pids = ", ".join(str(identity.pid) for identity in identities[:_MOST_NAMED])
        phase.awaits = f"for processes to end that its command left ({pids})"
        return phase
    if phase.ended_at is None:
        phase.ended_at = context.now()
        phase.ended_clock = context.monotonic()
    if record.gpus and not _gpus_were_sampled(phase.ended_at, phase.ended_clock, context):
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


def _gpus_were_sampled(ended_at: float, ended_clock: float, context: AgentContext) -> bool:
    """Return whether the GPUs were sampled after the last process ended (UTC unix seconds, and monotonic), or
    READING_SECONDS have passed because the driver hangs.

    A GPU that was lost together with the attempt is its cause, and the scheduler must see the memory that is
    free again.
    """
    # A sample from the future was taken before the clock was set back.
    were_sampled = ended_at < context.recorder.fast_at <= context.now()
    return were_sampled or context.monotonic() - ended_clock >= READING_SECONDS


def read_rest(context: AgentContext, run_id: str, budget_seconds: float) -> IngestReport:
    """Store the rest of an ended run's metrics within a budget. Raises sqlite3.Error."""
    report = context.ingest.finish(run_id, budget_seconds=budget_seconds)
    note_report(context, report)
    return report


# Enough to read hundreds of gigabytes of checkpoints; then the file system counts as unresponsive.
EXAMINE_SECONDS = 1800.0
# A run that left the GPU earlier did not contribute to an out-of-memory error.
SHARED_SECONDS = 30.0


def postmortem_task(
    context: AgentContext, live: LiveAttempt, exit_record: Mapping[str, Any] | None, survivors: Sequence[int]
) -> PostmortemTask:
    """The input of a postmortem, once all metrics are read. ``survivors`` are unkillable
    processes. Raises SpecError and sqlite3.Error."""
    connection = context.connection
    now = context.now()
    attempt = live.record
    resolved = live.resolved
    run = get_run(connection, attempt.run_id)
    fresh = get_attempt(connection, attempt.run_id, attempt.number)
    assert run is not None and fresh is not None
    folder = attempt_dir(context.workspace, run.run_id, attempt.number)
    record = exit_record or {}
    ended_at = time_in(record.get("ended_at")) or min(now, _last_sign_of_life(context, live, folder))
    stays = fellows(connection, run.run_id, attempt.number)
    since = ended_at - SHARED_SECONDS
    sharing_runs = [stay.run_id for stay in stays if stay.end is None or stay.end > since]
    rows = watched.observations(connection, run.run_id, attempt.number)
    observed = [ObservedCause(row.kind, row.at, row.text, row.rank, row.step) for row in rows if row.ends]
    nproc = resolved.spec.ranks_on(len(fresh.gpus))
    hardware = hardware_evidence(connection, fresh, nproc, ended_at=now)
    newest = StepLines(connection, run.run_id).newest(fresh.number, ALL_RANKS)
    last_step_at = newest.at if newest is not None and newest.states_time else None
    observed += _attributable_causes(hardware, is_shared=bool(stays), was_stopped=bool(record.get("stop_requested")))
    return PostmortemTask(
        resolved=resolved,
        folder=folder,
        attempt=fresh,
        exit_record=count_from_start(exit_record, fresh.started_at),
        survivors=tuple(survivors),
        # A reboot of this machine does not end a remote attempt.
        rebooted=not context.executors.of(resolved.spec.target).is_replaceable and is_of_former_boot(fresh, folder),
        ended_at=ended_at,
        checkpoints=checkpoint_survey.search_now(context, run, ended_at, ended_well=record.get("code") == 0),
        observed=tuple(observed),
        shared_with=tuple(dict.fromkeys(sharing_runs)),
        gpus=gpu_use(connection, fresh, ended_at),
        last_step_at=last_step_at,
    )


def count_from_start(record: Mapping[str, Any] | None, started_at: float | None) -> Mapping[str, Any] | None:
    """Count the time in the record of an attempt's end from its start (UTC unix seconds).

    A process that continued an attempt, as those of the demo do, has measured only its own time.
    """
    began_at = (record or {}).get("started_at")
    measured = (record or {}).get("ran_seconds")
    if record is None or started_at is None or not isinstance(began_at, float) or not isinstance(measured, float):
        return record
    return {**record, "ran_seconds": measured + max(0.0, began_at - started_at)}


def _last_sign_of_life(context: AgentContext, live: LiveAttempt, folder: Path) -> float:
    """The last time that an attempt without a record of its end showed life (UTC unix seconds): by its
    processes, its files, its metrics, or the last sample that a former agent took."""
    record = live.record
    connection = context.connection
    since = record.created_at if record.started_at is None else record.started_at
    newest = StepLines(connection, record.run_id).newest(record.number, LineFilter(times=(since, context.now())))
    signs = [since, live.seen_at, written_at(folder)]
    if newest is not None:
        signs.append(newest.at)
    agent = read_agent(connection)
    if agent is not None:
        signs.append(sampled_around(connection, agent.started_at)[0])
    return max(sign for sign in signs if sign is not None)


def _attributable_causes(
    hardware: Sequence[ObservedCause], *, is_shared: bool, was_stopped: bool
) -> Iterator[ObservedCause]:
    """The hardware's causes without those that may be of another program on a shared GPU."""
    for cause in hardware:
        if is_shared and cause.kind == "illegal_access":
            continue
        if was_stopped and cause.kind == "gpu_lost":
            # After a stop by gputui, a lost GPU is its reason.
            cause = replace(cause, ended_run=True)
        yield cause


def begin_postmortem(swept: Sweeping, task: PostmortemTask, context: AgentContext) -> Postmortem:
    """Start the job that examines the attempt."""
    name = f"reading what {task.attempt.run_id} left"
    work = partial(examine, task)
    job = context.jobs.start(name, work, deadline_seconds=EXAMINE_SECONDS, is_urgent=True)
    return Postmortem(swept, task, job)


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


def finish_postmortem(attempt: LiveAttempt, phase: Postmortem, context: AgentContext) -> PostmortemResult | None:
    """Return what the job found; None while it runs.

    If it does not end in time, or the run is stopped meanwhile, it is started again without the checkpoints.
    After an error the attempt is swept again.

    Raises:
        sqlite3.Error: nothing can be read from the store now.
        JobTimeoutError: the job does not end even without the checkpoints.
        OSError: as raised by the job, like any error of one that does not read logs.
    """
    task = phase.task
    why_again = None
    run = get_run(context.connection, task.attempt.run_id)
    assert run is not None
    if phase.job.is_over:
        try:
            return phase.job.result()
        except JobTimeoutError:
            attempt.phase = phase.swept
            if task.unanswered is not None:
                raise
            why_again = f"no answer within {EXAMINE_SECONDS / 60:.0f} min"
        except Exception as error:
            attempt.phase = phase.swept
            if isinstance(error, sqlite3.Error | OSError) or not task.reads_logs:
                raise
            # Whatever its logs hold, the run must end.
            log.exception("%s: the logs of attempt %d cannot be examined", run.run_id, task.attempt.number)
            attempt.phase = begin_postmortem(phase.swept, replace(task, reads_logs=False), context)
            return None
    elif run.state is RunState.STOPPING and task.attempt.stop_requested is None and task.unanswered is None:
        why_again = "the run was stopped meanwhile"
    if why_again is not None:
        attempt.phase = begin_postmortem(phase.swept, replace(task, unanswered=why_again), context)
    return None


def examine(task: PostmortemTask) -> PostmortemResult:
    """Read logs, error files and checkpoints, and classify. The evidence names unreadable files."""
    record = None
    observed = task.observed
    if task.exit_record is not None:
        record = ExitRecord.from_json(task.exit_record)
        if task.survivors:
            record = replace(record, survivors=tuple(sorted({*record.survivors, *task.survivors})))
        # A command that ended well by itself was not ended for an observation.
        if record.clean and not record.stop_requested:
            observed = ()
    folder = task.folder if task.reads_logs else task.folder / "unread"
    evidence = collect(
        folder,
        exit=record,
        launcher=task.resolved.spec.launcher,
        started_at=task.attempt.started_at,
        ended_at=task.ended_at,
        last_step=task.attempt.last_step,
        last_step_at=task.last_step_at,
        rebooted=task.rebooted,
        observed=observed,
        shared_with=task.shared_with,
        gpus=task.gpus,
        python=task.resolved.spec.python_words,
    )
    # Classified by the original text, not by the redacted one.
    redactor = task.resolved.redactor
    incident = classify(evidence, redactor.text)
    evidence = Evidence.from_json(redactor.value(evidence.to_json()))
    search = task.checkpoints
    if search is None:
        return PostmortemResult(evidence, incident, None)
    is_stop = task.attempt.stop_requested is not None
    failure = incident if outcome(evidence, stop_intended=is_stop) == "failed" else None
    choice = _choose_after(search, task, failure)
    pattern = None
    if not choice.rows and choice.is_seen and search.pattern != LEARNED:
        with suppress(OSError):
            pattern = unmatched(search)
    return PostmortemResult(evidence, incident, choice, pattern)


def _choose_after(search: CheckpointSearch, task: PostmortemTask, incident: Incident | None) -> CheckpointChoice:
    """The ledger after the attempt; after a failure, also the candidates to resume from."""
    kind = None
    step = None
    if incident is not None:
        kind = incident.kind
        step = incident.step
    number = task.attempt.number
    rows = search.rows
    unreadable = None
    try:
        if task.unanswered is not None:
            raise OSError(task.unanswered)
        rows = checkpoint_survey.scan(search, time.time()).rows
    except OSError as error:
        # The recorded checkpoints still exist, on a disk that does not answer now.
        unreadable = f"{search.folder}: {error.strerror or error}"
    # What it saved since its loss was no finite number is struck off already, whatever it ended by.
    unsound_loss = None
    if kind is not None and kind_of(kind).fault == "training":
        unsound_loss = unsound_loss_of(search, rows, number, step)
    rows = attempt_ended(rows, search.attempts, number, kind, unsound_loss)
    if unreadable is not None:
        if not candidates(rows, search.attempts):
            unreadable = None
        return CheckpointChoice(rows, unreadable=unreadable, is_seen=False)
    if incident is None or task.resolved.spec.checkpoints is None:
        return CheckpointChoice(rows)
    return choose(rows, search.attempts, task.resolved.policy.checkpoints_wanted, folder=search.folder)
