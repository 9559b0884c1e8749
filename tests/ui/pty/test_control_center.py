"""The real program in a real pseudo-terminal: launched, looked at, stopped and left, as a person would."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pexpect
import pyte
import pytest

from gputui.runs.identity import is_alive
from tests.conftest import wait_until
from tests.machines import Machine


class Terminal:
    """A terminal of some size with `gputui` in it, and what it shows."""

    def __init__(self, machine: Machine, columns: int, rows: int, *arguments: str) -> None:
        self.machine = machine
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.ByteStream(self.screen)
        environment = {**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8"}
        script = Path(sys.executable).with_name("gputui")
        self.child = pexpect.spawn(
            str(script),
            ["--home", str(machine.folder / "home"), *arguments],
            dimensions=(rows, columns),
            env=environment,
            cwd=str(machine.folder),
            timeout=60,
        )
        self.written = 0

    def look(self) -> list[str]:
        """The lines on the screen now."""
        while True:
            try:
                data = self.child.read_nonblocking(65536, timeout=0.05)
            except (pexpect.TIMEOUT, pexpect.EOF):
                break
            self.written += len(data)
            self.stream.feed(_plain(data))
        return [line.rstrip() for line in self.screen.display]

    def wait_for(self, text: str, timeout: float = 60.0) -> list[str]:
        """The screen once ``text`` is on it."""
        deadline = time.monotonic() + timeout
        while True:
            lines = self.look()
            if shows(lines, text):
                return lines
            if time.monotonic() > deadline or not self.child.isalive():
                screen = "\n".join(line for line in lines if line)
                pytest.fail(f"{text!r} did not appear on\n{screen}\nwhat was recorded:\n{self._told()}")

    def _told(self) -> str:
        """The commands to the agent, its answers, and the end of its log."""
        commands = [repr(tuple(row)) for row in self.machine.rows("SELECT verb, state, reason FROM commands")]
        log = self.machine.workspace.agent_log
        return "\n".join([*commands, *(log.read_text().splitlines()[-20:] if log.exists() else ())])

    def press(self, keys: str) -> None:
        self.child.send(keys)

    def close(self) -> int | None:
        """Wait for the end; the exit code."""
        self.child.expect(pexpect.EOF, timeout=60)
        self.child.close()
        return self.child.exitstatus


def shows(lines: list[str], text: str) -> bool:
    """Return whether it is on the screen, in one line or wrapped: how long the home's path is
    decides where lines end."""
    return any(text in line for line in lines) or text in " ".join(line.strip() for line in lines)


def _plain(data: bytes) -> bytes:
    """pyte does not know private sequences with these marks; a terminal that does draws nothing for them."""
    import re

    return re.sub(rb"\x1b\[[<>=][0-9;]*[a-zA-Z]|\x1b\[\?[0-9;]*\$p|\x1bP[^\x1b]*\x1b\\", b"", data)


def shared_profile(machine: Machine) -> None:
    """The step-counting profile among the home's own, first of the list."""
    source = Path(machine.profile())
    text = source.read_text().replace("script: steps.py", f"script: {machine.folder}/steps.py")
    text = text.replace("name: steps", "name: a-steps").replace("steps: 50,", "steps: 5000,")
    (machine.workspace.profiles / "a-steps.yaml").write_text(text)
    source.unlink()


def test_from_launch_to_stop(machine: Machine) -> None:
    shared_profile(machine)
    terminal = Terminal(machine, 80, 24)
    terminal.wait_for("Press n to launch")
    terminal.press("n")
    terminal.wait_for("a-steps")
    terminal.press("\r")
    terminal.wait_for("✓")
    assert "steps.py" in "".join(line.strip() for line in terminal.wait_for("--steps 5000"))
    terminal.press("\r")
    terminal.wait_for("running")
    assert machine.state("a-steps-1") == "running"
    terminal.press("\r")
    # Wait for text of the page alone: an escape sent too early would become part of the next key.
    terminal.wait_for("x step")
    terminal.press("\x1b")
    terminal.wait_for("RUNS")
    terminal.press("s")
    terminal.wait_for("a-steps-1")
    terminal.press("y")
    terminal.wait_for("stopped")
    machine.wait_for("a-steps-1", "stopped")
    terminal.press("q")
    assert terminal.close() == 0
    assert not machine.marked("a-steps-1")


@pytest.mark.long
def test_leaving_and_hanging_up_leave_the_run_alone(machine: Machine) -> None:
    shared_profile(machine)
    machine.gputui("run", "a-steps", "--set", "steps=2000")
    shim = machine.shim("a-steps-1")
    terminal = Terminal(machine, 80, 24)
    terminal.wait_for("a-steps")
    terminal.press("q")
    assert terminal.close() == 0
    assert is_alive(shim)
    again = Terminal(machine, 80, 24)
    again.wait_for("a-steps")
    pid = again.child.pid
    os.kill(pid, signal.SIGHUP)
    again.close()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), what="the screen's end")
    assert is_alive(shim)
    machine.gputui("stop", "a-steps-1", "--now")
    machine.wait_for("a-steps-1", "stopped")
