"""What a run's next attempt needs besides its parameters, as a row that the attempt's start takes away."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class NextAttempt:
    """``env``: variables that win over the profile's; ``preconditions``: what it waits for, as plain data;
    ``since``: when that was decided (UTC unix seconds)."""

    env: Mapping[str, str] = field(default_factory=dict)
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
    """Note it in place of what was noted before. Works inside the caller's transaction."""
    take_away(connection, run_id)
    if env or preconditions:
        connection.execute(
            "INSERT INTO next_attempts (run_id, env, preconditions, since) VALUES (?, ?, ?, ?)",
            (run_id, json.dumps(dict(env)), json.dumps([dict(one) for one in preconditions]), now),
        )


def get(connection: sqlite3.Connection, run_id: str) -> NextAttempt:
    """What is noted; nothing if nothing is."""
    row = connection.execute(
        "SELECT env, preconditions, since FROM next_attempts WHERE run_id = ?", (run_id,)
    ).fetchone()
    return NextAttempt() if row is None else NextAttempt(json.loads(row[0]), tuple(json.loads(row[1])), row[2])


def set_preconditions(connection: sqlite3.Connection, run_id: str, preconditions: Sequence[Mapping[str, Any]]) -> None:
    """Store those that are not met yet."""
    text = json.dumps([dict(one) for one in preconditions])
    connection.execute("UPDATE next_attempts SET preconditions = ? WHERE run_id = ?", (text, run_id))


def take_away(connection: sqlite3.Connection, run_id: str) -> None:
    connection.execute("DELETE FROM next_attempts WHERE run_id = ?", (run_id,))
