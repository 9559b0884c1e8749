"""A pseudo-terminal that answers what programs ask, counts what they write, and can show it on an emulated screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

import pyte

TERM = "xterm-256color"
KEY_DOWN = b"\x1b[B"
KEY_UP = b"\x1b[A"

# What programs ask: a mode (DECRQM), the kind of terminal (DA1), the cursor's place (CPR), a colour (OSC 10 and 11).
_QUERY = re.compile(rb"\x1b\[\?(\d+)\$p|\x1b\[0?(c)|\x1b\[(6)n|\x1b\](1[01]);\?(?:\x07|\x1b\\)")
_QUERY_BYTES = 24
_KNOWN_MODES = (b"2026",)

# pyte prints parts of sequences that it does not know.
_UNKNOWN_TO_PYTE = re.compile(rb"\x1b\[[<>=][0-9;]*[a-zA-Z]|\x1b\[\?[0-9;]*\$p|\x1b\[\?2026[hl]")

_END_SECONDS = 5.0


class TerminalTimeoutError(Exception):
    """The expected text did not appear on the screen; the text holds the screen."""


class Terminal:
    """A program on a pseudo-terminal of its own. What it writes is read at once by a thread, with the time of arrival.

    The emulated screen is behind until somebody looks: emulating costs time that must not be taken from the program
    while it is measured.
    """

    def __init__(self, argv: Sequence[str], *, columns: int, rows: int, environment: Mapping[str, str]) -> None:
        self.columns = columns
        self.rows = rows
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._lock = threading.Lock()
        self._arrived: deque[tuple[float, bytes]] = deque()
        self._arrival = threading.Event()
        self._bytes = 0
        self._unanswered = b""
        self._may_read = threading.Event()
        self._may_read.set()
        self.started_at = time.monotonic()
        self.process = subprocess.Popen(
            list(argv),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**environment, "TERM": TERM, "LINES": str(rows), "COLUMNS": str(columns)},
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(slave)
        self._reader = threading.Thread(target=self._read, name="terminal", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def bytes_written(self) -> int:
        """The bytes that the program has written so far."""
        return self._bytes

    def press(self, key: bytes) -> None:
        os.write(self._master, key)

    @property
    def lines(self) -> list[str]:
        """The text on the screen now."""
        self.when(lambda _lines: False)
        return self.shown

    @property
    def shown(self) -> list[str]:
        """The text on the screen as far as it was looked at."""
        return list(self._screen.display)

    def when(self, is_so: Callable[[list[str]], bool]) -> float | None:
        """The arrival (monotonic) of the output after which ``is_so`` holds of the screen's lines, or None when it does
        not yet. Later output stays unseen then."""
        while True:
            with self._lock:
                if not self._arrived:
                    self._arrival.clear()
                    return None
                at, data = self._arrived.popleft()
            self._stream.feed(_UNKNOWN_TO_PYTE.sub(b"", data))
            if is_so(self._screen.display):
                return at

    def wait(self, is_so: Callable[[list[str]], bool], timeout_seconds: float) -> float:
        """Wait until ``is_so`` holds; when it began to.

        Raises TerminalTimeoutError.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            at = self.when(is_so)
            if at is not None:
                return at
            if is_so(self._screen.display):
                return time.monotonic()
            if time.monotonic() > deadline or not self._reader.is_alive():
                text = "\n".join(line.rstrip() for line in self._screen.display)
                raise TerminalTimeoutError(f"not on the screen after {timeout_seconds} s:\n{text}")
            self._arrival.wait(max(0.0, min(0.1, deadline - time.monotonic())))

    def wait_for_output(self, timeout_seconds: float) -> None:
        """Wait until the program has written something.

        Raises TerminalTimeoutError.
        """
        if not self._arrival.wait(timeout_seconds):
            raise TerminalTimeoutError(f"nothing was written within {timeout_seconds} s")

    def take_output(self) -> list[tuple[float, bytes]]:
        """Output that has arrived and was not shown yet, as (monotonic time, bytes). It will not be
        shown any more."""
        with self._lock:
            pieces = list(self._arrived)
            self._arrived.clear()
        return pieces

    def take_shown(self) -> None:
        """Bring the emulated screen up to date with all that has arrived."""
        self.when(lambda _lines: False)

    def pause(self) -> None:
        """Read nothing any more; what is being read still arrives."""
        self._may_read.clear()

    def resume(self) -> None:
        """Read on."""
        self._may_read.set()

    def close(self) -> None:
        """End the program: politely, as a closed window does, then not."""
        self._may_read.set()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGHUP)
            try:
                self.process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._reader.join(_END_SECONDS)
        os.close(self._master)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> None:
        while True:
            self._may_read.wait()
            try:
                data = os.read(self._master, 1 << 16)
            except OSError:  # the program has closed its side
                return
            at = time.monotonic()
            if not data:
                return
            self._answer(data)
            with self._lock:
                self._bytes += len(data)
                self._arrived.append((at, data))
            self._arrival.set()

    def _answer(self, data: bytes) -> None:
        buffer = self._unanswered + data
        end = 0
        for query in _QUERY.finditer(buffer):
            end = query.end()
            mode, kind, place, colour = query.groups()
            if mode:
                os.write(self._master, b"\x1b[?%s;%d$y" % (mode, 2 if mode in _KNOWN_MODES else 0))
            elif kind:
                os.write(self._master, b"\x1b[?62;22c")
            elif place:
                os.write(self._master, b"\x1b[1;1R")
            elif colour:
                shade = b"ffff" if colour == b"10" else b"0000"
                os.write(self._master, b"\x1b]%s;rgb:%s/%s/%s\x1b\\" % (colour, shade, shade, shade))
        self._unanswered = buffer[max(end, len(buffer) - _QUERY_BYTES) :]


class Replay:
    """Output shown again on an emulated screen, to find out when it was complete."""

    def __init__(self, output: Sequence[tuple[float, bytes]], *, columns: int, rows: int) -> None:
        self._output = output
        self._size = (columns, rows)

    @property
    def final_text(self) -> str:
        """The screen's text at the end."""
        return "\n".join(self._final())

    def first_complete(self, share: float = 0.97) -> float:
        """The time at which the screen first showed what it shows at the end: text in every line
        that has text in the end, and in at least ``share`` of the cells that have. Which text is
        not compared, because figures move on."""
        final_cells = _cells(self._final())
        if not final_cells:
            raise ValueError("the screen stayed empty")
        screen, stream = self._fresh()
        for at, data in self._output:
            stream.feed(_UNKNOWN_TO_PYTE.sub(b"", data))
            screen_cells = _cells(screen.display)
            lines = {y for y, _ in final_cells} - {y for y, _ in screen_cells}
            if not lines and len(final_cells & screen_cells) >= share * len(final_cells):
                return at
        raise AssertionError("the end is complete")

    def _final(self) -> list[str]:
        screen, stream = self._fresh()
        for _, data in self._output:
            stream.feed(_UNKNOWN_TO_PYTE.sub(b"", data))
        return list(screen.display)

    def _fresh(self) -> tuple[pyte.Screen, pyte.ByteStream]:
        screen = pyte.Screen(*self._size)
        return screen, pyte.ByteStream(screen)


def _cells(lines: Sequence[str]) -> set[tuple[int, int]]:
    return {(y, x) for y, line in enumerate(lines) for x, character in enumerate(line) if not character.isspace()}


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
