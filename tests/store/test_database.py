"""The database: locks, schema, moves of runs, the queue, leases, events."""

from __future__ import annotations

import itertools
import json
import random
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict

from gputui.core.config import Workspace
from gputui.runs import repository
from gputui.runs.repository import transaction
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
from gputui.store.events import SINK_KINDS, NewEvent, add_event, has_event, last_kind
from gputui.store.hardware import read_gpus, read_host
from gputui.store.queue import QueueEntry, priorities_to_move
from gputui.store.run_states import MOVES, ForbiddenMoveError, RunState, check_move
from gputui.store.series import GPU, HOST, SLOW
from tests.homes import open_store


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


def test_a_file_error_in_the_setup_closes_the_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, opened = tmp_path / "gputui.db", list[sqlite3.Connection]()
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


PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"


def test_the_questions_of_the_page_have_answers(workspace: Workspace) -> None:
    text = PAGE.read_text("utf-8").partition("## The database")[2].partition("### One run as a file")[0]
    questions = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
    named = {
        name for row in re.findall(r"^\| (`.+?) \|", text, re.MULTILINE) for name in re.findall(r"`([a-z_]+)`", row)
    }
    open_writer(workspace.database).close()
    with closing(open_reader(workspace.database)) as connection:
        for question in questions:
            assert connection.execute(question).fetchall() == []
        there = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    assert len(questions) >= 3
    assert named >= {"gpu_hours", "runs", "metric_points"} and named <= there


def test_freed_pages_of_a_new_database_can_be_given_back(workspace: Workspace) -> None:
    with closing(open_writer(workspace.database)) as connection:
        assert connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)
    with closing(sqlite3.connect(workspace.database)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


VERSION_AND_DIGEST = (53, "ed1f830ea4e6b859")
"""SCHEMA_VERSION, and the digest of the statements of schema.sql that belong to it."""


def test_a_change_of_the_schema_raises_its_version() -> None:
    statements = " ".join(re.sub(r"--.*", "", schema()).split())
    found = (SCHEMA_VERSION, sha256(statements.encode()).hexdigest()[:16])
    assert found == VERSION_AND_DIGEST, (
        "schema.sql or SCHEMA_VERSION changed alone: raise SCHEMA_VERSION in gputui/store/database.py by "
        f"one, then set VERSION_AND_DIGEST here to (SCHEMA_VERSION, {found[1]!r})"
    )


def test_every_sampled_column_reaches_the_readers_of_the_screen(workspace: Workspace) -> None:
    """A column that a reader leaves out would be None on the screen for ever."""
    given: dict[str, dict[str, Any]] = {}
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
            given[series.table] = row
        [gpu] = read_gpus(connection, 5.0, 5.0)
        host = read_host(connection)
    assert host is not None and asdict(host) == given["host_samples"]
    assert {"at": 5, **gpu.slow} == given["gpu_slow_samples"]
    sampled = given["gpu_samples"] | {"throttle_reasons": ("hot",)}
    assert {name: getattr(gpu, name, None) for name in sampled} == sampled


def test_every_state_has_its_moves_and_every_move_its_state() -> None:
    assert set(MOVES) == set(RunState)
    assert set().union(*MOVES.values()) == set(RunState) - {RunState.UNKNOWN}


def test_forbidden_moves_are_refused() -> None:
    with pytest.raises(ForbiddenMoveError, match="from queued to running"):
        check_move(RunState.QUEUED, RunState.RUNNING)
    check_move(RunState.RUNNING, RunState.RECOVERING)


def entry(run_id: str, priority: int, waited_since: float, sequence: int = 0) -> QueueEntry:
    return QueueEntry(0, run_id, priority, waited_since, None, sequence)


def served(entries: list[QueueEntry], priorities: dict[str, int] | None = None) -> list[str]:
    """As the store orders them."""
    given = priorities or {}
    return [
        entry.run_id
        for entry in sorted(entries, key=lambda e: (-given.get(e.run_id, e.priority), e.queued_at or 0.0, e.sequence))
    ]


def test_any_move_leads_to_the_wanted_order_and_nobody_falls() -> None:
    for seed in range(20):
        chance = random.Random(seed)
        entries = [entry(f"r{n}", chance.randint(-2, 2), float(chance.randint(0, 3)), n) for n in range(6)]
        order = served(entries)
        waiting = [next(entry for entry in entries if entry.run_id == run_id) for run_id in order]
        for place, by in itertools.product(range(6), (-1, 1)):
            wanted = list(order)
            run_id = wanted.pop(place)
            wanted.insert(max(0, place + by), run_id)
            raised = priorities_to_move(waiting, run_id, by)
            assert served(waiting, raised) == wanted
            assert all(raised[entry.run_id] > entry.priority for entry in waiting if entry.run_id in raised)


NOW = 1_790_000_000.0
UUID = "GPU-0"


@pytest.fixture
def store(workspace: Workspace) -> Iterator[sqlite3.Connection]:
    """Runs a and b of study s, c of another, x and y of none."""
    with closing(open_store(workspace.database)) as connection:
        for number, (name, study) in enumerate([("a", "s"), ("b", "s"), ("c", "t"), ("x", None), ("y", None)]):
            connection.execute(
                "INSERT INTO runs (run_id, sequence, name, profile, state, attempt, spec, params, created_at, "
                "study_id) VALUES (?, ?, ?, 'p', 'running', 1, '{}', '{}', ?, ?)",
                (name, number, f"name of {name}", NOW, study),
            )
        yield connection


def lease(store: sqlite3.Connection, run_id: str, share: float = 1.0) -> bool:
    """Return whether the run got the UUID."""
    try:
        with transaction(store):
            repository.take_leases(store, run_id, [UUID], NOW, share=share)
    except sqlite3.IntegrityError:
        return False
    return True


def test_only_trials_of_one_study_share_a_gpu(store: sqlite3.Connection) -> None:
    assert lease(store, "a", 0.25) and lease(store, "b", 0.25)
    assert repository.leases(store) == {UUID: (("a", "b"), "s", {"a": 0.25, "b": 0.25})}
    refused = [lease(store, name, share) for name in ("c", "x") for share in (0.25, 1.0)]
    assert refused == [False] * 4
    assert not lease(store, "b"), "nobody has it alone while another is there"
    repository.end_lease(store, "a", UUID)
    assert lease(store, "b") and not lease(store, "a", 0.25)
    assert repository.leases(store) == {UUID: (("b",), None, {})}


def test_runs_of_no_study_share_up_to_the_whole_gpu(store: sqlite3.Connection) -> None:
    assert lease(store, "x", 0.6)
    assert not lease(store, "y", 0.5) and not lease(store, "y") and not lease(store, "a", 0.25)
    assert lease(store, "x", 0.5), "its own again"
    assert lease(store, "y", 0.5)
    assert repository.leases(store) == {UUID: (("x", "y"), "", {"x": 0.5, "y": 0.5})}


def test_a_shared_gpu_is_listed_once_with_all_its_runs(store: sqlite3.Connection) -> None:
    processes = [{"pid": 7, "run_id": "b", "rank": 3}, {"pid": 8, "run_id": "a", "rank": 1}]
    store.execute(
        "INSERT INTO gpus (uuid, position, name, facts, first_seen_at, last_seen_at, processes, present) "
        "VALUES (?, 0, 'H', '{}', ?, ?, ?, 1)",
        (UUID, time.time(), time.time(), json.dumps(processes)),
    )
    assert [(gpu.run_ids, gpu.rank) for gpu in read_gpus(store, time.time())] == [((), None)]
    assert lease(store, "a", 0.5) and lease(store, "b", 0.5)
    (gpu,) = read_gpus(store, time.time())
    assert (gpu.run_id, gpu.run_name, gpu.rank) == ("a", "name of a", 1)
    assert gpu.shared_with == (("b", "name of b"),) and gpu.run_ids == ("a", "b")


@pytest.mark.parametrize("run_id", ["a-1", None])
def test_an_event_is_found_by_run_kind_and_key_alone(tmp_path: Path, run_id: str | None) -> None:
    with closing(open_store(tmp_path / "new.db")) as connection:
        add_event(connection, NewEvent("orphan", "process 5 is alive", key="5", run_id=run_id), now=1.0)
        assert has_event(connection, "orphan", run_id=run_id, key="5")
        for kind, run, key in (
            ("orphan", run_id, "6"), ("orphan", run_id, None), ("orphan", "b-1", "5"), ("log_trimmed", run_id, "5"),
        ):  # fmt: skip
            assert not has_event(connection, kind, run_id=run, key=key)


def test_the_newest_kind_counts(tmp_path: Path) -> None:
    with closing(open_store(tmp_path / "new.db")) as connection:
        for at, kind, key in ((1.0, "sink_failed", "csv"), (2.0, "sink_recovered", "csv"), (3.0, "sink_failed", "x")):
            add_event(connection, NewEvent(kind, "a sentence", key=key, run_id="a-1"), now=at)
        add_event(connection, NewEvent("attempt_started", "sink csv: a sentence", run_id="a-1"), now=4.0)
        assert last_kind(connection, "a-1", SINK_KINDS, "csv") == ("sink_recovered", 2.0)
        assert last_kind(connection, "a-1", SINK_KINDS) == ("sink_failed", 3.0)
        assert last_kind(connection, "a-2", SINK_KINDS) is None


def test_secrets_and_what_is_not_utf_8_are_not_stored(tmp_path: Path) -> None:
    with closing(open_store(tmp_path / "new.db")) as connection:
        secret = "https://me:hunter2hunter2@host/x"
        add_event(connection, NewEvent("log_trimmed", f"{secret} \udcff", key=f"{secret}\udcff"), now=1.0)
        assert has_event(connection, "log_trimmed", key=f"{secret}\udcff")
        (row,) = connection.execute("SELECT message, key FROM events")
        assert not any("hunter2" in text for text in row)
