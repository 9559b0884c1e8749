"""Sockets of processes: what is connected to the outside of an attempt."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack

from gputui.runs.process_sockets import Socket, SocketEnd, reaches_out, read_sockets, sockets_of
from tests.tables import table


def held() -> list[Socket]:
    return sockets_of(os.getpid(), read_sockets()) or []


def test_a_connection_within_the_attempt_does_not_count() -> None:
    with ExitStack() as stack:
        before = held()
        assert not reaches_out(before, before)
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        stack.enter_context(socket.create_connection(listening.getsockname()))
        # Also before it is accepted.
        assert not reaches_out(held(), held())
        stack.enter_context(listening.accept()[0])
        assert not reaches_out(held(), held()) and reaches_out(held(), before)


MAPPED = "0000000000000000FFFF0000"
LOOPBACK = "0" * 24 + "01000000"


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
    one = Socket(SocketEnd.parse(f"{local}:0005"), SocketEnd.parse(remote), state)
    other = Socket(SocketEnd("0A00000A", "0006"), SocketEnd("0A00000A", "0005"), "01")
    assert reaches_out([one], [one, other]) is expected


def test_an_ended_process_has_no_connection() -> None:
    assert sockets_of(2**22 + 1, {}) == []
