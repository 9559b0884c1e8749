"""The terminal as the screen holds it: its modes are set when the screen takes it and taken back whenever it lets go of
it, be it at the end, for Ctrl-Z or for another program; keys are read by the event loop.

Uses private names of Textual's driver and its parser of keys; `tests/tui/test_display_private_names.py` fails when one
of them moves.
"""

from __future__ import annotations

import asyncio
import os
from codecs import getincrementaldecoder
from time import monotonic
from typing import Any, Protocol, cast

from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

_READ_BYTES = 4096


class ModeKeeper(Protocol):
    """The app, as the driver needs it."""

    def modes_on(self) -> str:
        """What to write when the terminal was taken."""

    def modes_off(self) -> str:
        """What to write before it is given back."""


class TerminalDriver(LinuxDriver):
    """Textual's driver with the app's own modes around its own, and without a thread that looks for keys ten times a
    second: the loop wakes up when there are some."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._parser: XTermParser | None = None
        self._decode = getincrementaldecoder("utf-8")("replace").decode
        self._escape: asyncio.TimerHandle | None = None

    def start_application_mode(self) -> None:
        super().start_application_mode()  # type: ignore[no-untyped-call]
        # Without a writer the terminal was not to be had: a job in the background, asleep again.
        if self._writer_thread is not None and self._writer_thread.is_alive():
            self.write(cast("ModeKeeper", self._app).modes_on())
            self.start_reading()

    def stop_application_mode(self) -> None:
        if self._writer_thread is not None and self._writer_thread.is_alive():
            self.write(cast("ModeKeeper", self._app).modes_off())
        super().stop_application_mode()

    def disable_input(self) -> None:
        self._stop_reading()
        super().disable_input()

    def run_input_thread(self) -> None:
        """Nothing to do in the thread that Textual starts for this."""

    def start_reading(self) -> None:
        """From now on hand keys and answers of the terminal to the app, as they come."""
        self._parser = XTermParser(self._debug)
        self._loop.add_reader(self.fileno, self._read_keys, self._parser)

    def send_message(self, message: Message) -> None:
        self._app.post_message(message)

    def _read_keys(self, parser: XTermParser) -> None:
        try:
            data = os.read(self.fileno, _READ_BYTES)
        except OSError:
            data = b""
        if not data:
            # The terminal is gone; the app notices by itself.
            self._stop_reading()
            return
        for message in parser.feed(self._decode(data)):
            self.process_message(message)
        self._await_rest(parser)

    def _await_rest(self, parser: XTermParser) -> None:
        """An escape is a key of its own when nothing follows it for a moment."""
        if self._escape is not None:
            self._escape.cancel()
            self._escape = None
        if parser._timeout_time is not None:
            wait = max(0.0, parser._timeout_time - monotonic())
            self._escape = self._loop.call_later(wait, self._end_escape, parser)

    def _end_escape(self, parser: XTermParser) -> None:
        self._escape = None
        for message in parser.tick():
            self.process_message(message)
        self._await_rest(parser)

    def _stop_reading(self) -> None:
        if self._parser is None:
            return
        self._parser = None
        if self._escape is not None:
            self._escape.cancel()
            self._escape = None
        self._loop.remove_reader(self.fileno)
