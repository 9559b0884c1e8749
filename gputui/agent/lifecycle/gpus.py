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
from gputui.runs.repository import GpuHolders
from gputui.store import alerts
from gputui.store.hardware import quarantined
from gputui.store.runs import get_run

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
        is_bad = sample is not None and sample.state != "ok"
        is_draining = uuid in draining and uuid not in held
        lease = leases.get(uuid, GpuHolders((), None))
        one = GpuAvailability(
            uuid,
            gpu.index,
            lease.run_ids,
            blocked_by(gpu),
            free_bytes=None if total is None or used is None else total - used,
            # Only a person can end these states.
            out_of_service=uuid in failed or bool(gpu.mig_mode) or is_bad,
            is_settling=uuid not in failed and not is_bad and (sample is None or is_draining),
            total_bytes=total,
            shared_by=lease.shared_by,
            has_alert=uuid in alerted,
        )
        gpus.append(one)
    missing = "is missing: " + (inventory.problem or "the driver does not list it")
    for uuid in leases.keys() - {gpu.uuid for gpu in inventory.gpus}:
        run_ids, study = leases[uuid]
        gone = GpuAvailability(uuid, None, run_ids, missing, out_of_service=True, shared_by=study)
        gpus.append(gone)
    return gpus


def foreign_bytes(recorder: Recorder, uuid: str) -> int | None:
    """A GPU's memory that no run of this home uses: the driver's and that of other processes."""
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
        now, deadline = self.context.now(), self.context.monotonic() + DEADLINE_SECONDS
        self.runs.of(run_id).releasing += [
            Releasing(attempt, uuid, used, now, deadline) for uuid, used in baseline_bytes.items()
        ]

    def uuids(self, *, held_only: bool = False) -> set[str]:
        """The GPUs that are being released, or those of them that unkillable processes hold."""
        entries = [entry for _, entry in self.runs.releasing()]
        return {entry.uuid for entry in entries if entry.is_held or not held_only}

    def next_look_seconds(self) -> float | None:
        """Seconds until the next check, None without GPUs. A held GPU may stay so for days and is
        checked less often."""
        entries = [entry for _, entry in self.runs.releasing()]
        pause = HELD_LOOK_SECONDS if all(entry.is_held for entry in entries) else LOOK_SECONDS
        return pause if entries else None

    def turn(self) -> bool:
        """Release the GPUs that are free; True if there was one. Raises sqlite3.Error."""
        context, done = self.context, False
        left: dict[tuple[str, int | None], list[ProcessIdentity]] = {}
        for active, entry in self.runs.releasing():
            is_late = context.monotonic() > entry.deadline
            if not is_late and not self._memory_is_back(active.run_id, entry):
                continue
            key = (active.run_id, entry.attempt)
            if key not in left:
                found = processes_of(context.workspace.run_dir(active.run_id), entry.attempt)
                left[key] = [process.identity for process in found]
            if left[key] and not self._is_unheld(entry, left[key]):
                entry.is_held, entry.ended_at = True, context.now()
                entry.deadline = context.monotonic() + DEADLINE_SECONDS
                # Locked as by the executor; another home may have been faster.
                with contextlib.suppress(GpuHeldError):
                    entry.locks = entry.locks or self.locks.take([entry.uuid])
            else:
                self._release(active, entry, is_told=entry.is_held or bool(left[key]))
                done = True
        return done

    def _release(self, active: ActiveRun, entry: Releasing, *, is_told: bool) -> None:
        connection, run_id = self.context.connection, active.run_id
        run, others = get_run(connection, run_id), [each.uuid for each in active.releasing]
        if (run is None or run.state.is_over) and others.count(entry.uuid) == 1:
            repository.end_lease(connection, run_id, entry.uuid)
        if entry.locks is not None:
            entry.locks.close()
        if is_told and run is not None:
            whose = "the run" if entry.attempt is None else f"attempt {entry.attempt}"
            text = f"no process of {whose} holds {entry.uuid} any more; it can be used again"
            self.context.note("gpus_released", text, run_id)
        active.releasing.remove(entry)

    def _is_unheld(self, entry: Releasing, processes: Sequence[ProcessIdentity]) -> bool:
        """Whether the remaining processes cannot hold the GPU: its memory is free, the driver does
        not list them there, and each has a pending SIGKILL, so that it never runs again."""
        recorder = self.context.recorder
        sample, listed = recorder.fast.get(entry.uuid), recorder.processes.get(entry.uuid)
        if recorder.fast_at <= entry.ended_at or sample is None or sample.state != "ok":
            return False
        used, baseline = sample.memory_used_bytes, entry.baseline_bytes
        if listed is None or used is None or baseline is None:
            return False
        pids = {process.pid for process in listed}
        is_free = used <= baseline + RELEASED_WITHIN_BYTES
        return is_free and all(one.pid not in pids and is_being_killed(one) for one in processes)

    def _memory_is_back(self, run_id: str, entry: Releasing) -> bool:
        # A sample from the future was taken before the clock was set back.
        if not entry.ended_at < self.context.recorder.fast_at <= self.context.now():
            return False
        sample = self.context.recorder.fast.get(entry.uuid)
        lease = repository.leases(self.context.connection).get(entry.uuid)
        # On a shared GPU the memory may be another run's; only the end of this run's processes
        # counts.
        is_shared = lease is not None and bool(set(lease.run_ids) - {run_id})
        used, baseline = None if sample is None else sample.memory_used_bytes, entry.baseline_bytes
        if is_shared or used is None or baseline is None:
            return True
        return used <= baseline + RELEASED_WITHIN_BYTES
