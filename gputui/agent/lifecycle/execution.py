"""Starting and Running: the executor of an attempt lives, or is believed to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gputui.agent.context import AgentContext
from gputui.agent.lifecycle.active_run import Adopting, LiveAttempt, Phase, Running, Starting, Sweeping
from gputui.agent.lifecycle.attempt_launch import attempt_dir, read_record
from gputui.runs import repository
from gputui.runs.foreign_json import time_in
from gputui.runs.logs import rank_logs
from gputui.runs.repository import transaction
from gputui.store import placements
from gputui.store.events import add_event
from gputui.store.placements import PlacementView
from gputui.store.run_states import RunState
from gputui.store.runs import get_attempt, get_run

# A command without steps counts as running once it has lived so long and written something; a silent one later.
ALIVE_SECONDS = 5.0
SILENT_SECONDS = 60.0
ALIVE_LOOK_SECONDS = 1.0
# A replaceable executor is started again this long after it was, at the earliest.
REPLACE_SECONDS = 5.0


def step(attempt: LiveAttempt, phase: Starting | Running, context: AgentContext) -> Phase:
    """Note that the command was started and that it does something; Sweeping once its executor has ended, but
    Adopting where another may take its place. Raises sqlite3.Error."""
    folder = attempt_dir(context.workspace, attempt.record.run_id, attempt.record.number)
    kind = attempt.executor.kind
    is_alive = attempt.executor.is_alive
    if kind.places_gpus or not is_alive or context.monotonic() - attempt.placed_at >= ALIVE_LOOK_SECONDS:
        attempt.placed_at = context.monotonic()
        if not kind.places_gpus:
            _note_placement(attempt, folder, context)
        if attempt.record.started_at is None:
            _note_start(attempt, folder, context)
    if not is_alive:
        if not kind.is_replaceable or (folder / "exit.json").exists():
            return Sweeping()
        # One that ends at once is not begun again and again.
        attempt.executor.release()
        return phase if context.monotonic() < attempt.served_since + REPLACE_SECONDS else Adopting()
    # Whatever lies there by now: the executor's own record is its last deed.
    if isinstance(phase, Starting) and context.monotonic() - phase.looked_at >= ALIVE_LOOK_SECONDS:
        phase.looked_at = context.monotonic()
        if _is_seen_alive(attempt, folder, context):
            return Running()
    return phase


def _note_placement(attempt: LiveAttempt, folder: Path, context: AgentContext) -> None:
    """Store what the executor reports of an attempt that is elsewhere, and tell of each new state there."""
    reported = read_record(folder / "placement.json")
    if reported is None:
        return
    try:
        placement = PlacementView.from_json(reported)
    except ValueError:
        return
    before, attempt.placement = attempt.placement, placement
    if placement == before:
        return
    run_id, number = attempt.record.run_id, attempt.record.number
    with transaction(context.connection) as connection:
        before = before or placements.read(connection, run_id, number)
        placements.write(connection, run_id, number, placement)
        if before is None or (before.state, before.restarts) != (placement.state, placement.restarts):
            where = f" on {', '.join(placement.nodes)}" if placement.nodes else ""
            reason = f" ({placement.reason})" if placement.reason else ""
            job = f"job {placement.job}: " if placement.job else ""
            text = f"{job}{placement.state}{where}{reason}"
            add_event(connection, "placed", text, now=context.now(), key=placement.state, run_id=run_id, attempt=number)


def _note_start(attempt: LiveAttempt, folder: Path, context: AgentContext) -> None:
    started = read_record(folder / "started.json")
    if started is None or (attempt.executor.kind.is_replaceable and started.get("at") is None):
        # The executor is there; what it serves has not begun where it is to run.
        return
    connection, run_id, number = context.connection, attempt.record.run_id, attempt.record.number
    at = time_in(started.get("at")) or context.now()
    repository.set_attempt_started(connection, run_id, number, at)
    refreshed = get_attempt(connection, run_id, number)
    if refreshed is not None and refreshed.executor is None and attempt.executor.identity is not None:
        repository.set_executor(connection, run_id, number, attempt.executor.identity)
    if refreshed is not None:
        attempt.record = replace(refreshed, executor=attempt.executor.identity)
    refused = [str(name) for name in started.get("refused") or ()]
    if refused:
        add_event(
            connection,
            "limits_refused",
            f"the agent may not give it {', '.join(refused)} of the shell that launched it; "
            "gputui agent stop there lets the next one have them",
            now=at,
            severity="warning",
            run_id=run_id,
            attempt=number,
        )


def _is_seen_alive(attempt: LiveAttempt, folder: Path, context: AgentContext) -> bool:
    """Whether the command lives and writes: then it is running, whether it reports steps or not."""
    record = attempt.record
    if record.started_at is None:
        return False
    age = context.now() - record.started_at
    if age >= ALIVE_SECONDS and any(_has_bytes(log.path) for log in rank_logs(folder)):
        cause = "its command has written its first output"
    elif age >= SILENT_SECONDS:
        cause = f"its command has lived for {SILENT_SECONDS:.0f} s"
    else:
        return False
    with transaction(context.connection) as connection:
        run = get_run(connection, record.run_id)
        if run is not None and run.state is RunState.STARTING and run.attempt == record.number:
            repository.move(connection, run, RunState.RUNNING, cause=cause, now=context.now())
    return True


def _has_bytes(path: Path) -> bool:
    """Whether something is in the file; not where it is gone."""
    try:
        return path.stat().st_size > 0
    except OSError:
        return False
