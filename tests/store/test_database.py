"""The database file: its locks, its schema, and the columns that readers show."""

from __future__ import annotations

import itertools
import re
import sqlite3
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict

from gputui.core.config import Workspace
from gputui.store.database import (
    SCHEMA_VERSION,
    StoreCorruptError,
    StoreError,
    StoreLockedError,
    is_locked,
    open_reader,
    open_writer,
    schema,
)
from gputui.store.hardware import read_gpus, read_host
from gputui.store.series import GPU, HOST, SLOW
from tests.homes import open_store

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"

VERSION_AND_DIGEST = (53, "ed1f830ea4e6b859")
"""SCHEMA_VERSION, and the digest of the statements of schema.sql that belong to it."""


@pytest.mark.parametrize("code", [sqlite3.SQLITE_BUSY, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_BUSY_SNAPSHOT])
def test_locks_are_known_by_their_code(code: int) -> None:
    error = sqlite3.OperationalError("locking protocol")
    error.sqlite_errorcode = code
    assert is_locked(error)
    assert is_locked(StoreLockedError("another program"))


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


def test_a_file_error_in_the_setup_closes_the_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "gputui.db"
    opened = list[sqlite3.Connection]()
    connect = sqlite3.connect

    def recorded(*arguments: Any, **options: Any) -> sqlite3.Connection:
        opened.append(connect(*arguments, **options))
        return opened[-1]

    def unreadable() -> str:
        raise PermissionError("schema.sql")

    monkeypatch.setattr(sqlite3, "connect", recorded)
    monkeypatch.setattr("gputui.store.database.schema", unreadable)
    with pytest.raises(StoreError, match=r"cannot use .*schema\.sql"):
        open_writer(path)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        opened[0].execute("SELECT 1")


def test_the_questions_of_the_page_have_answers(workspace: Workspace) -> None:
    text = PAGE.read_text("utf-8").partition("## The database")[2].partition("### One run as a file")[0]
    questions = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
    names_on_page = {
        name for row in re.findall(r"^\| (`.+?) \|", text, re.MULTILINE) for name in re.findall(r"`([a-z_]+)`", row)
    }
    open_writer(workspace.database).close()
    with closing(open_reader(workspace.database)) as connection:
        for question in questions:
            assert connection.execute(question).fetchall() == []
        names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    assert len(questions) >= 3
    assert names_on_page >= {"gpu_hours", "runs", "metric_points"}
    assert names_on_page <= names


def test_freed_pages_of_a_new_database_can_be_given_back(workspace: Workspace) -> None:
    with closing(open_writer(workspace.database)) as connection:
        assert connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)
    with closing(sqlite3.connect(workspace.database)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_change_of_the_schema_raises_its_version() -> None:
    statements = " ".join(re.sub(r"--.*", "", schema()).split())
    version_and_digest = (SCHEMA_VERSION, sha256(statements.encode()).hexdigest()[:16])
    assert version_and_digest == VERSION_AND_DIGEST, (
        "schema.sql or SCHEMA_VERSION changed alone: raise SCHEMA_VERSION in gputui/store/database.py by "
        f"one, then set VERSION_AND_DIGEST here to (SCHEMA_VERSION, {version_and_digest[1]!r})"
    )


def test_every_sampled_column_reaches_the_readers_of_the_screen(workspace: Workspace) -> None:
    """A column that a reader leaves out would be None on the screen for ever."""
    rows: dict[str, dict[str, Any]] = {}
    with closing(open_store(workspace.database)) as connection:
        connection.execute(
            "INSERT INTO gpus (uuid, position, name, first_seen_at, last_seen_at) VALUES ('G', 0, 'x', 5, 5)"
        )
        for series in (GPU, SLOW, HOST):
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({series.table})")]
            assert set(series.columns) <= set(columns)
            row = dict(zip(columns, itertools.count(100), strict=False))
            row |= {"at": 5} | {name: 1 for name in ("gpu_id", "row_remap_pending", "row_remap_failed") if name in row}
            row |= {"state": "ok", "throttle_reasons": '["hot"]'} if series is GPU else {}
            places = ", ".join("?" * len(row))
            connection.execute(f"INSERT INTO {series.table} ({', '.join(row)}) VALUES ({places})", [*row.values()])
            row.pop("gpu_id", None)
            rows[series.table] = row
        [gpu] = read_gpus(connection, 5.0, 5.0)
        host = read_host(connection)
    assert host is not None
    assert asdict(host) == rows["host_samples"]
    assert {"at": 5, **{name: getattr(gpu.slow, name) for name in SLOW.columns}} == rows["gpu_slow_samples"]
    sampled = rows["gpu_samples"] | {"throttle_reasons": ("hot",)}
    assert {name: getattr(gpu, name, None) for name in sampled} == sampled
