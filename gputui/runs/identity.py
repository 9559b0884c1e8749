"""Who a process is: a PID alone may name another process by tomorrow, so identity is (PID, start time, boot)."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_PROC = Path("/proc")

# Fields of /proc/PID/stat after the command's closing parenthesis, counted from 0: proc_pid_stat(5).
_STATE, _PARENT, _START_TICKS = 0, 1, 19


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
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
        text = (_PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError:
        return None
    # The command may hold spaces and parentheses; nothing after the last ')' does.
    fields = text[text.rfind(")") + 2 :].split()
    if len(fields) <= _START_TICKS:
        return None
    return ProcessStat(pid, int(fields[_PARENT]), fields[_STATE], int(fields[_START_TICKS]))


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


def send_signal(identity: ProcessIdentity, number: int) -> bool:
    """Signal this very process; False when it is gone.

    A pidfd is opened first and the identity checked after, so that a PID given to another process in between is
    never hit.
    """
    if identity.boot_id != boot_id():
        return False
    try:
        descriptor = os.pidfd_open(identity.pid)
    except (ProcessLookupError, OSError):
        return False
    try:
        if not is_alive(identity):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


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
    if raw is None:
        return None
    pairs = (item.partition(b"=") for item in raw.split(b"\0") if item)
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}


Owner = tuple[str, int | None]
"""The run and the rank that a process belongs to."""


def owner_in(environment: Mapping[str, str], runs: Path | str) -> Owner | None:
    """The run and rank that an environment is marked with; None where it is not marked by the home whose runs are in
    ``runs``: a run of another home is a stranger here."""
    run_id = environment.get("GPUTUI_RUN_ID")
    if not run_id or environment.get("GPUTUI_RUN_DIR") != f"{runs}/{run_id}":
        return None
    rank = environment.get("RANK", "")
    return run_id, int(rank) if rank.isdigit() else None


def marked_processes(run_dir: Path | str, attempt: int | None = None) -> list[ProcessIdentity]:
    """Every living process that carries a run's mark in its environment, wherever it hangs in the process tree.

    The mark is the run's folder: its id is unique in one home only. ``attempt`` narrows it to one attempt.
    """
    needle = b"\0GPUTUI_RUN_DIR=" + os.fsencode(run_dir) + b"\0"
    number = None if attempt is None else f"\0GPUTUI_ATTEMPT={attempt}\0".encode()
    found = []
    for pid in all_pids():
        raw = raw_environment(pid)
        if raw is not None and needle in raw and (number is None or number in raw):
            identity = identify(pid)
            if identity is not None:
                found.append(identity)
    return found
