"""When an attempt has ended: read what it left, tell what it was, decide, and write all of it in one transaction."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gputui.agent.effects import owe_notices, seen_by_driver, take_effect
from gputui.agent.examining import Findings, Task
from gputui.agent.hiding import redactor_of
from gputui.agent.keeping import Keepsake, keep
from gputui.agent.launching import attempt_dir, is_of_former_boot
from gputui.agent.rundirs import notice_of
from gputui.charts import units
from gputui.config import Workspace
from gputui.metrics.ingest import MetricsIngest
from gputui.recovery.checkpoints import CheckpointInfo
from gputui.recovery.classify import Incident, outcome
from gputui.recovery.evidence import Observation
from gputui.recovery.history import past_decisions, progress_of
from gputui.recovery.machine_actions import Surroundings
from gputui.recovery.policy import Plan, Policy, PolicyError, decide, parse_policy
from gputui.runs import repository
from gputui.runs.foreign_json import time_in
from gputui.runs.places import checkpoint_directory
from gputui.runs.repository import AttemptRecord, RunRecord, transaction
from gputui.runs.states import RunState
from gputui.store import queries, watch_queries

log = logging.getLogger(__name__)


class Ending:
    """Ends attempts. It holds nothing: an agent that dies here is followed by one that does the same again."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        workspace: Workspace,
        ingest: MetricsIngest,
        wall: Callable[[], float],
    ) -> None:
        self._connection = connection
        self._workspace = workspace
        self._ingest = ingest
        self._wall = wall

    def task(self, attempt: AttemptRecord, exit_record: Mapping[str, Any] | None, survivors: Sequence[int]) -> Task:
        """What is to be looked at. ``survivors`` are processes that nothing can kill. Raises sqlite3.Error."""
        self._drain_metrics(attempt)
        run, fresh = self._current(attempt)
        checkpoints = run.spec.checkpoints
        return Task(
            folder=attempt_dir(self._workspace, run.run_id, attempt.number),
            attempt=fresh,
            exit_record=exit_record,
            survivors=tuple(survivors),
            launcher=run.spec.launcher,
            rebooted=is_of_former_boot(fresh, attempt_dir(self._workspace, run.run_id, attempt.number)),
            ended_at=time_in((exit_record or {}).get("ended_at")) or self._wall(),
            checkpoint_folder=checkpoint_directory(run.spec, self._workspace.run_dir(run.run_id)),
            checkpoint_pattern="" if checkpoints is None else checkpoints.pattern,
            checkpoints_wanted=policy_of(run).checkpoints_wanted,
            redactor=redactor_of(self._workspace, run.run_id),
            observed=(
                *observed_in(self._connection, run.run_id, attempt.number),
                *seen_by_driver(self._connection, run, fresh, exit_record, self._wall()),
            ),
        )

    def attempt_ended(self, task: Task, findings: Findings, around: Surroundings | None = None) -> None:
        """Write an attempt's end and what follows from it. Raises sqlite3.Error with nothing changed."""
        run, attempt = self._current(task.attempt)
        if task.survivors:
            self._note_survivors(run, task.survivors, self._wall())
        match outcome(findings.evidence, stop_intended=attempt.stop_requested is not None):
            case "stopped":
                self._stopped(run, attempt, task.exit_record, task.ended_at)
            case "succeeded":
                self._succeeded(run, attempt, task.exit_record, task.ended_at)
            case "failed":
                self._failed(run, attempt, task, findings, around)

    def _current(self, attempt: AttemptRecord) -> tuple[RunRecord, AttemptRecord]:
        run = repository.get_run(self._connection, attempt.run_id)
        fresh = repository.get_attempt(self._connection, attempt.run_id, attempt.number)
        assert run is not None and fresh is not None
        return run, fresh

    # --- the three ends -------------------------------------------------------------------------------------------

    def _stopped(
        self, run: RunRecord, attempt: AttemptRecord, exit_record: Mapping[str, Any] | None, ended_at: float
    ) -> None:
        forced = bool((exit_record or {}).get("forced"))
        how = "stopped; it did not end in time and was killed" if forced else "stopped"
        with transaction(self._connection) as connection:
            self._close(attempt, "stopped", ended_at, exit_record)
            repository.move(connection, run, RunState.STOPPED, cause=how, now=ended_at)
            repository.add_event(connection, how, now=ended_at, run_id=run.run_id, attempt=attempt.number)
            if attempt.stop_requested == "restart":
                self._requeue_from_start(run, ended_at)

    def _requeue_from_start(self, run: RunRecord, now: float) -> None:
        stopped = repository.get_run(self._connection, run.run_id)
        assert stopped is not None
        repository.set_next_attempt(
            self._connection, run.run_id, params=dict(run.spec.params), resume_from=None, not_before=None
        )
        repository.move(self._connection, stopped, RunState.QUEUED, cause="restart", now=now)

    def _succeeded(
        self, run: RunRecord, attempt: AttemptRecord, exit_record: Mapping[str, Any] | None, ended_at: float
    ) -> None:
        took = "" if run.started_at is None else f" after {units.duration(ended_at - run.started_at)}"
        tries = "" if attempt.number == 1 else f" in {attempt.number} attempts"
        with transaction(self._connection) as connection:
            self._close(attempt, "succeeded", ended_at, exit_record)
            self._settle_last_decision(run.run_id, "succeeded")
            repository.move(connection, run, RunState.SUCCEEDED, cause=f"finished{took}{tries}", now=ended_at)
            repository.add_event(
                connection, f"finished{took}{tries}", now=ended_at, run_id=run.run_id, attempt=attempt.number
            )

    def _failed(
        self,
        run: RunRecord,
        attempt: AttemptRecord,
        task: Task,
        findings: Findings,
        around: Surroundings | None,
    ) -> None:
        ended_at = task.ended_at
        incident = findings.incident
        plan = self._decide(run, attempt, incident, findings.checkpoints, ended_at, around)
        is_owed = plan.effect.notify or plan.verdict == "stop"
        notice = notice_of(self._workspace, run.run_id) if is_owed else None
        now = self._wall()
        with transaction(self._connection) as connection:
            self._close(attempt, "failed", ended_at, task.exit_record)
            self._settle_last_decision(run.run_id, "met another incident")
            incident_id = self._write_incident(run, attempt, incident, ended_at)
            self._write_decision(run, attempt, incident_id, plan, now)
            repository.add_event(
                connection,
                incident.summary,
                now=ended_at,
                severity="error",
                run_id=run.run_id,
                attempt=attempt.number,
            )
            repository.add_event(
                connection,
                plan.reason,
                now=now,
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
            Keepsake(
                run_dir=self._workspace.run_dir(run.run_id),
                run_id=run.run_id,
                attempt=attempt.number,
                at=ended_at,
                gpus=tuple(attempt.gpus),
                evidence=findings.evidence,
                incident=incident,
                plan=plan,
                database=self._workspace.database,
            )
        )

    # --- what goes into the decision ------------------------------------------------------------------------------

    def _decide(
        self,
        run: RunRecord,
        attempt: AttemptRecord,
        incident: Incident,
        checkpoints: Sequence[CheckpointInfo],
        ended_at: float,
        around: Surroundings | None,
    ) -> Plan:
        attempts = queries.attempts(self._connection, run.run_id)
        transitions = queries.transitions(self._connection, run.run_id)
        past = past_decisions(
            attempts,
            queries.incidents(self._connection, run.run_id),
            queries.decisions(self._connection, run.run_id),
            transitions,
        )
        return decide(
            incident,
            past,
            progress_of(attempts, attempt.number, checkpoints, transitions, ended_at=ended_at),
            run.spec,
            run.params,
            policy_of(run),
            checkpoints,
            run_id=run.run_id,
            attempt=attempt.number,
            around=around,
        )

    # --- rows -----------------------------------------------------------------------------------------------------

    def _drain_metrics(self, attempt: AttemptRecord) -> None:
        """Read what is left, and take the attempt's steps from the store: a killed agent may have stored lines
        without noting what they said of the attempt."""
        self._ingest.finish(attempt.run_id)
        first, last = self._connection.execute(
            "SELECT min(m.step), max(m.step) FROM metrics AS m JOIN metric_sources AS s USING (source_id) "
            "WHERE s.run_id = ? AND m.attempt = ? AND m.data ->> '$.event' IS NULL",
            (attempt.run_id, attempt.number),
        ).fetchone()
        repository.note_steps(self._connection, attempt.run_id, attempt.number, first=first, last=last, at=self._wall())

    def _close(
        self, attempt: AttemptRecord, state: str, ended_at: float, exit_record: Mapping[str, Any] | None
    ) -> None:
        repository.end_attempt(
            self._connection, attempt.run_id, attempt.number, state=state, ended_at=ended_at, exit_record=exit_record
        )

    def _write_incident(self, run: RunRecord, attempt: AttemptRecord, incident: Incident, at: float) -> int:
        cursor = self._connection.execute(
            "INSERT INTO incidents (run_id, attempt, at, kind, rank, step, summary, fingerprint, evidence) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                run.run_id,
                attempt.number,
                at,
                incident.kind,
                incident.rank,
                incident.step if incident.step is not None else attempt.last_step,
                incident.summary,
                incident.fingerprint,
                json.dumps(list(incident.evidence_lines)),
            ),
        )
        return int(cursor.lastrowid or 0)

    def _write_decision(self, run: RunRecord, attempt: AttemptRecord, incident_id: int, plan: Plan, now: float) -> None:
        self._connection.execute(
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
        self._connection.execute(
            "UPDATE decisions SET outcome = ? WHERE decision_id = "
            "(SELECT max(decision_id) FROM decisions WHERE run_id = ?) AND outcome IS NULL AND verdict = 'retry'",
            (outcome, run_id),
        )

    def _note_survivors(self, run: RunRecord, survivors: Sequence[int], now: float) -> None:
        listed = ", ".join(str(pid) for pid in survivors)
        repository.add_event(
            self._connection,
            f"processes {listed} cannot be killed; a hung driver is likely, and a reboot needed to get their GPUs back",
            now=now,
            severity="error",
            run_id=run.run_id,
        )


def observed_in(connection: sqlite3.Connection, run_id: str, attempt: int) -> tuple[Observation, ...]:
    """That for which gputui set out to end an attempt."""
    return tuple(
        Observation(row.kind, row.at, row.text, row.rank, row.step)
        for row in watch_queries.observations(connection, run_id, attempt)
        if row.ends
    )


def policy_of(run: RunRecord) -> Policy:
    """The run's policy; the standard one where its specification holds none that this gputui understands."""
    try:
        return parse_policy(run.spec.recovery)
    except PolicyError as error:
        log.warning("%s: %s; the standard policy is used", run.run_id, error)
        return parse_policy({"policy": "standard"})
