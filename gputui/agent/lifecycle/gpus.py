"""The GPUs: which are available, and the release of those of ended attempts."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from gputui.agent.context import AgentContext
from gputui.agent.lifecycle.scheduler import GpuAvailability
from gputui.agent.recording.recorder import Recorder
from gputui.machine.gpu_model import BUSY_BYTES, GpuFacts, unseen_use
from gputui.runs import repository
from gputui.runs.repository import GpuHolders
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


@dataclass(slots=True, eq=False)
class Releasing:
    """A GPU of an ended attempt. It is free once its memory is back at ``baseline_bytes`` (None:
    unknown) and no process of the attempt is left, or at ``deadline`` (monotonic) if the driver
    does not answer. ``is_held``: unkillable processes hold it."""

    run_id: str
    attempt: int
    uuid: str
    baseline_bytes: int | None
    ended_at: float
    deadline: float
    is_held: bool = False


@dataclass(slots=True)
class GpuRelease:
    """The GPUs of ended attempts: their memory must be free again, and no process of the attempt
    left. A run that is over then returns its leases; a recovering run keeps them, and may start on
    other GPUs before."""

    context: AgentContext
    entries: list[Releasing] = field(default_factory=list)

    def adopt(self) -> None:
        """Continue the releases of a former agent: what living processes hold, and the leases of
        runs that are over. Raises sqlite3.Error."""
        connection = self.context.connection
        ended = connection.execute(
            "SELECT run_id, number, gpus FROM attempts WHERE ended_at NOTNULL AND gpus != '[]' AND run_id IN "
            "(SELECT run_id FROM leases UNION SELECT run_id FROM runs WHERE ended_at IS NULL)"
        ).fetchall()
        scan = self.context.scanner.scan()
        for run_id, number, gpus in ended:
            if scan.processes_of(self.context.workspace.run_dir(run_id), number):
                self.begin(run_id, number, dict.fromkeys(json.loads(gpus)))
        held = {(entry.run_id, entry.uuid) for entry in self.entries}
        for uuid, lease in repository.leases(connection).items():
            for run_id in lease.run_ids:
                run = get_run(connection, run_id)
                if run is not None and run.state.is_over and (run_id, uuid) not in held:
                    repository.end_lease(connection, run_id, uuid)

    def begin(self, run_id: str, attempt: int, baseline_bytes: Mapping[str, int | None]) -> None:
        """Begin to release the GPUs of an attempt. ``baseline_bytes`` is the used memory of each
        before it, None if unknown."""
        now, deadline = self.context.now(), self.context.monotonic() + DEADLINE_SECONDS
        self.entries += [Releasing(run_id, attempt, uuid, used, now, deadline) for uuid, used in baseline_bytes.items()]

    def uuids(self, *, held_only: bool = False) -> set[str]:
        """The GPUs that are being released, or those of them that unkillable processes hold."""
        return {entry.uuid for entry in self.entries if entry.is_held or not held_only}

    def next_look_seconds(self) -> float | None:
        """Seconds until the next check, None without GPUs. A held GPU may stay so for days and is
        checked less often."""
        pause = HELD_LOOK_SECONDS if all(entry.is_held for entry in self.entries) else LOOK_SECONDS
        return pause if self.entries else None

    def turn(self) -> bool:
        """Release the GPUs that are free; True if there was one. Raises sqlite3.Error."""
        context = self.context
        due = [entry for entry in self.entries if context.monotonic() > entry.deadline or self._memory_is_back(entry)]
        if not due:
            return False
        count, scan = len(self.entries), context.scanner.scan()
        for entry in due:
            if scan.processes_of(context.workspace.run_dir(entry.run_id), entry.attempt):
                entry.is_held, entry.ended_at = True, context.now()
                entry.deadline = context.monotonic() + DEADLINE_SECONDS
            else:
                self._release(entry)
        return len(self.entries) < count

    def _release(self, entry: Releasing) -> None:
        run = get_run(self.context.connection, entry.run_id)
        is_last = not any(
            (other.run_id, other.uuid) == (entry.run_id, entry.uuid) for other in self.entries if other is not entry
        )
        if run is not None and run.state.is_over and is_last:
            repository.end_lease(self.context.connection, entry.run_id, entry.uuid)
        if entry.is_held and run is not None:
            text = f"no process of attempt {entry.attempt} holds {entry.uuid} any more; it can be used again"
            self.context.note("gpus_released", text, entry.run_id)
        self.entries.remove(entry)

    def _memory_is_back(self, entry: Releasing) -> bool:
        # A sample from the future was taken before the clock was set back.
        if not entry.ended_at < self.context.recorder.fast_at <= self.context.now():
            return False
        sample = self.context.recorder.fast.get(entry.uuid)
        lease = repository.leases(self.context.connection).get(entry.uuid)
        # On a shared GPU the memory may be another run's; only the end of this run's processes
        # counts.
        is_shared = lease is not None and bool(set(lease.run_ids) - {entry.run_id})
        used, baseline = None if sample is None else sample.memory_used_bytes, entry.baseline_bytes
        if is_shared or used is None or baseline is None:
            return True
        return used <= baseline + RELEASED_WITHIN_BYTES
