"""A run is gone at once; what it took up is deleted bit by bit, although an agent dies over it or the disk is full."""

from __future__ import annotations

import selectors
import sqlite3

import pytest

from gputui.agent.commands import dispatch
from gputui.agent.context import AgentContext
from gputui.agent.lifecycle.supervisor import Supervisor
from gputui.agent.removal import finish_removals, move_to_removed
from gputui.core.config import Workspace
from gputui.runs import repository
from gputui.runs.repository import transaction
from gputui.runs.submission import SPEC_FILE
from gputui.store import commands
from gputui.store.run_states import RunState
from gputui.store.runs import get_run
from tests.conftest import wait_until
from tests.homes import NOW, add_many_lines, add_run, add_source
from tests.texts import mentions

LINES = 4000


def supervise(workspace: Workspace, connection: sqlite3.Connection) -> Supervisor:
    context = AgentContext.of(connection, workspace, wake=lambda: None, now=lambda: NOW)
    return Supervisor(context, selectors.DefaultSelector())


@pytest.fixture
def supervisor(workspace: Workspace, connection: sqlite3.Connection) -> Supervisor:
    return supervise(workspace, connection)


def long_run(supervisor: Supervisor, run_id: str = "a-1", lines: int = LINES) -> None:
    """A run that has ended, with so many lines."""
    connection = supervisor.context.connection
    add_run(connection, run_id, RunState.STOPPED, workspace=supervisor.context.workspace)
    with transaction(connection):
        add_many_lines(connection, add_source(connection, run_id), lines, filling=60)
    (supervisor.context.workspace.run_dir(run_id) / "model.pt").write_bytes(b"weights")


def count(connection: sqlite3.Connection, table: str) -> int:
    return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def ask_to_remove(supervisor: Supervisor, run_id: str = "a-1") -> commands.CommandAnswer | None:
    command_id = commands.submit(supervisor.context.connection, "rm", run_id, {}, "me", now=NOW)
    dispatch.answer_all(supervisor)
    return commands.answer(supervisor.context.connection, command_id)


def removed_folders(workspace: Workspace) -> list[str]:
    folder = workspace.state / "removed"
    return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []


def test_a_long_run_is_gone_at_once_and_its_lines_are_left_to_the_janitor(supervisor: Supervisor) -> None:
    connection = supervisor.context.connection
    janitor = supervisor.context.janitor
    long_run(supervisor)
    long_run(supervisor, "a-2", lines=500)
    answer = ask_to_remove(supervisor)
    assert answer is not None
    assert answer.state == "done"
    assert get_run(connection, "a-1") is None
    assert not supervisor.context.workspace.run_dir("a-1").exists()
    # The command did not wait for the deletion: all lines are still there.
    assert count(connection, "metrics") == LINES + 500
    assert supervisor.is_busy()
    while janitor.tidying.work():
        assert supervisor.is_busy()
    assert count(connection, "metrics") == 500
    assert not janitor.tidying.has_lines
    wait_until(lambda: not removed_folders(supervisor.context.workspace))


def test_what_cannot_be_removed_loses_nothing(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    long_run(supervisor, lines=10)

    def full(*_args: object, **_options: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(repository, "release_leases", full)
        command_id = commands.submit(supervisor.context.connection, "rm", "a-1", {}, "me", now=NOW)
        assert dispatch.answer_all(supervisor) == 0
    assert commands.answer(supervisor.context.connection, command_id) is None
    assert (supervisor.context.workspace.run_dir("a-1") / "model.pt").read_bytes() == b"weights"
    assert count(supervisor.context.connection, "metrics") == 10
    assert not supervisor.context.janitor.tidying.has_lines


def test_a_folder_moved_for_a_removal_that_never_happened_is_put_back(supervisor: Supervisor) -> None:
    long_run(supervisor, lines=10)
    (supervisor.context.workspace.state / "removed" / "b-1.1" / "checkpoints").mkdir(parents=True)
    # The agent is killed here.
    assert move_to_removed(supervisor.context.workspace, "a-1") is not None
    finish_removals(supervisor.context)
    assert (supervisor.context.workspace.run_dir("a-1") / "model.pt").exists()
    wait_until(lambda: not removed_folders(supervisor.context.workspace))


def test_files_on_a_target_that_cannot_be_known_are_named_in_the_log(
    supervisor: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    long_run(supervisor, lines=1)
    (supervisor.context.workspace.run_dir("a-1") / SPEC_FILE).write_text("{")
    ask_to_remove(supervisor)
    wait_until(lambda: not removed_folders(supervisor.context.workspace))
    assert mentions(caplog.text, "a-1.1", "target", "stay")


def test_the_id_of_a_removed_run_is_not_used_again(supervisor: Supervisor) -> None:
    connection = supervisor.context.connection
    for run_id in ("a-1", "a-2", "b-7"):
        add_run(connection, run_id, RunState.STOPPED, workspace=supervisor.context.workspace)
    for run_id in ("a-2", "b-7"):
        ask_to_remove(supervisor, run_id)
    assert [repository.next_run_id(connection, name, set())[0] for name in ("a", "b", "c")] == ["a-3", "b-8", "c-1"]
    assert repository.next_run_id(connection, "a", {"a-3", "a-5"})[0] == "a-4"
