"""The phase Waiting: a recovering run waits for the end of its back-off and for the preconditions of its next attempt.
Before an attempt starts, a job lists the checkpoint folder, because what lies there is not the attempt's, and checks
that the checkpoint to start from is still there: days may pass in the queue."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from gputui.agent.context import AgentContext
from gputui.agent.error_barrier import ErrorBarrier
from gputui.agent.lifecycle.active_run import ActiveRuns, DiskCheck, Readiness, ReadinessCheck, Waiting
from gputui.agent.lifecycle.admission import give_up
from gputui.agent.lifecycle.checkpoint_survey import HeldByOtherHomeError, claim, search_of, write
from gputui.core import units
from gputui.recovery.checkpoints.ledger import newest_first
from gputui.recovery.checkpoints.removal import prune
from gputui.recovery.checkpoints.search import CheckpointChoice, CheckpointSearch, choose, is_unchanged, surveyed
from gputui.runs import repository
from gputui.runs.command import checkpoint_directory
from gputui.runs.repository import transaction
from gputui.runs.spec import spec_of
from gputui.store.events import EventKind, Severity, add_event
from gputui.store.run_states import RunState
from gputui.store.runs import Run, get_run

POLL_SECONDS = 1.0
"""Poll interval for the preconditions of a run whose back-off is over."""

LOOK_SECONDS = 30.0
PRUNE_SECONDS = 1800.0
"""Pruning first validates the checkpoints to keep, of any size."""

# Choosing another checkpoint reads whole files.
DEADLINE_SECONDS = 900.0
# How long the result of a check is valid.
CHECKED_SECONDS = 10.0


@dataclass(slots=True)
class RecoveryWaits:
    """The waits of all recovering runs. ``is_understood`` fails a run whose specification cannot be read."""

    context: AgentContext
    runs: ActiveRuns
    preconditions: Preconditions
    guard: ErrorBarrier
    is_understood: Callable[[Run], bool]

    def next_due(self) -> float | None:
        """Monotonic time when the first wait ends, or None."""
        return min((phase.due_at for _, phase in self.runs.waiting() if phase.due_at is not None), default=None)

    def turn(self) -> bool:
        """End the waits that are over; True if there was one. A wait is measured by the monotonic clock, so that
        setting the wall clock back does not prolong it."""
        is_one_over = False
        recovering: dict[str, float | None] = dict(
            self.context.connection.execute(
                "SELECT run_id, not_before FROM runs WHERE state = ?", (RunState.RECOVERING,)
            ).fetchall()
        )
        for run, phase in self.runs.waiting():
            if run.run_id not in recovering:
                phase.due_at = None
        now = self.context.monotonic()
        for run_id, not_before in recovering.items():
            waiting = self.runs.waiting_of(run_id)
            seconds_left = max(0.0, (not_before or 0.0) - self.context.now())
            if waiting.due_at is None:
                waiting.due_at = now + seconds_left
            if min(waiting.due_at, now + seconds_left) > now:
                continue
            waiting.due_at = now + POLL_SECONDS
            if not self.guard.is_resting(run_id):
                with self.guard.around(run_id):
                    is_one_over |= self._end_wait(run_id, waiting)
        return is_one_over

    def _end_wait(self, run_id: str, waiting: Waiting) -> bool:
        """Queue a run whose back-off is over if its preconditions are met; fail it if they never will be. True if it
        was queued."""
        run = get_run(self.context.connection, run_id)
        if run is None or not self.is_understood(run):
            return False
        unmet = self.preconditions.check(run, waiting)
        if unmet is not None:
            if unmet.is_final:
                give_up(self.context, run, unmet.why)
            elif run.waiting_for != unmet.why:
                repository.set_waiting_for(self.context.connection, run.run_id, unmet.why)
            return False
        with transaction(self.context.connection):
            repository.move(
                self.context.connection, run, RunState.QUEUED, cause="the wait is over", now=self.context.now()
            )
        return True


class Unmet(Struct, frozen=True):
    """Why the run must wait; ``is_final``: the time limit has passed, and it cannot continue."""

    why: str
    is_final: bool = False


@dataclass(slots=True)
class Preconditions:
    """Checks the preconditions of recovering runs. Only jobs read folders of checkpoints, whose file system may
    hang."""

    context: AgentContext

    def check(self, run: Run, waiting: Waiting) -> Unmet | None:
        """Why the run must still wait, or None if it may start. Raises sqlite3.Error."""
        wanted = repository.get_next_attempt(self.context.connection, run.run_id)
        waited = self.context.now() - wanted.since
        left = list(wanted.preconditions)
        while left:
            precondition = left[0]
            why = self._unmet(run, waiting, precondition)
            late = waited >= float(precondition.get("limit_seconds", 0.0))
            if why is not None and not late:
                return Unmet(f"waits {why}")
            if why is not None:
                if precondition.get("kind") == "disk":
                    return Unmet(f"waited in vain {why}", is_final=True)
                add_event(
                    self.context.connection,
                    "wait_timed_out",
                    f"waited in vain {why}; continuing",
                    now=self.context.now(),
                    key=str(precondition.get("kind")),
                    severity="warning",
                    run_id=run.run_id,
                )
            left.pop(0)
            repository.set_preconditions(self.context.connection, run.run_id, left)
        return None

    def _unmet(self, run: Run, waiting: Waiting, precondition: Mapping[str, Any]) -> str | None:
        match precondition.get("kind"):
            case "cool":
                return self._hot(run, float(precondition["margin_celsius"]))
            case "disk":
                return self._no_room(run, waiting, int(precondition["bytes_needed"]))
            case "room":
                return self._no_room(run, waiting, int(precondition["bytes_needed"]), or_share=0.05)
            case "prune":
                return self._not_pruned(run, waiting, int(precondition["keep"]))
        return None

    def _hot(self, run: Run, margin_celsius: float) -> str | None:
        facts = self.context.recorder.facts
        holders = repository.leases(self.context.connection)
        leased = [uuid for uuid, held in holders.items() if run.run_id in held.run_ids]
        for uuid in leased:
            if self.context.recorder.inventory is not None and uuid not in facts:
                # It is missing, which is for the scheduler to handle.
                continue
            sample, limit = self.context.recorder.fast.get(uuid), None
            if uuid in facts:
                limit = facts[uuid].temperature_slowdown_celsius
            if sample is None:
                # The agent has just started.
                return f"for a reading of {uuid}"
            # An unknown temperature cannot be waited for.
            if sample.temperature_celsius is None or limit is None:
                continue
            if sample.temperature_celsius > limit - margin_celsius:
                below = limit - margin_celsius
                return (
                    f"for GPU {facts[uuid].index} to cool to {below:.0f} °C (now {sample.temperature_celsius:.0f} °C)"
                )
        return None

    def _no_room(self, run: Run, waiting: Waiting, needed: int, or_share: float = 1.0) -> str | None:
        """Why the disk lacks room for ``needed`` bytes, or for that share of the disk if it is less; None if it has."""
        folder = self._checkpoints(run)
        if folder is None:
            return None
        room = waiting.free_disk
        if room is None:
            room = waiting.free_disk = DiskCheck(f"for {folder} to answer")
        if room.job is None:
            room.job = self.context.jobs.start(
                f"looking at {folder}", partial(disk_bytes, folder), deadline_seconds=LOOK_SECONDS
            )
        if not room.job.is_over:
            return room.text
        try:
            free, total = room.job.result()
            needed = min(needed, int(or_share * total))
        except OSError as error:
            room.text = f"for {folder}: {error.strerror or error}"
        else:
            if free >= needed:
                waiting.free_disk = None
                return None
            room.text = f"for {units.bytes_text(needed)} on the disk of {folder} ({units.bytes_text(free)} free)"
        room.job = None
        return room.text

    def _not_pruned(self, run: Run, waiting: Waiting, keep: int) -> str | None:
        folder = self._checkpoints(run)
        if folder is None or spec_of(run).checkpoints is None:
            return None
        job = waiting.pruning
        if job is None:
            context = self.context
            search = search_of(context.connection, context.workspace, run, context.now(), executors=context.executors)
            if search is None:
                return None
            work = partial(prune, search, keep, run.resume_from)
            job = self.context.jobs.start(f"pruning {folder}", work, deadline_seconds=PRUNE_SECONDS)
            waiting.pruning = job
        if not job.is_over:
            return "for old checkpoints to be removed"
        waiting.pruning = None
        kind: EventKind = "checkpoints_pruned"
        severity: Severity = "info"
        try:
            text = f"removed {len(job.result())} old checkpoints"
        except OSError as error:
            kind, text, severity = "checkpoints_not_pruned", f"cannot prune: {error}", "warning"
        add_event(self.context.connection, kind, text, now=self.context.now(), severity=severity, run_id=run.run_id)
        return None

    def _checkpoints(self, run: Run) -> Path | None:
        return checkpoint_directory(spec_of(run), self.context.workspace.run_dir(run.run_id))


@dataclass(slots=True)
class ReadinessChecks:
    """Looks into the checkpoint folders of queued runs before they start, each in a job. ``give_up`` fails a run, with
    the reason."""

    context: AgentContext
    runs: ActiveRuns
    give_up: Callable[[Run, str], None]

    def is_one_over(self) -> bool:
        """Whether a check has ended since the last call."""
        checks = [phase.check for _, phase in self.runs.waiting()]
        over = [check for check in checks if check is not None and not check.is_noticed and check.job.is_over]
        for check in over:
            check.is_noticed = True
        return bool(over)

    def may_start(self, run: Run) -> bool:
        """Whether the run may start now. A checkpoint that is not there any more is replaced by the next best one;
        without one, the run fails. Raises sqlite3.Error."""
        waiting = self.runs.waiting_of(run.run_id)
        check = waiting.check
        if check is None or check.path != run.resume_from:
            is_ready, path, checked_at = waiting.checked or (False, None, float("-inf"))
            if path != run.resume_from or self.context.monotonic() - checked_at >= CHECKED_SECONDS:
                return self._begin(run, waiting)
            return is_ready
        if not check.job.is_over:
            return False
        waiting.check, waiting.checked = None, (False, run.resume_from, self.context.monotonic())
        try:
            ready = check.job.result()
        except OSError as error:
            what = check.search.folder if check.path is None else Path(check.path).name
            reason = f"waits until {what} can be read: {error.strerror or error}"
            repository.set_waiting_for(self.context.connection, run.run_id, reason)
            return False
        if ready.intruder is not None:
            self.give_up(run, ready.intruder)
        elif ready.choice is not None:
            self._choose_again(run, check, ready.choice, waiting)
        else:
            with transaction(self.context.connection) as connection:
                write(connection, check.search, ready.rows)
            waiting.checked = (True, run.resume_from, self.context.monotonic())
            return True
        return False

    def _begin(self, run: Run, waiting: Waiting) -> bool:
        context = self.context
        search = search_of(context.connection, context.workspace, run, context.now(), executors=context.executors)
        if search is None:
            return True
        work = partial(readiness, search, run.resume_from)
        job = context.jobs.start(f"looking into {search.folder}", work, deadline_seconds=DEADLINE_SECONDS)
        waiting.check = ReadinessCheck(run.resume_from, search, job)
        return False

    def _choose_again(self, run: Run, check: ReadinessCheck, choice: CheckpointChoice, waiting: Waiting) -> None:
        name = Path(check.path or "").name
        changed = f"{name} was removed or overwritten after it was chosen"
        with transaction(self.context.connection) as connection:
            write(connection, check.search, choice.rows)
            if choice.usable:
                following = choice.usable[0].path
                repository.set_next_attempt(
                    connection, run.run_id, params=run.params, resume_from=str(following), not_before=run.not_before
                )
                add_event(
                    connection,
                    "checkpoint_replaced",
                    f"{changed}; continuing from {following.name}",
                    now=self.context.now(),
                    key=str(check.path),
                    severity="warning",
                    run_id=run.run_id,
                )
        if not choice.usable:
            hint = "use gputui resume --from, or gputui restart"
            self.give_up(run, f"{changed}, and there is no other; {hint}")
        best = str(choice.usable[0].path) if choice.usable else None
        waiting.checked = (best is not None, best, self.context.monotonic())


def disk_bytes(folder: Path) -> tuple[int, int]:
    """Free and total bytes of the disk of a folder, which need not exist yet. Raises OSError."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    usage = shutil.disk_usage(folder)
    return usage.free, usage.total


def readiness(search: CheckpointSearch, resume_from: str | None, wall: Callable[[], float] = time.time) -> Readiness:
    """Scan the folder before an attempt. Raises what `surveyed` raises, and OSError if the chosen checkpoint is
    gone and some cannot be read now."""
    try:
        if (held := claim(search.real_folder, search.home)) is not None:
            os.close(held)
    except HeldByOtherHomeError as error:
        return Readiness(search.rows, intruder=str(error))
    rows = surveyed(search, wall)
    chosen = next((row for row in newest_first(search.rows) if row.path == resume_from), None)
    if chosen is None or is_unchanged(chosen):
        return Readiness(rows)
    choice = choose(rows, search.attempts, 1, folder=search.folder)
    if choice.unreadable is not None and not choice.is_lost:
        raise OSError(f"{choice.unreadable}; gputui stop ends the wait")
    return Readiness(rows, choice)
