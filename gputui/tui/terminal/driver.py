"""The terminal as the screen holds it: its modes are set when the screen takes it and taken back whenever it lets go of
it, be it at the end, for Ctrl-Z or for another program; keys are read by the event loop.

Uses private names of Textual's driver and its parser of keys; `tests/tui/terminal/test_private_names.py` fails when one
of them moves.
"""

from __future__ import annotations

import asyncio
import os
from codecs import getincrementaldecoder
from time import monotonic
from typing import Any, Protocol, cast

from textual import events
from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START, XTermParser
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

_READ_BYTES = 4096

_PASTED_CHARACTERS = 64
"""Nobody types so many at once: a terminal that does not mark what is pasted sends it so."""

_HELD_KEYS = 4
"""Of no more different keys may be many at once: keys that are held while the line is slow."""


class KeysLost(Message):
    """The terminal sent a key or an answer that cannot be recognised from its bytes."""


class TerminalGone(Message):
    """There is no terminal any more: nothing can be read from it."""


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
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._escape: asyncio.TimerHandle | None = None
        self._marks = ""
        self._is_in_paste = False

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
        self._decoder.reset()
        self._marks, self._is_in_paste = "", False
        self._loop.add_reader(self.fileno, self._read_keys)

    def send_message(self, message: Message) -> None:
        self._app.post_message(message)

    def _read_keys(self) -> None:
        try:
            data = os.read(self.fileno, _READ_BYTES)
        except BlockingIOError:
            # Whoever shares the terminal made reading it not wait, and was faster.
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
        # One by one, so that what the parser cannot take is lost alone. An empty text would mean the end to it.
        for character in text:
            self._parse(character)
        self._await_rest()

    def _is_unmarked_paste(self, text: str) -> bool:
        """Whether this was pasted and not typed. As keys it would do whatever its letters are bound to, one by one."""
        if len(text) < _PASTED_CHARACTERS or self._is_in_paste:
            return False
        if self._parser is None or self._parser._timeout_time is not None or len(set(text)) <= _HELD_KEYS:
            return False
        return all(character.isprintable() or character in "\r\n\t" for character in text)

    def _note_marks(self, text: str) -> None:
        """Follow where the terminal says that a paste begins and ends."""
        seen = self._marks + text
        begin, end = seen.rfind(BRACKETED_PASTE_START), seen.rfind(BRACKETED_PASTE_END)
        if begin != end:
            self._is_in_paste = begin > end
        self._marks = seen[1 - len(BRACKETED_PASTE_START) :]

    def _parse(self, character: str | None) -> None:
        """Hand over what the parser finds with one more character, or None more for a moment. A parser that fails is
        of no more use, and another takes its place."""
        parser = self._parser
        if parser is None:
            return
        # It takes places for pixels once the terminal told its size in both; ours are cells (`terminal.MOUSE_ON`).
        parser.mouse_pixels = False
        found: list[Message] = []
        try:
            found.extend(parser.tick() if character is None else parser.feed(character))
        except Exception:
            # Whatever it is: a code point out of range, a number too long, a parser that has ended.
            self._parser = XTermParser(self._debug)
            found.append(KeysLost())
        for message in found:
            self.process_message(message)

    def _await_rest(self) -> None:
        """An escape is a key of its own when nothing follows it for a moment."""
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
