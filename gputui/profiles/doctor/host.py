"""Checks of the host: memory, limits, clock, systemd. Thresholds without a source are our own."""

from __future__ import annotations

import ctypes
import getpass
import os
import resource
from pathlib import Path

import psutil

from gputui.core.units import bytes_text, count_of
from gputui.machine.systemd import LogoutEnd, logout_end
from gputui.runs.checks import CheckResult, graded
from gputui.runs.identity import open_pidfd

_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronised
_STATUS_OFFSET = 40  # of `status` in struct timex, where long has 64 bits
_STA_UNSYNC = 0x40
LOW_MEMORY_FRACTION = 0.10  # below it the kernel begins to write out what is in use
MUCH_SWAP_FRACTION = 0.50  # some is always there; half of it was short of memory
# With Docker's default of 64 MB (--shm-size), PyTorch's data loader workers die of a bus error.
SHM_TOO_SMALL_BYTES = 64 * 2**20
SHM_SMALL_BYTES = 2**30
# A data loader shares tensors by file descriptors, some per batch, worker and rank.
FILES_FEW = 4096
FILES_TOO_FEW = 512


def check_host() -> list[CheckResult]:
    """All checks of the host, in the order in which they are shown. Changes nothing."""
    memory = psutil.virtual_memory()
    swap = psutil.swap_memory()
    return [
        check_memory(memory.available, memory.total),
        check_swap(swap.used, swap.total),
        check_shm(disk_room(Path("/dev/shm"))),  # noqa: S108 - only its size is read
        check_open_files(*resource.getrlimit(resource.RLIMIT_NOFILE)),
        check_file_size(_file_size_limit_bytes()),
        check_pidfds(works=_has_pidfds()),
        check_clock(_clock_synchronised()),
        check_logout(logout_end()),
        check_linger(_lingers()),
        check_oom_kills(_oom_kills(Path("/proc/vmstat")), _cgroup_oom_kills()),
    ]


def check_memory(available_bytes: int, total_bytes: int) -> CheckResult:
    """Check the available host memory."""
    detail = f"{bytes_text(available_bytes)} of {bytes_text(total_bytes)} available"
    remedy = "end what holds it (gputui agent orphans, ps aux --sort=-rss)"
    return graded("memory", detail, remedy, warns=available_bytes < total_bytes * LOW_MEMORY_FRACTION)


def check_swap(used_bytes: int, total_bytes: int) -> CheckResult:
    """Check swap: much of it in use means that memory was short."""
    if total_bytes == 0:
        return CheckResult("swap", "pass", "none")
    detail = f"{bytes_text(used_bytes)} of {bytes_text(total_bytes)} in use"
    remedy = "training that swaps crawls: lower num_workers or the batch size"
    return graded("swap", detail, remedy, warns=used_bytes > total_bytes * MUCH_SWAP_FRACTION)


def check_shm(room: tuple[int, int] | None) -> CheckResult:
    """Check /dev/shm, which data loaders and NCCL use. ``room``: free and total bytes."""
    if room is None:
        return CheckResult("shared memory", "skip", "there is no /dev/shm that can be read")
    free_bytes, total_bytes = room
    detail = f"{bytes_text(free_bytes)} of {bytes_text(total_bytes)} free in /dev/shm"
    remedy = "give the container --shm-size=8g or --ipc=host, or mount -o remount,size=8G /dev/shm; else num_workers=0"
    too_small = total_bytes <= SHM_TOO_SMALL_BYTES
    small = free_bytes < SHM_SMALL_BYTES
    return graded("shared memory", detail, remedy, fails=too_small, warns=small)


def check_open_files(soft: int, hard: int) -> CheckResult:
    """Check the soft limit of open files; a process may raise it up to the hard limit."""
    if soft == resource.RLIM_INFINITY:
        return CheckResult("open files", "pass", "no limit")
    hard_limit = "none" if hard == resource.RLIM_INFINITY else str(hard)
    remedy = "ulimit -n 65536, or nofile in /etc/security/limits.conf; then gputui agent stop, so that the next has it"
    detail = f"at most {soft} open files (hard limit {hard_limit})"
    return graded("open files", detail, remedy, fails=soft < FILES_TOO_FEW, warns=soft < FILES_FEW)


def check_file_size(limit_bytes: int | None) -> CheckResult:
    """Check that the agent's database can grow: writes beyond the limit are refused."""
    if limit_bytes is None:
        return CheckResult("file size", "pass", "no limit")
    remedy = "remove fsize from /etc/security/limits.conf, log in again, and gputui agent stop"
    return CheckResult("file size", "warn", f"at most {bytes_text(limit_bytes)} per file, the database too", remedy)


def check_pidfds(*, works: bool) -> CheckResult:
    """Check that a signal can be bound to a process."""
    if works:
        return CheckResult("signals", "pass", "processes are held by pidfds")
    by_pid = "pidfd_open does not work here: signals go by PID, right after a check of the process"
    remedy = "use Linux 5.3 or newer, or allow pidfd_open and pidfd_send_signal in the sandbox"
    return CheckResult("signals", "warn", by_pid, remedy)


def check_clock(is_synchronised: bool | None) -> CheckResult:
    """Check the clock: times of several machines and logs are comparable only if clocks agree."""
    if is_synchronised is None:
        return CheckResult("clock", "skip", "the kernel does not say whether it is synchronised")
    detail = "synchronised" if is_synchronised else "not synchronised, as far as the kernel knows"
    return graded("clock", detail, "timedatectl set-ntp true, or start chrony", warns=not is_synchronised)


def check_logout(end: LogoutEnd | None) -> CheckResult:
    """Check whether a logout would end an agent that is started from here."""
    if end is None:
        return CheckResult("logout", "pass", "runs outlive a logout")
    return CheckResult("logout", "warn", end.problem, end.remedy)


def check_linger(lingers: bool | None) -> CheckResult:
    """Check lingering, which user services such as gputui's need. None without systemd."""
    if lingers is None:
        return CheckResult("linger", "skip", "no systemd here")
    if lingers:
        return CheckResult("linger", "pass", "on for this user")
    remedy = "loginctl enable-linger lets user services start at boot and outlive the last logout"
    return CheckResult("linger", "warn", "off for this user", remedy)


def check_oom_kills(since_boot: int | None, in_cgroup: int | None) -> CheckResult:
    """Check whether the kernel killed processes for lack of memory."""
    if since_boot is None and in_cgroup is None:
        return CheckResult("out of memory", "skip", "the kernel does not count")
    if not since_boot and not in_cgroup:
        return CheckResult("out of memory", "pass", "nothing was killed since boot")
    detail = f"the kernel killed {count_of(max(since_boot or 0, in_cgroup or 0), 'process')} since boot"
    if in_cgroup:
        detail += f", {in_cgroup} of them in this control group"
    return CheckResult("out of memory", "warn", detail, "dmesg | grep -i 'out of memory' says which, and when")


def disk_room(path: Path) -> tuple[int, int] | None:
    """Free and total bytes of a file system; None if it cannot be read."""
    try:
        usage = psutil.disk_usage(str(path))
    except OSError:
        return None
    return usage.free, usage.total


def _file_size_limit_bytes() -> int | None:
    """The largest file that the agent can write, which raises its limit as far as it may: root without
    end, others to the hard limit. None for no limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if hard == resource.RLIM_INFINITY or os.geteuid() == 0:
        return None
    return hard


def _has_pidfds() -> bool:
    descriptor = open_pidfd(os.getpid())
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is not None


def _clock_synchronised() -> bool | None:
    """adjtimex(2) without a mode only reads."""
    buffer = ctypes.create_string_buffer(512)
    state = ctypes.CDLL(None).adjtimex(buffer)
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


def _oom_kills(path: Path) -> int | None:
    """The number behind ``oom_kill`` in a file of the kernel."""
    try:
        counters = dict(line.split(maxsplit=1) for line in path.read_text("ascii", "replace").splitlines())
        return int(counters["oom_kill"])
    except (OSError, KeyError, ValueError):
        return None


def _cgroup_oom_kills() -> int | None:
    lines = Path("/proc/self/cgroup").read_text("utf-8", "replace").splitlines()
    path = next((line[3:] for line in lines if line.startswith("0::")), None)
    if path is None:
        return None
    return _oom_kills(Path(f"/sys/fs/cgroup{path}") / "memory.events")
