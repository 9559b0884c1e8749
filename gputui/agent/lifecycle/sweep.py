"""The phase Sweeping: after the executor's end, kill leftover processes and read all metrics, before the postmortem."""

from __future__ import annotations

from gputui.agent.context import AgentContext
from gputui.agent.lifecycle.active_run import LiveAttempt, Postmortem, Sweeping
from gputui.agent.lifecycle.attempt_launch import attempt_dir, read_record
from gputui.agent.lifecycle.execution import note_report
from gputui.agent.lifecycle.postmortem import begin_postmortem, evidence_to_read
from gputui.agent.lifecycle.run_files import resolved_run
from gputui.metrics.batch import IngestReport
from gputui.store.attempts import get_attempt
from gputui.store.runs import get_run

# The sampler reads once a second by default, and needs time to start.
READING_SECONDS = 5.0


def step(attempt: LiveAttempt, phase: Sweeping, context: AgentContext, *, read_until: float) -> Sweeping | Postmortem:
    """Kill leftover processes, read metrics until ``read_until`` (monotonic), and await another sample of the GPUs.
    Return Postmortem when all is done. Raises SpecError if the run's specification cannot be read, and
    sqlite3.Error."""
    # Finish reading first: scanning for processes is expensive.
    if phase.is_reading_rest and not _read_rest(attempt, phase, context, read_until):
        return phase
    record = attempt.record
    exit_record = read_record(attempt_dir(context.workspace, record.run_id, record.number) / "exit.json")
    attempt.executor.release()
    run_dir = context.workspace.run_dir(record.run_id)
    identities = [
        process.identity for process in attempt.executor.kind.processes(context.scanner.scan(), run_dir, record)
    ]
    # The executor has already sent SIGKILL to its survivors.
    survivors = (exit_record or {}).get("survivors")
    given_up = survivors if isinstance(survivors, list) else []
    if any(process.pid not in given_up for process in identities) and not phase.end_leftovers(
        identities, context.monotonic()
    ):
        return phase
    has_failed = exit_record is None or exit_record.get("code") != 0
    if record.gpus and has_failed and not _gpus_were_read(attempt, phase, context):
        return phase
    # From here on, no process can write more.
    if not _read_rest(attempt, phase, context, read_until):
        return phase
    if attempt.resolved is None:
        run = get_run(context.connection, record.run_id)
        assert run is not None
        attempt.resolved = resolved_run(context.workspace, run)
    pids = [process.pid for process in identities]
    task = evidence_to_read(context, attempt.resolved, record, attempt.executor.kind, exit_record, pids)
    return begin_postmortem(phase, task, context)


def _read_rest(attempt: LiveAttempt, phase: Sweeping, context: AgentContext, read_until: float) -> bool:
    """Store the rest of the attempt's metrics; True if nothing is left."""
    report = _rest(context, attempt.record.run_id, max(0.0, read_until - context.monotonic()))
    phase.is_reading_rest = report.more
    return not report.more and not report.awaits


def _gpus_were_read(attempt: LiveAttempt, phase: Sweeping, context: AgentContext) -> bool:
    """Whether the GPUs were sampled after an unrequested end, or READING_SECONDS have passed because the driver hangs.
    A GPU that was lost together with the attempt is its cause."""
    if phase.ended_at is None:
        fresh = get_attempt(context.connection, attempt.record.run_id, attempt.record.number)
        if fresh is not None and fresh.stop_requested is not None:
            return True
        phase.ended_at, phase.ended_clock = context.now(), context.monotonic()
    # A sample from the future was taken before the clock was set back.
    was_read = phase.ended_at < context.recorder.fast_at <= context.now()
    return was_read or context.monotonic() - phase.ended_clock >= READING_SECONDS


def read_rest(context: AgentContext, run_id: str, budget_seconds: float) -> bool:
    """Store the rest of an ended run's metrics within a budget; True if nothing is left. Raises sqlite3.Error."""
    report = _rest(context, run_id, budget_seconds)
    return not report.more and not report.awaits


def _rest(context: AgentContext, run_id: str, budget_seconds: float) -> IngestReport:
    report = context.ingest.finish(run_id, budget_seconds=budget_seconds)
    note_report(context.connection, report, context.now())
    return report
