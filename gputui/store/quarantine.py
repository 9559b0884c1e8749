"""GPUs that failed and that no run gets before a person clears them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quarantined:
    """One such GPU. ``since`` is UTC unix seconds; ``run_id`` and ``attempt`` are those it failed under."""

    uuid: str
    since: float
    run_id: str | None
    attempt: int | None
    reason: str


def quarantined(connection: sqlite3.Connection) -> dict[str, Quarantined]:
    """All of them by UUID."""
    rows = connection.execute("SELECT gpu_uuid, since, run_id, attempt, reason FROM gpu_quarantine").fetchall()
    return {row[0]: Quarantined(*row) for row in rows}


def quarantine(
    connection: sqlite3.Connection, uuids: Sequence[str], *, run_id: str, attempt: int, reason: str, now: float
) -> None:
    """Add GPUs; one that is there already keeps its reason. Works inside the caller's transaction."""
    connection.executemany(
        "INSERT OR IGNORE INTO gpu_quarantine (gpu_uuid, since, run_id, attempt, reason) VALUES (?, ?, ?, ?, ?)",
        [(uuid, now, run_id, attempt, reason) for uuid in uuids],
    )


def clear(connection: sqlite3.Connection, uuid: str) -> bool:
    """Let runs have a GPU again; False where it was not in quarantine."""
    return connection.execute("DELETE FROM gpu_quarantine WHERE gpu_uuid = ?", (uuid,)).rowcount > 0
