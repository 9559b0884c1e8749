"""The waits before an attempt: a recovering run waits for the end of its back-off and for the
preconditions of its next attempt.

Before an attempt starts, a job lists the checkpoint folder, because what lies there is not the
attempt's, and checks that the checkpoint to start from is still there: days may pass in the queue.
"""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from gputui.agent.context import AgentContext
from gputui.agent.error_barrier import ErrorBarrier
from gputui.agent.jobs import JobKey, Purpose
from gputui.agent.lifecycle.attempt_end import give_up
from gputui.agent.lifecycle.checkpoint_survey import CheckpointScan, scan, search_now, write_ledger
from gputui.core import units
from gputui.recovery.checkpoints.choices import CheckpointChoice, choose, is_unchanged
from gputui.recovery.checkpoints.removal import Keep, prune
from gputui.recovery.checkpoints.resumable import newest_first
from gputui.recovery.checkpoints.search import CheckpointSearch
from gputui.recovery.effects import Precondition
from gputui.runs import repository
from gputui.runs.command import checkpoint_directory
from gputui.runs.stored_spec import spec_of
from gputui.store.run_states import RunState
from gputui.store.runs import Run, get_run

POLL_SECONDS = 1.0
"""Poll interval for the preconditions of a run whose back-off is over."""
LOOK_SECONDS = 30.0  # a file system that does not answer for this long hangs
PRUNE_SECONDS = 1800.0
"""Pruning first validates the checkpoints to keep, of any size."""
# A condition of the kind ``room`` asks for no more of the disk than this.
ROOM_SHARE = 0.05
# Choosing another checkpoint reads whole files.
DEADLINE_SECONDS = 900.0


@dataclass(slots=True)
class RecoveryWaits:
    """The waits of all recovering runs.

    Only jobs read folders of checkpoints, whose file system may hang. A condition whose job is not
    over counts as unmet, and a later poll, which asks for the same job again, gets the result.

    ``next_due`` is the monotonic time of the next check, infinite without such runs.
    """

    context: AgentContext
    barrier: ErrorBarrier
    next_due: float = -math.inf
    _polled_at: float = -math.inf

    def poll(self) -> bool:
        """End the waits that are over; True if there was one. Raises sqlite3.Error."""
        connection = self.context.connection
        now = self.context.monotonic()
        wall = self.context.now()
        rows = connection.execute("SELECT run_id, not_before FROM runs WHERE state = ?", (RunState.RECOVERING,))
        seconds_left = {run_id: max(0.0, (not_before or 0.0) - wall) for run_id, not_before in rows.fetchall()}
        elapsed_waits = [run_id for run_id, seconds in seconds_left.items() if not seconds]
        due_times = [now + seconds for seconds in seconds_left.values() if seconds]
        is_one_queued = False
        if elapsed_waits and now >= self._polled_at + POLL_SECONDS:
            self._polled_at = now
            for run_id in elapsed_waits:
                if not self.barrier.is_resting(run_id):
                    with self.barrier.guard(run_id):
                        is_one_queued |= self._end_wait(run_id)
        if elapsed_waits:
            due_times.append(self._polled_at + POLL_SECONDS)
        self.next_due = min(due_times, default=math.inf)
        return is_one_queued

    def _end_wait(self, run_id: str) -> bool:
        """Queue a run whose preconditions are met; fail it if they never will be. True if it was
        queued. Raises sqlite3.Error."""
        connection = self.context.connection
        now = self.context.now()
        run = get_run(connection, run_id)
        if run is None:
            return False
        next_attempt = repository.get_next_attempt(connection, run_id)
        preconditions = list(next_attempt.preconditions)
        while preconditions:
            condition = msgspec.convert(preconditions[0], Precondition)
            why = self._wait_for(run, condition)
            if why is not None and now - next_attempt.since < condition.limit_seconds:
                if run.waiting_for != f"waits {why}":
                    repository.set_waiting_for(connection, run_id, f"waits {why}")
                return False
            if why is not None and condition.kind == "disk":
                give_up(self.context, run, f"waited in vain {why}")
                return False
            if why is not None:
                text = f"waited in vain {why}; continuing"
                key = condition.kind
                self.context.note("wait_timed_out", text, run_id, key=key, severity="warning")
            preconditions.pop(0)
            repository.set_preconditions(connection, run_id, preconditions)
        with repository.transaction(connection):
            repository.move(connection, run, RunState.QUEUED, cause="the wait is over", now=now)
        return True

    def _wait_for(self, run: Run, condition: Precondition) -> str | None:
        """Check a condition, and prune if it asks for that. Return what the run waits for, as the
        end of a sentence; None if the condition is met."""
        if condition.kind == "cool":
            return self._wait_for_cooling(run, condition.margin_celsius)
        folder = checkpoint_directory(spec_of(run), self.context.workspace.run_dir(run.run_id))
        if folder is None:
            return None
        if condition.kind == "prune":
            return self._wait_for_pruning(run, condition.keep)
        most_share = ROOM_SHARE if condition.kind == "room" else 1.0
        return self._wait_for_room(run, folder, condition.bytes_needed, most_share)

    def _wait_for_cooling(self, run: Run, margin_celsius: float) -> str | None:
        recorder = self.context.recorder
        for uuid, lease in repository.leases(self.context.connection).items():
            facts = recorder.facts.get(uuid)
            sample = recorder.fast.get(uuid)
            # A missing one is for the scheduler to handle.
            is_missing = facts is None and recorder.inventory is not None
            if run.run_id not in lease.run_ids or is_missing:
                continue
            if sample is None or facts is None:
                # The agent has just started.
                return f"for a reading of {uuid}"
            celsius = sample.temperature_celsius
            slow = facts.temperature_slowdown_celsius
            # An unknown temperature cannot be waited for.
            if celsius is not None and slow is not None and celsius > slow - margin_celsius:
                below = slow - margin_celsius
                return f"for GPU {facts.index} to cool to {below:.0f} °C (now {celsius:.0f} °C)"
        return None

    def _wait_for_room(self, run: Run, folder: Path, needed: int, most_share: float) -> str | None:
        """Wait until the disk has room for ``needed`` bytes, or has ``most_share`` of its size free."""
        key = JobKey(Purpose.DISK, run.run_id, run.attempt + 1, str(folder))
        work = partial(disk_bytes, folder)
        job = self.context.jobs.ask(key, work, deadline_seconds=LOOK_SECONDS)
        if job is None:
            # What `_end_wait` stored after the last poll holds until the disk answers.
            return (run.waiting_for or f"waits for {folder} to answer").removeprefix("waits ")
        try:
            free, total = job.result()
        except OSError as error:
            return f"for {folder}: {error.strerror or error}"
        needed = min(needed, int(most_share * total))
        if free >= needed:
            return None
        room = f"{units.bytes_text(needed)} on the disk of {folder}"
        return f"for {room} ({units.bytes_text(free)} free)"

    def _wait_for_pruning(self, run: Run, keep: int) -> str | None:
        """Remove the checkpoints older than the ``keep`` newest valid ones. A failure ends the
        wait."""
        context = self.context
        search = search_now(self.context, run)
        if search is None:
            return None
        needed = () if run.resume_from is None else (run.resume_from,)
        key = JobKey(Purpose.PRUNING, run.run_id, run.attempt + 1)
        work = partial(prune, search, Keep(keep, needed))
        job = context.jobs.ask(key, work, deadline_seconds=PRUNE_SECONDS)
        if job is None:
            return "for old checkpoints to be removed"
        try:
            text = f"removed {len(job.result().removed)} old checkpoints"
            context.note("checkpoints_pruned", text, run.run_id)
        except OSError as error:
            text = f"cannot prune: {error}"
            context.note("checkpoints_not_pruned", text, run.run_id, severity="warning")
        return None


def disk_bytes(folder: Path) -> tuple[int, int]:
    """Free and total bytes of the disk of a folder, which need not exist yet. Raises OSError."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    usage = shutil.disk_usage(folder)
    return usage.free, usage.total


def check_before_start(context: AgentContext, run: Run) -> bool:
    """Scan the checkpoint folder of a queued run in a job; True once that is stored. Until then the
    scheduler tries to start the run again, and calls this again.

    A checkpoint that is not there any more is replaced by the next best one, which a further scan
    checks; without one, the run fails. Raises sqlite3.Error.
    """
    path = run.resume_from
    search = search_now(context, run)
    if search is None:
        return True
    key = JobKey(Purpose.BEFORE_START, run.run_id, run.attempt + 1, path)
    work = partial(start_check, search, path, context.now())
    job = context.jobs.ask(key, work, deadline_seconds=DEADLINE_SECONDS)
    if job is None:
        return False
    try:
        folder_scan, replacement = job.result()
    except OSError as error:
        what = search.folder if path is None else Path(path).name
        reason = f"waits until {what} can be read: {error.strerror or error}"
        repository.set_waiting_for(context.connection, run.run_id, reason)
        return False
    if replacement is not None:
        _replace_checkpoint(context, run, folder_scan.search, replacement)
        return False
    with repository.transaction(context.connection) as connection:
        write_ledger(connection, folder_scan.search, folder_scan.rows)
    return True


def _replace_checkpoint(context: AgentContext, run: Run, search: CheckpointSearch, choice: CheckpointChoice) -> None:
    """Resume from the best checkpoint of a choice, or fail the run if there is none."""
    changed = f"{Path(run.resume_from or '').name} was removed or overwritten after it was chosen"
    best = choice.usable[0].path if choice.usable else None
    with repository.transaction(context.connection) as connection:
        write_ledger(connection, search, choice.rows)
        if best is not None:
            repository.set_next_attempt(
                connection, run.run_id, params=run.params, resume_from=str(best), not_before=run.not_before
            )
            text = f"{changed}; continuing from {best.name}"
            key = run.resume_from
            context.note("checkpoint_replaced", text, run.run_id, key=key, severity="warning")
    if best is None:
        hint = "use gputui resume --from, or gputui restart"
        give_up(context, run, f"{changed}, and there is no other; {hint}")


def start_check(
    search: CheckpointSearch, resume_from: str | None, now: float
) -> tuple[CheckpointScan, CheckpointChoice | None]:
    """Scan the folder before an attempt, and choose another checkpoint if the chosen one is gone.

    Args:
        resume_from: the path of the chosen checkpoint.
        now: UTC unix seconds.

    Returns:
        The scan, and the choice of another checkpoint; None if the chosen one is unchanged.

    Raises:
        OSError: the chosen checkpoint is gone and some cannot be read now, or `scan` fails.
    """
    folder_scan = scan(search, now)
    chosen = next((row for row in newest_first(search.rows) if row.path == resume_from), None)
    if chosen is None or is_unchanged(chosen):
        return folder_scan, None
    choice = choose(folder_scan.rows, search.attempts, 1, folder=search.folder)
    if choice.unreadable is not None and not choice.is_lost:
        raise OSError(f"{choice.unreadable}; stop it to end the wait")
    return folder_scan, choice
