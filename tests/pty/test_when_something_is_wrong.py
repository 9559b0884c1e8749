"""The real program while something is wrong: what it says, and that it stops saying so."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.runs.agent_process import read_identity
from tests.conftest import wait_until
from tests.machine import Machine
from tests.pty.test_control_center import Terminal, shows


def gone(terminal: Terminal, text: str, timeout: float = 30.0) -> list[str]:
    """The screen once ``text`` is not on it."""
    deadline = time.monotonic() + timeout
    while True:
        lines = terminal.look()
        if not shows(lines, text):
            return lines
        assert time.monotonic() < deadline, "\n".join(lines)


def leave(terminal: Terminal) -> None:
    terminal.press("q")
    assert terminal.close() == 0


def test_a_silent_driver_a_killed_agent_and_a_small_terminal(machine: Machine) -> None:
    machine.workspace.scenario.write_text("{gpus: 1, seed: 5}")
    terminal = Terminal(machine, 80, 24)
    terminal.wait_for("simulated GPUs")
    machine.workspace.scenario.write_text("{gpus: 1, seed: 5, faults: [{kind: stale, for: 8}]}")
    terminal.wait_for("driver silent for")
    gone(terminal, "driver silent for")
    agent = read_identity(machine.workspace)
    assert agent is not None
    os.kill(agent.process.pid, signal.SIGKILL)
    terminal.wait_for("The agent is gone; starting it again")
    gone(terminal, "The agent is gone")
    assert read_identity(machine.workspace) is not None
    terminal.child.setwinsize(6, 30)
    terminal.screen.resize(6, 30)
    terminal.wait_for("This terminal has 30×6 cells")
    terminal.child.setwinsize(24, 80)
    terminal.screen.resize(24, 80)
    gone(terminal, "This terminal has")
    terminal.wait_for("RUNS")
    leave(terminal)


@pytest.fixture
def small_disk(machine: Machine) -> Iterator[Path]:
    """The home's state on a file system of a few megabytes."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small file system needs root")
    state = machine.workspace.state
    state.mkdir(parents=True, exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", "size=6m,mode=0700", "tmpfs", str(state)]
    if subprocess.run(words, capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield state
    machine.kill_agent()
    subprocess.run(["umount", "-l", str(state)], check=False, capture_output=True)


def test_a_full_disk_is_told_until_there_is_room_again(machine: Machine, small_disk: Path) -> None:
    machine.workspace.create()
    machine.workspace.scenario.write_text("gpus: 1\nseed: 6\nfaults: []\n")
    terminal = Terminal(machine, 100, 30)
    terminal.wait_for("simulated GPUs")
    ballast = small_disk / "ballast"
    with ballast.open("wb") as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    os.write(file.fileno(), bytes(size))
            except OSError as error:
                assert error.errno == errno.ENOSPC
    terminal.wait_for("nothing is recorded until", timeout=60)
    terminal.wait_for("The values shown are from")
    ballast.unlink()
    gone(terminal, "nothing is recorded until", timeout=60)
    before = machine.rows("SELECT max(at) FROM host_samples")
    wait_until(lambda: machine.rows("SELECT max(at) FROM host_samples") != before, what="a sample with room again")
    leave(terminal)
