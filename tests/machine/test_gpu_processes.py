"""The identity of a PID on a GPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from gputui.machine import gpu_processes
from gputui.machine.gpu_processes import GpuProcessReader
from gputui.machine.procfs import read_stat


@contextmanager
def sleeping(*arguments: str) -> Iterator[int]:
    """A process with these words behind its program."""
    argv = [sys.executable, "-c", "input(0)", *arguments]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        # Its command line is complete only some time after Popen returns.
        child.stdout.read(1)
        yield child.pid
        child.kill()


def test_a_reused_pid_is_somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = GpuProcessReader(is_first_namespace=True)
    with sleeping() as pid:
        first = reader.identify(pid)
        stat = read_stat(pid)
        assert first is not None
        assert stat is not None
        assert reader.identify(pid) is first
        later = msgspec.structs.replace(stat, start_ticks=stat.start_ticks + 9)
        monkeypatch.setattr(gpu_processes, "read_stat", lambda _: later)
        second = reader.identify(pid)
        assert second is not None
        assert (first.start_ticks, second.start_ticks) == (stat.start_ticks, later.start_ticks)


def test_a_process_of_another_namespace_without_the_driver_is_nobody() -> None:
    with sleeping() as pid:
        assert GpuProcessReader(is_first_namespace=False).identify(pid) is None


def test_a_command_line_is_taken_without_its_secrets() -> None:
    reader = GpuProcessReader(is_first_namespace=True)
    with sleeping("--api-key", "abc", "--hf-token=abc", "https://me:abc@host/", "--lr", "0.1") as pid:
        process = reader.identify(pid)
    hidden = "[redacted]"
    assert process is not None
    assert process.command is not None
    assert process.command.endswith(f"--api-key {hidden} --hf-token={hidden} https://me:{hidden}@host/ --lr 0.1")
