"""What is told when the agent does not start."""

from __future__ import annotations

import shutil
import sqlite3
import sys
from contextlib import closing
from types import SimpleNamespace

import pytest

from gputui.config import Workspace
from gputui.runs import agent_process
from gputui.runs.agent_process import AgentIdentity, AgentUnreachableError, ensure_agent, exit_reason
from gputui.runs.identity import ProcessIdentity
from gputui.store.database import StoreOutdatedError, is_outdated, migrations, open_reader, open_writer
from tests.texts import mentions


def test_the_newest_line_of_its_log(workspace: Workspace) -> None:
    assert mentions(exit_reason(workspace), workspace.agent_log)
    workspace.agent_log.write_text("INFO of yesterday\ngputui: the database is of a newer gputui\n")
    assert mentions(exit_reason(workspace), "newer gputui")


def test_a_full_disk_is_told_whatever_its_log_says(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace.agent_log.write_text("INFO of yesterday\n")
    full = SimpleNamespace(free=agent_process.LEAST_FREE_BYTES - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    assert mentions(exit_reason(workspace), workspace.state, "full")


class OldAgent:
    """An agent of an older gputui that serves the workspace, until it is asked to end and a new one is started."""

    def __init__(self, workspace: Workspace, *, recording: bool = False) -> None:
        open_writer(workspace.database).close()
        self.pretend(workspace, migrations()[-1][0] - 1)
        self.recording = recording
        self.pids = [100]

    def pretend(self, workspace: Workspace, version: int) -> None:
        with closing(sqlite3.connect(workspace.database)) as connection:
            connection.execute(f"PRAGMA user_version = {version}")

    def read_identity(self, workspace: Workspace) -> AgentIdentity | None:
        if not self.pids:
            return None
        return AgentIdentity(ProcessIdentity(self.pids[-1], 1, "boot"), "0", 0.0, recording=self.recording, ready=True)

    def stop_agent(self, workspace: Workspace) -> bool:
        self.pids.clear()
        return True

    def spawn_agent(self, workspace: Workspace) -> SimpleNamespace:
        self.pretend(workspace, migrations()[-1][0])
        self.pids.append(200)
        return SimpleNamespace(poll=lambda: None)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("read_identity", "stop_agent", "spawn_agent"):
            monkeypatch.setattr(agent_process, name, getattr(self, name))


def test_an_agent_of_an_older_gputui_makes_room(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    old = OldAgent(workspace)
    old.install(monkeypatch)
    assert is_outdated(workspace.database)
    with pytest.raises(StoreOutdatedError, match="older gputui; gputui agent start"):
        open_reader(workspace.database)
    assert ensure_agent(workspace).process.pid == 200
    assert not is_outdated(workspace.database)
    assert ensure_agent(workspace).process.pid == 200


def test_a_recorder_of_an_older_gputui_is_left_to_its_user(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = OldAgent(workspace, recording=True)
    old.install(monkeypatch)
    with pytest.raises(AgentUnreachableError, match=r"pid 100\); end it"):
        ensure_agent(workspace)
    assert old.pids == [100]


def test_what_is_missing_is_not_outdated(workspace: Workspace) -> None:
    assert not is_outdated(workspace.database)
    workspace.database.write_bytes(b"no database" * 100)
    assert not is_outdated(workspace.database)


def test_an_agent_that_brings_a_large_database_up_to_date_is_waited_for(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter(range(1000))

    def read_identity(_workspace: Workspace) -> AgentIdentity:
        look = next(looks)
        doing = None if look > 30 else f"step {look // 15}"
        process = ProcessIdentity(7, 1, "boot")
        return AgentIdentity(process, "0", 0.0, recording=False, ready=look > 31, doing=doing)

    monkeypatch.setattr(agent_process, "read_identity", read_identity)
    monkeypatch.setattr(agent_process, "_REPORT_SECONDS", 0.0)
    told: list[str] = []
    open_writer(workspace.database).close()
    # Each step takes longer than an agent may take that says nothing.
    assert ensure_agent(workspace, timeout_seconds=0.1, report=told.append).ready
    assert told == ["step 0", "step 1"]


def test_a_database_is_brought_up_to_date_step_by_step_and_an_interrupted_one_goes_on(workspace: Workspace) -> None:
    every = migrations()
    workspace.create()
    with closing(sqlite3.connect(workspace.database)) as connection:
        for number, script in every:
            if number <= 8:
                connection.executescript(f"{script}\nPRAGMA user_version = {number};")
    left = len([step for step in every if step[0] > 8])
    told: list[str] = []

    def progress(doing: str) -> None:
        told.append(doing)
        if len(told) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_writer(workspace.database, progress)
    with closing(sqlite3.connect(workspace.database)) as connection:
        done = connection.execute("PRAGMA user_version").fetchone()[0]
    assert done == [number for number, _ in every if number > 8][1]
    told.clear()
    told.extend(["", "", ""])
    open_writer(workspace.database, progress).close()
    assert len(told) - 3 == left - 2 and told[-1].endswith(f"step {left - 2} of {left - 2}")
    assert not is_outdated(workspace.database)


def test_an_interpreter_that_is_gone_is_named(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A living screen whose Python was removed or upgraded asks for an agent."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(AgentUnreachableError, match="/nowhere/python"):
        ensure_agent(workspace)
