"""A database that another program holds is known by SQLite's code, whatever the words are."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gputui.store.database import StoreCorruptError, StoreLockedError, is_locked, open_reader, open_writer


@pytest.mark.parametrize("code", [sqlite3.SQLITE_BUSY, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_BUSY_SNAPSHOT])
def test_locks_are_known_by_their_code(code: int) -> None:
    error = sqlite3.OperationalError("locking protocol")
    error.sqlite_errorcode = code
    assert is_locked(error) and is_locked(StoreLockedError("another program"))


def test_a_held_database_is_locked_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "gputui.db"
    open_writer(path).close()
    monkeypatch.setattr("gputui.store.database.BUSY_TIMEOUT_SECONDS", 0.01)
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        # As a backup program does: nobody else may even read.
        holder.execute("PRAGMA locking_mode = EXCLUSIVE")
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreLockedError):
            open_reader(path)
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(StoreCorruptError) as caught:
        open_reader(path)
    assert not is_locked(caught.value)
