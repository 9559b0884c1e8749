"""A real screen behind a line that does not keep up: fewer updates, and never a queue."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator

import pytest

from gputui.core.config import Workspace
from tests.homes import Home
from tests.stories import overnight, tick
from tests.ui.tui.pty_app import PtyApp

pytestmark = [pytest.mark.long, pytest.mark.alone]

QUESTION = b"\x1b[6n"
ANSWER = b"\x1b[1;1R"


class SlowTerminal(PtyApp):
    """A terminal behind a line of so many bytes a second. It answers the question for the cursor when it has come to
    it."""

    rate = 2000

    def crawl(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.crawl_once()

    def crawl_once(self) -> None:
        started = time.monotonic()
        before = len(self.output)
        try:
            data = os.read(self.master, self.rate // 20)
        except BlockingIOError:
            data = b""
        self.output += data
        if QUESTION in self.output[max(0, before - 3) :]:
            os.write(self.master, ANSWER)
        self._show()
        time.sleep(max(0.0, 0.05 - (time.monotonic() - started)))


@pytest.fixture
def slow(home: Home, workspace: Workspace) -> Iterator[SlowTerminal]:
    overnight(home)
    # Without processes of other users the list of events is long enough to overload the line.
    home.processes(5)
    with SlowTerminal(["tests.ui.tui.screen_app", str(workspace.state.parent)], size=(120, 44), places=True) as app:
        app.read_until(lambda: "t time" in app.terminal.text and QUESTION in app.output)
        app.read(0.3)
        os.set_blocking(app.master, False)
        yield app


def test_a_line_of_two_kilobytes_a_second_answers_keys_and_catches_up(slow: SlowTerminal, home: Home) -> None:
    busy_until = time.monotonic() + 3
    written = len(slow.output)
    began = time.monotonic()
    chance = random.Random(1)
    for number in range(1000):
        # The events change four times a second, which is about three times what the line carries.
        for _ in range(8):
            home.event("".join(chance.choices("abcdefghijklmnopqrstuvwxyz ", k=100)))
        home.event(f"the {number}th time")
        tick(home)
        slow.crawl(0.25)
        if time.monotonic() > busy_until and " behind" in slow.terminal.lines[-1]:
            break
        assert time.monotonic() < busy_until + 10, slow.terminal.text
    assert len(slow.output) - written <= 2000 * (time.monotonic() - began) * 1.2
    slow.type("?")
    asked_at = time.monotonic()
    while "Keys" not in slow.terminal.text:
        slow.crawl_once()
        assert time.monotonic() - asked_at < 6, slow.terminal.text
    os.set_blocking(slow.master, True)
    slow.type("\x1b")
    newest = f"the {number}th time"
    slow.read_until(lambda: "Keys" not in slow.terminal.text and newest in slow.terminal.text)
