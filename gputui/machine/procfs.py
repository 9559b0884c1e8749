"""Facts about processes of any user, and the available memory, from procfs."""

from __future__ import annotations

import os
import pwd
from functools import lru_cache
from pathlib import Path

from msgspec import Struct

from gputui.core.redaction import redact_command_line

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

# Fields of /proc/PID/stat after the command's closing parenthesis, counted from 0:
# proc_pid_stat(5).
_STATE = 0
_PARENT = 1
_USER = 11
_START_TICKS = 19


class ProcessStat(Struct, frozen=True):
    """The content of /proc/PID/stat.

    Attributes:
        state: The letter of proc_pid_stat(5).
        start_ticks: Tells a reused PID.
        cpu_seconds: The CPU time of the process alone.
        children_seconds: The CPU time of the children that it has waited for.
    """

    pid: int
    parent_pid: int
    state: str
    start_ticks: int
    cpu_seconds: float = 0.0
    children_seconds: float = 0.0

    @property
    def is_dead(self) -> bool:
        """True if it has ended. A zombie has: its parent has just not waited for it."""
        return self.state in ("Z", "X", "x")


def read_stat(pid: int) -> ProcessStat | None:
    """The stat line of a process, or None if there is no such process."""
    return _read_stat(pid, f"/proc/{pid}/stat")


def main_thread_seconds(pid: int) -> float | None:
    """The CPU time of a process's main thread; None if unknown."""
    stat = _read_stat(pid, f"/proc/{pid}/task/{pid}/stat")
    if stat is None:
        return None
    return stat.cpu_seconds


def _read_stat(pid: int, path: str) -> ProcessStat | None:
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - for every process of the machine
            text = file.readall()
    except OSError:
        return None
    # The command may hold spaces and parentheses; nothing after the last ')' does.
    fields = text[text.rfind(b")") + 2 :].split()
    if len(fields) <= _START_TICKS:
        return None
    user, system, child_user, child_system = map(int, fields[_USER : _USER + 4])
    return ProcessStat(
        pid,
        int(fields[_PARENT]),
        fields[_STATE].decode("ascii"),
        start_ticks=int(fields[_START_TICKS]),
        cpu_seconds=(user + system) / TICKS_PER_SECOND,
        children_seconds=(child_user + child_system) / TICKS_PER_SECOND,
    )


def private_bytes(pid: int) -> int | None:
    """Unshared resident memory of a process, None if unknown."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:  # noqa: PTH123 - for every process of a run
            _, resident, shared, *_ = map(int, file.read().split())
    except (OSError, ValueError):
        return None
    return max(resident - shared, 0) * _PAGE_BYTES


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """The host's available memory, None if unknown."""
    try:
        for line in meminfo.read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return None


def command_of(pid: int) -> str:
    """The command line of a process without its secrets, or its name; "" if it has ended."""
    for name in ("cmdline", "comm"):  # a zombie has no command line
        try:
            text = redact_command_line(Path(f"/proc/{pid}/{name}").read_bytes())
        except OSError:
            return ""
        if text:
            return text
    return ""


def user_of(pid: int) -> str | None:
    """The name of a process's user, or the number of one without a name; None if it has ended."""
    try:
        return _user_name(os.stat(f"/proc/{pid}").st_uid)  # noqa: PTH116
    except OSError:
        return None


@lru_cache(maxsize=256)
def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
