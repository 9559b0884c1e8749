"""Messages that somebody is owed, as rows: written in the transaction of what they tell, and sent at least once."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Way = Literal["command", "webhook"]


@dataclass(frozen=True, slots=True)
class Owed:
    """One message by one way that was not sent yet: about an attempt of a run, or about an alert. ``tries`` have begun
    so far."""

    notice_id: int
    run_id: str | None
    attempt: int | None
    alert_id: int | None
    way: Way
    message: Mapping[str, Any]
    tries: int


def put(
    connection: sqlite3.Connection,
    run_id: str,
    attempt: int,
    ways: Sequence[Way],
    message: Mapping[str, Any],
    *,
    now: float,
) -> None:
    """Owe a message, which must hold no secret. Works inside the caller's transaction."""
    connection.executemany(
        "INSERT INTO notices (run_id, attempt, at, way, message, due_at) VALUES (?, ?, ?, ?, ?, ?)",
        [(run_id, attempt, now, way, json.dumps(dict(message)), now) for way in ways],
    )


def put_of_alert(
    connection: sqlite3.Connection, alert_id: int, ways: Sequence[Way], message: Mapping[str, Any], *, now: float
) -> None:
    """The same about an alert."""
    connection.executemany(
        "INSERT INTO notices (alert_id, at, way, message, due_at) VALUES (?, ?, ?, ?, ?)",
        [(alert_id, now, way, json.dumps(dict(message)), now) for way in ways],
    )


def due(connection: sqlite3.Connection, now: float) -> list[Owed]:
    """What is to be sent now, the oldest first."""
    rows = connection.execute(
        "SELECT notice_id, run_id, attempt, alert_id, way, message, tries FROM notices "
        "WHERE sent_at IS NULL AND gave_up_at IS NULL AND due_at <= ? ORDER BY notice_id",
        (now,),
    )
    return [Owed(row[0], row[1], row[2], row[3], row[4], json.loads(row[5]), row[6]) for row in rows]


def is_owing(connection: sqlite3.Connection) -> bool:
    """Whether anything is still to be sent, now or later."""
    row = connection.execute("SELECT 1 FROM notices WHERE sent_at IS NULL AND gave_up_at IS NULL LIMIT 1").fetchone()
    return row is not None


def note_try(connection: sqlite3.Connection, notice_id: int) -> None:
    """A try begins; noted before it, so that a message which ends every agent is not sent for ever."""
    connection.execute("UPDATE notices SET tries = tries + 1 WHERE notice_id = ?", (notice_id,))


def note_sent(connection: sqlite3.Connection, notice_id: int, now: float) -> None:
    connection.execute("UPDATE notices SET sent_at = ? WHERE notice_id = ?", (now, notice_id))


def note_delay(connection: sqlite3.Connection, notice_id: int, due_at: float) -> None:
    connection.execute("UPDATE notices SET due_at = ? WHERE notice_id = ?", (due_at, notice_id))


def note_given_up(connection: sqlite3.Connection, notice_id: int, now: float) -> None:
    connection.execute("UPDATE notices SET gave_up_at = ? WHERE notice_id = ?", (now, notice_id))
