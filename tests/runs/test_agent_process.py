"""What is told when the agent does not start."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest

from gputui.config import Workspace
from gputui.runs import agent_process
from gputui.runs.agent_process import last_words


def test_the_newest_line_of_its_log(workspace: Workspace) -> None:
    assert last_words(workspace) == f"the agent ended at once; its log is {workspace.agent_log}"
    workspace.agent_log.write_text("INFO of yesterday\ngputui: the database is of a newer gputui\n")
    assert last_words(workspace) == "the database is of a newer gputui"


def test_a_full_disk_is_told_whatever_its_log_says(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace.agent_log.write_text("INFO of yesterday\n")
    full = SimpleNamespace(free=agent_process.LEAST_FREE_BYTES - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    assert last_words(workspace) == f"the disk of {workspace.state} is full; free some space"
