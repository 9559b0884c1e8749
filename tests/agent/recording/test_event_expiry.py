"""What happened long ago is forgotten; what lasts, or belongs to a run that is there, is not."""

from __future__ import annotations

import sqlite3

from gputui.agent.recording.event_expiry import EventExpiry
from tests.agent.conftest import add_run

DAY = 86400.0
NOW = 400 * DAY


def add_alert(connection: sqlite3.Connection, subject: str, raised: float, cleared: float | None) -> None:
    connection.execute(
        "INSERT INTO alerts (rule, severity, subject_kind, subject_id, subject_name, raised_at, cleared_at, unit, "
        "sentence, remedy) VALUES ('gpu_hot', 'warning', 'gpu', ?, 'GPU 0', ?, ?, '', 's', 'r')",
        (subject, raised * DAY, None if cleared is None else cleared * DAY),
    )


def left(connection: sqlite3.Connection, column: str, table: str) -> list[str]:
    return [row[0] for row in connection.execute(f"SELECT {column} FROM {table} ORDER BY 1")]


def test_what_is_over_and_old_goes(connection: sqlite3.Connection) -> None:
    add_run(connection, "there-1")
    add_alert(connection, "old", 10, 11)
    add_alert(connection, "old but ended lately", 10, 399)
    add_alert(connection, "lasts", 10, None)
    add_alert(connection, "new", 390, 391)
    connection.execute(
        "INSERT INTO notices (alert_id, at, way, message, due_at, sent_at) VALUES (1, 0, 'webhook', '{}', 0, 1)"
    )
    for day, run_id, message in ((10, None, "old"), (10, "gone-1", "gone"), (10, "there-1", "run"), (399, None, "new")):
        connection.execute(
            "INSERT INTO events (at, severity, run_id, message) VALUES (?, 'info', ?, ?)", (day * DAY, run_id, message)
        )
        connection.execute(
            "INSERT INTO commands (created_at, verb, actor, state, answered_at) VALUES (?, ?, 'anna', 'done', ?)",
            (day * DAY, message, day * DAY),
        )
        connection.execute("INSERT INTO gpu_events (at, uuid, event) VALUES (?, 'GPU-0', ?)", (day * DAY, message))
    expiry = EventExpiry(connection, lambda: 0.0)
    expiry.turn(None, NOW, 1.0)
    assert len(left(connection, "subject_id", "alerts")) == 4, "kept for ever"
    expiry.turn(365 * DAY, NOW, 1.0)
    assert left(connection, "subject_id", "alerts") == ["lasts", "new", "old but ended lately"]
    assert left(connection, "way", "notices") == []
    assert left(connection, "message", "events") == ["new", "run"]
    assert left(connection, "verb", "commands") == left(connection, "event", "gpu_events") == ["new"]
