"""Messages to send, written in the transaction of what they report, sent at least once."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from gputui.store.rows import insert, records, update

Way = Literal["command", "webhook"]


class Owed(Struct, frozen=True):
    """An unsent message about an attempt or an alert. ``tries`` counts those begun."""

    notice_id: int
    run_id: str | None
    attempt: int | None
    alert_id: int | None
    way: Way
    message: dict[str, Any]
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
    """Add a message about an attempt. It must hold no secret."""
    for way in ways:
        text = json.dumps(dict(message))
        insert(connection, "notices", run_id=run_id, attempt=attempt, at=now, way=way, message=text, due_at=now)


def put_of_alert(
    connection: sqlite3.Connection, alert_id: int, ways: Sequence[Way], message: Mapping[str, Any], *, now: float
) -> None:
    """Add a message about an alert. It must hold no secret."""
    for way in ways:
        insert(connection, "notices", alert_id=alert_id, at=now, way=way, message=json.dumps(dict(message)), due_at=now)


def due(connection: sqlite3.Connection, now: float) -> list[Owed]:
    """The messages to send now, oldest first."""
    waiting = "sent_at IS NULL AND gave_up_at IS NULL AND due_at <= ?"
    return records(connection, Owed, f"SELECT * FROM notices WHERE {waiting} ORDER BY notice_id", now)  # noqa: S608


def is_owing(connection: sqlite3.Connection) -> bool:
    row = connection.execute("SELECT 1 FROM notices WHERE sent_at IS NULL AND gave_up_at IS NULL LIMIT 1").fetchone()
    return row is not None


def note_try(connection: sqlite3.Connection, notice_id: int) -> None:
    """Count a try before it begins: one that crashes the agent must not be sent forever."""
    connection.execute("UPDATE notices SET tries = tries + 1 WHERE notice_id = ?", (notice_id,))


def note_sent(connection: sqlite3.Connection, notice_id: int, now: float) -> None:
    update(connection, "notices", {"notice_id": notice_id}, sent_at=now)


def note_delay(connection: sqlite3.Connection, notice_id: int, due_at: float) -> None:
    update(connection, "notices", {"notice_id": notice_id}, due_at=due_at)


def note_given_up(connection: sqlite3.Connection, notice_id: int, now: float) -> None:
    update(connection, "notices", {"notice_id": notice_id}, gave_up_at=now)
