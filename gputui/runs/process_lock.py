"""A file lock of one process, with the process's identity in the file. The kernel releases it however it ends."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

from msgspec import Struct

from gputui.core.config import PRIVATE_FILE_MODE
from gputui.runs.identity import ProcessIdentity, boot_id, identify


class HeldElsewhereError(Exception):
    """Another process holds the lock."""


class Holder(Struct, frozen=True):
    """The process that locked it last. ``is_agents``: an agent started it, not a person."""

    identity: ProcessIdentity
    is_agents: bool


def take(path: Path, *, is_agents: bool) -> int:
    """Lock ``path`` for this process until the descriptor is closed or the process ends. Raises HeldElsewhereError or
    OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE_MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise HeldElsewhereError(str(path)) from error
    own = identify(os.getpid())
    assert own is not None
    facts = {"pid": own.pid, "start_ticks": own.start_ticks, "boot_id": boot_id(), "is_agents": is_agents}
    record = json.dumps(facts).encode()
    os.pwrite(descriptor, record.ljust(os.fstat(descriptor).st_size), 0)
    return descriptor


def is_held(path: Path) -> bool:
    """Whether any process holds the lock, alone or with others, also one of another PID namespace."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def holder(path: Path) -> Holder | None:
    """The process that locked it last, which may be long gone."""
    try:
        data = json.loads(path.read_text("utf-8"))
        identity = ProcessIdentity(int(data["pid"]), int(data["start_ticks"]), str(data["boot_id"]))
        return Holder(identity, data["is_agents"] is True)
    except (OSError, ValueError, KeyError, TypeError):
        return None
