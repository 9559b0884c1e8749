"""The end of an attempt in one transaction: its state, its incident, the decision, and the effects of the decision."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import asdict

from gputui.agent.context import AgentContext
from gputui.agent.health.incident_folder import IncidentArchive, start_archiving
from gputui.agent.lifecycle import checkpoint_survey, run_files
from gputui.agent.lifecycle.active_run import PostmortemResult, PostmortemTask
from gputui.agent.lifecycle.run_files import ResolvedRun
from gputui.agent.lifecycle.scheduler import GpuAvailability
from gputui.core import units
from gputui.core.config import Workspace
from gputui.core.redaction import redact_text
from gputui.core.text import clean
from gputui.recovery.checkpoints.ledger import candidates
from gputui.recovery.checkpoints.search import CheckpointChoice, CheckpointSearch, UnmatchedPattern
from gputui.recovery.classify import Incident, outcome
from gputui.recovery.decide import RecoveryPlan, decide
from gputui.recovery.effects import MachineContext
from gputui.recovery.findings import printed_at_end, reports_of
from gputui.recovery.history import past_decisions, progress_of
from gputui.recovery.kinds import KINDS, SHARED_OOM
from gputui.recovery.policies import NoticeTarget
from gputui.runs import notices, repository
from gputui.runs.command import checkpoint_directory
from gputui.runs.identity import is_of_another_user
from gputui.runs.notices import Way
from gputui.runs.repository import transaction
from gputui.runs.spec import spec_of
from gputui.store.attempts import Attempt, get_attempt, read_attempts
from gputui.store.events import add_event, has_event
from gputui.store.hardware import quarantine
from gputui.store.metrics.step_times import StepTimes
from gputui.store.run_history import read_decisions, read_incidents, read_transitions
from gputui.store.run_states import RunState
from gputui.store.runs import KILL, Run, get_run

KILLED = "killed because it did not stop in time"
UNSOUND = "its loss was no finite number since step"
# More exceptions of ranks that ended with code 0 are not named.
MOST_REMARKS = 3


def current_rows(connection: sqlite3.Connection, attempt: Attempt) -> tuple[Run, Attempt]:
    """The run and the attempt as they are stored now. Raises sqlite3.Error."""
    run = get_run(connection, attempt.run_id)
    fresh = get_attempt(connection, attempt.run_id, attempt.number)
    assert run is not None and fresh is not None
    return run, fresh


class Ending:
    """Writes the end of attempts. Stateless, so that the successor of a killed agent repeats it."""

    def __init__(self, context: AgentContext, resolved: ResolvedRun) -> None:
        self.context = context
        self.resolved = resolved

    def attempt_ended(
        self, task: PostmortemTask, findings: PostmortemResult, machine: MachineContext | None = None
    ) -> None:
        """Write an attempt's end and its consequences. Raises sqlite3.Error with nothing changed."""
        run, attempt = current_rows(self.context.connection, task.attempt)
        if task.survivors:
            self._note_survivors(attempt, task.survivors, self.context.now())
        match outcome(findings.evidence, stop_intended=attempt.stop_requested is not None):
            case "stopped":
                self._stopped(run, attempt, task, findings)
            case "succeeded":
                self._succeeded(run, attempt, task, findings)
            case "failed":
                self._failed(run, attempt, task, findings, machine)

    # --- the three ends -------------------------------------------------------------------------------------------

    def _stopped(self, run: Run, attempt: Attempt, task: PostmortemTask, findings: PostmortemResult) -> None:
        ended_at = task.ended_at
        record = task.exit_record or {}
        # A launcher that is asked to end kills ranks that exceed its own grace period.
        forced = bool(record.get("forced")) or any(report.forced for report in reports_of(findings.evidence))
        cause = repository.stop_reason_of_study(self.context.connection, run.run_id)
        if cause is None:
            cause = "stopped" if not forced else "killed" if attempt.stop_requested == KILL else KILLED
            cause += self._lost_by_stop(run, attempt, task, findings)
        unsound = StepTimes(self.context.connection, run.run_id).unsound_since(attempt.number)
        if unsound is not None:
            record = {**record, "unsound_since": unsound[0]}
            cause += f"; {UNSOUND} {units.count(unsound[0])}"
        with transaction(self.context.connection) as connection:
            self._close(attempt, "stopped", ended_at, {**record, "forced": forced} if record else None)
            self._enter_checkpoints(task, findings)
            repository.move(connection, run, RunState.STOPPED, cause=cause, now=ended_at)
            add_event(connection, "stopped", cause, now=ended_at, run_id=run.run_id, attempt=attempt.number)
            if attempt.stop_requested == "restart":
                self._requeue_from_start(run)
            elif attempt.stop_requested == run_files.PHASE_INTENT:
                self._requeue_next_phase(run, attempt)

    def _lost_by_stop(self, run: Run, attempt: Attempt, task: PostmortemTask, findings: PostmortemResult) -> str:
        """The steps that a stop lost if no checkpoint can be resumed from, as the end of a sentence; else ''."""
        last_step = attempt.last_step
        if (
            spec_of(run).checkpoints is None
            or task.checkpoints is None
            or findings.checkpoints is None
            or last_step is None
        ):
            return ""
        if candidates(findings.checkpoints.rows, task.checkpoints.attempts):
            return ""
        first_step = min(
            row.first_step for row in read_attempts(self.context.connection, run.run_id) if row.first_step is not None
        )
        count = last_step - first_step + 1
        steps = "1 step is" if count == 1 else f"{units.count(count)} steps are"
        searched = f"{task.checkpoints.pattern} in {task.checkpoints.folder}"
        return f"; no usable checkpoint matches {searched}, so that its {steps} lost"

    def _requeue_from_start(self, run: Run) -> None:
        stopped = get_run(self.context.connection, run.run_id)
        assert stopped is not None
        repository.set_next_attempt(
            self.context.connection, run.run_id, params=dict(spec_of(run).params), resume_from=None, not_before=None
        )
        repository.set_gpu_count(self.context.connection, run.run_id, None)
        # Not the attempt's end, which is by the clock of the machine where it ran.
        now = self.context.now()
        repository.move(self.context.connection, stopped, RunState.QUEUED, cause="restart", now=now)

    def _requeue_next_phase(self, run: Run, attempt: Attempt) -> None:
        next_phase = run_files.next_phase(self.context.connection, spec_of(run), attempt)
        stopped = get_run(self.context.connection, run.run_id)
        assert stopped is not None
        if next_phase is None:
            # Its checkpoint was removed; gputui resume chooses another.
            return
        repository.set_next_attempt(
            self.context.connection,
            run.run_id,
            params={**run.params, **next_phase.phase.params},
            resume_from=next_phase.checkpoint,
            not_before=None,
        )
        now = self.context.now()
        repository.move(self.context.connection, stopped, RunState.QUEUED, cause=run_files.PHASE_INTENT, now=now)

    def _succeeded(self, run: Run, attempt: Attempt, task: PostmortemTask, findings: PostmortemResult) -> None:
        ended_at = task.ended_at
        cause = "finished"
        if attempt.started_at is not None:
            # The time between its attempts does not count.
            trained_seconds = (run.ended_seconds or 0.0) + max(0.0, ended_at - attempt.started_at)
            cause += f" after {units.duration(trained_seconds)}"
        if attempt.number > 1:
            cause += f" in {attempt.number} attempts"
        record = dict(task.exit_record or {})
        left = [str(name) for name in record.get("left_behind") or ()]
        remarks = printed_at_end(findings.evidence)[:MOST_REMARKS]
        unsound = StepTimes(self.context.connection, run.run_id).unsound_since(attempt.number)
        if unsound is not None:
            record["unsound_since"] = unsound[0]
            remarks.append(f"{UNSOUND} {units.count(unsound[0])}")
        if left:
            which = clean(", ".join(dict.fromkeys(left)))
            count = "1 process" if len(left) == 1 else f"{len(left)} processes"
            remarks.append(f"gputui ended {count} that it left in the background ({which})")
        if remarks:
            record["remarks"] = remarks
            cause += f", but {'; '.join(remarks)}"
        with transaction(self.context.connection) as connection:
            self._close(attempt, "succeeded", ended_at, record or None)
            self._enter_checkpoints(task, findings, is_whole=True)
            self._settle_last_decision(run.run_id, "succeeded")
            repository.move(connection, run, RunState.SUCCEEDED, cause=cause, now=ended_at)
            add_event(
                connection,
                "succeeded",
                cause,
                now=ended_at,
                severity="warning" if remarks else "info",
                run_id=run.run_id,
                attempt=attempt.number,
            )

    def _failed(
        self,
        run: Run,
        attempt: Attempt,
        task: PostmortemTask,
        findings: PostmortemResult,
        machine: MachineContext | None,
    ) -> None:
        ended_at = task.ended_at
        incident = findings.incident
        plan = self._decide(run, attempt, incident, findings.checkpoints, ended_at, machine)
        must_notify = plan.effect.notify or plan.verdict == "stop"
        notice = self.resolved.notice if must_notify else None
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
            add_notices(
                connection, notice, run, incident.kind, incident.summary, plan.reason, verdict=plan.verdict, now=now
            )
        start_archiving(
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
        machine: MachineContext | None,
    ) -> RecoveryPlan:
        rows = () if checkpoints is None else checkpoints.rows
        attempts = read_attempts(self.context.connection, run.run_id)
        transitions = read_transitions(self.context.connection, run.run_id)
        steps_start_again = has_event(self.context.connection, "steps_restarted", run_id=run.run_id)
        past = past_decisions(
            attempts,
            read_incidents(self.context.connection, run.run_id),
            read_decisions(self.context.connection, run.run_id),
            transitions,
            rows,
            steps_start_again=steps_start_again,
        )
        return decide(
            incident,
            past,
            progress_of(
                attempts,
                attempt.number,
                rows,
                transitions,
                StepTimes(self.context.connection, run.run_id),
                ended_at=ended_at,
                steps_start_again=steps_start_again,
            ),
            spec_of(run),
            run.params,
            self.resolved.policy,
            None if checkpoints is None else checkpoints.infos,
            run_id=run.run_id,
            attempt=attempt.number,
            machine=machine,
            unreadable=None if checkpoints is None else checkpoints.unreadable,
            doubted=None if checkpoints is None else checkpoints.doubted,
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

    def _enter_checkpoints(
        self,
        task: PostmortemTask,
        findings: PostmortemResult,
        plan: RecoveryPlan | None = None,
        *,
        is_whole: bool = False,
    ) -> None:
        if task.checkpoints is None or findings.checkpoints is None:
            return
        rows = findings.checkpoints.rows if plan is None else plan.applied_to(findings.checkpoints.rows)
        checkpoint_survey.attempt_ended(
            self.context.connection,
            task.checkpoints,
            tuple(rows),
            task.folder,
            is_seen=findings.checkpoints.is_seen,
            now=self.context.now(),
        )
        self._note_unmatched(task.checkpoints, findings.unmatched, task.attempt, is_whole=is_whole)

    def _note_unmatched(
        self, search: CheckpointSearch, unmatched: UnmatchedPattern | None, attempt: Attempt, *, is_whole: bool
    ) -> None:
        """Warn once per run that no file matches the profile's checkpoint pattern. An attempt that did not finish may
        have saved none yet, so that it counts only if it saved files with a similar name."""
        if unmatched is None or not (is_whole or unmatched.lookalike is not None):
            return
        if has_event(self.context.connection, "checkpoints_unmatched", run_id=attempt.run_id, key=search.pattern):
            return
        remedy = "see whether it saves any, and where"
        if unmatched.lookalike is not None:
            remedy = f"it saved {unmatched.lookalike}, which pattern: {unmatched.pattern} would match"
        add_event(
            self.context.connection,
            "checkpoints_unmatched",
            f"no file matched its checkpoints {search.pattern} in {search.folder}: {remedy}",
            now=self.context.now(),
            key=search.pattern,
            severity="warning",
            run_id=attempt.run_id,
            attempt=attempt.number,
        )

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
        """Report unkillable processes and the remedy."""
        pids = [str(pid) for pid in survivors]
        processes = "process " + pids[0] if len(pids) == 1 else "processes " + ", ".join(pids)
        if all(is_of_another_user(pid) for pid in survivors):
            remedy = f"another user's, as sudo's are: sudo kill -9 {' '.join(pids)} ends them"
        else:
            remedy = "stuck in the kernel: a hung driver or disk is likely, and a reboot needed if it lasts"
        held = "; the GPUs are held until then" if attempt.gpus else ""
        add_event(
            self.context.connection,
            "process_unkillable",
            f"{processes} cannot be killed ({remedy}){held}",
            now=now,
            severity="error",
            run_id=attempt.run_id,
            attempt=attempt.number,
        )


def machine_context(
    workspace: Workspace, resolved: ResolvedRun, attempt: Attempt, gpus: Sequence[GpuAvailability]
) -> MachineContext:
    """The state of the machine as input of a decision."""
    spec, run_dir = resolved.spec, workspace.run_dir(attempt.run_id)
    folder = checkpoint_directory(spec, run_dir)
    needed = spec.gpus.memory_bytes
    spares = [
        gpu.uuid
        for gpu in gpus
        if not gpu.holders
        and gpu.blocked_by is None
        and gpu.uuid not in attempt.gpus
        and (needed is None or gpu.free_bytes is None or gpu.free_bytes >= needed)
    ]
    usable_later = [
        gpu.uuid for gpu in gpus if not gpu.out_of_service and gpu.uuid not in attempt.gpus and gpu.uuid not in spares
    ]
    return MachineContext(
        gpus=attempt.gpus,
        # A run whose profile names its GPUs must not use others.
        spares=() if spec.gpus.uuids else tuple(spares),
        later=() if spec.gpus.uuids else tuple(usable_later),
        notifies=resolved.notice is not None,
        no_pruning=None
        if folder is None or folder.is_relative_to(run_dir)
        else "the checkpoints lie outside the run's folder, and may be another's",
    )


def take_effect(
    connection: sqlite3.Connection,
    run: Run,
    attempt: Attempt,
    incident: Incident,
    plan: RecoveryPlan,
    now: float,
) -> None:
    """Write the plan's effects on GPUs and on the next attempt, in the transaction of the decision."""
    effect = plan.effect
    reason = f"{KINDS[incident.kind].title} under {run.run_id}"
    quarantine(connection, effect.quarantine, run_id=run.run_id, attempt=attempt.number, reason=reason, now=now)
    for uuid in effect.quarantine:
        connection.execute("DELETE FROM leases WHERE gpu_uuid = ? AND run_id = ?", (uuid, run.run_id))
        add_event(
            connection,
            "gpu_quarantined",
            f"{uuid} is in quarantine: {reason}; when it is well, gputui gpus --clear {uuid}",
            now=now,
            key=uuid,
            severity="error",
            run_id=run.run_id,
            attempt=attempt.number,
        )
    if plan.verdict == "retry":
        if incident.kind == SHARED_OOM:
            # It needs an exclusive GPU, and must not keep its shared one while it waits.
            repository.release_leases(connection, run.run_id)
        if effect.gpu_count is not None:
            repository.set_gpu_count(connection, run.run_id, effect.gpu_count)
        repository.take_leases(connection, run.run_id, effect.replacements, now)
        repository.put_next_attempt(
            connection,
            run.run_id,
            env=effect.env,
            preconditions=[asdict(precondition) for precondition in effect.preconditions],
            now=now,
        )


def add_notices(
    connection: sqlite3.Connection,
    notice: NoticeTarget | None,
    run: Run,
    kind: str,
    summary: str,
    reason: str,
    *,
    verdict: str,
    now: float,
) -> None:
    """Store a notification to send, in the transaction of its event."""
    if notice is None:
        return
    state_words = "continues" if verdict == "retry" else "stopped"
    reason = redact_text(reason)
    targets: dict[Way, object] = {"command": notice.command, "webhook": notice.webhook}
    ways = [way for way, target in targets.items() if target]
    message = {
        "text": f"{run.run_id} {state_words}: {summary}; {reason}",
        "run_id": run.run_id,
        "attempt": run.attempt,
        "kind": kind,
        "summary": summary,
        "verdict": verdict,
        "reason": reason,
        "at": now,
    }
    notices.put(connection, run.run_id, run.attempt, ways, message, now=now)
