"""Whether a process has a connection to another machine or another program."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputui.runs import process_readings
from gputui.runs.process_readings import reaches_out, sockets_of
from tests.tables import table

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


@table(("table", "rows", "expected"), [
    ("tcp", pair("0100007F", "0200007F"), False), ("tcp", pair("0A00000A", "0A00000A"), False),
    ("tcp", row("0100007F", "0100007F", "08", 7), False), ("tcp", row("0100007F", "0100007F", "01", 7), True),
    ("tcp", row("0A00000A", "08080808", "01", 7), True), ("tcp", row("0A00000A", "08080808", "02", 7), True),
    ("tcp", row("0A00000A", "08080808", "06", 7), False), ("tcp", row("00000000", "00000000", "0A", 7), False),
    ("tcp", row("0A00000A", "08080808", "01", 8), False), ("udp", row("0A00000A", "08080808", "01", 7), True),
    ("tcp6", pair("0" * 24 + "01000000", "0" * 24 + "01000000"), False),
    ("tcp6", pair(MAPPED + "0A00000A", MAPPED + "0100007F"), False),
    ("tcp6", row(MAPPED + "0A00000A", MAPPED + "08080808", "01", 7), True),
    ("tcp6", row("B80D0120" + "0" * 24, "B80D0120" + "0" * 23 + "1", "01", 7), True),
])  # fmt: skip
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
