"""The samples of some GPUs over a span of time, as they were taken."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence

from gputui.store import samples, series

COLUMNS = (
    "at", "gpu", "uuid", "state", "utilization_percent", "memory_used_bytes", "memory_total_bytes",
    "temperature_celsius", "power_watts", "power_limit_watts", "sm_clock_mhz", "throttle_reasons",
)  # fmt: skip


def samples_between(
    connection: sqlite3.Connection, uuids: Sequence[str], since: float, until: float, limit: int
) -> list[tuple[object, ...]]:
    """Rows of COLUMNS from ``since`` to ``until`` (UTC unix seconds), oldest first; of more than ``limit`` the newest.

    ``gpu`` is the GPU's index. Raises sqlite3.Error.
    """
    found: list[tuple[object, ...]] = []
    for uuid in uuids:
        row = connection.execute("SELECT gpu_id, position FROM gpus WHERE uuid = ?", (uuid,)).fetchone()
        if row is not None:
            after = math.nextafter(until, math.inf)
            for at, *values in samples.between(connection, series.GPU, row[0], COLUMNS[3:], since, after):
                found.append((at, row[1], uuid, *values))
    found.sort(key=lambda one: one[:2])
    return found[-limit:]
