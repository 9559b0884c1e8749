"""State, CPU, memory, I/O and sockets of an attempt's processes, cheaply, from procfs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from gputui.machine.procfs import command_of, private_bytes, read_stat
from gputui.runs.identity import ProcessIdentity
from gputui.runs.processes import AttemptProcess


class ProcessReading(Struct, frozen=True):
    """One process. CPU time includes that of reaped children; ``queued_seconds`` is how long its
    main thread waited for a core; ``private_bytes`` is unshared resident memory. None is
    unknown."""

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
    """A table for a post-mortem: rank, state, kernel function it waits in, command."""
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
    lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _text(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text("utf-8", "replace")


def _queued(pid: int) -> float | None:
    try:
        return int(_text(pid, "schedstat").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def _io(pid: int) -> int | None:
    """Bytes of read and write calls and, for mapped files, of disk transfers."""
    counted = ("rchar: ", "wchar: ", "read_bytes: ", "write_bytes: ")
    try:
        return sum(int(line.split()[1]) for line in _text(pid, "io").splitlines() if line.startswith(counted))
    except (OSError, ValueError):
        return None


class Socket(NamedTuple):
    """An Internet socket: its ends as hexadecimal ``HOST:PORT``, and its state (proc_net(5))."""

    local: str
    remote: str
    state: str


def read_sockets() -> dict[str, Socket]:
    """The Internet sockets of this network namespace, by the link text of a descriptor."""
    found = {}
    for name in ("tcp", "tcp6", "udp", "udp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/net", name).read_text("ascii").splitlines()[1:]:
                _, local, remote, state, *rest = line.split()
                found[f"socket:[{rest[5]}]"] = Socket(local, remote, state)
    return found


def sockets_of(pid: int, sockets: Mapping[str, Socket]) -> list[Socket] | None:
    """The ``sockets`` that a process holds; None if unknown, as in another namespace."""
    folder = Path("/proc", str(pid))
    try:
        if (folder / "ns" / "net").stat().st_ino != Path("/proc/self/ns/net").stat().st_ino:
            return None
        links = []
        for descriptor in (folder / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                links.append(str(descriptor.readlink()))
    except (FileNotFoundError, ProcessLookupError):
        return []
    except OSError:
        return None
    return [sockets[link] for link in links if link in sockets]


def reaches_out(held: Sequence[Socket], own: Iterable[Socket]) -> bool:
    """Whether one of the sockets ``held`` by a process is connected to another machine, or to a
    program of this machine that holds none of its attempt's ``own`` sockets."""
    ports = {socket.local.partition(":")[2] for socket in own}
    for socket in filter(_is_connected, held):
        (local, _, _), (host, _, port) = socket.local.partition(":"), socket.remote.partition(":")
        if not _is_loopback(host) and host != local:
            return True
        # The connection to a dead rank is half closed.
        if socket.state == _ESTABLISHED and port not in ports:
            return True
    return False


_ESTABLISHED = "01"
# How an IPv4 address begins in the form of IPv6.
_MAPPED = "0000000000000000FFFF0000"


def _is_connected(socket: Socket) -> bool:
    return bool(socket.remote.partition(":")[0].removeprefix(_MAPPED).strip("0"))


def _is_loopback(host: str) -> bool:
    host = host.removeprefix(_MAPPED)
    return host.endswith("7F") if len(host) == 8 else host == f"{'0' * 24}01000000"
