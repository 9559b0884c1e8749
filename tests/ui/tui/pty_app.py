"""A program on a real pseudo-terminal, and the person and terminal at its other end."""

import fcntl
import os
import pty
import re
import select
import struct
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from gputui.machine.procfs import read_stat
from tests.forkserver import Forked
from tests.ui.tui.emulator import Terminal

LONGEST_QUERY = len(b"\x1b[?2026$p")
ROOT = Path(__file__).parents[3]


class PtyApp:
    """Runs a command as the leader of a session on a pseudo-terminal and reads what it writes.

    Args:
        command: a module and its words.
        size: columns and lines.
        places: answer where the cursor is.
        environment: variables set for the program.
    """

    def __init__(
        self,
        command: list[str],
        size: tuple[int, int] = (80, 24),
        places: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.terminal = Terminal(*size)
        self.output = bytearray()
        self._places = places
        self._answered = 0
        self._fed = 0
        self.master, slave = pty.openpty()
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        inherited = {name: value for name, value in os.environ.items() if name not in ("COLORTERM", "NO_COLOR")}
        self.process = Forked(
            command,
            leads_terminal=True,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=ROOT,
            env={**inherited, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT), **(environment or {})},
        )
        os.close(slave)

    def __enter__(self) -> "PtyApp":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)

    def read(self, seconds: float) -> bytes:
        start = len(self.output)
        deadline = time.monotonic() + seconds
        while (remaining := deadline - time.monotonic()) > 0:
            if not select.select([self.master], [], [], remaining)[0]:
                break
            try:
                data = os.read(self.master, 65536)
            except OSError:
                break
            if not data:
                break
            self.output += data
            self._answer()
        self._show()
        return bytes(self.output[start:])

    def read_until(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        """Read until something holds; fails if it does not in time."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.terminal.text
            self.read(0.05)

    @property
    def is_stopped(self) -> bool:
        stat = read_stat(self.process.pid)
        return stat is not None and stat.state == "T"

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def _answer(self) -> None:
        """Answer queries for the modes of the terminal, and for the cursor where that is wanted."""
        end = 0
        fresh = bytes(self.output[self._answered :])
        for query in re.finditer(rb"\x1b\[\?(\d+)\$p|\x1b\[6n", fresh):
            end = query.end()
            if query[1]:
                os.write(self.master, b"\x1b[?%s;0$y" % query[1])
            elif self._places:
                os.write(self.master, b"\x1b[1;1R")
        # A query may come in two pieces.
        self._answered = max(self._answered + end, len(self.output) - LONGEST_QUERY + 1)

    def _show(self) -> None:
        fresh = bytes(self.output[self._fed :])
        # A frame may end amid a character or a sequence; the rest comes with the next read.
        whole = fresh.decode("utf-8", "ignore")
        cut = whole.rfind("\x1b")
        if cut >= 0 and not re.match(r"\x1b(\[[0-?]*[ -/]*[@-~]|[^\[])", whole[cut:]):
            whole = whole[:cut]
        self._fed += len(whole.encode())
        self.terminal.feed(whole)
