"""The owners of the PIDs that the driver reports."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from gputui.machine.procfs import command_of, read_stat, user_of

_COMMAND_MAX_CHARACTERS = 300  # enough to recognise it; a command may have megabytes
# The first PID namespace of a machine: PROC_PID_INIT_INO in the kernel's include/linux/proc_ns.h.
_FIRST_PID_NAMESPACE = 0xEFFFFFFC


class ProcessOwner(Struct, frozen=True):
    """The owner of a PID. ``start_ticks`` is field 22 of /proc/PID/stat, which distinguishes a
    reused PID."""

    start_ticks: int
    user: str | None
    command: str | None


def _printable(letter: str) -> str:
    if letter.isprintable():
        return letter
    return " "


class GpuProcessReader:
    """Identifies PIDs, and caches results while (PID, start) stays the same.

    The driver reports PIDs of the machine's first PID namespace. In another namespace (a container)
    the number may belong to another process, so there a PID counts only if the process has a device
    file of the driver open.
    """

    def __init__(self, *, is_first_namespace: bool | None = None) -> None:
        if is_first_namespace is None:
            is_first_namespace = Path("/proc/self/ns/pid").stat().st_ino == _FIRST_PID_NAMESPACE
        self._must_use_driver = not is_first_namespace
        # By PID: start, and owner; None for a process that has nothing to do with a GPU.
        self._known: dict[int, tuple[int, ProcessOwner | None]] = {}

    def identify(self, pid: int) -> ProcessOwner | None:
        """The owner of ``pid`` now; None if it is not visible here."""
        stat = read_stat(pid)
        if stat is None:
            self._known.pop(pid, None)
            return None
        start_ticks, owner = self._known.get(pid, (None, None))
        if start_ticks != stat.start_ticks:
            owner = None
            if not self._must_use_driver or _uses_driver(pid):
                command = "".join(map(_printable, command_of(pid)))
                owner = ProcessOwner(stat.start_ticks, user_of(pid), command[:_COMMAND_MAX_CHARACTERS] or None)
            self._known[pid] = (stat.start_ticks, owner)
        return owner

    def keep_only(self, pids: Iterable[int]) -> None:
        """Drop other PIDs from the cache, to bound its size."""
        keep = set(pids)
        self._known = {pid: identity for pid, identity in self._known.items() if pid in keep}


def _uses_driver(pid: int) -> bool:
    """Return whether a process has a device file of the driver open; False if unknown."""
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # it was closed meanwhile
                if str(descriptor.readlink()).startswith("/dev/nvidia"):
                    return True
    return False
