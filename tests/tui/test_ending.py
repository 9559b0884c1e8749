"""How the screen ends in a real pseudo-terminal: by signals, and when the terminal goes away without one."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forkserver import Forked
from tests.tui.filling import Filler

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_SECONDS = 20.0


class Terminal:
    """A screen in a pseudo-terminal of 80 by 24."""

    def __init__(self, home: Path) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = Forked(
            ["tests.tui.screen_app", str(home)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            cwd=ROOT,
            env={**os.environ, "TERM": "xterm-256color"},
        )
        os.close(slave)
        self.seen = b""

    def read_until(self, word: bytes | None) -> None:
        """Read until the word was seen, or with None until the program is gone."""
        end = time.monotonic() + DEADLINE_SECONDS
        while word is None or word not in self.seen:
            assert time.monotonic() < end, self.seen[-2000:]
            if select.select([self.master], [], [], 0.05)[0]:
                try:
                    self.seen += os.read(self.master, 65536)
                except OSError:
                    return
            elif word is None and self.process.poll() is not None:
                return

    def hang_up(self) -> None:
        os.close(self.master)
        self.master = -1


@pytest.fixture
def terminal(filler: Filler, tmp_path: Path) -> Iterator[Terminal]:
    filler.overnight()
    made = Terminal(tmp_path / "home")
    made.read_until(b"quit")
    yield made
    made.process.kill()
    made.process.wait()
    if made.master >= 0:
        os.close(made.master)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_cleanly(terminal: Terminal, number: signal.Signals) -> None:
    terminal.process.send_signal(number)
    terminal.read_until(None)
    assert terminal.process.wait(DEADLINE_SECONDS) == 0
    assert b"\x1b[?1049l" in terminal.seen  # the shell's own screen is back


def test_a_terminal_that_goes_away_ends_it(terminal: Terminal) -> None:
    terminal.hang_up()  # without a controlling terminal no signal comes
    assert terminal.process.wait(DEADLINE_SECONDS) == 0


def test_q_leaves(terminal: Terminal) -> None:
    os.write(terminal.master, b"q")
    terminal.read_until(None)
    assert terminal.process.wait(DEADLINE_SECONDS) == 0
