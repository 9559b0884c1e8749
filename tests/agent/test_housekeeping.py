"""What an agent notes of the one before it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from gputui.agent.housekeeping import note_predecessor
from gputui.config import Workspace
from gputui.runs.identity import boot_id
from gputui.store.database import open_writer

NOW = 1_700_000_000.0


@pytest.fixture
def connection(workspace: Workspace) -> Iterator[sqlite3.Connection]:
    made = open_writer(workspace.database)
    yield made
    made.close()


def told(connection: sqlite3.Connection, boot: str | None, ended_at: float | None) -> list[tuple[str, str]]:
    if boot is not None:
        connection.execute(
            "INSERT INTO agent (id, pid, start_ticks, boot_id, version, started_at, heartbeat_at, ended_at, recording, "
            "interval_seconds) VALUES (1, 4242, 1, ?, '0', ?, ?, ?, 0, 1)",
            (boot, NOW - 3600, NOW - 47, ended_at),
        )
    note_predecessor(connection, NOW)
    return connection.execute("SELECT kind, message FROM events").fetchall()


def test_one_that_left_by_itself_is_not_worth_a_word(connection: sqlite3.Connection) -> None:
    assert told(connection, None, None) == []
    assert told(connection, boot_id(), NOW - 46) == []


def test_one_that_was_killed(connection: sqlite3.Connection) -> None:
    [(kind, message)] = told(connection, boot_id(), None)
    assert kind == "recording_interrupted" and "4242" in message and "47 s" in message


def test_one_that_went_down_with_its_machine(connection: sqlite3.Connection) -> None:
    [(kind, message)] = told(connection, "another boot", None)
    assert kind == "recording_interrupted" and "4242" not in message and "47 s" in message
