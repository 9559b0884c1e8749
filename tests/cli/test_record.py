"""What `gputui --record` prints, on a terminal and without one."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

from tests.machine import Machine


def test_without_a_terminal_it_is_lines(machine: Machine) -> None:
    done = machine.call("--record", "--interval", "0.2", "--duration", "1.5")
    assert done.returncode == 0
    assert str(machine.workspace.database) in done.stderr and "every 0.2 s" in done.stderr
    assert done.stdout.count("\n") == 1 and "\x1b" not in done.stdout


def test_on_a_terminal_one_line_is_rewritten(machine: Machine) -> None:
    leader, follower = pty.openpty()
    argv = [sys.executable, "-m", "gputui", "--home", str(machine.workspace.state.parent), "--record"]
    with subprocess.Popen([*argv, "--duration", "4"], stdout=follower, stderr=follower, stdin=follower) as process:
        os.close(follower)
        shown = b""
        try:
            while piece := os.read(leader, 65536):
                shown += piece
        except OSError:  # the terminal's other side is closed
            pass
        os.close(leader)
    assert process.returncode == 0
    frames = shown.split(b"\r\x1b[2K")[1:]
    assert len(frames) >= 2 and all(b"runs active" in frame for frame in frames)
    assert b"recording ended" in shown
