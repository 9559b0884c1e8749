"""Handing a run to the agent."""

from __future__ import annotations

import sqlite3

import pytest

from gputui.core.config import Workspace
from gputui.runs.spec import RunSpec
from gputui.runs.submission import submit_run
from tests.stores import open_store


def test_a_specification_of_which_no_agent_can_know_does_not_stay(workspace: Workspace) -> None:
    """A full disk, for example. It may hold secrets."""
    connection = open_store(workspace.database)
    connection.execute("PRAGMA query_only = ON")
    spec = RunSpec(name="a", launcher="command", program=("x",), workdir="/")
    with pytest.raises(sqlite3.OperationalError):
        submit_run(workspace, connection, spec, name=None, actor="me", now=0.0)
    assert list((workspace.state / "inbox").iterdir()) == []
    connection.close()
