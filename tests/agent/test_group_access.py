"""A home that a group may read, by processes of another user."""

from __future__ import annotations

import grp
import json
import os
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gputui.agent.context import AgentContext
from gputui.agent.group_access import GroupAccess, share
from gputui.core.config import Workspace, locate, own_checkout
from gputui.runs.logs import shown_logs
from gputui.runs.submission import SPEC_FILE
from gputui.store.database import is_fixed, open_reader
from gputui.store.events import read_events
from gputui.store.rows import insert
from gputui.ui.main import is_anothers
from gputui.ui.tui.data.log_tail import LogReader
from tests.homes import NOW, add_run, open_store

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
NOBODY = 65534
GROUP = next(group for group in grp.getgrall() if group.gr_gid not in (0, NOBODY))
STRANGERS = NOBODY


@pytest.fixture
def workspace() -> Iterator[Workspace]:
    """A home below folders that anybody may enter."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        home = locate(name, {})
        home.create()
        yield home


def as_another(group: int, look: Callable[[], Any]) -> Any:
    """What a process of another user sees, whose group this is."""
    reading, writing = os.pipe()
    if not (pid := os.fork()):
        try:
            os.setgroups([])
            os.setresgid(group, group, group)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            view = look()
        except BaseException as error:
            view = type(error).__name__
        os.write(writing, json.dumps(view).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    return json.loads(text)


def test_a_colleague_reads_a_shared_home_and_nothing_that_is_secret(
    workspace: Workspace, connection: sqlite3.Connection
) -> None:
    run = add_run(connection, workspace=workspace)
    attempt = workspace.run_dir(run.run_id) / "attempts" / "1"
    node = attempt / "nodes" / "0"
    node.mkdir(parents=True, mode=0o700)
    for path, text in ((node / "output.log", "step 1"), (attempt / "attempt.json", "a token")):
        path.write_text(text)
        path.chmod(0o600)
    began = {"created_at": NOW, "started_at": NOW}
    texts = {"state": "running", "params": "{}", "gpus": "[]", "launch": "{}"}
    insert(connection, "attempts", run_id=run.run_id, number=1, **texts, **began)
    context = AgentContext.of(connection, workspace, wake=lambda: None, now=lambda: NOW)
    access = GroupAccess(context)

    def runs() -> list[str]:
        with closing(open_reader(workspace.database)) as reader:
            return [run_id for (run_id,) in reader.execute("SELECT run_id FROM runs ORDER BY run_id")]

    access.poll()
    assert as_another(GROUP.gr_gid, runs) == "PermissionError"
    workspace.record.write_text(f"group: {GROUP.gr_name}\n")
    access.poll()
    # Readable while the agent writes, when the newest commits are in the write-ahead log, and when nobody does.
    add_run(connection, "b-1", workspace=workspace)
    assert as_another(GROUP.gr_gid, runs) == ["a-1", "b-1"]
    assert not as_another(GROUP.gr_gid, lambda: is_fixed(workspace.database))
    assert as_another(GROUP.gr_gid, (node / "output.log").read_text) == "step 1"
    assert as_another(GROUP.gr_gid, lambda: [log.path.name for log in shown_logs(attempt)]) == ["output.log"]
    for secret in (attempt / "attempt.json", workspace.run_dir("a-1") / SPEC_FILE):
        assert as_another(GROUP.gr_gid, secret.read_text) == "PermissionError"
    assert as_another(GROUP.gr_gid, lambda: is_anothers(workspace)) is True
    assert as_another(STRANGERS, runs) == "PermissionError"
    assert as_another(STRANGERS, lambda: is_anothers(workspace)) == "SystemExit"
    # Neither a command of the owner nor a mistake in the file changes that; without the line the home is private again.
    workspace.create()
    workspace.record.write_text("group: no-such-group\n")
    access.poll()
    connection.close()
    assert as_another(GROUP.gr_gid, runs) == ["a-1", "b-1"]
    assert as_another(GROUP.gr_gid, lambda: is_fixed(workspace.database))
    assert not is_fixed(workspace.database)


@pytest.mark.parametrize(
    "private", ["", "attempts", "attempts/1", "attempts/1/nodes/0", "attempts/1/nodes/0/output.log"]
)
def test_what_a_colleague_cannot_read_yet_is_as_if_it_were_not_there(workspace: Workspace, private: str) -> None:
    run = workspace.run_dir("a-1")
    attempt = run / "attempts" / "1"
    ranks = attempt / "nodes" / "0" / "ranks" / "x" / "attempt_0" / "0"
    ranks.mkdir(parents=True)
    for path in (ranks.parents[3] / "output.log", ranks / "stdout.log"):
        path.write_text("step 1\n")
    share(workspace, GROUP.gr_gid, [attempt])

    def look() -> list[list[str]]:
        tail = LogReader().read(attempt, None)
        return [
            [log.path.name for log in shown_logs(attempt)],
            list(tail.labels),
            list(tail.lines),
            [tail.problem or ""],
        ]

    assert as_another(GROUP.gr_gid, look) == [["output.log", "stdout.log"], ["launcher", "rank 0"], ["step 1"], [""]]
    hidden = run / private
    hidden.chmod(hidden.stat().st_mode & ~0o077)
    expected = [["stdout.log"], ["rank 0"], ["step 1"], [""]] if hidden.is_file() else [[], [], [], [""]]
    assert as_another(GROUP.gr_gid, look) == expected


def test_a_checkout_whose_state_is_anothers_is_no_home(monkeypatch: pytest.MonkeyPatch, workspace: Workspace) -> None:
    checkout = workspace.state.parent
    (workspace.state / "README.md").touch()
    monkeypatch.setattr("gputui.core.config.__file__", str(checkout / "gputui" / "core" / "config.py"))

    def home() -> str:
        return str(own_checkout(str(checkout / ".venv")))

    assert (home(), as_another(STRANGERS, home)) == (str(checkout), "None")


def test_a_home_is_private_again_without_the_line(workspace: Workspace, connection: sqlite3.Connection) -> None:
    workspace.record.write_text(f"group: {GROUP.gr_name}\n")
    access = GroupAccess(AgentContext.of(connection, workspace, wake=lambda: None, now=lambda: NOW))
    access.poll()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (workspace.state, workspace.database)] == [0o2750, 0o640]
    workspace.record.write_text("raw: 2d\n")
    access.poll()
    assert [stat.S_IMODE(path.stat().st_mode) & 0o777 for path in (workspace.state, workspace.runs)] == [0o700] * 2
    assert read_events(connection) == []


def test_a_group_that_the_owner_is_not_in_is_refused_with_an_event(workspace: Workspace) -> None:
    def turn() -> list[str | None]:
        with closing(open_store(workspace.database)) as connection:
            access = GroupAccess(AgentContext.of(connection, workspace, wake=lambda: None, now=lambda: NOW))
            access.poll()
            access.poll()
            return [event.kind for event in read_events(connection)]

    workspace.record.write_text(f"group: {GROUP.gr_name}\n")
    for folder in (workspace.state, workspace.runs):
        os.chown(folder, NOBODY, NOBODY)
    assert as_another(STRANGERS, turn) == ["home_not_shared"]


def test_a_home_of_which_a_part_cannot_be_shared_stays_private(workspace: Workspace) -> None:
    def turn() -> list[str | None]:
        with closing(open_store(workspace.database)) as connection:
            access = GroupAccess(AgentContext.of(connection, workspace, wake=lambda: None, now=lambda: NOW))
            access.poll()
            return [event.kind for event in read_events(connection)]

    workspace.record.write_text(f"group: {grp.getgrgid(NOBODY).gr_name}\n")
    # The folder of the runs stays root's, which the owner of the state cannot change.
    os.chown(workspace.state, NOBODY, NOBODY)
    assert as_another(STRANGERS, turn) == ["home_not_shared"]
    assert stat.S_IMODE(workspace.state.stat().st_mode) & 0o077 == 0
