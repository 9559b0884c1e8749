"""How each GPU stands for whoever wants to start on it: what the driver, the leases and the quarantine say together."""

from __future__ import annotations

from collections.abc import Callable, Collection

from gputui.agent.context import AgentContext
from gputui.agent.lifecycle.scheduler import FOREIGN_BUSY_BYTES, GpuAvailability
from gputui.agent.recording.recorder import Recorder
from gputui.gpu.model import GpuProcess
from gputui.runs import repository
from gputui.store.hardware import quarantined


def standings(
    context: AgentContext,
    draining: Collection[str],
    holder_of: Callable[[str], str | None] = lambda _uuid: None,
    held: Collection[str] = (),
) -> list[GpuAvailability] | None:
    """Every GPU that the driver lists, then those that are leased and not listed; None before the first inventory.
    ``draining`` are the UUIDs of those whose memory is not back yet; ``holder_of`` says who else holds the lock of one.
    ``held`` are those of ``draining`` that processes keep which nothing could end. Raises sqlite3.Error."""
    connection, recorder = context.connection, context.recorder
    inventory = recorder.inventory
    if inventory is None:
        return None
    holders = repository.leases(connection)
    # Held by executors of this home.
    in_use = repository.leases_in_use(connection)
    failed = quarantined(connection)
    found = []
    for gpu in inventory.gpus:
        sample = recorder.fast.get(gpu.uuid)
        blocked_by = None
        if gpu.uuid in failed:
            blocked_by = f"is in quarantine ({failed[gpu.uuid].reason})"
        elif sample is None:
            blocked_by = "has not been read yet"
        elif sample.state != "ok":
            blocked_by = "is lost" if sample.state == "lost" else f"has an error: {sample.detail}"
        elif gpu.uuid in draining:
            words = "is held by a process" if gpu.uuid in held else "still holds memory"
            blocked_by = f"{words} of the previous attempt"
        elif gpu.mig_mode:
            blocked_by = "is split by MIG"
        else:
            stranger = _stranger(recorder, gpu.uuid)
            if stranger is not None:
                blocked_by = f"is used by {stranger.user or 'another user'} (pid {stranger.pid})"
            elif gpu.uuid not in in_use and (other := holder_of(gpu.uuid)) is not None:
                blocked_by = f"is held by {other}"
        total = (sample.memory_total_bytes if sample else None) or gpu.memory_total_bytes
        used = sample.memory_used_bytes if sample else None
        free = None if total is None or used is None else total - used
        # Only a person ends these, at an hour that nobody knows.
        is_out = gpu.uuid in failed or bool(gpu.mig_mode) or (sample is not None and sample.state != "ok")
        is_drained_soon = gpu.uuid in draining and gpu.uuid not in held
        is_settling = gpu.uuid not in failed and (sample is None or (sample.state == "ok" and is_drained_soon))
        found.append(GpuAvailability(gpu.uuid, gpu.index, holders.get(gpu.uuid), blocked_by, free, is_out, is_settling))
    listed = {gpu.uuid for gpu in inventory.gpus}
    missing = "is missing: " + (inventory.problem or "the driver does not list it")
    return found + [
        GpuAvailability(uuid, None, holder, missing, out_of_service=True)
        for uuid, holder in holders.items()
        if uuid not in listed
    ]


def _stranger(recorder: Recorder, uuid: str) -> GpuProcess | None:
    for process in recorder.processes.get(uuid) or ():
        heavy = process.kind != "G" or (process.memory_bytes or 0) >= FOREIGN_BUSY_BYTES
        if heavy and recorder.owner(process) is None:
            return process
    return None
