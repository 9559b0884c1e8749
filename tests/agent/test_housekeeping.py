"""What an agent notes of the one before it."""

from __future__ import annotations

import sqlite3

import pytest

from gputui.agent.context import AgentContext
from gputui.agent.housekeeping import note_predecessor
from gputui.core.config import Workspace
from gputui.runs.identity import boot_id
from tests.agent.conftest import NOW


@pytest.mark.parametrize(
    ("is_of_this_boot", "ended_at", "kinds"),
    [(True, NOW - 46, []), (True, None, ["recording_interrupted"]), (False, None, ["recording_interrupted"])],
    ids=["left by itself", "killed", "went down with its machine"],
)
def test_one_that_was_killed_is_told(
    workspace: Workspace,
    connection: sqlite3.Connection,
    is_of_this_boot: bool,
    ended_at: float | None,
    kinds: list[str],
) -> None:
    connection.execute(
        "INSERT INTO agent (id, pid, start_ticks, boot_id, version, started_at, heartbeat_at, ended_at, recording, "
        "interval_seconds) VALUES (1, 4242, 1, ?, '0', ?, ?, ?, 0, 1)",
        (boot_id() if is_of_this_boot else "another boot", NOW - 3600, NOW - 47, ended_at),
    )
    note_predecessor(AgentContext.of(connection, workspace, wake=lambda: None, now=lambda: NOW))
    told = connection.execute("SELECT kind, message FROM events").fetchall()
    assert [kind for kind, _ in told] == kinds
    assert all("47 s" in message and ("4242" in message) is is_of_this_boot for _, message in told)
