"""A run is gone at once; what it took up is deleted bit by bit, although an agent dies over it or the disk is full."""

from __future__ import annotations

import itertools
import os
import selectors
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.agent.commands import dispatch
from gputui.agent.context import AgentContext
from gputui.agent.lifecycle.removal import Removal, move_to_removed
from gputui.agent.lifecycle.supervisor import Supervisor
from gputui.agent.recording.free_pages import KEPT_FREE_PAGES, FreePages
from gputui.agent.slices import SliceSize
from gputui.config import Workspace
from gputui.runs import repository
from gputui.runs.repository import transaction
from gputui.runs.spec import RunSpec
from gputui.runs.submission import SPEC_FILE, write_spec
from gputui.store import commands
from gputui.store.run_states import RunState
from gputui.store.runs import get_run
from tests.conftest import wait_until
from tests.stores import open_store

NOW = 1_790_000_000.0
SPEC = RunSpec(name="a", launcher="python", program=("x.py",), python=sys.executable, workdir="/")
LINES = 40_000


def supervise(workspace: Workspace, connection: sqlite3.Connection) -> Supervisor:
    context = AgentContext.of(connection, workspace, wake=lambda: None, now=lambda: NOW)
    return Supervisor(context, selectors.DefaultSelector())


@pytest.fixture
def supervisor(workspace: Workspace) -> Iterator[Supervisor]:
    connection = open_store(workspace.database)
    yield supervise(workspace, connection)
    connection.close()


def long_run(supervisor: Supervisor, run_id: str = "a-1", lines: int = LINES) -> None:
    """A run that has ended, with so many lines, as its metrics' source and some of what is made of them."""
    connection = supervisor.context.connection
    sequence = connection.execute("SELECT coalesce(max(sequence), 0) + 1 FROM runs").fetchone()[0]
    with transaction(connection):
        repository.insert_run(
            connection, run_id=run_id, sequence=sequence, name="a", spec=SPEC, params={}, now=NOW, actor="me"
        )
        run = get_run(connection, run_id)
        assert run is not None
        repository.move(connection, run, RunState.STOPPED, cause="test", now=NOW)
        source = connection.execute(
            "INSERT INTO metric_sources (run_id, path, format) VALUES (?, 'x', 'jsonl')", (run_id,)
        ).lastrowid
        lines_of = "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?) "
        connection.execute(
            "INSERT INTO metrics " + lines_of + "SELECT ?, 0, i * 200, 1, NULL, i, i, "
            'printf(\'{"step": %d, "loss": 0.5, "text": "%s"}\', i, hex(zeroblob(60))) FROM n',
            (lines, source),
        )
        connection.execute(
            "INSERT INTO metric_stretches "
            + lines_of
            + "SELECT ?, 0, i * 200, 0, i * 200 + 1, 1, i, 512, i, i, NULL, NULL FROM n",
            (lines // 200, source),
        )
        connection.execute(
            "INSERT INTO metric_envelopes (source_id, attempt, name, level, number, entries) "
            + lines_of
            + "SELECT ?, 1, 'loss', 0, i, zeroblob(1000) FROM n",
            (lines // 200, source),
        )
    supervisor.context.workspace.run_dir(run_id).mkdir()
    (supervisor.context.workspace.run_dir(run_id) / "model.pt").write_bytes(b"weights")


def count(connection: sqlite3.Connection, table: str) -> int:
    return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def ask_to_remove(supervisor: Supervisor, run_id: str = "a-1") -> commands.CommandAnswer | None:
    command_id = commands.submit(supervisor.context.connection, "rm", run_id, {}, "me", now=NOW)
    dispatch.answer_all(supervisor)
    return commands.answer(supervisor.context.connection, command_id)


def removed_folders(workspace: Workspace) -> list[str]:
    kept = workspace.state / "removed"
    return sorted(entry.name for entry in kept.iterdir()) if kept.is_dir() else []


def test_small_rows_that_go_fast_do_not_make_a_slice_of_large_ones_long(supervisor: Supervisor) -> None:
    """A million tiny rows a second, then rows of a kilobyte: each table has slices of its own size."""
    ticks = itertools.count()
    supervisor.removal = Removal(replace(supervisor.context, monotonic=lambda: next(ticks) / 1000))
    long_run(supervisor, lines=400_000)
    connection = supervisor.context.connection
    assert ask_to_remove(supervisor) is not None
    while (left := count(connection, "metric_envelopes")) == 2000:
        assert supervisor.removal.turn()
    assert 0 < left < 2000


def test_a_long_run_is_gone_at_once_and_its_lines_go_in_slices(supervisor: Supervisor) -> None:
    connection = supervisor.context.connection
    long_run(supervisor)
    long_run(supervisor, "a-2", lines=500)
    answer = ask_to_remove(supervisor)
    assert answer is not None and answer.state == "done"
    assert get_run(connection, "a-1") is None
    assert not supervisor.context.workspace.run_dir("a-1").exists()
    # Nothing of it is waited for, and all of it is still there.
    assert count(connection, "metrics") == LINES + 500 and supervisor.is_busy()
    before = count(connection, "metrics")
    supervisor.removal.sizes["metrics"].most = 5000
    assert supervisor.removal.turn()
    assert 0 < before - count(connection, "metrics") <= 5000 * 8
    # The next agent goes on.
    another = supervise(supervisor.context.workspace, connection)
    while another.removal.turn():
        pass
    for table, left in (("metrics", 500), ("metric_envelopes", 2), ("metric_stretches", 2), ("metric_sources", 1)):
        assert count(connection, table) == left
    wait_until(lambda: not removed_folders(supervisor.context.workspace))
    assert not another.removal.has_lines_left()
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


def test_a_new_run_of_the_same_name_has_nothing_of_the_one_that_is_being_deleted(supervisor: Supervisor) -> None:
    long_run(supervisor)
    ask_to_remove(supervisor)
    long_run(supervisor, lines=10)
    shown = supervisor.context.connection.execute(
        "SELECT count(*) FROM metrics JOIN metric_sources USING (source_id) WHERE run_id = 'a-1'"
    ).fetchone()
    assert shown == (10,)
    while supervisor.removal.turn():
        pass
    assert count(supervisor.context.connection, "metrics") == 10


def test_what_cannot_be_removed_loses_nothing(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    long_run(supervisor, lines=10)

    def full(*_args: object, **_options: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(repository, "release_leases", full)
        command_id = commands.submit(supervisor.context.connection, "rm", "a-1", {}, "me", now=NOW)
        wait_until(lambda: dispatch.answer_all(supervisor), what="the refusal")
    answer = commands.answer(supervisor.context.connection, command_id)
    assert answer is not None and answer.state == "refused" and "\n" not in (answer.reason or "")
    assert (supervisor.context.workspace.run_dir("a-1") / "model.pt").read_bytes() == b"weights"
    assert count(supervisor.context.connection, "metrics") == 10 and not supervisor.removal.has_lines_left()


def test_a_folder_moved_for_a_removal_that_never_happened_is_put_back(supervisor: Supervisor) -> None:
    long_run(supervisor, lines=10)
    (supervisor.context.workspace.state / "removed" / "b-1.1" / "checkpoints").mkdir(parents=True)
    # The agent is killed here.
    assert move_to_removed(supervisor.context.workspace, "a-1") is not None
    supervisor.removal.begin()
    assert (supervisor.context.workspace.run_dir("a-1") / "model.pt").exists()
    wait_until(lambda: not removed_folders(supervisor.context.workspace))


def test_a_folder_whose_name_is_taken_again_is_deleted(supervisor: Supervisor) -> None:
    long_run(supervisor, lines=10)
    (supervisor.context.workspace.state / "removed" / "a-1.1").mkdir(parents=True)
    away = move_to_removed(supervisor.context.workspace, "a-1")
    assert away is not None and away.path.name == "a-1.2"
    away.restore()
    supervisor.removal.begin()
    wait_until(lambda: not removed_folders(supervisor.context.workspace))
    assert (supervisor.context.workspace.run_dir("a-1") / "model.pt").exists()


@pytest.mark.parametrize("is_link", [False, True])
def test_of_a_link_nothing_but_the_link_is_deleted(supervisor: Supervisor, tmp_path: Path, is_link: bool) -> None:
    place = supervisor.context.workspace.state / "removed" / "a-1.1"
    place.parent.mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "model.pt").write_bytes(b"weights")
    place.symlink_to(tmp_path / "data") if is_link else place.write_text("")
    supervisor.removal.begin()
    wait_until(lambda: not place.is_symlink() and not place.exists(), what="the deletion")
    assert (tmp_path / "data" / "model.pt").exists()


def test_damaged_records_of_what_is_elsewhere_keep_no_folder(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*_: object) -> None:
        raise KeyError("path")

    spec = replace(SPEC, target={"kind": "ssh", "name": "kepler", "host": "kepler"})
    place = supervisor.context.workspace.state / "removed" / "a-1.1"
    place.mkdir(parents=True)
    write_spec(place / SPEC_FILE, spec)
    monkeypatch.setattr(type(supervisor.context.executors.of(spec.target)), "clear", damaged)
    supervisor.removal.begin()
    wait_until(lambda: not place.exists(), what="the deletion")
    assert not any(place.parent.iterdir())


def test_free_pages_are_given_back_a_little_at_a_time(supervisor: Supervisor) -> None:
    connection = supervisor.context.connection
    connection.execute("CREATE TABLE big (x BLOB)")
    with transaction(connection):
        connection.executemany("INSERT INTO big VALUES (zeroblob(?))", [(1 << 20,)] * 64)
    connection.execute("DROP TABLE big")
    before = connection.execute("PRAGMA page_count").fetchone()[0]
    pages = FreePages(connection, time.monotonic)
    pages.size.count = pages.size.least = pages.size.most = 200
    assert pages.turn()
    given_back = before - connection.execute("PRAGMA page_count").fetchone()[0]
    assert given_back % 200 < 5 and given_back >= 200
    while pages.turn():
        pass
    assert connection.execute("PRAGMA freelist_count").fetchone()[0] <= KEPT_FREE_PAGES


def test_a_slice_becomes_as_large_as_there_is_time_for() -> None:
    now = [0.0]
    size = SliceSize(lambda: now[0], 1000, 10, 4000)

    def at(seconds_each: float) -> None:
        def act(rows: int) -> None:
            now[0] += rows * seconds_each

        for _ in range(20):
            size.run(act)

    at(1e-6)
    assert size.count == 4000
    at(1e-5)
    assert size.count == pytest.approx(800, abs=2)
    at(1.0)
    assert size.count == 10


# --- a disk that is full ----------------------------------------------------------------------------------------------


@pytest.fixture
def cramped(tmp_path: Path) -> Iterator[Supervisor]:
    """A home on a file system of 48 MiB."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small file system needs root")
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(folder)], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        workspace = Workspace(profiles=folder, state=folder)
        workspace.create()
        with closing(open_store(workspace.database)) as connection:
            yield supervise(workspace, connection)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def free_bytes(workspace: Workspace) -> int:
    status = os.statvfs(workspace.state)
    return status.f_bavail * status.f_frsize


def leave_free(workspace: Workspace, wanted: int) -> None:
    with (workspace.state / "ballast").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(4096, free_bytes(workspace) - wanted))


def test_on_a_disk_that_is_nearly_full_the_lines_go_without_filling_it(cramped: Supervisor) -> None:
    long_run(cramped, lines=80_000)
    cramped.context.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    answer = ask_to_remove(cramped)
    assert answer is not None and answer.state == "done"
    leave_free(cramped.context.workspace, 4 << 20)
    least, turns = free_bytes(cramped.context.workspace), 0
    while count(cramped.context.connection, "metric_sources"):
        cramped.removal.turn()
        least, turns = min(least, free_bytes(cramped.context.workspace)), turns + 1
        assert turns < 5000
    # Another run's samples and checkpoints have room all the while.
    assert least > 1 << 20
    assert count(cramped.context.connection, "metrics") == 0


def test_on_a_full_disk_nothing_is_deleted_and_nothing_lost(cramped: Supervisor) -> None:
    long_run(cramped, lines=1000)
    cramped.context.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    command_id = commands.submit(cramped.context.connection, "rm", "a-1", {}, "me", now=NOW)
    cramped.context.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    leave_free(cramped.context.workspace, 0)
    for _ in range(5):
        dispatch.answer_all(cramped)
    assert (cramped.context.workspace.run_dir("a-1") / "model.pt").exists()
    assert count(cramped.context.connection, "metrics") == 1000
    (cramped.context.workspace.state / "ballast").unlink()
    assert dispatch.answer_all(cramped) == 1
    answer = commands.answer(cramped.context.connection, command_id)
    assert answer is not None and answer.state == "refused"
    assert get_run(cramped.context.connection, "a-1") is not None
