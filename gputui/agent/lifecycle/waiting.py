"""Waits of recovering runs: until their back-off is over and what else they wait for is there: cool GPUs, room on the
disk, old checkpoints to be gone.

What is waited for is a row, so that an agent that was killed is followed by one that waits on.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gputui.agent.context import AgentContext
from gputui.agent.error_barrier import ErrorBarrier
from gputui.agent.lifecycle.active_run import ActiveRuns, DiskLook, Waiting
from gputui.agent.lifecycle.admission import give_up
from gputui.agent.lifecycle.checkpoint_survey import search_of
from gputui.charts import units
from gputui.recovery.checkpoint_ledger import course as ledger_course
from gputui.recovery.checkpoint_ledger import out_of_order
from gputui.recovery.checkpoint_search import CheckpointSearch, surveyed
from gputui.recovery.checkpoints import measured, validate
from gputui.runs import next_attempt, repository
from gputui.runs.command import checkpoint_directory
from gputui.runs.repository import transaction
from gputui.runs.spec import spec_of
from gputui.store.events import EventKind, add_event
from gputui.store.run_states import RunState
from gputui.store.runs import Run, get_run

POLL_SECONDS = 1.0
LOOK_SECONDS = 30.0
# What is kept is validated first, whatever its size.
PRUNE_SECONDS = 1800.0
_CHECKSUM_SUFFIX = ".sha256"


@dataclass(frozen=True, slots=True)
class Closed:
    """The run waits, and for what; ``is_final``: it waited in vain, and cannot go on."""

    why: str
    is_final: bool = False


@dataclass(slots=True)
class Preconditions:
    """The gates of all recovering runs. Folders of checkpoints are looked at by ``jobs`` alone: they may lie on a file
    system that does not answer."""

    context: AgentContext

    def look(self, run: Run, waiting: Waiting) -> Closed | None:
        """Why the run must still wait, or None when it may start. Raises sqlite3.Error."""
        wanted = next_attempt.get(self.context.connection, run.run_id)
        waited = self.context.now() - wanted.since
        left = list(wanted.gates)
        while left:
            gate = left[0]
            why = self._closed(run, waiting, gate)
            late = waited >= float(gate.get("limit_seconds", 0.0))
            if why is not None and not late:
                return Closed(f"waits {why}")
            if why is not None:
                if gate.get("kind") == "disk":
                    return Closed(f"waited in vain {why}", is_final=True)
                add_event(
                    self.context.connection,
                    "wait_timed_out",
                    f"waited in vain {why}; going on",
                    now=self.context.now(),
                    key=str(gate.get("kind")),
                    severity="warning",
                    run_id=run.run_id,
                )
            left.pop(0)
            next_attempt.set_gates(self.context.connection, run.run_id, left)
        return None

    def _closed(self, run: Run, waiting: Waiting, gate: Mapping[str, Any]) -> str | None:
        match gate.get("kind"):
            case "cool":
                return self._hot(run, float(gate["margin_celsius"]))
            case "disk":
                return self._no_room(run, waiting, int(gate["bytes_needed"]))
            case "room":
                return self._no_room(run, waiting, int(gate["bytes_needed"]), or_share=0.05)
            case "prune":
                return self._not_pruned(run, waiting, int(gate["keep"]))
        return None

    def _hot(self, run: Run, margin_celsius: float) -> str | None:
        facts = self.context.recorder.facts
        leased = [uuid for uuid, holder in repository.leases(self.context.connection).items() if holder == run.run_id]
        for uuid in leased:
            if self.context.recorder.inventory is not None and uuid not in facts:
                # It is missing; the scheduler says what becomes of that.
                continue
            sample, limit = self.context.recorder.fast.get(uuid), None
            if uuid in facts:
                limit = facts[uuid].temperature_slowdown_celsius
            if sample is None:
                # An agent that has just begun has read nothing yet.
                return f"for a reading of {uuid}"
            # What cannot be measured cannot be waited for.
            if sample.temperature_celsius is None or limit is None:
                continue
            if sample.temperature_celsius > limit - margin_celsius:
                below = limit - margin_celsius
                return (
                    f"for GPU {facts[uuid].index} to cool to {below:.0f} °C (now {sample.temperature_celsius:.0f} °C)"
                )
        return None

    def _no_room(self, run: Run, waiting: Waiting, needed: int, or_share: float = 1.0) -> str | None:
        """Why there is no room, None where there is: for ``needed`` bytes, or that share of the disk if less."""
        folder = self._checkpoints(run)
        if folder is None:
            return None
        room = waiting.free_disk
        if room is None:
            room = waiting.free_disk = DiskLook(f"for {folder} to answer")
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
            search = search_of(self.context.connection, self.context.workspace, run, self.context.now())
            if search is None:
                return None
            work = partial(prune, search, keep, run.resume_from)
            job = self.context.jobs.start(f"pruning {folder}", work, deadline_seconds=PRUNE_SECONDS)
            waiting.pruning = job
        if not job.is_over:
            return "for old checkpoints to be removed"
        waiting.pruning = None
        try:
            kind: EventKind = "checkpoints_pruned"
            text, severity = f"removed {len(job.result())} old checkpoints", "info"
        except OSError as error:
            kind, text, severity = "checkpoints_not_pruned", f"cannot prune: {error}", "warning"
        add_event(self.context.connection, kind, text, now=self.context.now(), severity=severity, run_id=run.run_id)
        return None

    def _checkpoints(self, run: Run) -> Path | None:
        return checkpoint_directory(spec_of(run), self.context.workspace.run_dir(run.run_id))


def disk_bytes(folder: Path) -> tuple[int, int]:
    """What may still be written into a folder, which need not exist yet, and the size of its disk. Raises OSError."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize


def prune(search: CheckpointSearch, keep: int, resume_from: str | None = None) -> list[Path]:
    """Remove the checkpoints of the run's course that were written before the ``keep`` newest valid ones; nothing where
    there are fewer, or where names and times contradict each other. Those that are rewritten again and again (best.pt,
    last.pt) stay, and so does the one that the run goes on from.

    Raises OSError with some of them left.
    """
    rows = surveyed(search)
    if out_of_order(rows, search.attempts) is not None:
        return []
    course = [row for row in ledger_course(rows, search.attempts) if row.is_written]
    kept = 0
    while course and kept < keep:
        row = course.pop(0)
        # One from which an attempt failed to begin is no ground to remove those before it.
        kept += row.failed_starts == 0 and validate(Path(row.path)).valid
    removed = []
    for row in course if kept == keep else ():
        path = Path(row.path)
        now = measured(path)
        is_same = now is not None and (now.modified_ns, now.size_bytes) == (row.modified_ns, row.size_bytes)
        if row.path == resume_from or not is_same or is_rewritten(row.name):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
        path.with_name(path.name + _CHECKSUM_SUFFIX).unlink(missing_ok=True)
        removed.append(path)
    return removed


def is_rewritten(name: str) -> bool:
    """A name that says which checkpoint it is, not when it was written."""
    return not any(character.isdigit() for character in name) or any(
        word in name.lower() for word in ("best", "last", "latest", "final")
    )


@dataclass(slots=True)
class RecoveryWaits:
    """The waits of all runs. ``is_understood`` fails a run
    whose row cannot be understood."""

    context: AgentContext
    runs: ActiveRuns
    gates: Preconditions
    guard: ErrorBarrier
    is_understood: Callable[[Run], bool]

    def next_due(self) -> float | None:
        """Monotonic time at which the first wait ends, or None."""
        return min((phase.due_at for _, phase in self.runs.waiting() if phase.due_at is not None), default=None)

    def turn(self) -> bool:
        """End the waits that are over; whether one was. A wait is counted by the monotonic clock from the moment it is
        first seen, so that a wall clock that is set back does not prolong it."""
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
            left = max(0.0, (not_before or 0.0) - self.context.now())
            if waiting.due_at is None:
                waiting.due_at = now + left
            if min(waiting.due_at, now + left) > now:
                continue
            # Whatever keeps it now is looked at again then.
            waiting.due_at = now + POLL_SECONDS
            if not self.guard.is_resting(run_id):
                with self.guard.around(run_id):
                    is_one_over |= self._end_wait(run_id, waiting)
        return is_one_over

    def _end_wait(self, run_id: str, waiting: Waiting) -> bool:
        """Queue a run whose time is over, where nothing else keeps it; whether nothing does."""
        run = get_run(self.context.connection, run_id)
        if run is None or not self.is_understood(run):
            return False
        if self._is_gated(run, waiting):
            return False
        with transaction(self.context.connection):
            repository.move(
                self.context.connection, run, RunState.QUEUED, cause="the wait is over", now=self.context.now()
            )
        return True

    def _is_gated(self, run: Run, waiting: Waiting) -> bool:
        """Whether a run whose wait is over still has to wait for something; it fails where that is in vain."""
        closed = self.gates.look(run, waiting)
        if closed is None:
            return False
        if closed.is_final:
            give_up(self.context, run, closed.why)
        elif run.waiting_for != closed.why:
            repository.set_waiting_for(self.context.connection, run.run_id, closed.why)
        return True
