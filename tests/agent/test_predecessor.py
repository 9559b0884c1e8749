"""What an agent notes of the one before it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from gputui.agent.predecessor import note_predecessor
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
    return connection.execute("SELECT severity, message FROM events").fetchall()


def test_one_that_left_by_itself_is_not_worth_a_word(connection: sqlite3.Connection) -> None:
    assert told(connection, None, None) == []
    assert told(connection, boot_id(), NOW - 46) == []


def test_one_that_was_killed(connection: sqlite3.Connection) -> None:
    [(severity, message)] = told(connection, boot_id(), None)
    assert severity == "warning" and message == (
        "the agent (pid 4242) was killed or crashed and another took over; GPUs and host were not recorded for 47 s"
    )


def test_one_that_went_down_with_its_machine(connection: sqlite3.Connection) -> None:
    [(_, message)] = told(connection, "another boot", None)
    assert message == "the machine went down while the agent ran; GPUs and host were not recorded for 47 s"
