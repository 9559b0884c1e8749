"""The queue: its order and its pause. Only the agent writes it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    import sqlite3

# Higher priorities first, then longer waits. A recovering run keeps its place.
ORDER = "priority DESC, queued_at, sequence"


class QueuePause(Struct, frozen=True):
    """Who paused the queue, and when (UTC unix seconds)."""

    at: float
    actor: str


class QueueEntry(Struct, frozen=True):
    """A waiting run. ``position`` counts from 1; ``waiting_for`` is None before the first schedule; ``sequence`` grows
    with every launch."""

    position: int
    run_id: str
    priority: int
    queued_at: float | None
    waiting_for: str | None
    sequence: int = 0


def entries(connection: sqlite3.Connection) -> list[QueueEntry]:
    """The waiting runs in the order in which they are served."""
    rows = connection.execute(
        f"SELECT run_id, priority, queued_at, waiting_for, sequence FROM runs "  # noqa: S608 - fixed words
        f"WHERE state = 'queued' ORDER BY {ORDER}"
    )
    return [QueueEntry(number, *row) for number, row in enumerate(rows.fetchall(), 1)]


def moved(waiting: Sequence[QueueEntry], run_id: str, by: int) -> dict[str, int]:
    """Changed priorities that move a run by that many places (negative: earlier). None falls, and at an end of the
    queue nothing changes.

    Priorities rise only as far as the order needs: among equals, the run that waits longer stays in front.
    """
    entries = {entry.run_id: entry for entry in waiting}
    wanted = [entry.run_id for entry in waiting if entry.run_id != run_id]
    wanted.insert(max(0, list(entries).index(run_id) + by), run_id)
    priorities = {entry.run_id: entry.priority for entry in waiting}
    for before, after in reversed(list(itertools.pairwise(wanted))):
        is_younger = _age(entries[before]) > _age(entries[after])
        priorities[before] = max(priorities[before], priorities[after] + is_younger)
    return {name: priority for name, priority in priorities.items() if priority != entries[name].priority}


def _age(entry: QueueEntry) -> tuple[float, int]:
    return entry.queued_at or 0.0, entry.sequence


def pause(connection: sqlite3.Connection) -> QueuePause | None:
    """The pause, or None while the queue is open."""
    row = connection.execute("SELECT at, actor FROM queue_pause").fetchone()
    return None if row is None else QueuePause(*row)


def set_pause(connection: sqlite3.Connection, *, actor: str, now: float) -> None:
    """Pause the queue; an existing pause is kept."""
    connection.execute("INSERT OR IGNORE INTO queue_pause (id, at, actor) VALUES (1, ?, ?)", (now, actor))


def clear_pause(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM queue_pause")


def set_priority(connection: sqlite3.Connection, run_id: str, priority: int) -> None:
    connection.execute("UPDATE runs SET priority = ? WHERE run_id = ?", (priority, run_id))
