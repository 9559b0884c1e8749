"""The Internet sockets of an attempt's processes: those that lead out of the attempt, and the bytes that they moved."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

# A line of /proc/net/tcp, shortened (proc_net(5)): a connection from 127.0.0.1:8080 to
# 127.0.0.1:54321. Addresses are hexadecimal, in 32-bit words of the host's byte order.
#
#   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
#    0: 0100007F:1F90 0100007F:D431 01 00000000:00000000 00:00000000 00000000  1000        0 48213 …
_FILES = ("tcp", "tcp6", "udp", "udp6")
_ESTABLISHED = "01"
_LISTENING = "0A"
# How an IPv4 address begins in the form of IPv6.
_MAPPED = "0000000000000000FFFF0000"
_IPV4_LOOPBACK_END = "7F"
_IPV6_LOOPBACK = f"{'0' * 24}01000000"
# A request for the TCP sockets of one address family with their `tcp_info`, and the parts of its answer (sock_diag(7),
# linux/inet_diag.h, linux/tcp.h).
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST_DUMP = 0x301
_NLMSG_ERROR = 2
_NLMSG_DONE = 3
_INET_DIAG_INFO = 2
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI48x")
_ALL_STATES = 0xFFFF_FFFF
_MESSAGE_BYTES = 72
_INODE_OFFSET = 68
_ATTRIBUTE = struct.Struct("=HH")
# tcpi_bytes_acked and tcpi_bytes_received.
_COUNTERS = struct.Struct("=QQ")
_COUNTERS_OFFSET = 120
_ANSWER_BYTES = 1 << 17  # larger than any datagram of the kernel
_ANSWER_SECONDS = 1.0  # it answers at once or not at all
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
        if is_ipv4:
            return self.host.endswith(_IPV4_LOOPBACK_END)
        return self.host == _IPV6_LOOPBACK


class Socket(NamedTuple):
    """An Internet socket.

    Attributes:
        state: a code of the kernel.
        moved_bytes: those that it has received, and that its remote end has acknowledged; None if unknown, as for UDP.
    """

    local: SocketEnd
    remote: SocketEnd
    state: str
    inode: int = 0
    moved_bytes: int | None = None

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
    sockets = {}
    moved = tcp_bytes()
    for name in _FILES:
        with contextlib.suppress(OSError):
            for line in Path("/proc/net", name).read_text("ascii").splitlines()[1:]:
                _, local, remote, state, _, _, _, _, _, column, *_ = line.split()
                inode = int(column)
                ends = SocketEnd.parse(local), SocketEnd.parse(remote)
                sockets[inode] = Socket(*ends, state, inode, moved.get(inode))
    return sockets


def tcp_bytes() -> dict[int, int]:
    """The bytes that each TCP socket of this network namespace has moved, by inode; of what the kernel tells."""
    moved: dict[int, int] = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as netlink,
        ):
            netlink.settimeout(_ANSWER_SECONDS)
            request = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), _ALL_STATES)
            header = _HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0)
            netlink.sendto(header + request, (0, 0))
            is_done = False
            while not is_done:
                for kind, message in _netlink_messages(netlink.recv(_ANSWER_BYTES)):
                    is_done = is_done or kind in (_NLMSG_DONE, _NLMSG_ERROR)
                    if kind == _SOCK_DIAG_BY_FAMILY and (counted := _counted_bytes(message)) is not None:
                        (inode,) = struct.unpack_from("=I", message, _INODE_OFFSET)
                        moved[inode] = counted
    return moved


def _netlink_messages(answer: bytes) -> Iterator[tuple[int, bytes]]:
    """The kind and the content of each message of an answer."""
    position = 0
    while position + _HEADER.size <= len(answer):
        length, kind, *_ = _HEADER.unpack_from(answer, position)
        if length < _HEADER.size:
            return
        yield kind, answer[position + _HEADER.size : position + length]
        position += (length + 3) & ~3


def _counted_bytes(message: bytes) -> int | None:
    """The bytes that a TCP socket has moved, by its `tcp_info`; None without one."""
    position = _MESSAGE_BYTES
    while position + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, position)
        if length < _ATTRIBUTE.size:
            return None
        begin = position + _ATTRIBUTE.size + _COUNTERS_OFFSET
        if kind == _INET_DIAG_INFO and begin + _COUNTERS.size <= position + length:
            acked, received = _COUNTERS.unpack_from(message, begin)
            return int(acked + received)
        position += (length + 3) & ~3
    return None


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


def outside(sockets: Sequence[Socket], run_sockets: Iterable[Socket]) -> list[Socket]:
    """The sockets of a process that are connected to another machine, or to a program that is not of its attempt.

    Those that others have opened to it, as to read its metrics, are left out: nothing waits for them.

    Args:
        sockets: those of the process.
        run_sockets: those of its whole attempt.
    """
    run_sockets = tuple(run_sockets)
    own_ports = {connection.local.port for connection in run_sockets}
    served_ports = {connection.local.port for connection in run_sockets if connection.state == _LISTENING}

    def leads_away(connection: Socket) -> bool:
        if not connection.stays_on_machine:
            return True
        # The connection to a dead rank, whose port is nobody's any more, is half closed.
        return connection.state == _ESTABLISHED and connection.remote.port not in own_ports

    return [
        connection
        for connection in sockets
        if connection.is_connected and connection.local.port not in served_ports
        if leads_away(connection)
    ]
