"""Environment and preconditions of a run's next attempt, in a row that the attempt's start deletes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct


class NextAttempt(Struct, frozen=True):
    """``env`` overrides the profile's variables; ``preconditions`` must hold before the start; ``since`` is when both
    were decided (UTC unix seconds)."""

    env: Mapping[str, str] = msgspec.field(default_factory=dict)
    preconditions: tuple[Mapping[str, Any], ...] = ()
    since: float = 0.0


def put(
    connection: sqlite3.Connection,
    run_id: str,
    *,
    env: Mapping[str, str],
    preconditions: Sequence[Mapping[str, Any]],
    now: float,
) -> None:
    """Replace the row. Works inside the caller's transaction."""
    take_away(connection, run_id)
    if env or preconditions:
        connection.execute(
            "INSERT INTO next_attempts (run_id, env, preconditions, since) VALUES (?, ?, ?, ?)",
            (run_id, json.dumps(dict(env)), json.dumps([dict(one) for one in preconditions]), now),
        )


def get(connection: sqlite3.Connection, run_id: str) -> NextAttempt:
    """The row of a run; an empty one if there is none."""
    row = connection.execute(
        "SELECT env, preconditions, since FROM next_attempts WHERE run_id = ?", (run_id,)
    ).fetchone()
    return NextAttempt() if row is None else NextAttempt(json.loads(row[0]), tuple(json.loads(row[1])), row[2])


def set_preconditions(connection: sqlite3.Connection, run_id: str, preconditions: Sequence[Mapping[str, Any]]) -> None:
    """Store the preconditions that are not met yet."""
    text = json.dumps([dict(one) for one in preconditions])
    connection.execute("UPDATE next_attempts SET preconditions = ? WHERE run_id = ?", (text, run_id))


def take_away(connection: sqlite3.Connection, run_id: str) -> None:
    connection.execute("DELETE FROM next_attempts WHERE run_id = ?", (run_id,))
