"""An agent's start: its note about the one before it, secrets in its log, and reasons why it did not come up."""

from __future__ import annotations

import logging
import shutil
import sqlite3
import sys
from types import SimpleNamespace

import pytest

from gputui.agent.context import AgentContext
from gputui.agent.maintenance import note_predecessor
from gputui.agent.startup import HidingFormatter
from gputui.core.config import Workspace
from gputui.core.secret_patterns import REDACTED
from gputui.runs import agent_process
from gputui.runs.agent_process import AgentUnreachableError, ensure_agent, exit_reason
from gputui.runs.identity import boot_id
from tests.homes import NOW
from tests.texts import mentions

INHERITED = "inherited-secret"
OWN = "of-the-run-alone"


@pytest.fixture
def inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", INHERITED)


# --- the agent before, and this one's log


@pytest.mark.parametrize(
    ("is_of_this_boot", "ended_at", "kinds"),
    [(True, NOW - 46, []), (True, None, ["recording_interrupted"]), (False, None, ["recording_interrupted"])],
    ids=["left by itself", "killed", "went down with its machine"],
)
def test_an_agent_that_was_killed_is_reported_by_the_next_one(
    workspace: Workspace,
    connection: sqlite3.Connection,
    is_of_this_boot: bool,
    ended_at: float | None,
    kinds: list[str],
) -> None:
    connection.execute(
        "INSERT INTO agent (id, pid, start_ticks, boot_id, version, started_at, heartbeat_at, ended_at, recording, "
        "interval_seconds) VALUES (1, 4242, 1, ?, '0', ?, ?, ?, 0, 1)",
        (boot_id() if is_of_this_boot else "another boot", NOW - 3600, NOW - 47, ended_at),
    )
    note_predecessor(AgentContext.of(connection, workspace, wake=lambda: None, now=lambda: NOW))
    events = connection.execute("SELECT kind, message FROM events").fetchall()
    assert [kind for kind, _ in events] == kinds
    assert all("47 s" in message and ("4242" in message) is is_of_this_boot for _, message in events)


@pytest.mark.usefixtures("inherited")
def test_the_log_of_an_agent_hides_secrets_in_tracebacks_too() -> None:
    formatter = HidingFormatter("%(levelname)s %(message)s", "%H")
    try:
        raise ValueError(f"password={OWN} and {INHERITED}")
    except ValueError as error:
        record = logging.LogRecord(
            "x", logging.ERROR, "p", 1, "got %s", (INHERITED,), (ValueError, error, error.__traceback__)
        )
    text = formatter.format(record)
    assert text.startswith(f"ERROR got {REDACTED}\nTraceback")
    assert OWN not in text
    assert INHERITED not in text


# --- starts that fail


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
