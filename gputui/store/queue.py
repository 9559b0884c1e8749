"""The queue: its order and its pause. Only the agent writes it."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Sequence

from msgspec import Struct

from gputui.store.rows import insert, records, update

# Higher priorities first, then longer waits. A recovering run keeps its place.
ORDER = "priority DESC, queued_at, sequence"


class QueuePause(Struct, frozen=True):
    """A pause of the queue: the person, and the time (UTC unix seconds)."""

    at: float
    actor: str


class QueueEntry(Struct, frozen=True):
    """A waiting run.

    Attributes:
        position: Counts from 1.
        queued_at: UTC unix seconds.
        waiting_for: A sentence, None before it was looked at.
        sequence: The order in which runs were launched.
    """

    position: int
    run_id: str
    priority: int
    queued_at: float | None
    waiting_for: str | None
    sequence: int = 0


def entries(connection: sqlite3.Connection) -> list[QueueEntry]:
    """The waiting runs in the order in which they are served."""
    place = f"row_number() OVER (ORDER BY {ORDER}) AS position"
    query = f"SELECT *, {place} FROM runs WHERE state = 'queued' ORDER BY position"  # noqa: S608 - names only
    return records(connection, QueueEntry, query)


def priorities_to_move(waiting: Sequence[QueueEntry], run_id: str, by: int) -> dict[str, int]:
    """Changed priorities that move a run by that many places (negative: earlier). None falls; among
    equals, the longer wait stays in front."""
    entries_by_run = {entry.run_id: entry for entry in waiting}
    order = [entry.run_id for entry in waiting if entry.run_id != run_id]
    order.insert(max(0, list(entries_by_run).index(run_id) + by), run_id)
    priorities = {entry.run_id: entry.priority for entry in waiting}
    ages = {entry.run_id: (entry.queued_at or 0.0, entry.sequence) for entry in waiting}
    for before, after in reversed(list(itertools.pairwise(order))):
        is_younger = ages[before] > ages[after]
        priorities[before] = max(priorities[before], priorities[after] + is_younger)
    return {name: priority for name, priority in priorities.items() if priority != entries_by_run[name].priority}


def pause(connection: sqlite3.Connection) -> QueuePause | None:
    """The pause, or None while the queue is open."""
    return next(iter(records(connection, QueuePause, "SELECT * FROM queue_pause")), None)


def set_pause(connection: sqlite3.Connection, *, actor: str, now: float) -> None:
    """Pause the queue; an existing pause is kept."""
    insert(connection, "queue_pause", "IGNORE", id=1, at=now, actor=actor)


def clear_pause(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM queue_pause")


def set_priority(connection: sqlite3.Connection, run_id: str, priority: int) -> None:
    update(connection, "runs", {"run_id": run_id}, priority=priority)
