"""Writing command rows for the agent. Called from threads: a locked database may take seconds."""

from __future__ import annotations

import getpass
import os
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

from gputui.config import Workspace
from gputui.runs.spec import RunSpec
from gputui.runs.submission import submit_run
from gputui.store import commands
from gputui.store.database import (
    StoreError,
    StoreMissingError,
    is_locked,
    open_commander,
)

STORE_SECONDS = 30.0
"""So long is waited for a store that is not there yet (with the screen an agent is started, and it makes the store), or
that another program holds."""

_LOOK_SECONDS = 0.1


def actor() -> str:
    """Who asks, as it is written into the history."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def ask(workspace: Workspace, verb: str, run_id: str | None, args: Mapping[str, Any]) -> int:
    """Write a command; returns its id. Raises StoreError, sqlite3.Error or OSError."""

    def write(connection: sqlite3.Connection) -> int:
        return commands.submit(connection, verb, run_id, args, actor(), now=time.time(), doorbell=workspace.doorbell)

    return _written(workspace, write)


def launch(workspace: Workspace, spec: RunSpec, name: str | None) -> int:
    """Hand a run to the agent; returns the command's id. Raises as `ask` does."""
    return _written(
        workspace,
        lambda connection: submit_run(workspace, connection, spec, name=name, actor=actor(), now=time.time()),
    )


def _written(workspace: Workspace, write: Callable[[sqlite3.Connection], int]) -> int:
    """What is asked before the agent is up, or while another program holds the store, waits for it."""
    deadline = time.monotonic() + STORE_SECONDS
    while True:
        try:
            with closing(open_commander(workspace.database)) as connection:
                return write(connection)
        except (StoreError, sqlite3.OperationalError) as error:
            may_pass = isinstance(error, StoreMissingError) or is_locked(error)
            if not may_pass or time.monotonic() >= deadline:
                raise
        time.sleep(_LOOK_SECONDS)
