"""When an attempt has ended: read what it left, tell what it was, decide, and write all of it in one transaction."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from gputui.agent.context import AgentContext
from gputui.agent.health.incident_folder import IncidentArchive, keep
from gputui.agent.jobs import JobTimeoutError
from gputui.agent.lifecycle import checkpoint_survey
from gputui.agent.lifecycle.active_run import ActiveRun, Postmortem, Sweeping
from gputui.agent.lifecycle.apply_plan import owe_notices, seen_by_driver, surroundings, take_effect
from gputui.agent.lifecycle.attempt_launch import attempt_dir
from gputui.agent.lifecycle.examination import Findings, Task, examine
from gputui.agent.lifecycle.run_files import ResolvedRun
from gputui.agent.lifecycle.scheduler import GpuAvailability
from gputui.charts import units
from gputui.metrics.report import IngestReport
from gputui.recovery.checkpoint_ledger import candidates, out_of_order
from gputui.recovery.checkpoint_search import CheckpointChoice, CheckpointSearch
from gputui.recovery.classify import Incident, outcome
from gputui.recovery.evidence import Observation
from gputui.recovery.history import past_decisions, progress_of
from gputui.recovery.machine_actions import MachineContext
from gputui.recovery.policy import RecoveryPlan, decide
from gputui.runs import repository
from gputui.runs.executors.base import Executor
from gputui.runs.executors.process import is_of_former_boot
from gputui.runs.foreign_json import time_in
from gputui.runs.identity import is_of_another_user
from gputui.runs.repository import transaction
from gputui.runs.spec import spec_of
from gputui.store.events import add_event
from gputui.store.metrics import watched
from gputui.store.run_states import RunState
from gputui.store.runs import (
    Attempt,
    Run,
    get_attempt,
    get_run,
    read_attempts,
    read_decisions,
    read_incidents,
    read_transitions,
)

log = logging.getLogger(__name__)


LOOK_TOLD_SECONDS = 1.0
# Hundreds of gigabytes of checkpoints are read in minutes; a file system that does not answer is not waited for longer.
EXAMINE_SECONDS = 1800.0


def has_read_rest(context: AgentContext, attempt: Attempt, budget_seconds: float) -> bool:
    """Store what the attempt's metrics files hold by now, for so long; whether that was all of it. Raises
    sqlite3.Error."""
    report = context.ingest.finish(attempt.run_id, budget_seconds=budget_seconds)
    note_first_steps(context.connection, report, context.now())
    return not report.more


def evidence_to_read(
    context: AgentContext,
    resolved: ResolvedRun,
    attempt: Attempt,
    kind: Executor,
    exit_record: Mapping[str, Any] | None,
    survivors: Sequence[int],
) -> Task:
    """What is to be looked at, once the rest of the metrics is read. ``survivors`` are processes that nothing can
    kill. Raises SpecError and sqlite3.Error."""
    connection, workspace = context.connection, context.workspace
    run, fresh = _current(connection, attempt)
    folder = attempt_dir(workspace, run.run_id, attempt.number)
    ended_at = time_in((exit_record or {}).get("ended_at")) or context.now()
    return Task(
        folder=folder,
        attempt=fresh,
        exit_record=exit_record,
        survivors=tuple(survivors),
        launcher=resolved.spec.launcher,
        # What runs elsewhere does not end with this machine.
        rebooted=not kind.is_replaceable and is_of_former_boot(fresh, folder),
        ended_at=ended_at,
        checkpoints=checkpoint_survey.search_of(connection, workspace, run, context.now(), ended_at=ended_at),
        checkpoints_wanted=resolved.policy.checkpoints_wanted,
        redactor=resolved.redactor,
        observed=(
            *observed_in(connection, run.run_id, attempt.number),
            *seen_by_driver(connection, run, fresh, exit_record, context.now()),
        ),
    )


def begin_postmortem(swept: Sweeping, task: Task, context: AgentContext) -> Postmortem:
    """Read what the attempt left, in a job."""
    name = f"reading what {task.attempt.run_id} left"
    return Postmortem(swept, task, context.jobs.start(name, partial(examine, task), deadline_seconds=EXAMINE_SECONDS))


def step(
    run: ActiveRun, phase: Postmortem, context: AgentContext, gpus: Callable[[], Sequence[GpuAvailability] | None]
) -> Postmortem | None:
    """None once it is written why the attempt ended and what follows. ``gpus`` gives how each GPU stands.

    Raises sqlite3.Error where that cannot be written now. Raises what the job raised, and JobTimeoutError where it does
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
    around = surroundings(context.workspace, resolved, task.attempt, gpus() or ())
    Ending(context, resolved).attempt_ended(task, findings, around)
    return None


def _wait(phase: Postmortem, context: AgentContext) -> Postmortem:
    """Checkpoints are read whole, so that the look may take minutes in which the run still counts as running. One that
    is stopped meanwhile needs none of them."""
    task, begun_at = phase.task, phase.job.begun_at
    if begun_at is not None and context.monotonic() - begun_at < LOOK_TOLD_SECONDS:
        return phase
    run = get_run(context.connection, task.attempt.run_id)
    if run is None:
        return phase
    if run.state is RunState.STOPPING:
        if task.attempt.stop_requested is None and task.unanswered is None:
            unread = replace(task, unanswered="it was stopped while they were read")
            return begin_postmortem(phase.swept, unread, context)
    elif not phase.is_told:
        phase.is_told = True
        text = "has ended; its logs and checkpoints are being read"
        repository.set_waiting_for(context.connection, run.run_id, text)
    return phase


def _current(connection: sqlite3.Connection, attempt: Attempt) -> tuple[Run, Attempt]:
    run = get_run(connection, attempt.run_id)
    fresh = get_attempt(connection, attempt.run_id, attempt.number)
    assert run is not None and fresh is not None
    return run, fresh


class Ending:
    """Ends attempts. It holds nothing: an agent that dies here is followed by one that does the same again."""

    def __init__(self, context: AgentContext, resolved: ResolvedRun) -> None:
        self.context = context
        self.resolved = resolved

    def attempt_ended(self, task: Task, findings: Findings, around: MachineContext | None = None) -> None:
        """Write an attempt's end and what follows from it. Raises sqlite3.Error with nothing changed."""
        run, attempt = _current(self.context.connection, task.attempt)
        if task.survivors:
            self._note_survivors(attempt, task.survivors, self.context.now())
        match outcome(findings.evidence, stop_intended=attempt.stop_requested is not None):
            case "stopped":
                self._stopped(run, attempt, task, findings)
            case "succeeded":
                self._succeeded(run, attempt, task, findings)
            case "failed":
                self._failed(run, attempt, task, findings, around)

    # --- the three ends -------------------------------------------------------------------------------------------

    def _stopped(self, run: Run, attempt: Attempt, task: Task, findings: Findings) -> None:
        ended_at = task.ended_at
        forced = bool((task.exit_record or {}).get("forced"))
        how = repository.stop_reason_of_study(self.context.connection, run.run_id)
        if how is None:
            how = "stopped; it did not end in time and was killed" if forced else "stopped"
            how += self._lost_by_stop(run, attempt, task, findings)
        with transaction(self.context.connection) as connection:
            self._close(attempt, "stopped", ended_at, task.exit_record)
            self._enter_checkpoints(task, findings)
            repository.move(connection, run, RunState.STOPPED, cause=how, now=ended_at)
            add_event(connection, "stopped", how, now=ended_at, run_id=run.run_id, attempt=attempt.number)
            if attempt.stop_requested == "restart":
                self._requeue_from_start(run, ended_at)

    def _lost_by_stop(self, run: Run, attempt: Attempt, task: Task, findings: Findings) -> str:
        """What a stop gave up, where no checkpoint holds any of it, as the end of a sentence: a script that does not
        save when it gets SIGTERM loses what it did since its last checkpoint."""
        last = attempt.last_step
        if spec_of(run).checkpoints is None or task.checkpoints is None or findings.checkpoints is None or last is None:
            return ""
        if candidates(findings.checkpoints.rows, task.checkpoints.attempts):
            return ""
        first = min(
            row.first_step for row in read_attempts(self.context.connection, run.run_id) if row.first_step is not None
        )
        count = last - first + 1
        steps = "1 step is" if count == 1 else f"{units.count(count)} steps are"
        where = f"{task.checkpoints.pattern} in {task.checkpoints.folder}"
        return f"; no usable checkpoint matches {where}, so that its {steps} lost"

    def _requeue_from_start(self, run: Run, now: float) -> None:
        stopped = get_run(self.context.connection, run.run_id)
        assert stopped is not None
        repository.set_next_attempt(
            self.context.connection, run.run_id, params=dict(spec_of(run).params), resume_from=None, not_before=None
        )
        repository.set_gpu_count(self.context.connection, run.run_id, None)
        repository.move(self.context.connection, stopped, RunState.QUEUED, cause="restart", now=now)

    def _succeeded(self, run: Run, attempt: Attempt, task: Task, findings: Findings) -> None:
        ended_at = task.ended_at
        took = "" if run.started_at is None else f" after {units.duration(ended_at - run.started_at)}"
        tries = "" if attempt.number == 1 else f" in {attempt.number} attempts"
        with transaction(self.context.connection) as connection:
            self._close(attempt, "succeeded", ended_at, task.exit_record)
            self._enter_checkpoints(task, findings)
            self._settle_last_decision(run.run_id, "succeeded")
            repository.move(connection, run, RunState.SUCCEEDED, cause=f"finished{took}{tries}", now=ended_at)
            add_event(
                connection,
                "succeeded",
                f"finished{took}{tries}",
                now=ended_at,
                run_id=run.run_id,
                attempt=attempt.number,
            )

    def _failed(
        self,
        run: Run,
        attempt: Attempt,
        task: Task,
        findings: Findings,
        around: MachineContext | None,
    ) -> None:
        ended_at = task.ended_at
        incident = findings.incident
        plan = self._decide(run, attempt, incident, findings.checkpoints, ended_at, around, task.checkpoints)
        is_owed = plan.effect.notify or plan.verdict == "stop"
        notice = self.resolved.notice if is_owed else None
        now = self.context.now()
        with transaction(self.context.connection) as connection:
            self._close(attempt, "failed", ended_at, task.exit_record)
            self._enter_checkpoints(task, findings, plan)
            self._settle_last_decision(run.run_id, "met another incident")
            incident_id = self._write_incident(run, attempt, incident, ended_at)
            self._write_decision(run, attempt, incident_id, plan, now)
            add_event(
                connection,
                "incident",
                incident.summary,
                now=ended_at,
                key=incident.kind,
                severity="error",
                run_id=run.run_id,
                attempt=attempt.number,
            )
            add_event(
                connection,
                "decision",
                plan.reason,
                now=now,
                key=plan.verdict,
                severity="warning" if plan.verdict == "retry" else "error",
                run_id=run.run_id,
                attempt=attempt.number,
            )
            if plan.verdict == "retry":
                repository.set_next_attempt(
                    connection,
                    run.run_id,
                    params=plan.params,
                    resume_from=plan.resume_from,
                    not_before=now + plan.delay_seconds,
                )
                repository.move(connection, run, RunState.RECOVERING, cause=incident.summary, now=now)
            else:
                target = RunState.STOPPED if incident.kind == "stopped_outside" else RunState.FAILED
                repository.move(connection, run, target, cause=f"{incident.summary}; {plan.reason}", now=now)
            take_effect(connection, run, attempt, incident, plan, now)
            owe_notices(
                connection, notice, run, incident.kind, incident.summary, plan.reason, verdict=plan.verdict, now=now
            )
        keep(
            IncidentArchive(
                run_dir=self.context.workspace.run_dir(run.run_id),
                run_id=run.run_id,
                attempt=attempt.number,
                at=ended_at,
                gpus=tuple(attempt.gpus),
                evidence=findings.evidence,
                incident=incident,
                plan=plan,
                database=self.context.workspace.database,
            ),
            self.context.jobs,
        )

    # --- what goes into the decision ------------------------------------------------------------------------------

    def _decide(
        self,
        run: Run,
        attempt: Attempt,
        incident: Incident,
        checkpoints: CheckpointChoice | None,
        ended_at: float,
        around: MachineContext | None,
        search: CheckpointSearch | None,
    ) -> RecoveryPlan:
        rows = () if checkpoints is None else checkpoints.rows
        contradiction = None if search is None else out_of_order(rows, search.attempts)
        if around is not None and contradiction is not None:
            names = " and ".join(contradiction)
            why = f"the steps in their names do not follow the order in which they were written ({names})"
            around = replace(around, no_pruning=why)
        attempts = read_attempts(self.context.connection, run.run_id)
        transitions = read_transitions(self.context.connection, run.run_id)
        past = past_decisions(
            attempts,
            read_incidents(self.context.connection, run.run_id),
            read_decisions(self.context.connection, run.run_id),
            transitions,
            rows,
        )
        return decide(
            incident,
            past,
            progress_of(attempts, attempt.number, rows, transitions, ended_at=ended_at),
            spec_of(run),
            run.params,
            self.resolved.policy,
            [] if checkpoints is None else checkpoints.infos,
            run_id=run.run_id,
            attempt=attempt.number,
            around=around,
            unreadable=None if checkpoints is None else checkpoints.unreadable,
        )

    # --- rows -----------------------------------------------------------------------------------------------------

    def _close(self, attempt: Attempt, state: str, ended_at: float, exit_record: Mapping[str, Any] | None) -> None:
        repository.end_attempt(
            self.context.connection,
            attempt.run_id,
            attempt.number,
            state=state,
            ended_at=ended_at,
            exit_record=exit_record,
        )

    def _enter_checkpoints(self, task: Task, findings: Findings, plan: RecoveryPlan | None = None) -> None:
        if task.checkpoints is None or findings.checkpoints is None:
            return
        rows = findings.checkpoints.rows if plan is None else plan.applied_to(findings.checkpoints.rows)
        checkpoint_survey.write(self.context.connection, task.checkpoints, rows, self.context.now())

    def _write_incident(self, run: Run, attempt: Attempt, incident: Incident, at: float) -> int:
        cursor = self.context.connection.execute(
            "INSERT INTO incidents (run_id, attempt, at, kind, rank, step, summary, fingerprint, evidence, "
            "witnesses) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                run.run_id,
                attempt.number,
                at,
                incident.kind,
                incident.rank,
                incident.step if incident.step is not None else attempt.last_step,
                incident.summary,
                incident.fingerprint,
                json.dumps(incident.evidence_lines),
                json.dumps(incident.witnesses),
            ),
        )
        return int(cursor.lastrowid or 0)

    def _write_decision(self, run: Run, attempt: Attempt, incident_id: int, plan: RecoveryPlan, now: float) -> None:
        self.context.connection.execute(
            "INSERT INTO decisions (incident_id, run_id, attempt, at, rung, verdict, actions, params, resume_from, "
            "delay_seconds, reason) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                incident_id,
                run.run_id,
                attempt.number,
                now,
                plan.rung,
                plan.verdict,
                json.dumps(plan.actions_json()),
                json.dumps(plan.changed),
                plan.resume_from,
                plan.delay_seconds,
                plan.reason,
            ),
        )

    def _settle_last_decision(self, run_id: str, outcome: str) -> None:
        self.context.connection.execute(
            "UPDATE decisions SET outcome = ? WHERE decision_id = "
            "(SELECT max(decision_id) FROM decisions WHERE run_id = ?) AND outcome IS NULL AND verdict = 'retry'",
            (outcome, run_id),
        )

    def _note_survivors(self, attempt: Attempt, survivors: Sequence[int], now: float) -> None:
        """Say who cannot be ended, and what ends him."""
        listed = [str(pid) for pid in survivors]
        are = "process " + listed[0] if len(listed) == 1 else "processes " + ", ".join(listed)
        if all(is_of_another_user(pid) for pid in survivors):
            remedy = f"another user's, as sudo's are: sudo kill -9 {' '.join(listed)} ends them"
        else:
            remedy = "stuck in the kernel: a hung driver or disk is likely, and a reboot needed if it lasts"
        held = "; the GPUs are held until then" if attempt.gpus else ""
        add_event(
            self.context.connection,
            "process_unkillable",
            f"{are} cannot be killed ({remedy}){held}",
            now=now,
            severity="error",
            run_id=attempt.run_id,
            attempt=attempt.number,
        )


def note_first_steps(connection: sqlite3.Connection, report: IngestReport, now: float) -> None:
    """Count runs that start as running once a step of theirs was read. ``now`` is UTC unix seconds. Raises
    sqlite3.Error."""
    if not report.progress:
        return
    with transaction(connection):
        for progress in report.progress:
            run = get_run(connection, progress.run_id)
            if run is not None and run.state is RunState.STARTING and run.attempt == progress.attempt:
                repository.move(connection, run, RunState.RUNNING, cause="its first step was seen", now=now)


def observed_in(connection: sqlite3.Connection, run_id: str, attempt: int) -> tuple[Observation, ...]:
    """That for which gputui set out to end an attempt."""
    return tuple(
        Observation(row.kind, row.at, row.text, row.rank, row.step)
        for row in watched.observations(connection, run_id, attempt)
        if row.ends
    )
