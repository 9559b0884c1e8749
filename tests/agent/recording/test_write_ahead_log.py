"""What was written is moved into the database by a job, and the log stays short."""

from __future__ import annotations

import sqlite3
import time

from gputui.agent.jobs import Jobs
from gputui.agent.recording.write_ahead_log import LONG_BYTES, MOVED_AT_BYTES, WriteAheadLog
from gputui.core.config import Workspace
from tests.conftest import wait_until


def log_bytes(workspace: Workspace) -> int:
    return workspace.database.with_name(workspace.database.name + "-wal").stat().st_size


def write(connection: sqlite3.Connection, megabytes: int) -> None:
    for _ in range(megabytes):
        connection.execute("INSERT INTO big VALUES (zeroblob(?))", (1 << 20,))


def test_the_log_is_moved_beside_the_loop_and_becomes_short_again(
    workspace: Workspace, connection: sqlite3.Connection
) -> None:
    connection.execute("CREATE TABLE big (x BLOB)")
    jobs = Jobs(lambda: None, time.monotonic)
    log = WriteAheadLog(connection, workspace.database, jobs, time.monotonic)
    log.turn()
    assert not jobs.is_busy
    write(connection, 13)
    # No commit has moved it by itself.
    assert log_bytes(workspace) >= LONG_BYTES > MOVED_AT_BYTES and log.is_long
    log.turn()
    wait_until(lambda: not jobs.is_busy)
    log.turn()
    write(connection, 1)
    assert log_bytes(workspace) < MOVED_AT_BYTES and not log.is_long
