"""Starting the agent from a command, and the reasons why it ended."""

from __future__ import annotations

import shutil
import sys
from types import SimpleNamespace

import pytest

from gputui.core.config import Workspace
from gputui.runs import agent_process
from gputui.runs.agent_process import AgentUnreachableError, ensure_agent, exit_reason
from tests.texts import mentions


def test_a_full_disk_is_told_whatever_its_log_says(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace.agent_log.write_text("INFO of yesterday\n")
    full = SimpleNamespace(free=agent_process.LEAST_FREE_BYTES - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    assert mentions(exit_reason(workspace), workspace.state, "full")


def test_an_interpreter_that_is_gone_is_named(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A living screen whose Python was removed or upgraded asks for an agent."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(AgentUnreachableError, match="/nowhere/python"):
        ensure_agent(workspace)
