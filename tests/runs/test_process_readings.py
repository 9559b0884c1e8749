"""Whether a process has a connection to another machine or another program."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gputui.runs import process_readings
from gputui.runs.process_readings import is_connected, reaches_out, sockets_of

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
MAPPED = "0000000000000000FFFF0000"


def row(local: str, remote: str, state: str, inode: int) -> str:
    return (
        f"   0: {local}:9D3B {remote}:0050 {state} 00000000:00000000 00:00000000 00000000     0        0 {inode} 1 0\n"
    )


def pair(local: str, remote: str) -> str:
    """Both ends of a connection, the other one held by the same process."""
    other = row(remote, local, "01", 9).replace(f"{remote}:9D3B {local}:0050", f"{remote}:0050 {local}:9D3B")
    return row(local, remote, "01", 7) + other


@pytest.mark.parametrize(
    ("table", "rows", "expected"),
    [
        ("tcp", pair("0100007F", "0200007F"), False),
        ("tcp", pair("0A00000A", "0A00000A"), False),
        ("tcp", row("0100007F", "0100007F", "08", 7), False),
        ("tcp", row("0100007F", "0100007F", "01", 7), True),
        ("tcp", row("0A00000A", "08080808", "01", 7), True),
        ("tcp", row("0A00000A", "08080808", "02", 7), True),
        ("tcp", row("0A00000A", "08080808", "06", 7), False),
        ("tcp", row("00000000", "00000000", "0A", 7), False),
        ("tcp", row("0A00000A", "08080808", "01", 8), False),
        ("udp", row("0A00000A", "08080808", "01", 7), True),
        ("tcp6", pair("0" * 24 + "01000000", "0" * 24 + "01000000"), False),
        ("tcp6", pair(MAPPED + "0A00000A", MAPPED + "0100007F"), False),
        ("tcp6", row(MAPPED + "0A00000A", MAPPED + "08080808", "01", 7), True),
        ("tcp6", row("B80D0120" + "0" * 24, "B80D0120" + "0" * 23 + "1", "01", 7), True),
    ],
)
def test_only_ends_beyond_the_attempt_count(
    table: str, rows: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "42"
    (folder / "net").mkdir(parents=True)
    (folder / "fd").mkdir()
    (folder / "net" / table).write_text(HEAD + rows)
    (folder / "fd" / "3").symlink_to("socket:[7]")
    (folder / "fd" / "4").symlink_to("/dev/null")
    monkeypatch.setattr(process_readings, "_PROC", str(tmp_path))
    (folder / "fd" / "5").symlink_to("socket:[9]")
    assert reaches_out(42, sockets_of([42])) is expected


def test_a_process_that_is_gone_reaches_nobody_and_one_that_cannot_be_seen_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert reaches_out(process.pid) is False
    (tmp_path / "42" / "net").mkdir(parents=True)
    (tmp_path / "42" / "net" / "tcp").write_text(HEAD + "odd\n")
    monkeypatch.setattr(process_readings, "_PROC", str(tmp_path))
    assert reaches_out(42) is True


SERVER = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
peer = server.accept()[0] if "accepts" in sys.argv else None
print("accepted", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("word", ["accepts", "listens"])
def test_a_program_of_this_machine_counts_unless_it_is_of_the_attempt(word: str) -> None:
    """Also one that has not accepted the connection yet."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, word], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        with socket.create_connection(("127.0.0.1", int(server.stdout.readline()))):
            server.stdout.readline()
            own = sockets_of([os.getpid()])
            assert reaches_out(os.getpid(), own) is True
            assert reaches_out(os.getpid(), own | sockets_of([server.pid])) is False
            server.stdin.close()
            server.wait()
            # It ended, and nobody will answer.
            assert reaches_out(os.getpid(), own) is False


def test_an_end_written_as_ipv6_is_the_same_end() -> None:
    with (
        socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server,
        socket.create_connection(("127.0.0.1", server.getsockname()[1])),
    ):
        peer, _ = server.accept()
        with peer:
            assert reaches_out(os.getpid(), sockets_of([os.getpid()])) is False


def test_a_connection_within_the_machine_is_one_and_a_socket_that_listens_is_none() -> None:
    code = (
        "import socket; server = socket.create_server(('127.0.0.1', 0)); print(flush=True); input();"
        "peer = socket.create_connection(server.getsockname()); print(flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        assert is_connected(process.pid) is False
        process.stdin.write("\n")
        process.stdout.readline()
        assert is_connected(process.pid) is True
        process.stdin.write("\n")
    assert is_connected(process.pid) is False
