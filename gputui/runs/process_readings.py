"""What the processes of an attempt do and hold, from procfs: cheap enough for every few seconds."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gputui.redaction import redact_command_line
from gputui.runs.attempt_processes import AttemptProcess
from gputui.runs.identity import ProcessIdentity

_PROC = "/proc"
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
# Fields of /proc/PID/stat after the command's closing parenthesis, counted from 0: proc_pid_stat(5).
_STATE, _TIMES, _START = 0, slice(11, 15), 19


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """One process now. CPU time includes children that were waited for; ``queued_seconds`` is how long its main thread
    waited for a core; ``private_bytes`` is unshared resident memory. None is unknown."""

    pid: int
    start_ticks: int
    state: str
    cpu_seconds: float
    queued_seconds: float | None
    io_bytes: int | None
    private_bytes: int | None


def read_process(identity: ProcessIdentity) -> ProcessReading | None:
    """A process's reading, or None when it has ended."""
    try:
        text = _text(identity.pid, "stat")
    except OSError:
        return None
    fields = text[text.rfind(")") + 2 :].split()
    if int(fields[_START]) != identity.start_ticks or fields[_STATE] in ("Z", "X", "x"):
        return None
    return ProcessReading(
        pid=identity.pid,
        start_ticks=identity.start_ticks,
        state=fields[_STATE],
        cpu_seconds=sum(map(int, fields[_TIMES])) / _TICKS,
        queued_seconds=_queued(identity.pid),
        io_bytes=_io(identity.pid),
        private_bytes=_private(identity.pid),
    )


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process handles a signal."""
    try:
        for line in _text(pid, "status").splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    except (OSError, ValueError):
        return False
    return False


def describe(processes: Iterable[AttemptProcess]) -> str:
    """A table of processes for a post-mortem: rank, state, where in the kernel its main thread waits, command."""
    rows = [f"{'pid':>8} {'rank':>5} state {'waits in':<24} command"]
    for process in processes:
        identity, rank = process.identity, process.rank
        reading = read_process(identity)
        if reading is None:
            continue
        command = redact_command_line(_attempt_text(identity.pid, "cmdline").encode())[:300]
        waits = _attempt_text(identity.pid, "wchan").strip()
        shown = "–" if rank is None else str(rank)
        rows.append(f"{identity.pid:>8} {shown:>5} {reading.state:<5} {waits or '–':<24} {command}")
    return "\n".join(rows) + "\n"


def available_bytes() -> int | None:
    """Memory that the host can still give (MemAvailable), or None."""
    try:
        for line in Path("/proc/meminfo").read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        return None
    return None


def _text(pid: int, name: str) -> str:
    return Path(f"{_PROC}/{pid}/{name}").read_text("utf-8", "replace")


def _attempt_text(pid: int, name: str) -> str:
    try:
        return _text(pid, name)
    except OSError:
        return ""


def _queued(pid: int) -> float | None:
    try:
        return int(_text(pid, "schedstat").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def _io(pid: int) -> int | None:
    """Bytes through read and write calls and, for files that are mapped, from and to disks."""
    try:
        pairs = (line.partition(": ") for line in _text(pid, "io").splitlines())
        values = {name: int(value) for name, _, value in pairs}
    except (OSError, ValueError):
        return None
    return sum(values.get(name, 0) for name in ("rchar", "wchar", "read_bytes", "write_bytes"))


def _private(pid: int) -> int | None:
    try:
        _, resident, shared, *_ = map(int, _text(pid, "statm").split())
    except (OSError, ValueError):
        return None
    return max(resident - shared, 0) * _PAGE


_SOCKET_TABLES = ("tcp", "tcp6", "udp", "udp6")
# Fields of a row of /proc/PID/net/tcp: proc_pid_net(5).
_LOCAL, _REMOTE, _SOCKET_STATE, _INODE = 1, 2, 3, 9
_LISTENS, _IS_OVER = "0A", "06"


def reaches_out(pid: int) -> bool:
    """Whether a process has a TCP or connected UDP socket whose other end is not on this machine; True also where that
    cannot be seen. A process that has ended has none."""
    folder = Path(_PROC, str(pid))
    try:
        inodes = _remote_inodes(folder / "net")
        return bool(inodes) and any(name in inodes for name in _sockets(folder / "fd"))
    except (FileNotFoundError, ProcessLookupError):
        return False
    except (OSError, ValueError, IndexError):
        return True


def is_connected(pid: int) -> bool:
    """Whether a process has a TCP or connected UDP socket, wherever its other end is; True also where that cannot be
    seen. A process that has ended has none."""
    folder = Path(_PROC, str(pid))
    try:
        inodes = {f"socket:[{row[_INODE]}]" for row in _rows(folder / "net") if _host_of(row[_REMOTE]).strip("0")}
        return bool(inodes) and any(name in inodes for name in _sockets(folder / "fd"))
    except (FileNotFoundError, ProcessLookupError):
        return False
    except (OSError, ValueError, IndexError):
        return True


def _rows(tables: Path) -> list[list[str]]:
    """The sockets of the process's network."""
    return [
        line.split()
        for name in _SOCKET_TABLES
        if (tables / name).exists()
        for line in (tables / name).read_text("ascii").splitlines()[1:]
    ]


def _remote_inodes(tables: Path) -> set[str]:
    """The sockets of the process's network whose other end has an address that nothing here has."""
    rows = _rows(tables)
    here = {_host_of(row[_LOCAL]) for row in rows}
    return {
        f"socket:[{row[_INODE]}]"
        for row in rows
        if row[_SOCKET_STATE] not in (_LISTENS, _IS_OVER) and _is_elsewhere(_host_of(row[_REMOTE]), here)
    }


def _is_elsewhere(address: str, here: set[str]) -> bool:
    is_loopback = address.endswith("7F") if len(address) == 8 else address == f"{'0' * 24}01000000"
    mapped = address[24:] if len(address) == 32 and address.startswith("0000000000000000FFFF0000") else None
    if mapped is not None:
        return _is_elsewhere(mapped, here | {one[24:] for one in here if len(one) == 32})
    return bool(address.strip("0")) and not is_loopback and address not in here


def _host_of(text: str) -> str:
    return text.partition(":")[0]


def _sockets(folder: Path) -> list[str]:
    found = []
    for link in folder.iterdir():
        try:
            target = str(link.readlink())
        except FileNotFoundError:
            continue
        if target.startswith("socket:"):
            found.append(target)
    return found
