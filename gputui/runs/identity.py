"""Process identity as (PID, start time, boot), because PIDs are reused; signals by it."""

from __future__ import annotations

import fcntl
import getpass
import json
import logging
import os
import signal
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from gputui.core.config import PRIVATE_FILE_MODE
from gputui.machine.procfs import read_stat
from gputui.runs import shim_processes

log = logging.getLogger(__name__)


class ProcessIdentity(NamedTuple):
    """One process of one boot and PID namespace (`boot_id`). ``start_ticks`` is field 22 of
    /proc/PID/stat, in clock ticks since boot."""

    pid: int
    start_ticks: int
    boot_id: str


boot_id = lru_cache(maxsize=1)(shim_processes.boot_id)


def is_of_this_boot(recorded: str) -> bool:
    """Return whether a recorded `boot_id` is of this boot, in any PID namespace."""
    return recorded.partition("/")[0] == boot_id().partition("/")[0]


def is_elsewhere(identity: ProcessIdentity) -> bool:
    """Return whether the process is of another PID namespace of this boot, as in a container:
    nothing can be said of it by its PID, and it cannot be signalled."""
    return identity.boot_id != boot_id() and is_of_this_boot(identity.boot_id)


def identify(pid: int) -> ProcessIdentity | None:
    """The identity of a living process, or None."""
    stat = read_stat(pid)
    if stat is None or stat.is_dead:
        return None
    return ProcessIdentity(pid, stat.start_ticks, boot_id())


def is_alive(identity: ProcessIdentity) -> bool:
    if identity.boot_id != boot_id():
        return False
    stat = read_stat(identity.pid)
    return stat is not None and not stat.is_dead and stat.start_ticks == identity.start_ticks


def is_stopped(identity: ProcessIdentity) -> bool:
    """Return whether this process is stopped, by SIGSTOP or from its terminal."""
    stat = read_stat(identity.pid)
    return stat is not None and stat.state == "T" and stat.start_ticks == identity.start_ticks and is_alive(identity)


def identity_in(record: Mapping[str, Any]) -> ProcessIdentity:
    """The identity that a file or row names. Raises KeyError, TypeError or ValueError."""
    return ProcessIdentity(int(record["pid"]), int(record["start_ticks"]), str(record["boot_id"]))


def actor() -> str:
    """The name of the user, for the history."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def asker() -> dict[str, Any]:
    """This process as the asker in a command's row."""
    process = identify(os.getpid())
    assert process is not None
    return process._asdict()


def is_gone(record: object) -> bool:
    """Return whether the process in `asker` is known to be gone; False for another container."""
    try:
        identity = identity_in(record)  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError):
        return False
    return not is_elsewhere(identity) and not is_alive(identity)


def is_of_another_user(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}").stat().st_uid != os.geteuid()
    except OSError:
        return False


def open_pidfd(pid: int) -> int | None:
    """A descriptor of the process that has ``pid`` now, readable when it ends. Raises ProcessLookupError.

    Returns:
        None if a sandbox forbids the call, or this Python lacks it, as those do that conda builds with old kernel
        headers.
    """
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except (OSError, AttributeError):
        return None


def send_signal(identity: ProcessIdentity, number: int) -> bool:
    """Signal this process; False if it is gone or the kernel forbids it, which is logged.

    The identity is checked after a pidfd is opened, so that a reused PID is never signalled.
    Without pidfds, the check right before the signal leaves a window of microseconds.
    """
    if identity.boot_id != boot_id():
        return False
    descriptor: int | None = None
    try:
        descriptor = open_pidfd(identity.pid)
        if not is_alive(identity):
            return False
        if descriptor is None:
            os.kill(identity.pid, number)
        else:
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        # Not a warning: in a command or a screen, warnings go to the terminal.
        log.info("process %d cannot be signalled: it is another user's", identity.pid)
        return False
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return True


def environment_of(pid: int) -> dict[str, str]:
    """The environment a process was started with; empty if it is gone or another user's."""
    return {os.fsdecode(name): os.fsdecode(value) for name, value in shim_processes.environment_of(pid).items()}


class HeldElsewhereError(Exception):
    """Another process holds the lock."""


class Holder(Struct, frozen=True):
    """The process that locked a file last; ``is_agents``: an agent started it, not a person."""

    identity: ProcessIdentity
    is_agents: bool


def take(path: Path, *, is_agents: bool) -> int:
    """Lock ``path`` until the descriptor is closed. Raises HeldElsewhereError or OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE_MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise HeldElsewhereError(str(path)) from error
    record = json.dumps({**asker(), "is_agents": is_agents}).encode()
    os.pwrite(descriptor, record.ljust(os.fstat(descriptor).st_size), 0)
    return descriptor


def is_held(path: Path) -> bool:
    """Return whether any process holds the lock, alone or with others."""
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
        return Holder(identity_in(data), data["is_agents"] is True)
    except (OSError, ValueError, KeyError, TypeError):
        return None


class SignalRefusedError(Exception):
    """The signal was not sent; the text is a sentence that says why."""


def send_checked_signal(pid: int, start_ticks: int | None, number: signal.Signals) -> None:
    """Signal a process as a person asks for it. Raises SignalRefusedError."""
    if start_ticks is None:
        raise SignalRefusedError(
            f"PID {pid} cannot be tied to a process that is seen here: it is in a container, or outside of ours."
        )
    if pid in (1, os.getpid()):
        what = "the first process of the system" if pid == 1 else "this screen"
        raise SignalRefusedError(f"PID {pid} is {what}.")
    if is_of_another_user(pid):
        raise SignalRefusedError(f"PID {pid} is another user's; only its owner may signal it from here.")
    if not send_signal(ProcessIdentity(pid, start_ticks, boot_id()), number):
        raise SignalRefusedError(f"PID {pid} has ended, or is another process by now.")
