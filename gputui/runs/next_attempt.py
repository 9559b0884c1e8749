"""What a run's next attempt needs besides its parameters, as a row that the attempt's start takes away."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class NextAttempt:
    """``env``: variables that win over the profile's; ``gates``: what is waited for, as plain data; ``since``: when
    that was decided (UTC unix seconds)."""

    env: Mapping[str, str] = field(default_factory=dict)
    gates: tuple[Mapping[str, Any], ...] = ()
    since: float = 0.0


def put(
    connection: sqlite3.Connection,
    run_id: str,
    *,
    env: Mapping[str, str],
    gates: Sequence[Mapping[str, Any]],
    now: float,
) -> None:
    """Note it in place of what was noted before. Works inside the caller's transaction."""
    take_away(connection, run_id)
    if env or gates:
        connection.execute(
            "INSERT INTO next_attempts (run_id, env, gates, since) VALUES (?, ?, ?, ?)",
            (run_id, json.dumps(dict(env)), json.dumps([dict(gate) for gate in gates]), now),
        )


def get(connection: sqlite3.Connection, run_id: str) -> NextAttempt:
    """What is noted; nothing where nothing is."""
    row = connection.execute("SELECT env, gates, since FROM next_attempts WHERE run_id = ?", (run_id,)).fetchone()
    return NextAttempt() if row is None else NextAttempt(json.loads(row[0]), tuple(json.loads(row[1])), row[2])


def set_gates(connection: sqlite3.Connection, run_id: str, gates: Sequence[Mapping[str, Any]]) -> None:
    """Those that are still closed."""
    text = json.dumps([dict(gate) for gate in gates])
    connection.execute("UPDATE next_attempts SET gates = ? WHERE run_id = ?", (text, run_id))


def take_away(connection: sqlite3.Connection, run_id: str) -> None:
    connection.execute("DELETE FROM next_attempts WHERE run_id = ?", (run_id,))
