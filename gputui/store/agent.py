"""The agent as it describes itself in the store."""

from __future__ import annotations

import sqlite3

from msgspec import Struct


class AgentView(Struct, frozen=True):
    """The agent's row. Times are UTC unix seconds; ``gpu_problem`` is a sentence that says why there are no GPUs, or
    why they are not read; else None."""

    pid: int
    version: str
    started_at: float
    heartbeat_at: float
    ended_at: float | None
    recording: bool
    interval_seconds: float
    source: str | None
    driver_version: str | None
    gpu_problem: str | None
    sampler_state: str
    sampler_silent_seconds: float | None


def read_agent(connection: sqlite3.Connection) -> AgentView | None:
    """The newest agent of this store, live or not; None before the first one."""
    row = connection.execute(
        "SELECT pid, version, started_at, heartbeat_at, ended_at, recording, interval_seconds, source, driver_version, "
        "gpu_problem, sampler_state, sampler_silent_seconds FROM agent"
    ).fetchone()
    if row is None:
        return None
    values = [*row[:5], bool(row[5]), *row[6:]]
    return AgentView(*values)
