"""State, CPU, memory, I/O and sockets of an attempt's processes, from procfs. Cheap enough for every few seconds."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from gputui.runs.identity import ProcessIdentity, private_bytes, read_stat
from gputui.runs.processes import AttemptProcess, command_of

_PROC = "/proc"


class ProcessReading(Struct, frozen=True):
    """One process. CPU time includes that of reaped children; ``queued_seconds`` is how long its main thread waited for
    a core; ``private_bytes`` is unshared resident memory. None is unknown."""

    pid: int
    start_ticks: int
    state: str
    cpu_seconds: float
    queued_seconds: float | None
    io_bytes: int | None
    private_bytes: int | None


def read_process(identity: ProcessIdentity) -> ProcessReading | None:
    """The reading of a process, or None if it has ended."""
    stat = read_stat(identity.pid)
    if stat is None or stat.is_dead or stat.start_ticks != identity.start_ticks:
        return None
    return ProcessReading(
        pid=identity.pid,
        start_ticks=identity.start_ticks,
        state=stat.state,
        cpu_seconds=stat.cpu_seconds + stat.children_seconds,
        queued_seconds=_queued(identity.pid),
        io_bytes=_io(identity.pid),
        private_bytes=private_bytes(identity.pid),
    )


def describe(processes: Iterable[AttemptProcess]) -> str:
    """A table of processes for a post-mortem: rank, state, kernel function its main thread waits in, command."""
    rows = [f"{'pid':>8} {'rank':>5} state {'waits in':<24} command"]
    for process in processes:
        identity, rank = process.identity, process.rank
        reading = read_process(identity)
        if reading is None:
            continue
        command, waits = command_of(identity.pid)[:300], ""
        with contextlib.suppress(OSError):
            waits = _text(identity.pid, "wchan").strip()
        shown = "–" if rank is None else str(rank)
        rows.append(f"{identity.pid:>8} {shown:>5} {reading.state:<5} {waits or '–':<24} {command}")
    return "\n".join(rows) + "\n"


def available_bytes() -> int | None:
    """The host's available memory (MemAvailable), or None."""
    try:
        for line in Path("/proc/meminfo").read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        return None
    return None


def _text(pid: int, name: str) -> str:
    return Path(f"{_PROC}/{pid}/{name}").read_text("utf-8", "replace")


def _queued(pid: int) -> float | None:
    try:
        return int(_text(pid, "schedstat").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def _io(pid: int) -> int | None:
    """Bytes of read and write calls and, for mapped files, of disk transfers."""
    try:
        pairs = (line.partition(": ") for line in _text(pid, "io").splitlines())
        values = {name: int(value) for name, _, value in pairs}
    except (OSError, ValueError):
        return None
    return sum(values.get(name, 0) for name in ("rchar", "wchar", "read_bytes", "write_bytes"))


_SOCKET_TABLES = ("tcp", "tcp6", "udp", "udp6")
# Fields of a row of /proc/PID/net/tcp: proc_pid_net(5).
_LOCAL, _REMOTE, _SOCKET_STATE, _INODE = 1, 2, 3, 9
_ESTABLISHED, _LISTENS, _IS_OVER = "01", "0A", "06"
_STREAM_TABLES = ("tcp", "tcp6")
# A socket that no process holds has no inode.
_UNHELD = "socket:[0]"
# What the address of IPv4 begins with where it is written as one of IPv6.
_MAPPED = "0000000000000000FFFF0000"


def reaches_out(pid: int, own: Collection[str] = ()) -> bool:
    """Whether a process has a TCP connection, or a UDP socket with an address, to another machine, or a TCP connection
    to a program of this machine that holds none of the sockets ``own`` (`sockets_of` its attempt); True also if
    unknown. An ended process has none."""
    folder = Path(_PROC, str(pid))
    try:
        inodes = _outside(folder / "net", own)
        return bool(inodes) and any(name in inodes for name in _sockets(folder / "fd"))
    except (FileNotFoundError, ProcessLookupError):
        return False
    except (OSError, ValueError, IndexError):
        return True


def sockets_of(pids: Iterable[int]) -> set[str]:
    """The sockets that processes hold, as far as that may be seen."""
    found: set[str] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            found.update(_sockets(Path(_PROC, str(pid), "fd")))
    return found


def is_connected(pid: int) -> bool:
    """Whether a process has a TCP or connected UDP socket with any peer; True also if unknown. An ended process has
    none."""
    folder = Path(_PROC, str(pid))
    try:
        inodes = {_name(row) for row in _rows(folder / "net") if _host_of(row[_REMOTE]).strip("0")}
        return bool(inodes) and any(name in inodes for name in _sockets(folder / "fd"))
    except (FileNotFoundError, ProcessLookupError):
        return False
    except (OSError, ValueError, IndexError):
        return True


def _rows(tables: Path, names: Sequence[str] = _SOCKET_TABLES) -> list[list[str]]:
    """The rows of the socket tables of a process's network namespace."""
    return [
        line.split()
        for name in names
        if (tables / name).exists()
        for line in (tables / name).read_text("ascii").splitlines()[1:]
    ]


def _outside(tables: Path, own: Collection[str]) -> set[str]:
    """The sockets of a process's network namespace whose peer has an address that no socket here has, or is a socket
    here that is none of ``own``."""
    rows = _rows(tables)
    here = {_host_of(row[_LOCAL]) for row in rows}
    elsewhere = {
        _name(row)
        for row in rows
        if row[_SOCKET_STATE] not in (_LISTENS, _IS_OVER) and _is_elsewhere(_host_of(row[_REMOTE]), here)
    }
    streams = _rows(tables, _STREAM_TABLES)
    ends = {(_plain(row[_LOCAL]), _plain(row[_REMOTE])): _name(row) for row in streams}
    listening = {_port_of(row[_LOCAL]): _name(row) for row in streams if row[_SOCKET_STATE] == _LISTENS}
    for row in streams:
        # Only an established connection has an end that may still answer: that of a dead rank is half closed.
        if row[_SOCKET_STATE] == _ESTABLISHED:
            # No end in these tables: behind a container's network. Not accepted yet: whoever listens will hold it.
            peer = ends.get((_plain(row[_REMOTE]), _plain(row[_LOCAL])))
            if peer == _UNHELD:
                peer = listening.get(_port_of(row[_REMOTE]))
            if peer is None or peer not in own:
                elsewhere.add(_name(row))
    return elsewhere


def _is_elsewhere(address: str, here: set[str]) -> bool:
    is_loopback = address.endswith("7F") if len(address) == 8 else address == f"{'0' * 24}01000000"
    mapped = address[24:] if len(address) == 32 and address.startswith(_MAPPED) else None
    if mapped is not None:
        return _is_elsewhere(mapped, here | {one[24:] for one in here if len(one) == 32})
    return bool(address.strip("0")) and not is_loopback and address not in here


def _host_of(text: str) -> str:
    return text.partition(":")[0]


def _port_of(text: str) -> str:
    return text.partition(":")[2]


def _plain(text: str) -> str:
    """An address and port as the other end may write it."""
    return text[len(_MAPPED) :] if text.startswith(_MAPPED) else text


def _name(row: Sequence[str]) -> str:
    """A row's socket, as a descriptor of it reads."""
    return f"socket:[{row[_INODE]}]"


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
