"""The postmortem of an attempt, in a job: read what it left, classify its end, and choose checkpoints to go on from."""

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
    Postmortem,
    PostmortemResult,
    PostmortemTask,
    Sweeping,
)
from gputui.agent.lifecycle.run_files import attempt_dir
from gputui.recovery.checkpoints.choices import CheckpointChoice, choose
from gputui.recovery.checkpoints.ledger import attempt_ended
from gputui.recovery.checkpoints.resumable import candidates
from gputui.recovery.checkpoints.search import CheckpointSearch, unmatched, unsound_loss_of
from gputui.recovery.classify import Incident, classify, outcome
from gputui.recovery.evidence import Evidence, ExitRecord, ObservedCause, collect
from gputui.recovery.kinds import kind_of
from gputui.runs.executors.process import is_of_former_boot
from gputui.runs.foreign_json import time_in
from gputui.runs.learned_checkpoints import LEARNED
from gputui.runs.logs import written_at
from gputui.store.agent import read_agent
from gputui.store.attempts import Attempt, fellows, get_attempt
from gputui.store.metrics import watched
from gputui.store.metrics.step_lines import ALL_RANKS, LineFilter, StepLines
from gputui.store.rollups import sampled_around
from gputui.store.run_states import RunState
from gputui.store.runs import get_run

log = logging.getLogger(__name__)

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
    resolved = live.resolved
    run = get_run(connection, live.record.run_id)
    attempt = get_attempt(connection, live.record.run_id, live.record.number)
    assert run is not None
    assert attempt is not None
    folder = attempt_dir(context.workspace, run.run_id, attempt.number)
    record = exit_record or {}
    ended_at = time_in(record.get("ended_at")) or min(context.now(), _last_sign_of_life(context, live, folder))
    # A reboot of this machine does not end a remote attempt.
    is_remote = context.executors.of(resolved.spec.target).is_replaceable
    return PostmortemTask(
        resolved=resolved,
        folder=folder,
        attempt=attempt,
        exit_record=count_from_start(exit_record, attempt.started_at),
        survivors=tuple(survivors),
        rebooted=not is_remote and is_of_former_boot(attempt, folder),
        ended_at=ended_at,
        checkpoints=checkpoint_survey.search_now(context, run, ended_at, ended_well=record.get("code") == 0),
        observed=tuple(_observed_causes(context, live, attempt, was_stopped=bool(record.get("stop_requested")))),
        shared_with=_sharing_runs(connection, attempt, since=ended_at - SHARED_SECONDS),
        gpus=gpu_use(connection, attempt, ended_at),
        last_step_at=_last_step_at(connection, attempt),
    )


def _observed_causes(
    context: AgentContext, live: LiveAttempt, attempt: Attempt, *, was_stopped: bool
) -> Iterator[ObservedCause]:
    """What ended the attempt as far as it was seen: in its metrics, then in its hardware."""
    connection = context.connection
    for row in watched.observations(connection, attempt.run_id, attempt.number):
        if row.ends:
            yield ObservedCause(row.kind, row.at, row.text, row.rank, row.step)
    ranks = live.resolved.spec.ranks_on(len(attempt.gpus))
    hardware = hardware_evidence(connection, attempt, ranks, ended_at=context.now())
    is_shared = bool(fellows(connection, attempt.run_id, attempt.number))
    yield from _attributable_causes(hardware, is_shared=is_shared, was_stopped=was_stopped)


def _sharing_runs(connection: sqlite3.Connection, attempt: Attempt, since: float) -> tuple[str, ...]:
    """The runs that used a GPU of the attempt together with it after a time (UTC unix seconds)."""
    stays = fellows(connection, attempt.run_id, attempt.number)
    run_ids = [stay.run_id for stay in stays if stay.end is None or stay.end > since]
    return tuple(dict.fromkeys(run_ids))


def _last_step_at(connection: sqlite3.Connection, attempt: Attempt) -> float | None:
    """The time that the newest line of the attempt's metrics states; None if it states none."""
    newest = StepLines(connection, attempt.run_id).newest(attempt.number, ALL_RANKS)
    if newest is None or not newest.states_time:
        return None
    return newest.at


def count_from_start(record: Mapping[str, Any] | None, started_at: float | None) -> Mapping[str, Any] | None:
    """Count the time in the record of an attempt's end from its start (UTC unix seconds).

    A process that continued an attempt, as those of the demo do, has measured only its own time.
    """
    if record is None or started_at is None:
        return record
    began_at = record.get("started_at")
    measured = record.get("ran_seconds")
    if not isinstance(began_at, float) or not isinstance(measured, float):
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
        signs.append(sampled_around(connection, agent.started_at).before)
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
    if phase.job.is_over:
        return _job_result(attempt, phase, context)
    run = get_run(context.connection, task.attempt.run_id)
    assert run is not None
    is_stopped_now = run.state is RunState.STOPPING and task.attempt.stop_requested is None
    if is_stopped_now and task.unanswered is None:
        _begin_without_checkpoints(attempt, phase, "the run was stopped meanwhile", context)
    return None


def _job_result(attempt: LiveAttempt, phase: Postmortem, context: AgentContext) -> PostmortemResult | None:
    """Return what the job found; None if it is started again with less to read. Raises as `finish_postmortem`."""
    task = phase.task
    try:
        return phase.job.result()
    except JobTimeoutError:
        attempt.phase = phase.swept
        if task.unanswered is not None:
            raise
        reason = f"no answer within {EXAMINE_SECONDS / 60:.0f} min"
        _begin_without_checkpoints(attempt, phase, reason, context)
    except Exception as error:
        attempt.phase = phase.swept
        if isinstance(error, sqlite3.Error | OSError) or not task.reads_logs:
            raise
        # Whatever its logs hold, the run must end.
        number = task.attempt.number
        log.exception("%s: the logs of attempt %d cannot be examined", task.attempt.run_id, number)
        attempt.phase = begin_postmortem(phase.swept, replace(task, reads_logs=False), context)
    return None


def _begin_without_checkpoints(attempt: LiveAttempt, phase: Postmortem, reason: str, context: AgentContext) -> None:
    """Start the job again without the checkpoints, for a reason."""
    attempt.phase = begin_postmortem(phase.swept, replace(phase.task, unanswered=reason), context)


def examine(task: PostmortemTask) -> PostmortemResult:
    """Read logs, error files and checkpoints, and classify. The evidence names unreadable files."""
    original = _collect_evidence(task)
    # Classified by the original text, not by the redacted one.
    redactor = task.resolved.redactor
    incident = classify(original, redactor.text)
    evidence = Evidence.from_json(redactor.value(original.to_json()))
    search = task.checkpoints
    if search is None:
        return PostmortemResult(evidence, incident, checkpoints=None)
    failure = None
    is_stop = task.attempt.stop_requested is not None
    if outcome(evidence, stop_intended=is_stop) == "failed":
        failure = incident
    choice = _choose_after(search, task, failure)
    pattern = None
    if not choice.rows and choice.is_seen and search.pattern != LEARNED:
        with suppress(OSError):
            pattern = unmatched(search)
    return PostmortemResult(evidence, incident, choice, pattern)


def _collect_evidence(task: PostmortemTask) -> Evidence:
    record = None
    observed = task.observed
    if task.exit_record is not None:
        record = ExitRecord.from_json(task.exit_record)
        if task.survivors:
            record = replace(record, survivors=tuple(sorted({*record.survivors, *task.survivors})))
        # A command that ended well by itself was not ended for an observation.
        if record.clean and not record.stop_requested:
            observed = ()
    folder = task.folder
    if not task.reads_logs:
        folder = task.folder / "unread"  # no such folder: there is nothing to read
    return collect(
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


def _choose_after(search: CheckpointSearch, task: PostmortemTask, incident: Incident | None) -> CheckpointChoice:
    """The ledger after the attempt; after a failure, also the candidates to resume from."""
    number = task.attempt.number
    kind = incident.kind if incident is not None else None
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
    if incident is not None and kind_of(incident.kind).fault == "training":
        unsound_loss = unsound_loss_of(search, rows, number, incident.step)
    ended_rows = attempt_ended(rows, search.attempts, number, kind, unsound_loss)
    if unreadable is not None:
        if not candidates(ended_rows, search.attempts):
            unreadable = None
        return CheckpointChoice(ended_rows, unreadable=unreadable, is_seen=False)
    if incident is None or task.resolved.spec.checkpoints is None:
        return CheckpointChoice(ended_rows)
    return choose(ended_rows, search.attempts, task.resolved.policy.checkpoints_wanted, folder=search.folder)
