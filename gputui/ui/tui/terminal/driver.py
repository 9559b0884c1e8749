"""The driver of the terminal: sets the app's modes while the screen has the terminal, and reads keys in the event loop.

The modes are reset at the end, for Ctrl-Z and for other programs. Uses private names of Textual's driver and key
parser; `tests/ui/tui/terminal/test_private_names.py` fails when one of them moves.
"""

from __future__ import annotations

import asyncio
import os
from codecs import getincrementaldecoder
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from textual import constants, events
from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START, XTermParser
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

if TYPE_CHECKING:
    from gputui.ui.tui.terminal.features import TerminalFeatures

_READ_BYTES = 4096  # a pasted page at once

ESCAPE_SECONDS = 0.025
"""Time for the rest of an escape sequence to arrive, unless ESCDELAY is set; escape acts after it."""

if "ESCDELAY" not in os.environ:
    setattr(constants, "ESCAPE_DELAY", ESCAPE_SECONDS)  # noqa: B010 - declared Final

_PASTED_CHARACTERS = 64
"""Least characters in one read that are taken for a paste: a terminal without bracketed paste sends it unmarked."""

_HELD_KEYS = 4
"""Most different characters in a long read that are taken for held keys on a slow line."""


class KeysLost(Message):
    """The terminal sent bytes that are no known key or answer."""


class TerminalGone(Message):
    """The terminal is gone: reading from it failed."""


class TerminalDriver(LinuxDriver):
    """Textual's driver with the app's own modes. The event loop reads keys when there are some; Textual's thread would
    poll ten times a second."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._parser: XTermParser | None = None
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._escape: asyncio.TimerHandle | None = None
        self._marks = ""
        self._is_in_paste = False

    @property
    def _features(self) -> TerminalFeatures:
        return cast("TerminalFeatures", cast("Any", self._app).terminal_features)

    def start_application_mode(self) -> None:
        super().start_application_mode()  # type: ignore[no-untyped-call]
        # Without a writer thread, the terminal was not available: a background job that was stopped again.
        if self._writer_thread is not None and self._writer_thread.is_alive():
            self.write(self._features.modes_on())
            self.start_reading()

    def stop_application_mode(self) -> None:
        if self._writer_thread is not None and self._writer_thread.is_alive():
            self.write(self._features.modes_off())
        super().stop_application_mode()

    def disable_input(self) -> None:
        self._stop_reading()
        super().disable_input()

    def run_input_thread(self) -> None:
        """Do nothing: the event loop reads keys."""

    def start_reading(self) -> None:
        """Hand keys and answers of the terminal to the app from now on."""
        self._parser = XTermParser(self._debug)
        self._decoder.reset()
        self._marks = ""
        self._is_in_paste = False
        self._loop.add_reader(self.fileno, self._read_keys)

    def send_message(self, message: Message) -> None:
        self._app.post_message(message)

    def _read_keys(self) -> None:
        try:
            data = os.read(self.fileno, _READ_BYTES)
        except BlockingIOError:
            # Another process of this terminal made it non-blocking, and read first.
            return
        except OSError:
            data = b""
        if not data:
            self._stop_reading()
            self.send_message(TerminalGone())
            return
        text = self._decoder.decode(data)
        if self._is_unmarked_paste(text):
            self.process_message(events.Paste(text))
            return
        self._note_marks(text)
        # One by one, so that a failure of the parser loses one key only. An empty text would end the parser.
        for character in text:
            self._parse(character)
        self._await_rest()

    def _is_unmarked_paste(self, text: str) -> bool:
        """Return whether this was pasted. As keys, it would trigger the actions of its letters."""
        if len(text) < _PASTED_CHARACTERS or self._is_in_paste:
            return False
        if self._parser is None or self._parser._timeout_time is not None or len(set(text)) <= _HELD_KEYS:
            return False
        return all(character.isprintable() or character in "\r\n\t" for character in text)

    def _note_marks(self, text: str) -> None:
        """Track the terminal's marks of the beginning and end of a paste."""
        recent = self._marks + text
        begin = recent.rfind(BRACKETED_PASTE_START)
        end = recent.rfind(BRACKETED_PASTE_END)
        if begin != end:
            self._is_in_paste = begin > end
        self._marks = recent[1 - len(BRACKETED_PASTE_START) :]

    def _parse(self, character: str | None) -> None:
        """Feed the parser one character, or None for a pause, and process its messages. A failed parser is replaced."""
        parser = self._parser
        if parser is None:
            return
        # The parser assumes pixels if the terminal reported its size in pixels; `features.MOUSE_ON` reports cells.
        parser.mouse_pixels = False
        messages: list[Message] = []
        try:
            if character is None:
                messages.extend(parser.tick())
            else:
                messages.extend(parser.feed(character))
        except Exception:
            # For example a code point out of range, too long a number, or a parser that has ended.
            self._parser = XTermParser(self._debug)
            messages.append(KeysLost())
        for message in messages:
            self.process_message(message)

    def _await_rest(self) -> None:
        """Wait for the rest of an escape sequence; without one in time, it is the escape key."""
        if self._escape is not None:
            self._escape.cancel()
            self._escape = None
        if self._parser is not None and self._parser._timeout_time is not None:
            wait = max(0.0, self._parser._timeout_time - monotonic())
            self._escape = self._loop.call_later(wait, self._end_escape)

    def _end_escape(self) -> None:
        self._escape = None
        self._parse(None)
        self._await_rest()

    def _stop_reading(self) -> None:
        if self._parser is None:
            return
        self._parser = None
        if self._escape is not None:
            self._escape.cancel()
            self._escape = None
        self._loop.remove_reader(self.fileno)
