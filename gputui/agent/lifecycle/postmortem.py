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
from gputui.store.attempts import fellows, get_attempt
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
    now = context.now()
    attempt = live.record
    resolved = live.resolved
    run = get_run(connection, attempt.run_id)
    fresh = get_attempt(connection, attempt.run_id, attempt.number)
    assert run is not None
    assert fresh is not None
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
        return PostmortemResult(evidence, incident, checkpoints=None)
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
