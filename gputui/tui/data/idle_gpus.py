"""How long processes have held memory of GPUs that compute nothing, read while the page of processes is open."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

from gputui.store.hardware import GpuView, idleness, present_since


class IdleReader:
    """Keeps since when each GPU has been idle, so that each look needs the newest samples only."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, float]] = {}

    def read(
        self, connection: sqlite3.Connection, gpus: Sequence[GpuView], now: float
    ) -> Mapping[tuple[str, int], float]:
        """Since when (UTC unix seconds), by the GPU's UUID and the PID. Raises sqlite3.Error."""
        found: dict[tuple[str, int], float] = {}
        for gpu in gpus:
            pids = [process.pid for process in gpu.processes or () if process.memory_bytes]
            if not pids or gpu.state != "ok" or gpu.utilization_percent != 0:
                self._known.pop(gpu.uuid, None)
                continue
            idle = self._idle_since(connection, gpu.uuid, now)
            if idle is not None:
                present = present_since(connection, gpu.uuid)
                found |= {(gpu.uuid, pid): max(idle, present[pid]) for pid in pids if pid in present}
        return found

    def _idle_since(self, connection: sqlite3.Connection, uuid: str, now: float) -> float | None:
        known = self._known.pop(uuid, None)
        found = idleness(connection, uuid, 0.0 if known is None else known[1], now)
        since = found.since if known is None or found.was_busy else known[0]
        if since is not None:
            self._known[uuid] = (since, now)
        return since
