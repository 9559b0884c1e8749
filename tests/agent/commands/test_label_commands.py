"""Names, tags and notes: what is refused changes nothing, and no label is checked that nobody changed."""

from __future__ import annotations

import selectors
import sqlite3
from collections.abc import Iterator

import pytest

from gputui.agent.commands import dispatch
from gputui.agent.context import AgentContext
from gputui.agent.lifecycle.supervisor import Supervisor
from gputui.config import Workspace
from gputui.runs import labels, repository
from gputui.runs.repository import transaction
from gputui.runs.spec import RunSpec
from gputui.store import commands
from gputui.store.runs import get_run
from tests.stores import open_store

NOW = 1_790_000_000.0


@pytest.fixture
def supervisor(workspace: Workspace) -> Iterator[Supervisor]:
    connection = open_store(workspace.database)
    spec = RunSpec(name="vit", launcher="command", program=("x",), workdir="/")
    with transaction(connection):
        for number, (run_id, name) in enumerate((("vit-1", "vit"), ("vit-1-1", "vit-1")), 1):
            repository.insert_run(
                connection, run_id=run_id, sequence=number, name=name, spec=spec, params={}, now=NOW, actor="me"
            )
            workspace.run_dir(run_id).mkdir(parents=True)
    context = AgentContext.of(connection, workspace, wake=lambda: None, now=lambda: NOW)
    yield Supervisor(context, selectors.DefaultSelector())
    connection.close()


def label(supervisor: Supervisor, run_id: str, **args: object) -> str:
    """The state of the answered command."""
    connection = supervisor.context.connection
    number = commands.submit(connection, "label", run_id, args, "me", now=NOW)
    dispatch.answer_all(supervisor)
    answer = commands.answer(connection, number)
    assert answer is not None
    return answer.state


def test_a_name_that_nobody_changes_stands_in_the_way_of_no_tag(supervisor: Supervisor) -> None:
    assert label(supervisor, "vit-1-1", add=["x"]) == "done"
    assert label(supervisor, "vit-1-1", name="other") == "done"
    assert label(supervisor, "vit-1-1", name="vit-1") == "refused"


def test_a_new_run_does_not_get_the_name_of_a_renamed_one_as_its_id(supervisor: Supervisor) -> None:
    connection = supervisor.context.connection
    assert label(supervisor, "vit-1", name="vit-2") == "done"
    assert repository.next_run_id(connection, "vit", set())[0] == "vit-3"
    # The name of a launch is no new one.
    assert repository.next_run_id(connection, "vit-1", set())[0] == "vit-1-2"
    assert label(supervisor, "vit-1", name="baseline") == "done"
    assert repository.next_run_id(connection, "vit", set())[0] == "vit-2"


def test_no_note_removes_the_note(supervisor: Supervisor) -> None:
    connection = supervisor.context.connection
    assert label(supervisor, "vit-1", note="first try") == label(supervisor, "vit-1", note=None) == "done"
    run = get_run(connection, "vit-1")
    assert run is not None and run.note is None


def test_what_cannot_be_stored_is_not_in_the_folder_either(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("gputui.agent.commands.label_commands.store_labels", full)
    commands.submit(supervisor.context.connection, "label", "vit-1", {"note": "first try"}, "me", now=NOW)
    dispatch.answer_all(supervisor)
    assert labels.read_labels(supervisor.context.workspace.run_dir("vit-1")) is None
