"""Identify PIDs on GPUs from procfs."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from gputui.core.redaction import redact_command_line

_COMMAND_MAX_CHARACTERS = 300

# The first PID namespace of a machine: PROC_PID_INIT_INO in the kernel's include/linux/proc_ns.h.
_FIRST_PID_NAMESPACE = "pid:[4026531836]"


class ProcessOwner(Struct, frozen=True):
    """The owner of a PID. ``start_ticks`` is field 22 of /proc/PID/stat, which distinguishes a reused PID."""

    start_ticks: int
    user: str | None
    command: str | None


class _Known(Struct, frozen=True):
    """A cached result for a PID, and its folder in procfs."""

    folder: tuple[int, int]
    ticks: int
    identity: ProcessOwner | None


class GpuProcessReader:
    """Identifies PIDs, and caches results while (PID, start) stays the same.

    The driver reports PIDs of the machine's first PID namespace. In another namespace (a container) the number may
    belong to another process, so there a PID counts only if the process has a device file of the driver open.
    """

    def __init__(self, proc: Path = Path("/proc"), first_namespace: bool | None = None) -> None:
        self._proc = str(proc)
        self._check_device = not (in_first_pid_namespace(proc) if first_namespace is None else first_namespace)
        self._known: dict[int, _Known] = {}

    def identify(self, pid: int) -> ProcessOwner | None:
        """The owner of ``pid`` now; None if it is not visible here."""
        folder = self._folder(pid)
        known = self._known.get(pid)
        if known is not None and known.folder == folder:
            return known.identity
        ticks = self._start_ticks(pid)
        if folder is None or ticks is None:
            self._known.pop(pid, None)
            return None
        if known is not None and known.ticks == ticks:
            found = known.identity
        elif not self._check_device or self._has_device_open(pid):
            found = ProcessOwner(ticks, self._user(pid), self._command(pid))
        else:
            found = None
        self._known[pid] = _Known(folder, ticks, found)
        return found

    def keep_only(self, pids: Iterable[int]) -> None:
        """Drop other PIDs from the cache, to bound its size."""
        keep = set(pids)
        for pid in [pid for pid in self._known if pid not in keep]:
            del self._known[pid]

    def _folder(self, pid: int) -> tuple[int, int] | None:
        """The inode and change time of the process's folder in procfs, which change if a PID is reused. This costs a
        sixth of reading a file in it."""
        try:
            status = os.stat(f"{self._proc}/{pid}")  # noqa: PTH116 - every tick, for every process
        except OSError:
            return None
        return status.st_ino, status.st_ctime_ns

    def _start_ticks(self, pid: int) -> int | None:
        try:
            with open(f"{self._proc}/{pid}/stat", "rb") as file:  # noqa: PTH123 - a plain read, often
                text = file.read()
        except OSError:
            return None
        # The command name may hold spaces and parentheses; what follows its last ")" starts at field 3.
        fields = text[text.rfind(b")") + 2 :].split()
        try:
            return int(fields[19])
        except (IndexError, ValueError):
            return None

    def _user(self, pid: int) -> str | None:
        try:
            uid = os.stat(f"{self._proc}/{pid}").st_uid  # noqa: PTH116
        except OSError:
            return None
        try:
            return pwd.getpwuid(uid).pw_name
        except KeyError:
            return str(uid)

    def _command(self, pid: int) -> str | None:
        for name in ("cmdline", "comm"):  # a kernel thread or a zombie has no command line
            try:
                raw = Path(self._proc, str(pid), name).read_bytes()
            except OSError:
                return None
            text = redact_command_line(raw)
            if text:
                clean = "".join(character if character.isprintable() else " " for character in text)
                return clean[:_COMMAND_MAX_CHARACTERS]
        return None

    def _has_device_open(self, pid: int) -> bool:
        folder = f"{self._proc}/{pid}/fd"
        try:
            names = os.listdir(folder)
        except OSError:
            return False
        for name in names:
            try:
                if os.readlink(f"{folder}/{name}").startswith("/dev/nvidia"):  # noqa: PTH115
                    return True
            except OSError:
                continue
        return False


def in_first_pid_namespace(proc: Path = Path("/proc")) -> bool:
    """Whether PIDs here are those that the driver reports."""
    try:
        return os.readlink(proc / "self" / "ns" / "pid") == _FIRST_PID_NAMESPACE  # noqa: PTH115
    except OSError:
        return False
