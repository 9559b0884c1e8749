"""The phase Postmortem: a job examines logs and checkpoints of an ended attempt, then the loop
writes its end."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from gputui.agent.context import AgentContext
from gputui.agent.health.gpu_faults import hardware_evidence
from gputui.agent.jobs import JobTimeoutError
from gputui.agent.lifecycle import checkpoint_survey
from gputui.agent.lifecycle.active_run import ActiveRun, Postmortem, PostmortemResult, PostmortemTask, Sweeping
from gputui.agent.lifecycle.run_files import ResolvedRun, attempt_dir
from gputui.recovery.checkpoints.ledger import NUMERIC_INCIDENTS, attempt_ended, candidates
from gputui.recovery.checkpoints.search import CheckpointChoice, CheckpointSearch, choose, trouble_of, unmatched
from gputui.recovery.classify import Incident, classify, outcome
from gputui.recovery.evidence import Evidence, ExitRecord, ObservedCause, collect
from gputui.runs import repository
from gputui.runs.executors.base import Executor
from gputui.runs.executors.process import is_of_former_boot
from gputui.runs.foreign_json import time_in
from gputui.store.attempts import Attempt, fellows, get_attempt
from gputui.store.metrics import watched
from gputui.store.run_states import RunState
from gputui.store.runs import get_run

REPORT_AFTER_SECONDS = 1.0
# Enough to read hundreds of gigabytes of checkpoints; then the file system counts as unresponsive.
EXAMINE_SECONDS = 1800.0
# A run that left the GPU earlier did not contribute to an out-of-memory error.
SHARED_SECONDS = 30.0


def evidence_to_read(
    context: AgentContext,
    resolved: ResolvedRun,
    attempt: Attempt,
    kind: Executor,
    exit_record: Mapping[str, Any] | None,
    survivors: Sequence[int],
) -> PostmortemTask:
    """The input of a postmortem, once all metrics are read. ``survivors`` are unkillable
    processes. Raises SpecError and sqlite3.Error."""
    connection, now = context.connection, context.now()
    run = get_run(connection, attempt.run_id)
    fresh = get_attempt(connection, attempt.run_id, attempt.number)
    assert run is not None and fresh is not None
    folder = attempt_dir(context.workspace, run.run_id, attempt.number)
    record = exit_record or {}
    ended_at = time_in(record.get("ended_at")) or now
    stays = fellows(connection, run.run_id, attempt.number)
    since = ended_at - SHARED_SECONDS
    near = [stay.run_id for stay in stays if stay.end is None or stay.end > since]
    rows = watched.observations(connection, run.run_id, attempt.number)
    observed = [ObservedCause(row.kind, row.at, row.text, row.rank, row.step) for row in rows if row.ends]
    nproc = resolved.spec.ranks_on(len(fresh.gpus))
    for cause in hardware_evidence(connection, fresh, nproc, ended_at=now):
        # On a shared GPU, an illegal access may be another program's.
        if not stays or cause.kind != "illegal_access":
            # After a stop by gputui, a lost GPU is its reason.
            is_reason = cause.kind == "gpu_lost" and bool(record.get("stop_requested"))
            observed.append(replace(cause, ended_run=True) if is_reason else cause)
    return PostmortemTask(
        folder=folder,
        attempt=fresh,
        exit_record=exit_record,
        survivors=tuple(survivors),
        launcher=resolved.spec.launcher,
        # A reboot of this machine does not end a remote attempt.
        rebooted=not kind.is_replaceable and is_of_former_boot(fresh, folder),
        ended_at=ended_at,
        checkpoints=checkpoint_survey.search_now(context, run, ended_at),
        checkpoints_wanted=resolved.policy.checkpoints_wanted,
        redactor=resolved.redactor,
        observed=tuple(observed),
        shared_with=tuple(dict.fromkeys(near)),
    )


def begin_postmortem(swept: Sweeping, task: PostmortemTask, context: AgentContext) -> Postmortem:
    """Start the job that examines the attempt."""
    name, work = f"reading what {task.attempt.run_id} left", partial(examine, task)
    return Postmortem(swept, task, context.jobs.start(name, work, deadline_seconds=EXAMINE_SECONDS))


def findings_of(run: ActiveRun, phase: Postmortem, context: AgentContext) -> PostmortemResult | None:
    """What the job found, or None while it runs. If it does not end in time, or the run is stopped
    meanwhile, it is done again without the checkpoints.

    Raises sqlite3.Error. Raises the job's error, or JobTimeoutError if it does not end even without
    the checkpoints: the run is then swept again.
    """
    task = phase.task
    why = None
    if phase.job.is_over:
        try:
            return phase.job.result()
        except Exception as error:
            run.phase = phase.swept
            if not isinstance(error, JobTimeoutError) or task.unanswered is not None:
                raise
            why = f"no answer within {EXAMINE_SECONDS / 60:.0f} min"
    elif context.monotonic() - (phase.job.begun_at or 0.0) >= REPORT_AFTER_SECONDS:
        row = get_run(context.connection, task.attempt.run_id)
        is_stopping = row is not None and row.state is RunState.STOPPING
        if is_stopping and task.attempt.stop_requested is None and task.unanswered is None:
            why = "the run was stopped meanwhile"
        elif not phase.is_reported:
            phase.is_reported = True
            text = "reading the logs and checkpoints of the attempt that ended"
            repository.set_waiting_for(context.connection, run.run_id, text)
    if why is not None:
        run.phase = begin_postmortem(phase.swept, replace(task, unanswered=why), context)
    return None


# --- the job ------------------------------------------------------------------------------------


def examine(task: PostmortemTask) -> PostmortemResult:
    """Read logs, error files and checkpoints, and classify. The evidence names unreadable files."""
    record = None if task.exit_record is None else ExitRecord.from_json(task.exit_record)
    if record is not None and task.survivors:
        record = replace(record, survivors=tuple(sorted({*record.survivors, *task.survivors})))
    # A command that ended well by itself was not ended for an observation.
    is_well = record is not None and record.clean and not record.stop_requested
    evidence = collect(
        task.folder,
        exit=record,
        launcher=task.launcher,
        started_at=task.attempt.started_at,
        ended_at=task.ended_at,
        last_step=task.attempt.last_step,
        rebooted=task.rebooted,
        observed=() if is_well else task.observed,
        shared_with=task.shared_with,
    )
    # Classified by the original text, not by the redacted one.
    incident = classify(evidence, task.redactor.text)
    evidence = Evidence.from_json(task.redactor.value(evidence.to_json()))
    search = task.checkpoints
    if search is None:
        return PostmortemResult(evidence, incident, None)
    is_stop = task.attempt.stop_requested is not None
    failed = outcome(evidence, stop_intended=is_stop) == "failed"
    choice = _checkpoints(search, task, incident if failed else None)
    missed = None
    if not choice.rows and choice.is_seen:
        try:
            missed = unmatched(search)
        except OSError:
            missed = None
    return PostmortemResult(evidence, incident, choice, missed)


def _checkpoints(search: CheckpointSearch, task: PostmortemTask, incident: Incident | None) -> CheckpointChoice:
    """The ledger after the attempt; after a failure, also the candidates to resume from."""
    kind, step = (None, None) if incident is None else (incident.kind, incident.step)
    number, rows, unreadable = task.attempt.number, search.rows, None
    try:
        if task.unanswered is not None:
            raise OSError(task.unanswered)
        seen = checkpoint_survey.scan(search, time.time())
        rows = seen.rows
        if seen.claim is not None:
            os.close(seen.claim)
    except OSError as error:
        # The recorded checkpoints still exist, on a disk that does not answer now.
        unreadable = f"{search.folder}: {error.strerror or error}"
    # What it saved since its loss was no finite number is struck off already, whatever it ended by.
    trouble = trouble_of(search, rows, number, step) if kind in NUMERIC_INCIDENTS else None
    rows = attempt_ended(rows, search.attempts, number, kind, trouble)
    if unreadable is not None:
        is_lost = bool(candidates(rows, search.attempts))
        return CheckpointChoice(rows, unreadable=unreadable if is_lost else None, is_seen=False)
    if incident is None:
        return CheckpointChoice(rows)
    return choose(rows, search.attempts, task.checkpoints_wanted, folder=search.folder)
