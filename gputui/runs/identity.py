"""Who a process is: a PID alone may name another process by tomorrow, so identity is (PID, start time, boot)."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from gputui.runs import shim

log = logging.getLogger(__name__)

_PROC = Path("/proc")

# Fields of /proc/PID/stat after the command's closing parenthesis, counted from 0: proc_pid_stat(5).
_STATE, _PARENT, _START_TICKS = 0, 1, 19


class ProcessIdentity(NamedTuple):
    """One process of one boot. ``start_ticks`` is field 22 of /proc/PID/stat, in clock ticks since boot."""

    pid: int
    start_ticks: int
    boot_id: str


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """What /proc/PID/stat says that supervision needs. ``state`` is the letter of proc_pid_stat(5)."""

    pid: int
    parent_pid: int
    state: str
    start_ticks: int

    @property
    def is_dead(self) -> bool:
        """A zombie has ended; only its parent has not asked yet."""
        return self.state in ("Z", "X", "x")


@lru_cache(maxsize=1)
def boot_id() -> str:
    """The kernel's random name of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()


def read_stat(pid: int) -> ProcessStat | None:
    """The process's stat line, or None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # noqa: PTH123 - for every process of the machine
            text = file.readall()
    except OSError:
        return None
    # The command may hold spaces and parentheses; nothing after the last ')' does.
    fields = text[text.rfind(b")") + 2 :].split()
    if len(fields) <= _START_TICKS:
        return None
    return ProcessStat(pid, int(fields[_PARENT]), fields[_STATE].decode("ascii"), int(fields[_START_TICKS]))


def identify(pid: int) -> ProcessIdentity | None:
    """The identity of a living process, or None."""
    stat = read_stat(pid)
    return None if stat is None or stat.is_dead else ProcessIdentity(pid, stat.start_ticks, boot_id())


def is_alive(identity: ProcessIdentity) -> bool:
    """Whether this very process still runs."""
    if identity.boot_id != boot_id():
        return False
    stat = read_stat(identity.pid)
    return stat is not None and not stat.is_dead and stat.start_ticks == identity.start_ticks


def is_stopped(identity: ProcessIdentity) -> bool:
    """Whether this very process was stopped, by SIGSTOP or from its terminal, and not continued since."""
    stat = read_stat(identity.pid)
    return stat is not None and stat.state == "T" and stat.start_ticks == identity.start_ticks and is_alive(identity)


def has_open(pid: int, path: Path) -> bool | None:
    """Whether a process has this very file open, and not a copy of it; None if that cannot be told."""
    try:
        wanted, place = path.stat(), path.resolve()
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return None
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            found = descriptor.stat()
            # Moved, it keeps its number; file systems without lasting numbers keep the path.
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino) or descriptor.readlink() == place:
                return True
    return False


def asker() -> dict[str, int | str]:
    """Who this process is, for the row of a command: one whose asker has gone is not carried out."""
    stat = read_stat(os.getpid())
    ticks = 0 if stat is None else stat.start_ticks
    return {"pid": os.getpid(), "start_ticks": ticks, "boot_id": boot_id(), "pid_namespace": _pid_namespace()}


def is_gone(asked: object) -> bool:
    """Whether the process in `asker` is known to be gone; False without one, or for another container."""
    if not isinstance(asked, Mapping) or asked.get("pid_namespace") != _pid_namespace():
        return False
    try:
        identity = ProcessIdentity(int(asked["pid"]), int(asked["start_ticks"]), str(asked["boot_id"]))
    except (KeyError, TypeError, ValueError):
        return False
    return not is_alive(identity)


def _pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


def is_of_another_user(pid: int) -> bool:
    """Whether a process lives that is not this user's."""
    try:
        return Path(f"/proc/{pid}").stat().st_uid != os.geteuid()
    except OSError:
        return False


def open_pidfd(pid: int) -> int | None:
    """A descriptor of the process that has ``pid`` now, readable when it ends. None if there is none to be had: the
    kernel is older than 5.3, the sandbox forbids the call, or no descriptor is left.

    Raises ProcessLookupError when no process has that number.
    """
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except (OSError, AttributeError) as error:  # a Python built on an old system lacks the function
        _log_once(f"pidfd_open does not work here ({error}); signals are sent by number, right after a check")
        return None


def send_signal(identity: ProcessIdentity, number: int) -> bool:
    """Signal this very process; False when it is gone or the kernel does not allow it, which is logged.

    A pidfd is opened first and the identity checked after, so that a PID given to another process in between is
    never hit. If there are no pidfds, the check right before the signal leaves a window of microseconds.
    """
    if identity.boot_id != boot_id():
        return False
    try:
        descriptor = open_pidfd(identity.pid)
    except ProcessLookupError:
        return False
    try:
        return is_alive(identity) and deliver(identity.pid, descriptor, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        _log_once(f"process {identity.pid} cannot be signalled: it is another user's")
        return False
    finally:
        if descriptor is not None:
            os.close(descriptor)


def is_being_killed(identity: ProcessIdentity) -> bool:
    """Whether a SIGKILL waits for this very process, which is stuck in the kernel: no instruction of its program will
    run again (proc_pid_status(5), SigPnd and ShdPnd)."""
    try:
        lines = Path(f"/proc/{identity.pid}/status").read_text("utf-8", "replace").splitlines()
    except OSError:
        return False
    pending = [int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd:", "ShdPnd:"))]
    return is_alive(identity) and any(signals >> (signal.SIGKILL - 1) & 1 for signals in pending)


def deliver(pid: int, descriptor: int | None, number: int) -> bool:
    """Signal through a pidfd, or by number if there is none or the sandbox forbids its use. True when it was sent.

    Raises ProcessLookupError and PermissionError as kill(2).
    """
    if descriptor is not None:
        try:
            signal.pidfd_send_signal(descriptor, number)
            return True
        except ProcessLookupError:
            raise
        except (OSError, AttributeError):
            # EPERM of a sandbox looks like that of another user's process: kill(2) tells them apart.
            pass
    os.kill(pid, number)
    return True


@lru_cache(maxsize=256)
def _log_once(text: str) -> None:
    # Not a warning: without a log, as in a command or a screen, those go to the terminal.
    log.info("%s", text)


def all_pids() -> list[int]:
    """Every PID that procfs shows."""
    return [int(name) for name in os.listdir(_PROC) if name.isdigit()]


def raw_environment(pid: int) -> bytes | None:
    """The environment a process was started with, each variable between two NUL bytes; None when the process is gone or
    another user's."""
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:  # noqa: PTH123 - for every process of the machine
            return b"\0" + file.readall() + b"\0"
    except OSError:
        return None


def environment_of(pid: int) -> dict[str, str] | None:
    """The same by name."""
    raw = raw_environment(pid)
    return None if raw is None else environment_in(raw)


def environment_in(raw: bytes) -> dict[str, str]:
    """What `raw_environment` gives, by name."""
    pairs = (item.partition(b"=") for item in raw.split(b"\0") if item)
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}


Owner = tuple[str, int | None]
"""The run and the rank that a process belongs to."""


def owner_in(environment: Mapping[str, str], runs: Path | str) -> Owner | None:
    """The run and rank that an environment is marked with; None if it is not marked by the home whose runs are in
    ``runs``: a run of another home is a stranger here."""
    run_id = environment.get("GPUTUI_RUN_ID")
    if not run_id or environment.get("GPUTUI_RUN_DIR") != f"{runs}/{run_id}":
        return None
    return run_id, rank_in(environment)


def rank_in(environment: Mapping[str, str]) -> int | None:
    """The rank that an environment tells. Launchers of one machine (Lightning's) tell the local one alone."""
    is_first_node = all(environment.get(name, "0") == "0" for name in ("NODE_RANK", "GROUP_RANK"))
    rank = environment.get("RANK") or (environment.get("LOCAL_RANK", "") if is_first_node else "")
    return int(rank) if rank.isascii() and rank.isdigit() else None


def marked_processes(run_dir: Path | str, attempt: int | None = None) -> list[ProcessIdentity]:
    """Every living process that carries a run's mark in its environment, wherever it hangs in the process tree.

    The mark is the run's folder: its id is unique in one home only. ``attempt`` narrows it to one attempt.
    """
    needle = b"\0GPUTUI_RUN_DIR=" + os.fsencode(run_dir) + b"\0"
    number = None if attempt is None else f"\0GPUTUI_ATTEMPT={attempt}\0".encode()
    found = []
    for pid in all_pids():
        raw = raw_environment(pid)
        is_marked = raw is not None and needle in raw and (number is None or number in raw)
        if is_marked and not shim.has_another_folder(pid, os.fsencode(run_dir)):
            identity = identify(pid)
            if identity is not None:
                found.append(identity)
    return found
