"""Keys from a terminal: read by the event loop, without a thread that looks for them."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import threading
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from textual import events
from textual.app import App
from textual.message import Message

from gputui.ui.tui.terminal.driver import KeysLost, TerminalDriver, TerminalGone


class Sink:
    def __init__(self) -> None:
        self.keys: asyncio.Queue[str] = asyncio.Queue()
        self.others: list[Message] = []

    def post_message(self, message: Message) -> bool:
        if isinstance(message, events.Key):
            self.keys.put_nowait(message.key)
        else:
            self.others.append(message)
        return True

    async def key(self) -> str:
        return await asyncio.wait_for(self.keys.get(), 60.0)


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTSTP, signal.SIGCONT)}
    master, slave = pty.openpty()
    tty.setraw(slave)
    yield master, slave
    os.close(slave)
    os.close(master)
    for number, handler in before.items():
        signal.signal(number, handler)


@contextmanager
def reading(sink: Sink, slave: int) -> Iterator[TerminalDriver]:
    driver = TerminalDriver(cast("App[Any]", sink))
    driver.fileno = slave
    driver.start_reading()
    yield driver
    driver.disable_input()


async def test_keys_come_without_a_thread(terminal: tuple[int, int]) -> None:
    master, slave = terminal
    threads = set(threading.enumerate())
    sink = Sink()
    with reading(sink, slave):
        os.write(master, b"q\x1b[A")
        assert [await sink.key(), await sink.key()] == ["q", "up"]
        # A thread of an earlier test may end meanwhile.
        assert set(threading.enumerate()) <= threads
        os.write(master, b"\x1b")
        assert await sink.key() == "escape"


async def test_a_key_that_comes_in_two_pieces_is_one(terminal: tuple[int, int]) -> None:
    master, slave = terminal
    sink = Sink()
    with reading(sink, slave) as driver:
        for first, rest, key in ((b"\x1b", b"[B", "down"), (b"\xc3", b"\xa9", "é")):
            os.write(master, first)
            driver._read_keys()
            os.write(master, rest)
            assert await sink.key() == key


async def test_bytes_that_are_no_text_do_not_end_the_keys(terminal: tuple[int, int]) -> None:
    master, slave = terminal
    sink = Sink()
    with reading(sink, slave) as driver:
        for byte, key in ((b"q", "q"), (b"\x03", "ctrl+c")):
            os.write(master, b"\xe9")  # é as Latin-1
            driver._read_keys()
            os.write(master, byte)
            await sink.key()  # stands for what could not be read
            assert await sink.key() == key


async def test_a_sequence_that_the_parser_cannot_take_is_lost_alone(terminal: tuple[int, int]) -> None:
    master, slave = terminal
    for sequence in (b"\x1b[9999999999;1u", b"\x1b[1114112u"):
        sink = Sink()
        with reading(sink, slave):
            os.write(master, b"a" + sequence + b"q")
            assert [await sink.key(), await sink.key()] == ["a", "q"]
            assert [type(event) for event in sink.others] == [KeysLost]
            os.write(master, b"\x1b")
            assert await sink.key() == "escape"
            os.write(master, b"\x1b[A")
            assert await sink.key() == "up"


async def test_what_is_pasted_is_one_also_where_the_terminal_does_not_mark_it(terminal: tuple[int, int]) -> None:
    master, slave = terminal
    sink = Sink()
    text = "a line of a paste, é\r" * 20
    with reading(sink, slave) as driver:
        os.write(master, text.encode())
        driver._read_keys()
        os.write(master, b"\x1b[200")
        driver._read_keys()
        for part in ("~", text, text, "\x1b[201~"):  # in several reads, as one of 10 kB comes
            os.write(master, part.encode())
            driver._read_keys()
        os.write(master, b"j" * 100 + b"q")
        assert [await sink.key() for _ in range(101)] == ["j"] * 100 + ["q"]
    assert [event.text for event in sink.others if isinstance(event, events.Paste)] == [text, text + text]


async def test_a_terminal_that_is_gone_is_told_and_not_read_again_and_again() -> None:
    master, slave = pty.openpty()
    tty.setraw(slave)
    sink = Sink()
    with reading(sink, slave) as driver:
        os.close(master)
        while driver._parser is not None:
            await asyncio.sleep(0.01)
        assert not asyncio.get_running_loop().remove_reader(slave)
    assert [type(event) for event in sink.others] == [TerminalGone]
    os.close(slave)
