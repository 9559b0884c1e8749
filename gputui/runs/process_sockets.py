"""The Internet sockets of an attempt's processes, and whether one leads out of the attempt."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

# A line of /proc/net/tcp, shortened (proc_net(5)): a connection from 127.0.0.1:8080 to
# 127.0.0.1:54321. Addresses are hexadecimal, in 32-bit words of the host's byte order.
#
#   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
#    0: 0100007F:1F90 0100007F:D431 01 00000000:00000000 00:00000000 00000000  1000        0 48213 …
_LOCAL, _REMOTE, _STATE, _INODE = 1, 2, 3, 9
_FILES = ("tcp", "tcp6", "udp", "udp6")
_ESTABLISHED = "01"
# How an IPv4 address begins in the form of IPv6.
_MAPPED = "0000000000000000FFFF0000"
_IPV4_LOOPBACK_END = "7F"
_IPV6_LOOPBACK = f"{'0' * 24}01000000"
# What the link of a descriptor in /proc/PID/fd reads.
_SOCKET_LINK = re.compile(r"socket:\[(\d+)\]")


class SocketEnd(NamedTuple):
    """A hexadecimal address, of IPv4 also where a socket of IPv6 has it, and a hexadecimal port."""

    host: str
    port: str

    @classmethod
    def parse(cls, text: str) -> SocketEnd:
        """The end in a column ``HOST:PORT``."""
        host, _, port = text.partition(":")
        return cls(host.removeprefix(_MAPPED), port)

    @property
    def is_loopback(self) -> bool:
        is_ipv4 = len(self.host) == 8
        return self.host.endswith(_IPV4_LOOPBACK_END) if is_ipv4 else self.host == _IPV6_LOOPBACK


class Socket(NamedTuple):
    """An Internet socket with its state, a code of the kernel."""

    local: SocketEnd
    remote: SocketEnd
    state: str

    @property
    def is_connected(self) -> bool:
        """True if it has a remote end: a socket without one shows the address 0."""
        return self.remote.host.strip("0") != ""

    @property
    def stays_on_machine(self) -> bool:
        """True if its remote end is on this machine: a connection to an address of the machine
        itself has that address at both ends."""
        return self.remote.is_loopback or self.remote.host == self.local.host


def read_sockets() -> dict[int, Socket]:
    """The Internet sockets of this network namespace, by inode."""
    found = {}
    for name in _FILES:
        with contextlib.suppress(OSError):
            for line in Path("/proc/net", name).read_text("ascii").splitlines()[1:]:
                fields = line.split()
                ends = SocketEnd.parse(fields[_LOCAL]), SocketEnd.parse(fields[_REMOTE])
                found[int(fields[_INODE])] = Socket(*ends, fields[_STATE])
    return found


def sockets_of(pid: int, sockets: Mapping[int, Socket]) -> list[Socket] | None:
    """The ``sockets``, by inode, that a process holds; None if unknown, as in another namespace."""
    folder = Path("/proc", str(pid))
    inodes = []
    try:
        if (folder / "ns" / "net").stat().st_ino != Path("/proc/self/ns/net").stat().st_ino:
            return None
        for descriptor in (folder / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                link = _SOCKET_LINK.fullmatch(str(descriptor.readlink()))
                if link is not None:
                    inodes.append(int(link[1]))
    except (FileNotFoundError, ProcessLookupError):
        return []
    except OSError:
        return None
    return [sockets[inode] for inode in inodes if inode in sockets]


def reaches_out(held: Sequence[Socket], own: Iterable[Socket]) -> bool:
    """Return whether one of the sockets ``held`` by a process is connected to another machine, or
    to a program of this machine that holds none of its attempt's ``own`` sockets."""
    own_ports = {socket.local.port for socket in own}
    for socket in held:
        if not socket.is_connected:
            continue
        if not socket.stays_on_machine:
            return True
        # The connection to a dead rank, whose port is nobody's any more, is half closed.
        is_half_closed = socket.state != _ESTABLISHED
        if socket.remote.port not in own_ports and not is_half_closed:
            return True
    return False
