"""What was written is moved into the database by a job, and the log stays short."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.agent.jobs import Jobs
from gputui.agent.recording import write_ahead_log
from gputui.agent.recording.write_ahead_log import LIMIT_PAGES, LONG_BYTES, MOVED_AT_BYTES, WriteAheadLog, move
from gputui.config import Workspace
from tests.conftest import wait_until
from tests.stores import open_store


@pytest.fixture
def connection(workspace: Workspace) -> Iterator[sqlite3.Connection]:
    made = open_store(workspace.database)
    made.execute("CREATE TABLE big (x BLOB)")
    yield made
    made.close()


def log_bytes(workspace: Workspace) -> int:
    return workspace.database.with_name(workspace.database.name + "-wal").stat().st_size


def write(connection: sqlite3.Connection, megabytes: int) -> None:
    for _ in range(megabytes):
        connection.execute("INSERT INTO big VALUES (zeroblob(?))", (1 << 20,))


def test_the_log_is_moved_beside_the_loop_and_becomes_short_again(
    workspace: Workspace, connection: sqlite3.Connection
) -> None:
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


def test_a_log_that_cannot_be_moved_is_tried_again_and_bounded(
    workspace: Workspace, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    def fail(_database: Path) -> None:
        tries.append(1)
        raise sqlite3.OperationalError("disk I/O error")

    now = [0.0]
    jobs = Jobs(lambda: None, lambda: now[0])
    log = WriteAheadLog(connection, workspace.database, jobs, lambda: now[0])
    with monkeypatch.context() as patched:
        patched.setattr(write_ahead_log, "move", fail)
        write(connection, 5)
        for _ in range(2):
            log.turn()
            wait_until(lambda: not jobs.is_busy)
            log.turn()
            now[0] += 100.0
    assert len(tries) == 2
    # Where no job gets to it, the loop does.
    for _ in range(3):
        write(connection, 25)
    assert log_bytes(workspace) < 2 * LIMIT_PAGES * 4096


def test_readers_of_metrics_wait_while_a_long_log_is_moved(
    workspace: Workspace, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def move_slowly(database: Path) -> None:
        begun.set()
        assert may_end.wait(60)
        move(database)

    monkeypatch.setattr(write_ahead_log, "move", move_slowly)
    jobs = Jobs(lambda: None, time.monotonic)
    log = WriteAheadLog(connection, workspace.database, jobs, time.monotonic)
    write(connection, 5)
    log.turn()
    assert begun.wait(60)
    is_behind_while_short = log.is_behind
    write(connection, 9)
    is_behind_while_long = log.is_behind
    may_end.set()
    wait_until(lambda: not jobs.is_busy)
    assert (is_behind_while_short, is_behind_while_long, log.is_behind) == (False, True, False)
