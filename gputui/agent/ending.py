"""When an attempt has ended: read what it left, tell what it was, decide, and write all of it in one transaction."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gputui.agent.launching import attempt_dir
from gputui.agent.rundirs import checkpoint_directory
from gputui.charts import units
from gputui.config import Workspace
from gputui.metrics.ingest import MetricsIngest
from gputui.recovery.checkpoints import CheckpointInfo, survey
from gputui.recovery.classify import Incident, classify, outcome
from gputui.recovery.evidence import Evidence, ExitRecord, collect
from gputui.recovery.policy import PastDecision, Plan, PolicyError, Progress, decide, parse_policy
from gputui.runs import repository
from gputui.runs.identity import boot_id
from gputui.runs.repository import AttemptRecord, RunRecord, transaction
from gputui.runs.states import RunState

log = logging.getLogger(__name__)

# Valid checkpoints that a decision may choose among: the newest, and one to fall back to.
CHECKPOINTS_LOOKED_AT = 2


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

    def attempt_ended(
        self, attempt: AttemptRecord, exit_record: Mapping[str, Any] | None, survivors: list[int]
    ) -> None:
        """Write an attempt's end and what follows from it. ``survivors`` are processes that nothing can kill.

        Raises sqlite3.Error with nothing changed.
        """
        self._drain_metrics(attempt)
        run = repository.get_run(self._connection, attempt.run_id)
        fresh = repository.get_attempt(self._connection, attempt.run_id, attempt.number)
        assert run is not None and fresh is not None
        now = self._wall()
        ended_at = float((exit_record or {}).get("ended_at") or now)
        if survivors:
            self._note_survivors(run, survivors, now)
        evidence = self._evidence(run, fresh, exit_record, ended_at)
        match outcome(evidence, stop_intended=fresh.stop_requested is not None):
            case "stopped":
                self._stopped(run, fresh, exit_record, ended_at)
            case "succeeded":
                self._succeeded(run, fresh, exit_record, ended_at)
            case "failed":
                self._failed(run, fresh, exit_record, evidence, ended_at)

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
        exit_record: Mapping[str, Any] | None,
        evidence: Evidence,
        ended_at: float,
    ) -> None:
        incident = classify(evidence)
        plan = self._decide(run, attempt, incident, ended_at)
        now = self._wall()
        with transaction(self._connection) as connection:
            self._close(attempt, "failed", ended_at, exit_record)
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

    # --- what goes into the decision ------------------------------------------------------------------------------

    def _evidence(
        self, run: RunRecord, attempt: AttemptRecord, exit_record: Mapping[str, Any] | None, ended_at: float
    ) -> Evidence:
        return collect(
            attempt_dir(self._workspace, run.run_id, attempt.number),
            exit=None if exit_record is None else ExitRecord.from_json(exit_record),
            launcher=run.spec.launcher,
            started_at=attempt.started_at,
            ended_at=ended_at,
            last_step=attempt.last_step,
            rebooted=attempt.shim is not None and attempt.shim.boot_id != boot_id(),
        )

    def _decide(self, run: RunRecord, attempt: AttemptRecord, incident: Incident, ended_at: float) -> Plan:
        try:
            policy = parse_policy(run.spec.recovery)
        except PolicyError as error:
            log.warning("%s: %s; the standard policy is used", run.run_id, error)
            policy = parse_policy({"policy": "standard"})
        folder = checkpoint_directory(run.spec, self._workspace.run_dir(run.run_id))
        checkpoints = (
            []
            if run.spec.checkpoints is None or folder is None
            else survey(folder, run.spec.checkpoints.pattern, wanted=CHECKPOINTS_LOOKED_AT)
        )
        begun_at = self._begun_by_a_person_at(run.run_id)
        return decide(
            incident,
            self._past_decisions(run.run_id, begun_at),
            self._progress(attempt, checkpoints, begun_at, ended_at),
            run.spec,
            run.params,
            policy,
            checkpoints,
            run_id=run.run_id,
            attempt=attempt.number,
        )

    def _begun_by_a_person_at(self, run_id: str) -> float:
        """When a person last set the run going: what recovery did before that no longer counts."""
        row = self._connection.execute(
            "SELECT max(at) FROM transitions WHERE run_id = ? AND to_state = ? AND actor <> 'agent'",
            (run_id, RunState.QUEUED),
        ).fetchone()
        return float(row[0] or 0.0)

    def _past_decisions(self, run_id: str, since: float) -> list[PastDecision]:
        rows = self._connection.execute(
            "SELECT d.attempt, i.kind, d.rung, d.verdict, d.actions, d.params, a.last_step FROM decisions AS d "
            "JOIN incidents AS i USING (incident_id) "
            "JOIN attempts AS a ON a.run_id = d.run_id AND a.number = d.attempt WHERE d.run_id = ? AND d.at >= ? ORDER BY d.decision_id",
            (run_id, since),
        ).fetchall()
        past, best = [], -1
        for number, kind, rung, verdict, actions, params, last_step in rows:
            progressed = last_step is not None and last_step > best
            best = max(best, -1 if last_step is None else last_step)
            applied = tuple(action["action"] for action in json.loads(actions) if action["applied"])
            past.append(PastDecision(number, kind, rung, verdict, progressed, bool(json.loads(params)), applied))
        return past

    def _progress(
        self, attempt: AttemptRecord, checkpoints: Sequence[CheckpointInfo], since: float, ended_at: float
    ) -> Progress:
        best, resumed_from = self._connection.execute(
            "SELECT (SELECT max(last_step) FROM attempts "
            "WHERE run_id = a.run_id AND number < a.number AND created_at >= ?), a.resumed_from FROM attempts AS a WHERE a.run_id = ? AND a.number = ?",
            (since, attempt.run_id, attempt.number),
        ).fetchone()
        began = attempt.started_at or attempt.created_at
        written = [info for info in checkpoints if info.valid and (info.modified_at or 0.0) >= began]
        return Progress(
            last_step=attempt.last_step,
            best_step_before=best,
            new_checkpoint=any((info.step or 0) > (attempt.resumed_step or -1) for info in written),
            resumed_from=resumed_from,
            resumed_step=attempt.resumed_step,
            started_at=attempt.started_at,
            ran_seconds=ended_at - began,
        )

    # --- rows -----------------------------------------------------------------------------------------------------

    def _drain_metrics(self, attempt: AttemptRecord) -> None:
        """Read what is left, and take the attempt's steps from the store: a killed agent may have stored lines
        without noting what they said of the attempt."""
        self._ingest.finish(attempt.run_id)
        first, last = self._connection.execute(
            "SELECT min(m.step), max(m.step) FROM metrics AS m JOIN metric_sources AS s USING (source_id) "
            "WHERE s.run_id = ? AND m.attempt = ?",
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

    def _note_survivors(self, run: RunRecord, survivors: list[int], now: float) -> None:
        listed = ", ".join(str(pid) for pid in survivors)
        repository.add_event(
            self._connection,
            f"processes {listed} cannot be killed; a hung driver is likely, and a reboot needed to get their GPUs back",
            now=now,
            severity="error",
            run_id=run.run_id,
        )
