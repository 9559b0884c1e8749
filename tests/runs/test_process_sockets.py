"""Sockets of processes: what is connected to the outside of an attempt."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack

from gputui.runs.process_sockets import Socket, SocketEnd, outside, read_sockets, sockets_of, tcp_bytes
from tests.conftest import wait_until
from tests.tables import table

MAPPED = "0000000000000000FFFF0000"
LOOPBACK = "0" * 24 + "01000000"


def held_sockets() -> list[Socket]:
    return sockets_of(os.getpid(), read_sockets()) or []


def test_a_connection_within_the_attempt_does_not_count() -> None:
    with ExitStack() as stack:
        before = held_sockets()
        assert not outside(before, before)
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        stack.enter_context(socket.create_connection(listening.getsockname()))
        # The connection counts even before it is accepted.
        assert not outside(held_sockets(), held_sockets())
        stack.enter_context(listening.accept()[0])
        assert not outside(held_sockets(), held_sockets())
        assert outside(held_sockets(), before)


@table(("local", "remote", "state", "expected"), [
    ("0A00000A", "0A00000A:0006", "01", False), ("0A00000A", "0A00000A:0007", "01", True),
    ("0100007F", "0200007F:0007", "08", False), ("0A00000A", "08080808:0006", "02", True),
    ("0A00000A", "08080808:0006", "07", True), ("00000000", "00000000:0000", "0A", False),
    (LOOPBACK, f"{LOOPBACK}:0006", "01", False), (f"{MAPPED}0A00000A", f"{MAPPED}0100007F:0006", "01", False),
    (f"{MAPPED}0A00000A", f"{MAPPED}08080808:0006", "01", True),
    (MAPPED + "0" * 8, f"{MAPPED}00000000:0000", "0A", False),
    ("B80D0120" + "0" * 24, "B80D0120" + "0" * 23 + "1:0006", "01", True),
])  # fmt: skip
def test_only_ends_beyond_the_attempt_count(local: str, remote: str, state: str, expected: bool) -> None:
    tested = Socket(SocketEnd.parse(f"{local}:0005"), SocketEnd.parse(remote), state)
    peer = Socket(SocketEnd("0A00000A", "0006"), SocketEnd("0A00000A", "0005"), "01")
    assert bool(outside([tested], [tested, peer])) is expected


def test_a_connection_that_another_program_opened_to_it_is_nothing_that_it_waits_for() -> None:
    end = SocketEnd("0A00000A", "0005")
    remote = SocketEnd("08080808", "0006")
    listening = Socket(SocketEnd("00000000", "0005"), SocketEnd("00000000", "0000"), "0A")
    served = Socket(end, remote, "01")
    assert outside([served], [served]) == [served]
    assert outside([listening, served], [listening, served]) == []


def test_the_bytes_of_a_connection_are_counted_at_both_ends() -> None:
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        client = stack.enter_context(socket.create_connection(listening.getsockname()))
        server = stack.enter_context(listening.accept()[0])
        inodes = [os.fstat(end.fileno()).st_ino for end in (client, server)]
        before = tcp_bytes()
        client.sendall(b"x" * 100_000)
        received = 0
        while received < 100_000:
            received += len(server.recv(100_000))
        # The kernel acknowledges the last bytes a moment later.
        wait_until(lambda: all(tcp_bytes()[inode] - before[inode] >= 100_000 for inode in inodes), what="the counters")
        assert {read_sockets()[inode].moved_bytes for inode in inodes} <= {100_000, 100_001}


def test_an_ended_process_has_no_connection() -> None:
    assert sockets_of(2**22 + 1, {}) == []
