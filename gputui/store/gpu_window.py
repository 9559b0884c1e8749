"""The samples of some GPUs over a span of time, as they were taken."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

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
    marks = ", ".join("?" * len(uuids))
    rows = connection.execute(
        "SELECT s.at, g.position, g.uuid, s.state, s.utilization_percent, s.memory_used_bytes, s.memory_total_bytes, "  # noqa: S608 - question marks
        "s.temperature_celsius, s.power_watts, s.power_limit_watts, s.sm_clock_mhz, s.throttle_reasons "
        f"FROM gpus AS g JOIN gpu_samples AS s USING (gpu_id) WHERE g.uuid IN ({marks}) AND s.at BETWEEN ? AND ? "
        "ORDER BY s.at DESC, g.position DESC LIMIT ?",
        (*uuids, since, until, limit),
    ).fetchall()
    rows.reverse()
    return rows
