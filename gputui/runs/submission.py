"""Submit a run to the agent.

The specification is passed in a private file that the command row names, because it may hold
secrets (a token in the environment), which must never be in the database.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gputui.core.config import PRIVATE_DIR_MODE, PRIVATE_FILE_MODE, Workspace
from gputui.core.files import read_regular, replaced
from gputui.runs.code_version import read_code
from gputui.runs.executors.commands import client_environment
from gputui.runs.identity import asker
from gputui.runs.launch_shell import LaunchShell, capture
from gputui.runs.spec import RunSpec, SpecError
from gputui.runs.stored_spec import read_shape
from gputui.store import commands

SPEC_FILE = "spec.json"
# A specification holds the environment of the launching shell, which execve bounds.
MAX_SPEC_BYTES = 64 << 20


def submit_run(
    workspace: Workspace, connection: sqlite3.Connection, spec: RunSpec, *, name: str | None, actor: str, now: float
) -> int:
    """Ask the agent to queue a run with this shell's environment and the version of its code;
    return the command's id. Raises OSError or sqlite3.Error."""
    spec = replace(spec, shell=capture(), code=read_code(Path(spec.workdir)))
    with ticket_for(workspace, spec) as ticket:
        arguments = {"name": name, **ticket}
        return commands.submit(connection, "run", run_id=None, args=arguments, actor=actor, now=now)


@contextmanager
def ticket_for(workspace: Workspace, spec: RunSpec) -> Iterator[dict[str, Any]]:
    """Give the arguments of a command with a private specification, which the caller submits inside; the agent is woken
    at the end. Raises OSError."""
    ticket = write_ticket(workspace, spec)
    try:
        yield {"ticket": ticket, "asker": asker()}
    except sqlite3.Error:
        # Without a command nobody would remove it, and it may hold secrets.
        ticket_path(workspace, ticket).unlink()
        raise
    commands.ring(workspace.doorbell)


def write_ticket(workspace: Workspace, spec: RunSpec) -> str:
    """Write the specification of a later command. Returns its ticket. Raises OSError."""
    ticket = secrets.token_hex(8)
    path = ticket_path(workspace, ticket)
    path.parent.mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
    write_spec(path, spec)
    return ticket


def ticket_to_renew(
    workspace: Workspace, run_id: str, options: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
) -> dict[str, str]:
    """The arguments of a command that starts a run on a target again; none for a run on this machine. Raises
    SpecError, OSError, and what ``options`` raises.

    The ticket has this shell's environment for the target's commands.

    Args:
        options: changes the target's options.
    """
    spec = read_spec(workspace.run_dir(run_id) / SPEC_FILE)
    if spec.target is None:
        return {}
    shell = replace(spec.shell or LaunchShell(), clients=client_environment(os.environ))
    return {"ticket": write_ticket(workspace, replace(spec, target=options(spec.target), shell=shell))}


def ticket_path(workspace: Workspace, ticket: str) -> Path:
    return workspace.state / "inbox" / f"{ticket}.json"


def ticket_inodes(workspace: Workspace) -> set[int]:
    """The inode of each ticket in the inbox. Raises OSError."""
    return {path.stat().st_ino for path in (workspace.state / "inbox").glob("*")}


def read_ticket(workspace: Workspace, ticket: str) -> tuple[Path, RunSpec]:
    """The specification that a command names, and its path. Raises SpecError."""
    if not ticket or not ticket.isalnum():
        raise SpecError("the command names no specification")
    path = ticket_path(workspace, ticket)
    return path, read_spec(path)


def write_spec(path: Path, spec: RunSpec) -> None:
    """Write a specification, readable by its owner only. Raises OSError."""
    write_private(path, spec.to_json())


def read_spec(path: Path) -> RunSpec:
    """Read a specification back. Raises SpecError."""
    try:
        return read_shape(json.loads(read_regular(path, MAX_SPEC_BYTES)))
    except (OSError, ValueError, RecursionError) as error:
        raise SpecError(f"cannot read {path}: {error}") from error


def write_private(path: Path, record: dict[str, Any]) -> None:
    """Write JSON atomically and durably, readable by its owner only. Raises OSError."""
    with replaced(path, PRIVATE_FILE_MODE) as file:
        file.write(json.dumps(record).encode())
