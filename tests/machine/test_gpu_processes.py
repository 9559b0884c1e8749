"""Who a PID is, against a procfs made of files."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from gputui.machine.gpu_processes import GpuProcessReader


class Proc:
    """A procfs with the few files that are looked at."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(self, pid: int, ticks: int = 500, cmdline: bytes = b"python\0train.py\0", comm: str = "python") -> Path:
        folder = self.root / str(pid)
        if folder.exists():
            # Another process has another folder, which is another inode.
            folder.rename(self.root / f"before {pid}")
        folder.mkdir(parents=True)
        fields = ["0"] * 50
        fields[19] = str(ticks)
        (folder / "stat").write_text(f"{pid} ({comm}) " + " ".join(["S", *fields[1:]]))
        (folder / "cmdline").write_bytes(cmdline)
        (folder / "comm").write_text(comm + "\n")
        (folder / "fd").mkdir()
        return folder


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path / "proc")


def me() -> str:
    return pwd.getpwuid(os.getuid()).pw_name


def test_a_reused_pid_is_somebody_else(proc: Proc) -> None:
    reader = GpuProcessReader(proc.root, first_namespace=True)
    proc.add(42)
    first = reader.identify(42)
    proc.add(42, ticks=900, cmdline=b"sleep\0")
    second = reader.identify(42)
    assert first is not None
    assert second is not None
    assert (first.start_ticks, first.command) == (500, "python train.py")
    assert (second.start_ticks, second.command) == (900, "sleep")


def test_a_command_line_is_taken_without_its_secrets(proc: Proc) -> None:
    proc.add(42, cmdline=b"python\0train.py\0--api-key\0abc\0--hf-token=abc\0https://me:abc@host/\0--lr\x000.1\0")
    proc.add(43, cmdline=b"launcher: train.py --password abc")
    reader = GpuProcessReader(proc.root, first_namespace=True)
    one, other = reader.identify(42), reader.identify(43)
    assert one is not None and other is not None
    hidden = "[redacted]"
    assert one.command == f"python train.py --api-key {hidden} --hf-token={hidden} https://me:{hidden}@host/ --lr 0.1"
    assert other.command == f"launcher: train.py --password {hidden}", "one that set its own title"
