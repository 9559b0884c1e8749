"""The GPUs: which are available, and the release of those of ended attempts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gputui.agent.context import AgentContext
from gputui.agent.lifecycle.scheduler import GpuAvailability
from gputui.agent.recording.recorder import Recorder
from gputui.machine.gpu_model import BUSY_BYTES, GpuFacts, unseen_use
from gputui.runs import repository
from gputui.runs.repository import GpuHolders
from gputui.store.hardware import Quarantined, quarantined
from gputui.store.runs import get_run
from gputui.store.series import GpuSample

# How long a driver that does not answer, or a process that cannot be killed, is waited for at a time.
DEADLINE_SECONDS = 15.0


def gpu_availability(
    context: AgentContext,
    draining: Mapping[str, bool],
    is_locked: Callable[[str], bool] = lambda _uuid: False,
) -> list[GpuAvailability] | None:
    """All GPUs that the driver lists, then leased ones that it does not list; None before the first
    inventory.

    ``draining`` are the GPUs that are being released, by UUID, and whether an unkillable process
    holds them. ``is_locked`` tells whether another home holds the lock of a GPU. Raises
    sqlite3.Error.
    """
    connection, inventory = context.connection, context.recorder.inventory
    if inventory is None:
        return None
    state = _MachineState(
        context.recorder,
        draining,
        is_locked,
        leases=repository.leases(connection),
        in_use=repository.leases_in_use(connection),
        quarantined=quarantined(connection),
    )
    gpus = [state.availability(gpu) for gpu in inventory.gpus]
    missing = "is missing: " + (inventory.problem or "the driver does not list it")
    for uuid in state.leases.keys() - {gpu.uuid for gpu in inventory.gpus}:
        run_ids, study = state.leases[uuid]
        gpus.append(GpuAvailability(uuid, None, run_ids, missing, out_of_service=True, shared_by=study))
    return gpus


class _MachineState(NamedTuple):
    """What decides whether a GPU is available. ``in_use`` are the leased GPUs of runs with an
    attempt."""

    recorder: Recorder
    draining: Mapping[str, bool]
    is_locked: Callable[[str], bool]
    leases: Mapping[str, GpuHolders]
    in_use: set[str]
    quarantined: Mapping[str, Quarantined]

    def availability(self, gpu: GpuFacts) -> GpuAvailability:
        uuid, sample = gpu.uuid, self.recorder.fast.get(gpu.uuid)
        total = (sample.memory_total_bytes if sample else None) or gpu.memory_total_bytes
        used = sample.memory_used_bytes if sample else None
        is_bad = sample is not None and sample.state != "ok"
        is_held = self.draining.get(uuid)
        lease = self.leases.get(uuid, GpuHolders((), None))
        return GpuAvailability(
            uuid,
            gpu.index,
            lease.run_ids,
            self._blocked_by(gpu, sample),
            free_bytes=None if total is None or used is None else total - used,
            # Only a person can end these states.
            out_of_service=uuid in self.quarantined or bool(gpu.mig_mode) or is_bad,
            is_settling=uuid not in self.quarantined and not is_bad and (sample is None or is_held is False),
            total_bytes=total,
            shared_by=lease.shared_by,
        )

    def _blocked_by(self, gpu: GpuFacts, sample: GpuSample | None) -> str | None:
        """Why nothing may start on a GPU now; None if it is usable."""
        uuid, processes = gpu.uuid, self.recorder.processes.get(gpu.uuid) or ()
        if uuid in self.quarantined:
            return f"is in quarantine ({self.quarantined[uuid].reason})"
        if sample is None:
            return "has not been read yet"
        if sample.state != "ok":
            return "is lost" if sample.state == "lost" else f"has an error: {sample.detail}"
        if uuid in self.draining:
            words = "is held by a process" if self.draining[uuid] else "still holds memory"
            return f"{words} of the previous attempt"
        if gpu.mig_mode:
            return "is split by MIG"
        for process in processes:
            # Graphics with little memory, such as a desktop, do not count.
            is_heavy = process.kind != "G" or (process.memory_bytes or 0) >= BUSY_BYTES
            if is_heavy and self.recorder.owner(process) is None:
                return f"is used by {process.user or 'another user'} (pid {process.pid})"
        if uuid not in self.in_use and self.is_locked(uuid):
            return "is held by another home or user"
        if uuid not in self.leases and not processes:
            used = None if gpu.memory_is_unified else sample.memory_used_bytes
            return unseen_use(used, sample.utilization_percent)
        return None


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
    """The GPUs of an attempt that ended at ``ended_at`` (UTC unix seconds). They are looked at once
    they were sampled since then, at the latest at ``deadline`` (monotonic). ``is_held``: unkillable
    processes hold them."""

    run_id: str
    attempt: int
    uuids: Sequence[str]
    ended_at: float
    deadline: float
    is_held: bool = False


@dataclass(slots=True)
class GpuRelease:
    """The GPUs of ended attempts, which are free once no process of the attempt is left and they
    were sampled again. A run that is over then returns its leases; a recovering run keeps them, and
    may start on other GPUs before."""

    context: AgentContext
    entries: list[Releasing] = field(default_factory=list)

    def adopt(self) -> None:
        """Begin again to release the GPUs of ended attempts whose runs have a lease or are not over.
        Raises sqlite3.Error."""
        ended = self.context.connection.execute(
            "SELECT run_id, number, gpus FROM attempts WHERE ended_at NOTNULL AND gpus != '[]' AND run_id IN "
            "(SELECT run_id FROM leases UNION SELECT run_id FROM runs WHERE ended_at IS NULL)"
        ).fetchall()
        for run_id, number, gpus in ended:
            self.begin(run_id, number, json.loads(gpus))

    def begin(self, run_id: str, attempt: int, uuids: Sequence[str]) -> None:
        """Begin to release the GPUs of an attempt that has just ended."""
        if uuids:
            deadline = self.context.monotonic() + DEADLINE_SECONDS
            self.entries.append(Releasing(run_id, attempt, uuids, self.context.now(), deadline))

    def uuids(self) -> dict[str, bool]:
        """The GPUs that are being released, and whether unkillable processes hold them."""
        by_held = sorted(self.entries, key=lambda entry: entry.is_held)
        return {uuid: entry.is_held for entry in by_held for uuid in entry.uuids}

    def next_due(self) -> float:
        """Monotonic time of the next check, infinite without GPUs; a sample may cause an earlier
        one."""
        return min((entry.deadline for entry in self.entries), default=math.inf)

    def turn(self) -> bool:
        """Release the GPUs that are free; True if there was one. Raises sqlite3.Error."""
        context = self.context
        due = [entry for entry in self.entries if self._is_due(entry)]
        if not due:
            return False
        count, scan = len(self.entries), context.scanner.scan()
        for entry in due:
            if scan.processes_of(context.workspace.run_dir(entry.run_id), entry.attempt):
                entry.is_held, entry.deadline = True, context.monotonic() + DEADLINE_SECONDS
            else:
                self._release(entry)
        return len(self.entries) < count

    def _is_due(self, entry: Releasing) -> bool:
        # A sample from the future was taken before the clock was set back.
        was_sampled = entry.ended_at < self.context.recorder.fast_at <= self.context.now()
        return (was_sampled and not entry.is_held) or self.context.monotonic() >= entry.deadline

    def _release(self, entry: Releasing) -> None:
        run = get_run(self.context.connection, entry.run_id)
        others = [other for other in self.entries if other is not entry and other.run_id == entry.run_id]
        kept = {uuid for other in others for uuid in other.uuids}
        for uuid in entry.uuids if run is not None and run.state.is_over else ():
            if uuid not in kept:
                repository.end_lease(self.context.connection, entry.run_id, uuid)
        if entry.is_held and run is not None:
            text = f"no process of attempt {entry.attempt} holds {', '.join(entry.uuids)} any more; usable again"
            self.context.note("gpus_released", text, entry.run_id)
        self.entries.remove(entry)
