"""How each GPU stands for whoever wants to start on it: what the driver, the leases and the quarantine say together."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection

from gputui.agent.recorder import Recorder
from gputui.agent.scheduling import FOREIGN_BUSY_BYTES, GpuStanding
from gputui.gpu.model import GpuProcess
from gputui.runs import repository
from gputui.store.quarantine import quarantined


def standings(
    connection: sqlite3.Connection, recorder: Recorder, draining: Collection[str]
) -> list[GpuStanding] | None:
    """Every GPU, or None before the first inventory. ``draining`` are the UUIDs of those whose memory is not back yet.
    Raises sqlite3.Error."""
    inventory = recorder.inventory
    if inventory is None:
        return None
    holders = repository.leases(connection)
    failed = quarantined(connection)
    found = []
    for gpu in inventory.gpus:
        sample = recorder.fast.get(gpu.uuid)
        obstacle = None
        if gpu.uuid in failed:
            obstacle = f"is in quarantine ({failed[gpu.uuid].reason})"
        elif sample is None:
            obstacle = "has not been read yet"
        elif sample.state != "ok":
            obstacle = "is lost" if sample.state == "lost" else f"has an error: {sample.detail}"
        elif gpu.uuid in draining:
            obstacle = "still holds memory of the previous attempt"
        elif gpu.mig_mode:
            obstacle = "is split by MIG"
        else:
            stranger = _stranger(recorder, gpu.uuid)
            if stranger is not None:
                obstacle = f"is used by {stranger.user or 'another user'} (pid {stranger.pid})"
        total = (sample.memory_total_bytes if sample else None) or gpu.memory_total_bytes
        used = sample.memory_used_bytes if sample else None
        free = None if total is None or used is None else total - used
        # Only a person ends these, at an hour that nobody knows.
        is_out = gpu.uuid in failed or bool(gpu.mig_mode) or (sample is not None and sample.state != "ok")
        found.append(GpuStanding(gpu.uuid, gpu.index, holders.get(gpu.uuid), obstacle, free, is_out))
    return found


def _stranger(recorder: Recorder, uuid: str) -> GpuProcess | None:
    for process in recorder.processes.get(uuid) or ():
        heavy = process.kind != "G" or (process.memory_bytes or 0) >= FOREIGN_BUSY_BYTES
        if heavy and recorder.owner(process) is None:
            return process
    return None
