"""Writing command rows for the agent. Called from threads: a locked database may take seconds."""

from __future__ import annotations

import getpass
import os
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from gputui.config import Workspace
from gputui.runs.spec import RunSpec
from gputui.runs.submission import submit_run
from gputui.store import commands
from gputui.store.database import StoreMissingError, StoreOutdatedError, open_commander

STORE_SECONDS = 30.0
"""So long is waited for a store that is not there yet: with the screen an agent is started, and it makes the store."""

_LOOK_SECONDS = 0.1


def actor() -> str:
    """Who asks, as it is written into the history."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def ask(workspace: Workspace, verb: str, run_id: str | None, args: Mapping[str, Any]) -> int:
    """Write a command; returns its id. Raises StoreError, sqlite3.Error or OSError."""
    with closing(_commander(workspace)) as connection:
        return commands.submit(connection, verb, run_id, args, actor(), now=time.time(), doorbell=workspace.doorbell)


def launch(workspace: Workspace, spec: RunSpec, name: str | None) -> int:
    """Hand a run to the agent; returns the command's id. Raises as `ask` does."""
    with closing(_commander(workspace)) as connection:
        return submit_run(workspace, connection, spec, name=name, actor=actor(), now=time.time())


def _commander(workspace: Workspace) -> sqlite3.Connection:
    """A connection for commands; what is asked before the agent is up waits for it."""
    deadline = time.monotonic() + STORE_SECONDS
    while True:
        try:
            return open_commander(workspace.database)
        except (StoreMissingError, StoreOutdatedError):
            if time.monotonic() >= deadline:
                raise
        time.sleep(_LOOK_SECONDS)
