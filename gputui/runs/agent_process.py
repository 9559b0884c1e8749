"""The agent as a process: find, start and stop it, for its clients."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from gputui.core.config import PRIVATE_FILE_MODE, Workspace
from gputui.runs.identity import ProcessIdentity, identity_in, is_alive, is_held, is_stopped, send_signal

START_TIMEOUT_SECONDS = 15.0  # imports from a slow disk of the network
STOP_TIMEOUT_SECONDS = 15.0  # as long as a start
_POLL_SECONDS = 0.02  # a person does not notice it
# A debugger or a stack dump stops the agent for less.
_STOPPED_SECONDS = 2.0
# A shorter wait is not reported.
_REPORT_SECONDS = 1.0
# A new database needs this much: its schema and the log of its first transaction.
LEAST_FREE_BYTES = 64 << 10
# torchrun sets these for its ranks (https://docs.pytorch.org/docs/stable/elastic/run.html,
# "Environment Variables"). An agent started by a rank must not pass them on to other runs.
RANK_MARKS = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip


class AgentUnreachableError(Exception):
    """The agent cannot be started or does not answer; the text names its log."""


class AgentStoppedError(AgentUnreachableError):
    """The agent was stopped by a signal: it does nothing until continued, and no other can
    start."""

    def __init__(self, pid: int) -> None:
        super().__init__(
            f"the agent (pid {pid}) was stopped (state T): it records and answers nothing, runs continue; "
            f"kill -CONT {pid} continues it"
        )

    @property
    def sentence(self) -> str:
        return f"T{str(self)[1:]}."


class AgentIdentity(Struct, frozen=True):
    """The content of the agent's lock file.

    Attributes:
        started_at: UTC unix seconds.
        recording: it runs in the foreground, without clients or runs.
        ready: it answers commands.
        doing: its long task before it is ready.
    """

    process: ProcessIdentity
    version: str
    started_at: float
    recording: bool
    ready: bool
    doing: str | None = None


def read_identity(workspace: Workspace) -> AgentIdentity | None:
    """The running agent of this workspace, or None."""
    try:
        data = json.loads(workspace.agent_lock.read_text("utf-8"))
        identity = msgspec.convert({**data, "process": identity_in(data)}, AgentIdentity)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if is_alive(identity.process):
        return identity
    return None


def stopped_agent(workspace: Workspace) -> AgentStoppedError | None:
    """The error to report if the agent of this workspace was stopped; else None."""
    identity = read_identity(workspace)
    if identity is not None and is_stopped(identity.process):
        return AgentStoppedError(identity.process.pid)
    return None


def ensure_agent(
    workspace: Workspace,
    *,
    timeout_seconds: float = START_TIMEOUT_SECONDS,
    report: Callable[[str], None] = lambda _: None,
) -> AgentIdentity:
    """Start the agent unless one runs, and return it.

    Waits without limit while the agent checks the database for damage, and calls ``report`` if that
    takes longer than a second.

    Raises:
        AgentUnreachableError: it does not start in time, or ends at once.
        AgentStoppedError: it was stopped by a signal.
    """
    doing: str | None = None
    since = math.inf
    stopped_at = math.inf
    deadline = time.monotonic() + timeout_seconds
    process: subprocess.Popen[bytes] | None = None
    while True:
        now = time.monotonic()
        identity = read_identity(workspace)
        if identity is not None and is_stopped(identity.process):
            stopped_at = min(stopped_at, now)
            if now - stopped_at >= _STOPPED_SECONDS:
                raise AgentStoppedError(identity.process.pid)
            time.sleep(_POLL_SECONDS)
            continue
        stopped_at = math.inf
        if identity is not None and identity.ready:
            return identity
        if identity is None and process is None:
            process = spawn_agent(workspace)
        if identity is not None and identity.doing is not None:
            deadline = now + timeout_seconds
            if identity.doing != doing:
                doing = identity.doing
                since = now
            elif now - since >= _REPORT_SECONDS:
                since = math.inf
                report(doing)
        if process is not None and process.poll() not in (None, 0):
            raise AgentUnreachableError(exit_reason(workspace))
        if now > deadline:
            raise AgentUnreachableError(
                f"the agent did not start within {timeout_seconds:.0f} s; its log is {workspace.agent_log}"
            )
        time.sleep(_POLL_SECONDS)


def spawn_agent(workspace: Workspace) -> subprocess.Popen[bytes]:
    """Start an agent detached from this terminal, with output to its log. Raises
    AgentUnreachableError, also inside a run, with whose processes it would be ended."""
    if "GPUTUI_RUN_DIR" in os.environ:
        raise AgentUnreachableError("no agent can be started from inside a run; run gputui agent start in a shell")
    try:
        workspace.create()
        descriptor = os.open(
            workspace.agent_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, PRIVATE_FILE_MODE
        )
    except OSError as error:
        raise AgentUnreachableError(f"cannot use {workspace.state}: {error.strerror}; choose another --home") from error
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in RANK_MARKS and not name.startswith("TORCHELASTIC_")
    }
    try:
        return subprocess.Popen(
            agent_argv(workspace),
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
            env=environment,
            cwd="/",
        )
    except OSError as error:
        raise AgentUnreachableError(
            f"no agent can be started by {sys.executable}: {error.strerror}; install gputui again and start it again"
        ) from error
    finally:
        os.close(descriptor)


def agent_argv(workspace: Workspace) -> list[str]:
    """The command of a background agent, with this interpreter."""
    home = ("--profiles", str(workspace.profiles), "--state", str(workspace.state))
    return [sys.executable, "-m", "gputui.agent", *home]


def agent_for_executor(workspace: Workspace) -> dict[str, Any]:
    """The entry ``agent`` of attempt.json, by which a shim starts an agent at its end if none
    lives."""
    return {
        "argv": agent_argv(workspace),
        "unset": ["GPUTUI_RUN_ID", "GPUTUI_RUN_DIR", "GPUTUI_ATTEMPT"],
        "lock": str(workspace.agent_lock),
        "stopped": str(workspace.agent_stopped),
        "log": str(workspace.agent_log),
    }


def stop_agent(workspace: Workspace, *, timeout_seconds: float = STOP_TIMEOUT_SECONDS) -> bool:
    """End the agent but not its runs; False if none ran. Raises AgentUnreachableError."""
    identity = read_identity(workspace)
    if identity is None:
        return False
    send_signal(identity.process, signal.SIGTERM)
    # A stopped process handles SIGTERM only when continued.
    send_signal(identity.process, signal.SIGCONT)
    deadline = time.monotonic() + timeout_seconds
    while is_alive(identity.process):
        if time.monotonic() > deadline:
            raise AgentUnreachableError(
                f"the agent (pid {identity.process.pid}) does not end; its log is {workspace.agent_log}"
            )
        time.sleep(_POLL_SECONDS)
    return True


@contextlib.contextmanager
def view_presence(workspace: Workspace) -> Iterator[None]:
    """Keep the agent running while a view is open. The kernel drops the lock of a killed view."""
    descriptor = os.open(workspace.views_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE_MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def has_views(workspace: Workspace) -> bool:
    """Return whether a view is open and so holds the views lock."""
    return is_held(workspace.views_lock)


def exit_reason(workspace: Workspace) -> str:
    """The reason why a started agent exited at once, from its home or the last line of its log."""
    try:
        # The log of a full disk has only older lines.
        if shutil.disk_usage(workspace.state).free < LEAST_FREE_BYTES:
            return f"the disk of {workspace.state} is full; free some space"
        lines = workspace.agent_log.read_text("utf-8", "replace").strip().splitlines()
    except OSError as error:
        return f"cannot use {workspace.state}: {error.strerror}; choose another --home"
    if lines:
        return lines[-1].removeprefix("gputui: ")
    return f"the agent ended at once; its log is {workspace.agent_log}"
