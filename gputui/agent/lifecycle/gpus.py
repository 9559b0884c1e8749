"""The GPUs: which are available, and the release of those of ended attempts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from gputui.agent.context import AgentContext
from gputui.agent.lifecycle.active_run import ActiveRun, ActiveRuns, Releasing
from gputui.agent.lifecycle.scheduler import GpuAvailability
from gputui.agent.recording.recorder import Recorder
from gputui.machine.gpu_model import BUSY_BYTES, GpuFacts, unseen_use
from gputui.runs import repository
from gputui.runs.gpu_locks import GpuHeldError, GpuLocks
from gputui.runs.identity import ProcessIdentity, is_being_killed
from gputui.runs.processes import processes_of
from gputui.runs.repository import GpuHolders, transaction
from gputui.store import alerts
from gputui.store.hardware import quarantined
from gputui.store.runs import get_run
from gputui.store.series import GpuSample

# A GPU is free when its used memory is at most this much above that before the attempt, or after
# the deadline.
RELEASED_WITHIN_BYTES = 512 << 20
DEADLINE_SECONDS = 15.0
LOOK_SECONDS = 0.1
HELD_LOOK_SECONDS = 1.0


def gpu_availability(
    context: AgentContext,
    draining: Collection[str],
    is_locked: Callable[[str], bool] = lambda _uuid: False,
    held: Collection[str] = (),
) -> list[GpuAvailability] | None:
    """All GPUs that the driver lists, then leased ones that it does not list; None before the first
    inventory.

    ``draining`` are the UUIDs of GPUs that are being released, ``held`` those among them that
    unkillable processes hold. ``is_locked`` tells whether another home holds the lock of a GPU.
    Raises sqlite3.Error.
    """
    connection, recorder = context.connection, context.recorder
    inventory = recorder.inventory
    if inventory is None:
        return None
    leases = repository.leases(connection)
    # Held by executors of this home.
    in_use = repository.leases_in_use(connection)
    failed = quarantined(connection)
    alerted = {alert.subject_id for alert in alerts.lasting(connection)}

    def blocked_by(gpu: GpuFacts) -> str | None:
        uuid, sample = gpu.uuid, recorder.fast.get(gpu.uuid)
        if uuid in failed:
            return f"is in quarantine ({failed[uuid].reason})"
        if sample is None:
            return "has not been read yet"
        if sample.state != "ok":
            return "is lost" if sample.state == "lost" else f"has an error: {sample.detail}"
        if uuid in draining:
            words = "is held by a process" if uuid in held else "still holds memory"
            return f"{words} of the previous attempt"
        if gpu.mig_mode:
            return "is split by MIG"
        for process in recorder.processes.get(uuid) or ():
            # Graphics with little memory, such as a desktop, do not count.
            is_heavy = process.kind != "G" or (process.memory_bytes or 0) >= BUSY_BYTES
            if is_heavy and recorder.owner(process) is None:
                return f"is used by {process.user or 'another user'} (pid {process.pid})"
        if uuid not in in_use and is_locked(uuid):
            return "is held by another home or user"
        if uuid not in leases and not recorder.processes.get(uuid):
            used = None if gpu.memory_is_unified else sample.memory_used_bytes
            return unseen_use(used, sample.utilization_percent)
        return None

    gpus = []
    for gpu in inventory.gpus:
        uuid, sample = gpu.uuid, recorder.fast.get(gpu.uuid)
        total = (sample.memory_total_bytes if sample else None) or gpu.memory_total_bytes
        used = sample.memory_used_bytes if sample else None
        is_ok = sample is not None and sample.state == "ok"
        is_soon = sample is None or (is_ok and uuid in draining and uuid not in held)
        lease = leases.get(uuid, GpuHolders((), None))
        gpus.append(
            GpuAvailability(
                uuid,
                gpu.index,
                lease.run_ids,
                blocked_by(gpu),
                None if total is None or used is None else total - used,
                # Only a person can end these states.
                out_of_service=uuid in failed or bool(gpu.mig_mode) or (sample is not None and not is_ok),
                is_settling=uuid not in failed and is_soon,
                total_bytes=total,
                shared_by=lease.shared_by,
                has_alert=uuid in alerted,
            )
        )
    listed = {gpu.uuid for gpu in inventory.gpus}
    missing = "is missing: " + (inventory.problem or "the driver does not list it")
    return gpus + [
        GpuAvailability(uuid, None, lease.run_ids, missing, out_of_service=True, shared_by=lease.shared_by)
        for uuid, lease in leases.items()
        if uuid not in listed
    ]


def foreign_bytes(recorder: Recorder, uuid: str) -> int | None:
    """A GPU's memory that no run of this home uses: the driver's and that of other processes; None
    if unknown."""
    processes, sample = recorder.processes.get(uuid), recorder.fast.get(uuid)
    if processes is None:
        return None
    total = (sample.memory_reserved_bytes if sample is not None else None) or 0
    for process in processes:
        if recorder.owner(process) is None:
            if process.memory_bytes is None:
                return None
            total += process.memory_bytes
    return total


@dataclass(slots=True)
class GpuRelease:
    """The GPUs of ended attempts: their memory must be free again, and no process of the run left.
    A run that is over then returns its leases; a recovering run keeps them."""

    context: AgentContext
    runs: ActiveRuns
    locks: GpuLocks

    def begin(self, run_id: str, attempt: int | None, baseline_bytes: Mapping[str, int | None]) -> None:
        """Begin to release GPUs. ``baseline_bytes`` is the used memory of each before the attempt,
        None if unknown. If ``attempt`` is None, processes of all attempts count."""
        if baseline_bytes:
            deadline = self.context.monotonic() + DEADLINE_SECONDS
            entry = Releasing(attempt, baseline_bytes, self.context.now(), deadline)
            self.runs.of(run_id).releasing.append(entry)

    def uuids(self, *, held_only: bool = False) -> set[str]:
        """The GPUs that are being released, or those of them that unkillable processes hold."""
        entries = [entry for _, entry in self.runs.releasing() if entry.is_held or not held_only]
        return {uuid for entry in entries for uuid in entry.baseline_bytes}

    def next_look_seconds(self) -> float | None:
        """Seconds until the next check, None without GPUs. A held GPU may stay so for days and is
        checked less often."""
        entries = [entry for _, entry in self.runs.releasing()]
        if not entries:
            return None
        return HELD_LOOK_SECONDS if all(entry.is_held for entry in entries) else LOOK_SECONDS

    def turn(self) -> bool:
        """Release the GPUs that are free; True if there was one. Raises sqlite3.Error."""
        context, done = self.context, False
        for active, entry in self.runs.releasing():
            run_id, is_late = active.run_id, context.monotonic() > entry.deadline
            if not is_late and not self._memory_is_back(run_id, entry):
                continue
            processes = processes_of(context.workspace.run_dir(run_id), entry.attempt)
            if processes:
                done |= self._hold(active, entry, [process.identity for process in processes])
                continue
            run = get_run(context.connection, run_id)
            if run is None or run.state.is_over:
                others = [other for other in active.releasing if other is not entry]
                kept = [uuid for other in others for uuid in other.baseline_bytes]
                repository.release_leases(context.connection, run_id, keep=kept)
            self._unlock(entry)
            if entry.is_held and run is not None:
                whose = "the run" if entry.attempt is None else f"attempt {entry.attempt}"
                gpus = ", ".join(sorted(entry.baseline_bytes))
                text = f"the last process of {whose} ended; {gpus} can be used again"
                context.note("gpus_released", text, run_id)
            active.releasing.remove(entry)
            done = True
        return done

    def _hold(self, active: ActiveRun, entry: Releasing, processes: Sequence[ProcessIdentity]) -> bool:
        """Keep GPUs whose processes cannot be killed, locked against other homes as by the ended
        executor; release those that the processes do not hold. True if there was one."""
        free = self._unheld(processes, entry)
        if free:
            self._release_some(active.run_id, entry, free)
        if not entry.baseline_bytes:
            active.releasing.remove(entry)
            return True
        entry.deadline = self.context.monotonic() + DEADLINE_SECONDS
        entry.ended_at = self.context.now()
        entry.is_held = True
        if entry.locks is None:
            # Another home may have been faster; the next turn tries again.
            with contextlib.suppress(GpuHeldError):
                entry.locks = self.locks.take(list(entry.baseline_bytes))
        return bool(free)

    def _unheld(self, processes: Sequence[ProcessIdentity], entry: Releasing) -> set[str]:
        """The GPUs that the remaining processes cannot hold: the memory is free, the driver does
        not list them there, and each has a pending SIGKILL, so that it never runs again."""
        recorder = self.context.recorder
        if recorder.fast_at <= entry.ended_at or not all(map(is_being_killed, processes)):
            return set()
        pids = {process.pid for process in processes}
        free = set()
        for uuid, baseline in entry.baseline_bytes.items():
            sample, listed = recorder.fast.get(uuid), recorder.processes.get(uuid)
            if sample is None or sample.state != "ok" or listed is None or baseline is None:
                continue
            is_back = sample.memory_used_bytes is not None and _is_back(sample, baseline)
            if is_back and pids.isdisjoint(process.pid for process in listed):
                free.add(uuid)
        return free

    def _release_some(self, run_id: str, entry: Releasing, free: set[str]) -> None:
        run = get_run(self.context.connection, run_id)
        kept = {uuid: used for uuid, used in entry.baseline_bytes.items() if uuid not in free}
        with transaction(self.context.connection) as connection:
            for uuid in free if run is None or run.state.is_over else ():
                repository.end_lease(connection, run_id, uuid)
            if run is not None:
                holds = f"a process that cannot be killed holds {', '.join(sorted(kept)) or 'no GPU'}"
                text = f"{', '.join(sorted(free))} can be used again; {holds}"
                self.context.note("gpus_released", text, run_id)
        entry.baseline_bytes = kept
        self._unlock(entry)

    def _unlock(self, entry: Releasing) -> None:
        if entry.locks is not None:
            entry.locks.close()
            entry.locks = None

    def _memory_is_back(self, run_id: str, entry: Releasing) -> bool:
        # A sample from the future was taken before the clock was set back.
        if not entry.ended_at < self.context.recorder.fast_at <= self.context.now():
            return False
        leases = repository.leases(self.context.connection)
        for uuid, baseline in entry.baseline_bytes.items():
            sample = self.context.recorder.fast.get(uuid)
            # On a shared GPU the memory may be another run's; only the end of this run's processes
            # counts.
            is_shared = uuid in leases and bool(set(leases[uuid].run_ids) - {run_id})
            if sample is not None and not is_shared and not _is_back(sample, baseline):
                return False
        return True


def _is_back(sample: GpuSample, baseline: int | None) -> bool:
    """Whether a GPU's used memory is back at ``baseline``; an unknown one counts as back."""
    used = sample.memory_used_bytes
    return used is None or baseline is None or used <= baseline + RELEASED_WITHIN_BYTES
