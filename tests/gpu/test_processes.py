"""Who a PID is, against a procfs made of files."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from gputui.gpu.processes import GpuProcessReader, ProcessOwner, in_first_pid_namespace


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


def test_a_visible_process_has_user_command_and_start(proc: Proc) -> None:
    proc.add(42)
    found = GpuProcessReader(proc.root, first_namespace=True).identify(42)
    assert found == ProcessOwner(start_ticks=500, user=me(), command="python train.py")


def test_a_pid_that_is_not_here_is_unknown(proc: Proc) -> None:
    proc.add(42)
    assert GpuProcessReader(proc.root, first_namespace=True).identify(43) is None


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


def test_what_is_known_is_not_read_again(proc: Proc) -> None:
    reader = GpuProcessReader(proc.root, first_namespace=True)
    folder = proc.add(42)
    first = reader.identify(42)
    (folder / "cmdline").unlink()
    assert reader.identify(42) == first
    reader.keep_only([])
    forgotten = reader.identify(42)
    assert forgotten is not None
    assert forgotten.command is None


def test_a_command_name_with_parentheses_does_not_shift_the_fields(proc: Proc) -> None:
    proc.add(42, comm="a) R 1 (b")
    found = GpuProcessReader(proc.root, first_namespace=True).identify(42)
    assert found is not None
    assert found.start_ticks == 500


def test_without_a_command_line_the_name_is_shown(proc: Proc) -> None:
    proc.add(42, cmdline=b"", comm="nvidia-modeset")
    found = GpuProcessReader(proc.root, first_namespace=True).identify(42)
    assert found is not None
    assert found.command == "nvidia-modeset"


def test_no_control_character_of_a_command_comes_through(proc: Proc) -> None:
    proc.add(42, cmdline=b"python\0\x1b]0;owned\x07\xff\0" + b"x" * 1000)
    found = GpuProcessReader(proc.root, first_namespace=True).identify(42)
    assert found is not None
    assert found.command is not None
    assert found.command.isprintable()
    assert len(found.command) <= 300


def test_a_command_line_is_taken_without_its_secrets(proc: Proc) -> None:
    proc.add(42, cmdline=b"python\0train.py\0--api-key\0abc\0--hf-token=abc\0https://me:abc@host/\0--lr\x000.1\0")
    proc.add(43, cmdline=b"launcher: train.py --password abc")
    reader = GpuProcessReader(proc.root, first_namespace=True)
    one, other = reader.identify(42), reader.identify(43)
    assert one is not None and other is not None
    hidden = "[redacted]"
    assert one.command == f"python train.py --api-key {hidden} --hf-token={hidden} https://me:{hidden}@host/ --lr 0.1"
    assert other.command == f"launcher: train.py --password {hidden}", "one that set its own title"


def test_in_a_container_a_pid_counts_only_with_the_driver_open(proc: Proc) -> None:
    """The driver's PID may belong to an unrelated process there."""
    (proc.add(42) / "fd" / "3").symlink_to("/dev/null")
    with_device = proc.add(43)
    (with_device / "fd" / "3").symlink_to("/dev/null")
    (with_device / "fd" / "4").symlink_to("/dev/nvidia0")
    reader = GpuProcessReader(proc.root, first_namespace=False)
    assert reader.identify(42) is None
    assert reader.identify(42) is None
    assert reader.identify(43) is not None


def test_a_container_is_known_by_its_pid_namespace(tmp_path: Path) -> None:
    namespace = tmp_path / "self" / "ns"
    namespace.mkdir(parents=True)
    (namespace / "pid").symlink_to("pid:[4026532999]")
    assert not in_first_pid_namespace(tmp_path)
    (namespace / "pid").unlink()
    (namespace / "pid").symlink_to("pid:[4026531836]")
    assert in_first_pid_namespace(tmp_path)
    assert not in_first_pid_namespace(tmp_path / "nowhere")


def test_this_process_is_found_in_the_real_procfs() -> None:
    found = GpuProcessReader(first_namespace=True).identify(os.getpid())
    assert found is not None
    assert found.user == me()
    assert found.command is not None
    assert "python" in found.command or "pytest" in found.command
