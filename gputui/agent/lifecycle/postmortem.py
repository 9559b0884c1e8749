"""The phase Postmortem: a job examines logs and checkpoints of an ended attempt, then the loop writes its end."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from gputui.agent.context import AgentContext
from gputui.agent.health.gpu_faults import hardware_evidence
from gputui.agent.jobs import JobTimeoutError
from gputui.agent.lifecycle import checkpoint_survey
from gputui.agent.lifecycle.active_run import ActiveRun, Postmortem, PostmortemResult, PostmortemTask, Sweeping
from gputui.agent.lifecycle.attempt_launch import attempt_dir
from gputui.agent.lifecycle.ending import Ending, current_rows, machine_context
from gputui.agent.lifecycle.run_files import ResolvedRun
from gputui.agent.lifecycle.scheduler import GpuAvailability
from gputui.recovery.checkpoints.ledger import NUMERIC_INCIDENTS, attempt_ended, candidates
from gputui.recovery.checkpoints.search import (
    CheckpointChoice,
    CheckpointSearch,
    UnmatchedPattern,
    choose,
    trouble_of,
    unmatched,
)
from gputui.recovery.classify import Incident, classify, outcome
from gputui.recovery.evidence import Evidence, ExitRecord, ObservedCause, collect
from gputui.runs import repository
from gputui.runs.executors.base import Executor
from gputui.runs.executors.process import is_of_former_boot
from gputui.runs.foreign_json import time_in
from gputui.runs.spec import spec_of
from gputui.store.attempts import Attempt, fellows
from gputui.store.metrics import watched
from gputui.store.run_states import RunState
from gputui.store.runs import Run, get_run

REPORT_AFTER_SECONDS = 1.0
# Enough to read hundreds of gigabytes of checkpoints; after that, the file system counts as unresponsive.
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
    """The input of a postmortem, once all metrics are read. ``survivors`` are unkillable processes. Raises SpecError
    and sqlite3.Error."""
    connection, workspace = context.connection, context.workspace
    run, fresh = current_rows(connection, attempt)
    folder = attempt_dir(workspace, run.run_id, attempt.number)
    ended_at = time_in((exit_record or {}).get("ended_at")) or context.now()
    stays = fellows(connection, run.run_id, attempt.number)
    near = [stay.run_id for stay in stays if stay.end is None or stay.end > ended_at - SHARED_SECONDS]
    return PostmortemTask(
        folder=folder,
        attempt=fresh,
        exit_record=exit_record,
        survivors=tuple(survivors),
        launcher=resolved.spec.launcher,
        # A reboot of this machine does not end a remote attempt.
        rebooted=not kind.is_replaceable and is_of_former_boot(fresh, folder),
        ended_at=ended_at,
        checkpoints=checkpoint_survey.search_of(
            connection, workspace, run, context.now(), executors=context.executors, ended_at=ended_at
        ),
        checkpoints_wanted=resolved.policy.checkpoints_wanted,
        redactor=resolved.redactor,
        observed=(
            *(
                ObservedCause(row.kind, row.at, row.text, row.rank, row.step)
                for row in watched.observations(connection, run.run_id, attempt.number)
                if row.ends
            ),
            *seen_by_driver(connection, run, fresh, exit_record, context.now(), is_shared=bool(stays)),
        ),
        shared_with=tuple(dict.fromkeys(near)),
    )


def begin_postmortem(swept: Sweeping, task: PostmortemTask, context: AgentContext) -> Postmortem:
    """Start the job that examines the attempt."""
    name = f"reading what {task.attempt.run_id} left"
    return Postmortem(swept, task, context.jobs.start(name, partial(examine, task), deadline_seconds=EXAMINE_SECONDS))


def step(
    run: ActiveRun, phase: Postmortem, context: AgentContext, gpus: Callable[[], Sequence[GpuAvailability] | None]
) -> Postmortem | None:
    """Return None once the attempt's end and the decision are stored. ``gpus`` returns the availability of each GPU.

    Raises sqlite3.Error if the database cannot be written now. Raises the job's error, or JobTimeoutError if it does
    not end even without the checkpoints: the run is then swept again.
    """
    task = phase.task
    if not phase.job.is_over:
        return _wait(phase, context)
    try:
        findings = phase.job.result()
    except JobTimeoutError:
        if task.unanswered is not None:
            run.phase = phase.swept
            raise
        why = f"no answer within {EXAMINE_SECONDS / 60:.0f} min"
        return begin_postmortem(phase.swept, replace(task, unanswered=why), context)
    except Exception:
        run.phase = phase.swept
        raise
    assert run.attempt is not None and run.attempt.resolved is not None
    resolved = run.attempt.resolved
    machine = machine_context(context.workspace, resolved, task.attempt, gpus() or ())
    Ending(context, resolved).attempt_ended(task, findings, machine)
    return None


def _wait(phase: Postmortem, context: AgentContext) -> Postmortem:
    """Wait for the job, which may read checkpoints for minutes. A run that is stopped meanwhile does not need them."""
    task, begun_at = phase.task, phase.job.begun_at
    if begun_at is not None and context.monotonic() - begun_at < REPORT_AFTER_SECONDS:
        return phase
    run = get_run(context.connection, task.attempt.run_id)
    if run is None:
        return phase
    if run.state is RunState.STOPPING:
        if task.attempt.stop_requested is None and task.unanswered is None:
            unread = replace(task, unanswered="the run was stopped meanwhile")
            return begin_postmortem(phase.swept, unread, context)
    elif not phase.is_reported:
        phase.is_reported = True
        text = "reading the logs and checkpoints of the attempt that ended"
        repository.set_waiting_for(context.connection, run.run_id, text)
    return phase


def seen_by_driver(
    connection: sqlite3.Connection,
    run: Run,
    attempt: Attempt,
    exit_record: Mapping[str, Any] | None,
    ended_at: float,
    *,
    is_shared: bool = False,
) -> tuple[ObservedCause, ...]:
    """The driver's reports about the attempt's GPUs. After a stop by gputui, a lost GPU is its reason. On a GPU that
    ``is_shared``, an illegal access does not count, because it may be another program's."""
    nproc = spec_of(run).ranks_on(len(attempt.gpus))
    observations = hardware_evidence(connection, attempt, nproc, ended_at=ended_at)
    observations = tuple(
        observation for observation in observations if not (is_shared and observation.kind == "illegal_access")
    )
    was_asked = bool((exit_record or {}).get("stop_requested"))
    return tuple(
        replace(observation, ended_run=True) if was_asked and observation.kind == "gpu_lost" else observation
        for observation in observations
    )


def examine(task: PostmortemTask) -> PostmortemResult:
    """Read logs, error files and checkpoints, and classify. The evidence names unreadable files."""
    record = None if task.exit_record is None else ExitRecord.from_json(task.exit_record)
    if record is not None and task.survivors:
        record = replace(record, survivors=tuple(sorted({*record.survivors, *task.survivors})))
    evidence = collect(
        task.folder,
        exit=record,
        launcher=task.launcher,
        started_at=task.attempt.started_at,
        ended_at=task.ended_at,
        last_step=task.attempt.last_step,
        rebooted=task.rebooted,
        # A command that ended well by itself was not ended for an observation.
        observed=() if record is not None and record.clean and not record.stop_requested else task.observed,
        shared_with=task.shared_with,
    )
    # Classified by the original text, not by the redacted one.
    incident = classify(evidence, task.redactor.text)
    evidence = Evidence.from_json(task.redactor.value(evidence.to_json()))
    failed = outcome(evidence, stop_intended=task.attempt.stop_requested is not None) == "failed"
    search = task.checkpoints
    choice = None if search is None else _checkpoints(search, task, incident if failed else None)
    return PostmortemResult(evidence, incident, choice, _unmatched(task, choice))


def _unmatched(task: PostmortemTask, choice: CheckpointChoice | None) -> UnmatchedPattern | None:
    if task.checkpoints is None or choice is None or choice.rows or task.unanswered is not None:
        return None
    try:
        return unmatched(task.checkpoints)
    except OSError:
        return None


def _checkpoints(search: CheckpointSearch, task: PostmortemTask, incident: Incident | None) -> CheckpointChoice:
    """The ledger after the attempt; after a failure, also the candidates to resume from."""
    kind, step = (None, None) if incident is None else (incident.kind, incident.step)
    number = task.attempt.number
    try:
        if task.unanswered is not None:
            raise OSError(task.unanswered)
        seen = checkpoint_survey.scan(search, time.time())
    except OSError as error:
        # The recorded checkpoints still exist, on a disk that does not answer now.
        trouble = trouble_of(search, search.rows, number, step if kind in NUMERIC_INCIDENTS else None)
        rows = attempt_ended(search.rows, search.attempts, number, kind, trouble)
        is_lost = bool(candidates(rows, search.attempts))
        unreadable = f"{search.folder}: {error.strerror or error}" if is_lost else None
        return CheckpointChoice(rows, unreadable=unreadable, is_seen=False)
    if seen.claim is not None:
        os.close(seen.claim)
    # What it saved since its loss was no finite number is struck off already, whatever it ended by.
    trouble = trouble_of(search, seen.rows, number, step) if kind in NUMERIC_INCIDENTS else None
    rows = attempt_ended(seen.rows, search.attempts, number, kind, trouble)
    if incident is None:
        return CheckpointChoice(rows)
    return choose(rows, search.attempts, task.checkpoints_wanted, folder=search.folder)
