"""The end of an attempt in one transaction: its state, its incident, the decision, and the effects
of the decision."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec.structs import asdict, replace

from gputui.agent.context import AgentContext
from gputui.agent.health import incident_folder
from gputui.agent.lifecycle import checkpoint_survey, run_files
from gputui.agent.lifecycle.live_attempt import PostmortemResult, PostmortemTask
from gputui.core import units
from gputui.core.config import Workspace
from gputui.core.text import clean
from gputui.recovery.checkpoints.resumable import Rows, candidates
from gputui.recovery.checkpoints.search import CheckpointSearch
from gputui.recovery.classify import outcome
from gputui.recovery.decide import decide, reason_of_end
from gputui.recovery.effects import MachineContext
from gputui.recovery.findings import reports_of
from gputui.recovery.kinds import KINDS, SHARED_OOM
from gputui.recovery.past_decisions import past_decisions, progress_of, without_unsound_steps
from gputui.recovery.plans import FailedAttempt, RecoveryPlan
from gputui.recovery.process_ends import printed_at_end
from gputui.recovery.run_history import RunHistory
from gputui.runs import repository
from gputui.runs.checkpoint_names import step_words
from gputui.runs.command import checkpoint_directory
from gputui.runs.identity import is_of_another_user
from gputui.runs.scheduler import GpuAvailability
from gputui.runs.spec import Scalar
from gputui.runs.stored_spec import spec_of
from gputui.runs.submission import write_private
from gputui.store.attempts import Attempt, get_attempt
from gputui.store.database import StoreError
from gputui.store.events import EventKind, NewEvent, Severity, add_event, has_event
from gputui.store.hardware import quarantine_failed
from gputui.store.metrics.intake import short_of
from gputui.store.metrics.losses import last_sound_step, unsound_since
from gputui.store.metrics.step_lines import StepLines
from gputui.store.run_history import NewIncident, put_incident, read_transitions
from gputui.store.run_states import RunState
from gputui.store.runs import KILL, PHASE_OVER, TIME_OVER, Run, get_run

log = logging.getLogger(__name__)

# The deadline of writing the evidence.
KEEP_SECONDS = 600.0
KILLED = "killed because it did not stop in time"
# More exceptions of ranks that ended with code 0 are not named.
MOST_REMARKS = 3


def end_attempt(
    context: AgentContext, task: PostmortemTask, findings: PostmortemResult, machine: MachineContext | None = None
) -> None:
    """Write an attempt's end and its consequences. Raises sqlite3.Error with nothing changed."""
    run = get_run(context.connection, task.attempt.run_id)
    attempt = get_attempt(context.connection, task.attempt.run_id, task.attempt.number)
    assert run is not None
    assert attempt is not None
    end = _End(context, task, findings, run, attempt)
    if task.survivors:
        _note_survivors(end)
    match outcome(findings.evidence, stop_intended=attempt.stop_requested is not None):
        case "stopped":
            _write_stop(end)
        case "succeeded":
            early_end = end.short_of()
            if early_end is None:
                _write_success(end)
            else:
                step, total = early_end
                _write_early_end(end, step, total)
        case "failed":
            _write_failure(end, machine)


@dataclass(frozen=True, slots=True)
class _End:
    """The end of an attempt, with its rows before it."""

    context: AgentContext
    task: PostmortemTask
    findings: PostmortemResult
    run: Run
    attempt: Attempt

    def note(
        self, kind: EventKind, text: str, severity: Severity = "info", key: str | None = None, at: float | None = None
    ) -> None:
        """Add an event of the attempt."""
        now = self.context.now()
        if at is not None:
            now = at
        run_id = self.attempt.run_id
        number = self.attempt.number
        connection = self.context.connection
        event = NewEvent(kind, text, key=key, severity=severity, run_id=run_id, attempt=number)
        add_event(connection, event, now=now)

    def move(self, target: RunState, cause: str, now: float) -> None:
        repository.move(self.context.connection, self.run, target, cause=cause, now=now)

    def unsound_step(self) -> int | None:
        """The first step since which the loss was no finite number, until the end."""
        line = unsound_since(self._lines, self.attempt.number)
        if line is None:
            return None
        return line.step

    def unsound_remark(self, unsound_step: int) -> str:
        """A remark on a loss that was no finite number since a step."""
        if self.was_ever_sound():
            return f"its loss was no finite number since step {units.count(unsound_step)}"
        return "no loss of this training was a finite number, so that no checkpoint was struck off for it"

    def short_of(self) -> tuple[int, int] | None:
        """The last step and the steps in all, if the attempt ended far below them.

        None of a trial, whose study judges what it reported, and of a phase, which is a part of the steps.
        """
        if self.run.study_id is not None or spec_of(self.run).phases:
            return None
        return short_of(self.context.connection, self.run.run_id, self.attempt.number)

    def was_ever_sound(self) -> bool:
        """Return whether any attempt so far had a finite loss."""
        attempts = range(1, self.attempt.number + 1)
        return any(last_sound_step(self._lines, number) is not None for number in attempts)

    @property
    def _lines(self) -> StepLines:
        return StepLines(self.context.connection, self.run.run_id)


def _write_stop(end: _End) -> None:
    attempt = end.attempt
    record = dict(end.task.exit_record or {})
    connection = end.context.connection
    ended_at = end.task.ended_at
    # A launcher that is asked to end kills ranks that exceed its own grace period.
    reports = reports_of(end.findings.evidence)
    forced = bool(record.get("forced")) or any(report.forced for report in reports)
    if record:
        record["forced"] = forced
    cause = repository.stop_reason_of_study(connection, end.run.run_id)
    if cause is None:
        cause = _stop_cause(end, record, forced=forced)
    unsound_step = end.unsound_step()
    if unsound_step is not None:
        record["unsound_since"] = unsound_step
        cause += f"; {end.unsound_remark(unsound_step)}"
    with repository.transaction(connection):
        _close(end, "stopped", record)
        end.move(RunState.STOPPED, cause, ended_at)
        end.note("stopped", _stop_text(end, cause), at=ended_at)
        if attempt.stop_requested == "restart":
            _restart(end)
        elif attempt.stop_requested == PHASE_OVER:
            _begin_next_phase(end)


def _stop_cause(end: _End, record: Mapping[str, Any], *, forced: bool) -> str:
    """The cause of a stop that no study has given a reason for."""
    if record.get("given_up"):
        return _given_up_text(record)
    cause = "stopped"
    if forced:
        cause = KILLED
    if forced and end.attempt.stop_requested == KILL:
        cause = "killed"
    return cause + _limit_text(end) + _lost_steps_text(end)


def _restart(end: _End) -> None:
    """Queue a run anew that was stopped to be restarted, as its specification says."""
    connection = end.context.connection
    run_id = end.run.run_id
    repository.set_gpu_count(connection, run_id, count=None)
    params = spec_of(end.run).params
    _queue_again(end, params, resume_from=None, cause="restart", actor=_stop_actor(connection, run_id))


def _begin_next_phase(end: _End) -> None:
    """Queue a run for its next phase, if it has one."""
    spec = spec_of(end.run)
    following = run_files.next_phase(end.context.connection, spec, end.attempt)
    if following is not None:
        phase_number, checkpoint = following
        params = {**end.run.params, **spec.phases[phase_number - 1].params}
        _queue_again(end, params, checkpoint, cause=PHASE_OVER, actor="agent")


def _stop_text(end: _End, cause: str) -> str:
    """The cause with who stopped the run and the checkpoint that a resume would go on from, for its event."""
    connection = end.context.connection
    search = end.task.checkpoints
    choice = end.findings.checkpoints
    if end.attempt.stop_requested not in ("stop", KILL) or not cause.startswith("stopped"):
        return cause
    text = cause.replace("stopped", f"stopped by {_stop_actor(connection, end.run.run_id)}", 1)
    if search is None or choice is None:
        return text
    usable = candidates(choice.rows, search.attempts)
    if usable and usable[0].step is not None:
        text += f"; it can go on from {step_words(usable[0].name, usable[0].step)}"
    return text


def _limit_text(end: _End) -> str:
    """The run's time limit if that is why it was stopped, as the end of a sentence."""
    limit_seconds = spec_of(end.run).time_limit_seconds
    if limit_seconds is None or end.attempt.stop_requested != TIME_OVER:
        return ""
    return f" at its time limit of {units.duration(limit_seconds)}"


def _given_up_text(record: Mapping[str, Any]) -> str:
    """The end of an attempt whose runner stopped asking an unreachable target."""
    job = "its job"
    if record.get("job"):
        job = f"job {record['job']}"
    return f"given up: {record['target']} did not answer ({record['given_up']}), where {job} may still run"


def _stop_actor(connection: sqlite3.Connection, run_id: str) -> str:
    """The actor of a run's last stop."""
    moves = reversed(read_transitions(connection, run_id))
    return next((move.actor for move in moves if move.to_state == RunState.STOPPING), "agent")


def _queue_again(end: _End, params: Mapping[str, Scalar], resume_from: str | None, *, cause: str, actor: str) -> None:
    """Queue a run that was stopped for this, by the clock of this machine."""
    connection = end.context.connection
    run_id = end.run.run_id
    now = end.context.now()
    repository.replace_next_attempt(connection, run_id, params=params, resume_from=resume_from)
    stopped = get_run(connection, run_id)
    assert stopped is not None
    repository.move(connection, stopped, RunState.QUEUED, cause=cause, actor=actor, now=now)


def _lost_steps_text(end: _End) -> str:
    """The steps that a stop lost if no checkpoint can be resumed from, as the end of a sentence."""
    search = end.task.checkpoints
    choice = end.findings.checkpoints
    last_step = end.attempt.last_step
    if search is None or choice is None or last_step is None:
        return ""
    if candidates(choice.rows, search.attempts):
        return ""
    # How many they are is unknown: a script may report every tenth.
    steps = f"its steps up to {units.count(last_step)} are lost"
    return f"; there is no usable checkpoint {search.words}, so that {steps}"


def _write_success(end: _End) -> None:
    ended_at = end.task.ended_at
    record = dict(end.task.exit_record or {})
    remarks = printed_at_end(end.findings.evidence)[:MOST_REMARKS]
    unsound_step = end.unsound_step()
    if unsound_step is not None:
        record["unsound_since"] = unsound_step
        remarks.append(end.unsound_remark(unsound_step))
    leftovers = [str(name) for name in record.get("left_behind") or ()]
    if leftovers:
        count = units.count_of(len(leftovers), "process")
        names = clean(", ".join(dict.fromkeys(leftovers)))
        remarks.append(f"gputui ended {count} that it left in the background ({names})")
    cause = _success_text(end)
    severity: Severity = "info"
    if remarks:
        record["remarks"] = remarks
        cause += f", but {'; '.join(remarks)}"
        severity = "warning"
    with repository.transaction(end.context.connection):
        _close(end, "succeeded", record)
        _set_last_outcome(end, "succeeded")
        end.move(RunState.SUCCEEDED, cause, ended_at)
        end.note("succeeded", cause, severity, at=ended_at)


def _success_text(end: _End) -> str:
    """``finished after 2 h 10 min in 3 attempts``."""
    attempt = end.attempt
    text = "finished"
    if attempt.started_at is not None:
        # The time between its attempts does not count.
        measured = replace(attempt, exit=end.task.exit_record).ran_seconds(end.task.ended_at)
        trained = (end.run.ended_seconds or 0.0) + (measured or 0.0)
        text += f" after {units.duration(trained)}"
    if attempt.number > 1:
        text += f" in {attempt.number} attempts"
    return text


def _write_early_end(end: _End, step: int, total: int) -> None:
    """Write the end of an attempt that ended well by itself, but far below its steps: something
    asked it to end, or its own condition did."""
    record = dict(end.task.exit_record or {})
    ended_at = end.task.ended_at
    record["short_of"] = [step, total]
    try:
        # For the case that the database is lost.
        write_private(end.task.folder / run_files.EARLY_FILE, {"short_of": [step, total]})
    except OSError as error:
        log.warning("%s: %s", end.task.folder / run_files.EARLY_FILE, error)
    cause = f"ended early with exit code 0, at step {units.count(step)} of {units.count(total)}"
    with repository.transaction(end.context.connection):
        _close(end, "stopped", record)
        _set_last_outcome(end, "ended early")
        end.move(RunState.STOPPED, cause, ended_at)
        end.note("stopped", cause, "warning", at=ended_at)


def _write_failure(end: _End, machine: MachineContext | None) -> None:
    incident = end.findings.incident
    failed = _failed_attempt(end, machine)
    plan = decide(failed)
    unsound_step = end.unsound_step()
    if unsound_step is not None and not end.was_ever_sound():
        plan = replace(plan, reason=f"{plan.reason}; {end.unsound_remark(unsound_step)}")
    severity: Severity = "warning" if plan.verdict == "retry" else "error"
    with repository.transaction(end.context.connection):
        _close(end, "failed", end.task.exit_record or {}, plan)
        _set_last_outcome(end, "met another incident")
        _put_incident(end, plan)
        end.note("incident", incident.summary, "error", incident.kind, end.task.ended_at)
        end.note("decision", plan.reason, severity, plan.verdict)
        if plan.verdict == "retry":
            _recover(end, plan)
        else:
            target = RunState.STOPPED if incident.kind == "stopped_outside" else RunState.FAILED
            end.move(target, reason_of_end(failed, plan), end.task.ended_at)
        _take_effect(end, plan)
    work = partial(_keep_evidence, end.context.workspace, end.task, end.findings, plan)
    end.context.jobs.start(f"keeping the evidence of {end.run.run_id}", work, deadline_seconds=KEEP_SECONDS)


def _recover(end: _End, plan: RecoveryPlan) -> None:
    """Let the run wait for its next attempt, as planned."""
    now = end.context.now()
    repository.set_next_attempt(
        end.context.connection,
        end.run.run_id,
        params=plan.params,
        resume_from=plan.resume_from,
        not_before=now + plan.delay_seconds,
    )
    end.move(RunState.RECOVERING, end.findings.incident.summary, now)


def _keep_evidence(workspace: Workspace, task: PostmortemTask, findings: PostmortemResult, plan: RecoveryPlan) -> None:
    try:
        incident_folder.write(workspace, task, findings, plan)
    except (OSError, StoreError, sqlite3.Error) as error:
        message = "%s: the evidence of attempt %d is incomplete: %s"
        log.warning(message, task.attempt.run_id, task.attempt.number, error)


def _failed_attempt(end: _End, machine: MachineContext | None) -> FailedAttempt:
    """The input of the decision, from the history of the run and its ledger."""
    connection = end.context.connection
    run_id = end.run.run_id
    number = end.attempt.number
    choice = end.findings.checkpoints
    rows: Rows = choice.rows if choice is not None else ()
    stored = RunHistory.read(connection, end.run)
    sound_attempts = without_unsound_steps(stored.attempts, stored.lines)
    history = stored._replace(attempts=sound_attempts, checkpoints=list(rows))
    again = has_event(connection, "steps_restarted", run_id=run_id)
    progress = progress_of(history, number, ended_at=end.task.ended_at, steps_start_again=again)
    failed = FailedAttempt(
        run_id=run_id,
        number=number,
        incident=end.findings.incident,
        reach=progress,
        spec=spec_of(end.run),
        params=end.run.params,
        policy=end.task.resolved.policy,
        history=past_decisions(history, steps_start_again=again),
        checkpoints=None,
        machine=machine or MachineContext(),
    )
    if choice is None:
        return failed
    return replace(failed, checkpoints=choice.infos, unreadable=choice.unreadable, doubted=choice.doubted)


def machine_context(context: AgentContext, task: PostmortemTask, gpus: Sequence[GpuAvailability]) -> MachineContext:
    """The state of the machine as input of a decision."""
    spec = task.resolved.spec
    attempt = task.attempt
    run_dir = context.workspace.run_dir(attempt.run_id)
    folder = checkpoint_directory(spec, run_dir)
    needed = spec.gpus.memory_bytes or 0
    others: list[GpuAvailability] = []
    if not spec.gpus.uuids:  # a run whose profile names its GPUs must not use others
        others = [gpu for gpu in gpus if gpu.uuid not in attempt.gpus]
    unused = [gpu for gpu in others if not gpu.holders and gpu.blocked_by is None]
    spares = [gpu.uuid for gpu in unused if gpu.free_bytes is None or gpu.free_bytes >= needed]
    later = [gpu.uuid for gpu in others if not gpu.out_of_service and gpu.uuid not in spares]
    no_pruning = None
    if folder is not None and not folder.is_relative_to(run_dir):
        no_pruning = "the checkpoints lie outside the run's folder, and may be another's"
    return MachineContext(
        gpus=attempt.gpus,
        spares=tuple(spares),
        later=tuple(later),
        no_pruning=no_pruning,
    )


def _close(end: _End, state: str, record: Mapping[str, Any], plan: RecoveryPlan | None = None) -> None:
    """Write the end of the attempt and of its checkpoints, in the caller's transaction."""
    connection = end.context.connection
    attempt = end.attempt
    task = end.task
    repository.end_attempt(
        connection, attempt.run_id, attempt.number, state=state, ended_at=task.ended_at, exit_record=record or None
    )
    search = task.checkpoints
    choice = end.findings.checkpoints
    if search is None or choice is None:
        return
    rows = choice.rows
    if plan is not None:
        rows = tuple(plan.applied_to(rows))
    now = end.context.now()
    checkpoint_survey.attempt_ended(connection, search, rows, task.folder, is_seen=choice.is_seen, now=now)
    _note_unmatched(end, search, has_succeeded=state == "succeeded")


def _note_unmatched(end: _End, search: CheckpointSearch, *, has_succeeded: bool) -> None:
    """Tell once per run that no file matched the pattern of its checkpoints.

    An attempt that did not finish may have saved none yet, so that it counts only if it saved files with a similar
    name.
    """
    missed = end.findings.unmatched
    if missed is None or (missed.lookalike is None and not has_succeeded):
        return
    if has_event(end.context.connection, "checkpoints_unmatched", run_id=end.run.run_id, key=search.pattern):
        return
    remedy = "see whether it saves any, and where"
    if missed.lookalike is not None:
        remedy = f"it saved {missed.lookalike}, which pattern: {missed.pattern} would match"
    text = f"no file matched its checkpoints {search.pattern} in {search.folder}: {remedy}"
    end.note("checkpoints_unmatched", text, "warning", search.pattern)


def _put_incident(end: _End, plan: RecoveryPlan) -> None:
    incident = end.findings.incident
    step = end.attempt.last_step if incident.step is None else incident.step
    new = NewIncident(
        run_id=end.run.run_id,
        attempt=end.attempt.number,
        at=end.task.ended_at,
        kind=incident.kind,
        rank=incident.rank,
        step=step,
        summary=incident.summary,
        fingerprint=incident.fingerprint,
        evidence=incident.evidence_lines,
        witnesses=incident.witnesses,
        decided_at=end.context.now(),
        rung=plan.rung,
        verdict=plan.verdict,
        actions=plan.actions_json(),
        changed=plan.changed,
        resume_from=plan.resume_from,
        delay_seconds=plan.delay_seconds,
        reason=plan.reason,
    )
    put_incident(end.context.connection, new)


def _set_last_outcome(end: _End, result: str) -> None:
    """Say of the run's last retry what came of it."""
    end.context.connection.execute(
        "UPDATE decisions SET outcome = ? WHERE outcome IS NULL AND verdict = 'retry' AND "
        "decision_id = (SELECT max(decision_id) FROM decisions WHERE run_id = ?)",
        (result, end.run.run_id),
    )


def _note_survivors(end: _End) -> None:
    """Report unkillable processes and the remedy."""
    pids = [str(pid) for pid in end.task.survivors]
    noun = "processes" if len(pids) > 1 else "process"
    processes = f"{noun} {', '.join(pids)}"
    remedy = "stuck in the kernel: a hung driver or disk is likely, and a reboot needed if it lasts"
    if all(is_of_another_user(pid) for pid in end.task.survivors):
        remedy = f"another user's, as sudo's are: sudo kill -9 {' '.join(pids)} ends them"
    text = f"{processes} cannot be killed ({remedy})"
    if end.attempt.gpus:
        text += "; the GPUs are held until then"
    end.note("process_unkillable", text, "error")


def _take_effect(end: _End, plan: RecoveryPlan) -> None:
    """Write the plan's effects on GPUs and on the next attempt."""
    connection = end.context.connection
    effect = plan.effect
    now = end.context.now()
    run_id = end.run.run_id
    kind = end.findings.incident.kind
    _quarantine(end, effect.quarantine, now)
    if plan.verdict != "retry":
        return
    if kind == SHARED_OOM:
        # It needs an exclusive GPU, and must not keep its shared one while it waits.
        repository.release_leases(connection, run_id)
    if effect.gpu_count is not None:
        repository.set_gpu_count(connection, run_id, effect.gpu_count)
    repository.take_leases(connection, run_id, effect.replacements, now)
    preconditions = [asdict(precondition) for precondition in effect.preconditions]
    repository.put_next_attempt(connection, run_id, env=effect.env, preconditions=preconditions, now=now)


def _quarantine(end: _End, uuids: Sequence[str], now: float) -> None:
    """Put GPUs in quarantine for the incident; the run returns them."""
    connection = end.context.connection
    run_id = end.run.run_id
    reason = KINDS[end.findings.incident.kind].title
    quarantine_failed(connection, uuids, run_id, end.attempt.number, reason=reason, now=now)
    for uuid in uuids:
        repository.end_lease(connection, run_id, uuid)
        remedy = f"when it is well, gputui gpus --clear {uuid}"
        end.note("gpu_quarantined", f"{uuid} is in quarantine: {reason}, under {run_id}; {remedy}", "error", uuid)


def give_up(context: AgentContext, run: Run, reason: str) -> None:
    """End a run that cannot start (again) as failed. Raises sqlite3.Error."""
    with repository.transaction(context.connection) as connection:
        repository.move(connection, run, RunState.FAILED, cause=reason, now=context.now())
        repository.release_leases(connection, run.run_id)
        context.note("failed", reason, run.run_id, severity="error")
