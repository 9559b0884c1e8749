"""The queue as rows: its order, and whether it is paused. The agent writes them, everybody reads them."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

# Higher priorities first; among equals whoever waits longer. A run that goes on after an incident keeps its place.
ORDER = "priority DESC, queued_at, sequence"


@dataclass(frozen=True, slots=True)
class QueuePause:
    """Who paused the queue, and when (UTC unix seconds)."""

    at: float
    actor: str


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A run that waits. ``position`` counts from 1; ``waiting_for`` is None until the agent has looked."""

    position: int
    run_id: str
    priority: int
    queued_at: float | None
    waiting_for: str | None


def entries(connection: sqlite3.Connection) -> list[QueueEntry]:
    """The waiting runs in the order in which they are served."""
    rows = connection.execute(
        f"SELECT run_id, priority, queued_at, waiting_for FROM runs WHERE state = 'queued' ORDER BY {ORDER}"  # noqa: S608
    )
    return [QueueEntry(number, *row) for number, row in enumerate(rows.fetchall(), 1)]


def pause(connection: sqlite3.Connection) -> QueuePause | None:
    """The pause, or None while the queue is open."""
    row = connection.execute("SELECT at, actor FROM queue_pause").fetchone()
    return None if row is None else QueuePause(*row)


def set_pause(connection: sqlite3.Connection, *, actor: str, now: float) -> None:
    """Pause the queue; a pause that holds already stays as it was."""
    connection.execute("INSERT OR IGNORE INTO queue_pause (id, at, actor) VALUES (1, ?, ?)", (now, actor))


def clear_pause(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM queue_pause")


def set_priority(connection: sqlite3.Connection, run_id: str, priority: int) -> None:
    connection.execute("UPDATE runs SET priority = ? WHERE run_id = ?", (priority, run_id))
