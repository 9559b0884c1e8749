"""The end of an attempt in one transaction: its state, its incident, the decision, and the effects
of the decision."""

from __future__ import annotations

import json
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
from gputui.core.redaction import redact_text
from gputui.core.text import clean
from gputui.recovery.checkpoints.ledger import candidates
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
from gputui.runs.spec import Scalar, spec_of
from gputui.store.attempts import Attempt, get_attempt, read_attempts
from gputui.store.events import EventKind, Severity, has_event
from gputui.store.hardware import quarantine
from gputui.store.metrics.step_times import StepTimes
from gputui.store.run_history import read_decisions, read_incidents, read_transitions
from gputui.store.run_states import RunState
from gputui.store.runs import KILL, Run, get_run

KILLED = "killed because it did not stop in time"
UNSOUND = "its loss was no finite number since step"
# More exceptions of ranks that ended with code 0 are not named.
MOST_REMARKS = 3


def end_attempt(
    context: AgentContext,
    resolved: ResolvedRun,
    task: PostmortemTask,
    findings: PostmortemResult,
    machine: MachineContext | None = None,
) -> None:
    """Write an attempt's end and its consequences. Raises sqlite3.Error with nothing changed."""
    connection = context.connection
    run = get_run(connection, task.attempt.run_id)
    attempt = get_attempt(connection, task.attempt.run_id, task.attempt.number)
    assert run is not None and attempt is not None
    if task.survivors:
        _note_survivors(context, attempt, task.survivors)
    match outcome(findings.evidence, stop_intended=attempt.stop_requested is not None):
        case "stopped":
            _stopped(context, run, attempt, task, findings)
        case "succeeded":
            _succeeded(context, run, attempt, task, findings)
        case "failed":
            _failed(context, resolved, run, attempt, task, findings, machine)


def _stopped(
    context: AgentContext,
    run: Run,
    attempt: Attempt,
    task: PostmortemTask,
    findings: PostmortemResult,
) -> None:
    connection, record = context.connection, dict(task.exit_record or {})
    # A launcher that is asked to end kills ranks that exceed its own grace period.
    reports = reports_of(findings.evidence)
    forced = bool(record.get("forced")) or any(report.forced for report in reports)
    if record:
        record["forced"] = forced
    cause = repository.stop_reason_of_study(connection, run.run_id)
    if cause is None:
        cause = "stopped"
        if forced:
            cause = "killed" if attempt.stop_requested == KILL else KILLED
        cause += _lost_by_stop(context, run, attempt, task, findings)
    if (unsound := StepTimes(connection, run.run_id).unsound_since(attempt.number)) is not None:
        record["unsound_since"] = unsound[0]
        cause += f"; {UNSOUND} {units.count(unsound[0])}"
    with transaction(connection):
        _close(context, attempt, task, findings, "stopped", record)
        repository.move(connection, run, RunState.STOPPED, cause=cause, now=task.ended_at)
        context.note("stopped", cause, run.run_id, attempt.number, at=task.ended_at)
        spec = spec_of(run)
        if attempt.stop_requested == "restart":
            repository.set_gpu_count(connection, run.run_id, None)
            _requeue(context, run.run_id, "restart", dict(spec.params), None)
        is_phase = attempt.stop_requested == run_files.PHASE_INTENT
        following = run_files.next_phase(connection, spec, attempt) if is_phase else None
        if following is not None:
            params = {**run.params, **following.phase.params}
            _requeue(context, run.run_id, run_files.PHASE_INTENT, params, following.checkpoint)


def _requeue(
    context: AgentContext,
    run_id: str,
    cause: str,
    params: Mapping[str, Scalar],
    resume_from: str | None,
) -> None:
    """Queue a run that was stopped for this, by the clock of this machine."""
    repository.set_next_attempt(context.connection, run_id, params=params, resume_from=resume_from, not_before=None)
    stopped = get_run(context.connection, run_id)
    assert stopped is not None
    now = context.now()
    repository.move(context.connection, stopped, RunState.QUEUED, cause=cause, now=now)


def _lost_by_stop(
    context: AgentContext,
    run: Run,
    attempt: Attempt,
    task: PostmortemTask,
    findings: PostmortemResult,
) -> str:
    """The steps that a stop lost if no checkpoint can be resumed from, as the end of a sentence."""
    search, choice, last_step = task.checkpoints, findings.checkpoints, attempt.last_step
    if search is None or choice is None or last_step is None:
        return ""
    if candidates(choice.rows, search.attempts):
        return ""
    rows = read_attempts(context.connection, run.run_id)
    count = last_step - min(row.first_step for row in rows if row.first_step is not None) + 1
    steps = "1 step is" if count == 1 else f"{units.count(count)} steps are"
    where = f"{search.pattern} in {search.folder}"
    return f"; no usable checkpoint matches {where}, so that its {steps} lost"


def _succeeded(
    context: AgentContext,
    run: Run,
    attempt: Attempt,
    task: PostmortemTask,
    findings: PostmortemResult,
) -> None:
    connection, ended_at = context.connection, task.ended_at
    cause = "finished"
    if attempt.started_at is not None:
        # The time between its attempts does not count.
        trained = (run.ended_seconds or 0.0) + max(0.0, ended_at - attempt.started_at)
        cause += f" after {units.duration(trained)}"
    if attempt.number > 1:
        cause += f" in {attempt.number} attempts"
    record = dict(task.exit_record or {})
    remarks = printed_at_end(findings.evidence)[:MOST_REMARKS]
    if (unsound := StepTimes(connection, run.run_id).unsound_since(attempt.number)) is not None:
        record["unsound_since"] = unsound[0]
        remarks.append(f"{UNSOUND} {units.count(unsound[0])}")
    if left := [str(name) for name in record.get("left_behind") or ()]:
        which = clean(", ".join(dict.fromkeys(left)))
        count = "1 process" if len(left) == 1 else f"{len(left)} processes"
        remarks.append(f"gputui ended {count} that it left in the background ({which})")
    if remarks:
        record["remarks"] = remarks
        cause += f", but {'; '.join(remarks)}"
    severity: Severity = "warning" if remarks else "info"
    with transaction(connection):
        _close(context, attempt, task, findings, "succeeded", record)
        _settle_last_decision(context, run.run_id, "succeeded")
        repository.move(connection, run, RunState.SUCCEEDED, cause=cause, now=ended_at)
        context.note("succeeded", cause, run.run_id, attempt.number, severity=severity, at=ended_at)


def _failed(
    context: AgentContext,
    resolved: ResolvedRun,
    run: Run,
    attempt: Attempt,
    task: PostmortemTask,
    findings: PostmortemResult,
    machine: MachineContext | None,
) -> None:
    connection, incident = context.connection, findings.incident
    run_id, number, ended_at, now = run.run_id, attempt.number, task.ended_at, context.now()
    plan = _plan(context, resolved, run, attempt, findings, ended_at, machine)
    retries = plan.verdict == "retry"
    with transaction(connection):
        _close(context, attempt, task, findings, "failed", task.exit_record or {}, plan)
        _settle_last_decision(context, run_id, "met another incident")
        _write_rows(context, attempt, incident, plan, ended_at)
        context.note(
            "incident",
            incident.summary,
            run_id,
            number,
            key=incident.kind,
            severity="error",
            at=ended_at,
        )
        severity: Severity = "warning" if retries else "error"
        context.note("decision", plan.reason, run_id, number, key=plan.verdict, severity=severity)
        if retries:
            repository.set_next_attempt(
                connection,
                run_id,
                params=plan.params,
                resume_from=plan.resume_from,
                not_before=now + plan.delay_seconds,
            )
            repository.move(connection, run, RunState.RECOVERING, cause=incident.summary, now=now)
        else:
            is_stop = incident.kind == "stopped_outside"
            target = RunState.STOPPED if is_stop else RunState.FAILED
            cause = f"{incident.summary}; {plan.reason}"
            repository.move(connection, run, target, cause=cause, now=now)
        _take_effect(context, run_id, number, incident, plan)
        if plan.effect.notify or not retries:
            add_notices(context, resolved.notice, run, incident.kind, incident.summary, plan.reason, retries)
    archive = IncidentArchive(
        run_dir=context.workspace.run_dir(run_id),
        run_id=run_id,
        attempt=number,
        at=ended_at,
        gpus=tuple(attempt.gpus),
        evidence=findings.evidence,
        incident=incident,
        plan=plan,
        database=context.workspace.database,
    )
    start_archiving(archive, context.jobs)


def _plan(
    context: AgentContext,
    resolved: ResolvedRun,
    run: Run,
    attempt: Attempt,
    findings: PostmortemResult,
    ended_at: float,
    machine: MachineContext | None,
) -> RecoveryPlan:
    """What recovery decides, by the history of the run and its ledger."""
    connection, run_id, choice = context.connection, run.run_id, findings.checkpoints
    rows = () if choice is None else choice.rows
    attempts = read_attempts(connection, run_id)
    moves = read_transitions(connection, run_id)
    again = has_event(connection, "steps_restarted", run_id=run_id)
    incidents, decisions = read_incidents(connection, run_id), read_decisions(connection, run_id)
    past = past_decisions(attempts, incidents, decisions, moves, rows, steps_start_again=again)
    progress = progress_of(
        attempts,
        attempt.number,
        rows,
        moves,
        StepTimes(connection, run_id),
        ended_at=ended_at,
        steps_start_again=again,
    )
    return decide(
        findings.incident,
        past,
        progress,
        spec_of(run),
        run.params,
        resolved.policy,
        None if choice is None else choice.infos,
        run_id=run_id,
        attempt=attempt.number,
        machine=machine,
        unreadable=None if choice is None else choice.unreadable,
        doubted=None if choice is None else choice.doubted,
    )


# --- rows ---------------------------------------------------------------------------------------


def _close(
    context: AgentContext,
    attempt: Attempt,
    task: PostmortemTask,
    findings: PostmortemResult,
    state: str,
    record: Mapping[str, Any],
    plan: RecoveryPlan | None = None,
) -> None:
    """Write the end of the attempt and of its checkpoints, in the caller's transaction."""
    repository.end_attempt(
        context.connection,
        attempt.run_id,
        attempt.number,
        state=state,
        ended_at=task.ended_at,
        exit_record=record or None,
    )
    search, choice, missed = task.checkpoints, findings.checkpoints, findings.unmatched
    if search is None or choice is None:
        return
    checkpoint_survey.attempt_ended(
        context.connection,
        search,
        choice.rows if plan is None else tuple(plan.applied_to(choice.rows)),
        task.folder,
        is_seen=choice.is_seen,
        now=context.now(),
    )
    # Told once per run. An attempt that did not finish may have saved none yet, so that it counts
    # only if it saved files with a similar name.
    if missed is None or (state != "succeeded" and missed.lookalike is None):
        return
    kind: EventKind = "checkpoints_unmatched"
    key = search.pattern
    if has_event(context.connection, kind, run_id=attempt.run_id, key=key):
        return
    remedy = "see whether it saves any, and where"
    if missed.lookalike is not None:
        remedy = f"it saved {missed.lookalike}, which pattern: {missed.pattern} would match"
    text = f"no file matched its checkpoints {key} in {search.folder}: {remedy}"
    context.note(kind, text, attempt.run_id, attempt.number, key=key, severity="warning")


def _write_rows(context: AgentContext, attempt: Attempt, incident: Incident, plan: RecoveryPlan, at: float) -> None:
    cursor = context.connection.execute(
        "INSERT INTO incidents (run_id, attempt, at, kind, rank, step, summary, fingerprint, "
        "evidence, witnesses) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            attempt.run_id,
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
    context.connection.execute(
        "INSERT INTO decisions (incident_id, run_id, attempt, at, rung, verdict, actions, params, "
        "resume_from, delay_seconds, reason) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            cursor.lastrowid,
            attempt.run_id,
            attempt.number,
            context.now(),
            plan.rung,
            plan.verdict,
            json.dumps(plan.actions_json()),
            json.dumps(plan.changed),
            plan.resume_from,
            plan.delay_seconds,
            plan.reason,
        ),
    )


def _settle_last_decision(context: AgentContext, run_id: str, result: str) -> None:
    context.connection.execute(
        "UPDATE decisions SET outcome = ? WHERE outcome IS NULL AND verdict = 'retry' AND "
        "decision_id = (SELECT max(decision_id) FROM decisions WHERE run_id = ?)",
        (result, run_id),
    )


def _note_survivors(context: AgentContext, attempt: Attempt, survivors: Sequence[int]) -> None:
    """Report unkillable processes and the remedy."""
    pids = [str(pid) for pid in survivors]
    processes = "process " + pids[0] if len(pids) == 1 else "processes " + ", ".join(pids)
    remedy = "stuck in the kernel: a hung driver or disk is likely, and a reboot needed if it lasts"
    if all(is_of_another_user(pid) for pid in survivors):
        remedy = f"another user's, as sudo's are: sudo kill -9 {' '.join(pids)} ends them"
    held = "; the GPUs are held until then" if attempt.gpus else ""
    text = f"{processes} cannot be killed ({remedy}){held}"
    context.note("process_unkillable", text, attempt.run_id, attempt.number, severity="error")


def machine_context(
    context: AgentContext,
    resolved: ResolvedRun,
    attempt: Attempt,
    gpus: Sequence[GpuAvailability],
) -> MachineContext:
    """The state of the machine as input of a decision."""
    spec, run_dir = resolved.spec, context.workspace.run_dir(attempt.run_id)
    folder = checkpoint_directory(spec, run_dir)
    needed = spec.gpus.memory_bytes or 0
    # A run whose profile names its GPUs must not use others.
    others = [gpu for gpu in gpus if gpu.uuid not in attempt.gpus and not spec.gpus.uuids]
    spares = [
        gpu.uuid
        for gpu in others
        if not gpu.holders and gpu.blocked_by is None
        if gpu.free_bytes is None or gpu.free_bytes >= needed
    ]
    later = [gpu.uuid for gpu in others if not gpu.out_of_service and gpu.uuid not in spares]
    is_own = folder is None or folder.is_relative_to(run_dir)
    outside = "the checkpoints lie outside the run's folder, and may be another's"
    return MachineContext(
        gpus=attempt.gpus,
        spares=tuple(spares),
        later=tuple(later),
        notifies=resolved.notice is not None,
        no_pruning=None if is_own else outside,
    )


def _take_effect(context: AgentContext, run_id: str, number: int, incident: Incident, plan: RecoveryPlan) -> None:
    """Write the plan's effects on GPUs and on the next attempt."""
    connection, effect, now = context.connection, plan.effect, context.now()
    reason = f"{KINDS[incident.kind].title} under {run_id}"
    quarantine(connection, effect.quarantine, run_id=run_id, attempt=number, reason=reason, now=now)
    for uuid in effect.quarantine:
        repository.end_lease(connection, run_id, uuid)
        remedy = f"when it is well, gputui gpus --clear {uuid}"
        text = f"{uuid} is in quarantine: {reason}; {remedy}"
        context.note("gpu_quarantined", text, run_id, number, key=uuid, severity="error")
    if plan.verdict != "retry":
        return
    if incident.kind == SHARED_OOM:
        # It needs an exclusive GPU, and must not keep its shared one while it waits.
        repository.release_leases(connection, run_id)
    if effect.gpu_count is not None:
        repository.set_gpu_count(connection, run_id, effect.gpu_count)
    repository.take_leases(connection, run_id, effect.replacements, now)
    preconditions = [asdict(precondition) for precondition in effect.preconditions]
    repository.put_next_attempt(connection, run_id, env=effect.env, preconditions=preconditions, now=now)


def give_up(context: AgentContext, run: Run, reason: str) -> None:
    """End a run that cannot start (again) as failed, and send its notices. Raises sqlite3.Error."""
    notice, now = run_files.notice_of(context.workspace, run.run_id), context.now()
    incidents = read_incidents(context.connection, run.run_id)
    kind, summary = "unknown", "it could not be started"
    if incidents:
        kind, summary = incidents[-1].kind, incidents[-1].summary
    with transaction(context.connection) as connection:
        repository.move(connection, run, RunState.FAILED, cause=reason, now=now)
        repository.release_leases(connection, run.run_id)
        add_notices(context, notice, run, kind, summary, reason, False)
        context.note("failed", reason, run.run_id, severity="error")


def add_notices(
    context: AgentContext,
    notice: NoticeTarget | None,
    run: Run,
    kind: str,
    summary: str,
    reason: str,
    retries: bool,
) -> None:
    """Store a notification to send, in the transaction of its event."""
    if notice is None:
        return
    reason = redact_text(reason)
    targets: dict[Way, object] = {"command": notice.command, "webhook": notice.webhook}
    ways = [way for way, target in targets.items() if target]
    state = "continues" if retries else "stopped"
    message = {
        "text": f"{run.run_id} {state}: {summary}; {reason}",
        "run_id": run.run_id,
        "attempt": run.attempt,
        "kind": kind,
        "summary": summary,
        "verdict": "retry" if retries else "stop",
        "reason": reason,
        "at": context.now(),
    }
    notices.put(context.connection, run.run_id, run.attempt, ways, message, now=context.now())
