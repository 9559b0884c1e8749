"""Judge whether the host is fit for training. Pure. Thresholds are this product's own unless a source is given."""

from __future__ import annotations

from gputui.core.units import bytes_text
from gputui.profiles.doctor.host_facts import HostReading
from gputui.runs.checks import CheckResult

LOW_MEMORY_FRACTION = 0.10
MUCH_SWAP_FRACTION = 0.50
# With Docker's default of 64 MB (--shm-size), PyTorch's data loader workers die of a bus error.
SHM_TOO_SMALL_BYTES = 64 * 2**20
SHM_SMALL_BYTES = 2**30
# A data loader shares tensors by file descriptors, some per batch, worker and rank.
FILES_FEW = 4096
FILES_TOO_FEW = 512


def judge_host(host: HostReading) -> list[CheckResult]:
    """All judgements of the host, in the order in which they are shown."""
    return [
        judge_memory(host),
        judge_swap(host),
        judge_shm(host),
        judge_files(host),
        judge_file_size(host),
        judge_pidfds(host),
        judge_clock(host),
        judge_logout(host),
        judge_linger(host),
        judge_oom(host),
    ]


def judge_memory(host: HostReading) -> CheckResult:
    """Check the available host memory."""
    free, total = host.memory_available_bytes, host.memory_total_bytes
    if free is None or not total:
        return CheckResult("memory", "skip", "unknown")
    detail = f"{bytes_text(free)} of {bytes_text(total)} available"
    if free < total * LOW_MEMORY_FRACTION:
        return CheckResult("memory", "warn", detail, "end what holds it (gputui agent orphans, ps aux --sort=-rss)")
    return CheckResult("memory", "pass", detail)


def judge_swap(host: HostReading) -> CheckResult:
    """Check swap: much of it in use means that memory was short."""
    used, total = host.swap_used_bytes, host.swap_total_bytes
    if used is None or total is None:
        return CheckResult("swap", "skip", "unknown")
    if total == 0:
        return CheckResult("swap", "pass", "none")
    detail = f"{bytes_text(used)} of {bytes_text(total)} in use"
    if used > total * MUCH_SWAP_FRACTION:
        return CheckResult("swap", "warn", detail, "training that swaps crawls: lower num_workers or the batch size")
    return CheckResult("swap", "pass", detail)


def judge_shm(host: HostReading) -> CheckResult:
    """Check /dev/shm, which data loader workers and NCCL use."""
    free, total = host.shm_free_bytes, host.shm_total_bytes
    if free is None or total is None:
        return CheckResult("shared memory", "skip", "there is no /dev/shm that can be read")
    detail = f"{bytes_text(free)} of {bytes_text(total)} free in /dev/shm"
    remedy = "give the container --shm-size=8g or --ipc=host, or mount -o remount,size=8G /dev/shm; else num_workers=0"
    if total <= SHM_TOO_SMALL_BYTES:
        return CheckResult("shared memory", "fail", detail, remedy)
    if free < SHM_SMALL_BYTES:
        return CheckResult("shared memory", "warn", detail, remedy)
    return CheckResult("shared memory", "pass", detail)


def judge_files(host: HostReading) -> CheckResult:
    """Check the soft limit of open files; a process may raise it up to the hard limit."""
    soft, hard = host.files_soft, host.files_hard
    if soft is None:
        return CheckResult("open files", "skip", "unknown")
    detail = f"at most {soft} open files (hard limit {hard})" if soft < 2**40 else "no limit"
    remedy = "ulimit -n 65536, or nofile in /etc/security/limits.conf; then gputui agent stop, so that the next has it"
    if soft < FILES_TOO_FEW:
        return CheckResult("open files", "fail", detail, remedy)
    if soft < FILES_FEW:
        return CheckResult("open files", "warn", detail, remedy)
    return CheckResult("open files", "pass", detail)


def judge_file_size(host: HostReading) -> CheckResult:
    """Can the agent's database grow? A program is refused every write beyond the limit."""
    if host.file_size_bytes is None:
        return CheckResult("file size", "pass", "no limit")
    remedy = "remove fsize from /etc/security/limits.conf, log in again, and gputui agent stop"
    detail = f"at most {bytes_text(host.file_size_bytes)} per file, the database too"
    return CheckResult("file size", "warn", detail, remedy)


def judge_pidfds(host: HostReading) -> CheckResult:
    """Check that a signal can be bound to a process."""
    if host.has_pidfds:
        return CheckResult("signals", "pass", "processes are held by pidfds")
    return CheckResult(
        "signals", "warn", "pidfd_open does not work here: signals go by PID, right after a check of the process",
        "use Linux 5.3 or newer, or allow pidfd_open and pidfd_send_signal in the sandbox",
    )  # fmt: skip


def judge_clock(host: HostReading) -> CheckResult:
    """Check the clock: times of several machines and logs are comparable only if clocks agree."""
    if host.clock_synchronised is None:
        return CheckResult("clock", "skip", "the kernel does not say whether it is synchronised")
    if not host.clock_synchronised:
        remedy = "timedatectl set-ntp true, or start chrony"
        return CheckResult("clock", "warn", "not synchronised, as far as the kernel knows", remedy)
    return CheckResult("clock", "pass", "synchronised")


def judge_logout(host: HostReading) -> CheckResult:
    """Check whether a logout would end an agent that is started from here."""
    if host.logout is None:
        return CheckResult("logout", "pass", "runs outlive a logout")
    return CheckResult("logout", "warn", host.logout.problem, host.logout.remedy)


def judge_linger(host: HostReading) -> CheckResult:
    """Check lingering, which user services such as gputui's need."""
    if host.lingers is None:
        return CheckResult("linger", "skip", "no systemd here")
    if not host.lingers:
        remedy = "loginctl enable-linger lets user services start at boot and outlive the last logout"
        return CheckResult("linger", "warn", "off for this user", remedy)
    return CheckResult("linger", "pass", "on for this user")


def judge_oom(host: HostReading) -> CheckResult:
    """Check whether the kernel killed processes for lack of memory."""
    boot, here = host.oom_kills_boot, host.oom_kills_cgroup
    if boot is None and here is None:
        return CheckResult("out of memory", "skip", "the kernel does not count")
    if not boot and not here:
        return CheckResult("out of memory", "pass", "nothing was killed since boot")
    detail = f"the kernel killed {max(boot or 0, here or 0)} processes since boot"
    if here:
        detail += f", {here} of them in this control group"
    return CheckResult("out of memory", "warn", detail, "dmesg | grep -i 'out of memory' says which, and when")
