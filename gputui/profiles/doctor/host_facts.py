"""Readings of the host: memory, limits, clock, systemd. Only reads files; what cannot be read is None."""

from __future__ import annotations

import ctypes
import getpass
import os
import resource
import sys
from pathlib import Path

import psutil
from msgspec import Struct

from gputui.machine.systemd import LogoutEnd, logout_end
from gputui.runs.identity import open_pidfd

_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronised
_STATUS_OFFSET = 40  # of `status` in struct timex, where long has 64 bits
_STA_UNSYNC = 0x40
_NVIDIA_VENDOR = "0x10de"
_DISPLAY_CLASS = "0x03"


class HostReading(Struct, frozen=True):
    """The state of the host. ``clock_synchronised`` is reported by the kernel; ``logout``: what a logout would end;
    ``lingers`` is None without systemd; ``oom_kills_boot`` counts since boot, ``oom_kills_cgroup`` in this control
    group; ``has_pidfds``: pidfd_open works."""

    memory_available_bytes: int | None = None
    memory_total_bytes: int | None = None
    swap_used_bytes: int | None = None
    swap_total_bytes: int | None = None
    shm_free_bytes: int | None = None
    shm_total_bytes: int | None = None
    files_soft: int | None = None
    files_hard: int | None = None
    clock_synchronised: bool | None = None
    logout: LogoutEnd | None = None
    lingers: bool | None = None
    oom_kills_boot: int | None = None
    oom_kills_cgroup: int | None = None
    nvidia_hardware: bool = False
    has_pidfds: bool = True
    # The largest file that this user may write; None without a limit.
    file_size_bytes: int | None = None


def read_host() -> HostReading:
    """Read the host."""
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    shm = _usage("/dev/shm")  # noqa: S108 - only its size is read
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return HostReading(
        memory_available_bytes=memory.available,
        memory_total_bytes=memory.total,
        swap_used_bytes=swap.used,
        swap_total_bytes=swap.total,
        shm_free_bytes=None if shm is None else shm[0],
        shm_total_bytes=None if shm is None else shm[1],
        files_soft=sys.maxsize if soft == resource.RLIM_INFINITY else soft,
        files_hard=sys.maxsize if hard == resource.RLIM_INFINITY else hard,
        clock_synchronised=_clock_synchronised(),
        logout=logout_end(),
        lingers=_lingers(),
        oom_kills_boot=_counter(Path("/proc/vmstat")),
        oom_kills_cgroup=_cgroup_oom_kills(),
        nvidia_hardware=_has_nvidia_hardware(),
        has_pidfds=_has_pidfds(),
        file_size_bytes=_file_size_bytes(),
    )


def _file_size_bytes() -> int | None:
    """The agent raises its soft limit to the hard one, and root both."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    return None if hard == resource.RLIM_INFINITY or os.geteuid() == 0 else hard


def _has_pidfds() -> bool:
    descriptor = open_pidfd(os.getpid())
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is not None


def _usage(path: str) -> tuple[int, int] | None:
    try:
        found = psutil.disk_usage(path)
    except OSError:
        return None
    return found.free, found.total


def _clock_synchronised() -> bool | None:
    """adjtimex(2) without a mode only reads."""
    if sys.platform != "linux" or ctypes.sizeof(ctypes.c_long) != 8:
        return None
    buffer = ctypes.create_string_buffer(512)
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except (OSError, AttributeError):
        return None
    if state < 0:
        return None
    status = ctypes.c_int.from_buffer(buffer, _STATUS_OFFSET).value
    return state != _TIME_ERROR and not status & _STA_UNSYNC


def _lingers() -> bool | None:
    if not Path("/run/systemd/system").is_dir():
        return None
    try:
        return (Path("/var/lib/systemd/linger") / getpass.getuser()).exists()
    except (KeyError, OSError):
        return None


def _counter(path: Path) -> int | None:
    """The number behind ``oom_kill``."""
    try:
        lines = path.read_text("ascii", "replace").splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdigit():
            return int(value)
    return None


def _cgroup_oom_kills() -> int | None:
    try:
        lines = Path("/proc/self/cgroup").read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    path = next((line[3:] for line in lines if line.startswith("0::")), None)
    return None if path is None else _counter(Path(f"/sys/fs/cgroup{path}") / "memory.events")


def _has_nvidia_hardware() -> bool:
    """Whether the PCI bus has an NVIDIA display or compute device, or its kernel module is loaded."""
    if Path("/proc/driver/nvidia/version").exists():
        return True
    for vendor in Path("/sys/bus/pci/devices").glob("*/vendor"):
        try:
            kind = (vendor.parent / "class").read_text()
            if vendor.read_text().strip() == _NVIDIA_VENDOR and kind.startswith(_DISPLAY_CLASS):
                return True
        except OSError:
            continue
    return False
