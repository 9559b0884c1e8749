"""A line that does not keep up: measured, told, fewer updates, and never a queue."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.config import Workspace
from gputui.tui.terminal.frame_pace import CALM_SECONDS, LONGEST_SECONDS, Pace
from gputui.tui.terminal.link import HOLD_SECONDS, LOST_SECONDS, QUESTIONS_WITHOUT_ANSWER, Line
from tests.tui.filling import Filler
from tests.tui.pty_app import PtyApp

QUESTION = b"\x1b[6n"
ANSWER = b"\x1b[1;1R"


# --- the measure


def ask_and_answer(line: Line, at: float, lag: float) -> None:
    assert line.should_ask(at)
    line.asked(at)
    line.answered(at + lag)


def test_a_quick_line_is_never_held_and_has_no_lag_to_tell() -> None:
    line = Line()
    for second in range(10):
        assert line.may_write(second)
        ask_and_answer(line, second, 0.02)
        assert line.lag_seconds(second + 0.5) == pytest.approx(0.02)


def test_frames_wait_for_an_answer_that_is_late_and_its_lag_is_told() -> None:
    line = Line()
    ask_and_answer(line, 0.0, 0.02)
    line.asked(1.0)
    assert line.may_write(1.0 + HOLD_SECONDS)
    assert not line.may_write(1.5)
    assert not line.should_ask(1.5)
    assert line.lag_seconds(2.5) == pytest.approx(1.5)
    line.answered(3.0)
    assert line.may_write(3.0)
    assert line.lag_seconds(3.1) == pytest.approx(2.0)
    assert line.lag_seconds(30.0) == 0.0


def test_a_far_line_is_not_taken_for_a_slow_one() -> None:
    """Half a second to a satellite and back is its nature: frames are not held until it is much later than that."""
    line = Line()
    ask_and_answer(line, 0.0, 0.6)
    line.asked(1.0)
    assert line.may_write(1.9)
    assert not line.may_write(2.6)


def test_a_terminal_that_never_answers_holds_nothing_and_is_left_alone() -> None:
    line = Line()
    now = 0.0
    for _ in range(QUESTIONS_WITHOUT_ANSWER):
        assert line.should_ask(now)
        line.asked(now)
        assert line.may_write(now + LOST_SECONDS / 2)
        assert line.lag_seconds(now + LOST_SECONDS / 2) == 0.0
        now += LOST_SECONDS
    assert not line.should_ask(now)
    assert line.may_write(now)


def test_a_lost_answer_is_not_waited_for_for_ever() -> None:
    line = Line()
    ask_and_answer(line, 0.0, 0.01)
    line.asked(1.0)
    assert not line.may_write(1.0 + LOST_SECONDS - 0.1)
    assert line.may_write(1.0 + LOST_SECONDS)
    assert line.should_ask(1.0 + LOST_SECONDS)


def test_a_queue_of_the_system_counts_as_lag() -> None:
    line = Line()
    line.stuck(5.0)
    line.stuck(6.0)
    assert line.lag_seconds(7.0) == 2.0
    line.flowing(8.0)
    assert line.lag_seconds(8.1) == 3.0


# --- the pace


def test_the_rate_halves_step_by_step_and_comes_back() -> None:
    pace = Pace()
    assert pace.interval(0.25, "auto") == 0.25
    seen = []
    for second in range(20):
        pace.note_lag(1.0, float(second))
        seen.append(pace.interval(0.25, "auto"))
    assert seen[:4] == [2.0, 4.0, 8.0, 8.0] and max(seen) == LONGEST_SECONDS
    assert pace.is_slowed
    assert pace.interval(0.25, "off") == 0.25
    now = 20.0
    while pace.is_slowed:
        now += 1.0
        pace.note_lag(0.0, now)
    assert now - 20.0 == pytest.approx(3 * CALM_SECONDS, abs=4)
    assert pace.interval(0.25, "auto") == 0.25
    assert pace.interval(0.25, "on") == 2.0
    assert pace.interval(10.0, "on") == 10.0 * 2 or pace.interval(10.0, "on") == 10.0


# --- the real thing


class SlowTerminal(PtyApp):
    """A terminal behind a line of so many bytes a second. It answers the question for the cursor when it has come to
    it."""

    rate = 2000

    def crawl(self, seconds: float) -> None:
        """Some time of the line."""
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
def slow(filler: Filler, workspace: Workspace) -> Iterator[SlowTerminal]:
    filler.overnight()
    with SlowTerminal(["tests.tui.screen_app", str(workspace.state.parent)], size=(120, 44), places=True) as app:
        app.read_until(lambda: "quit" in app.terminal.text and QUESTION in app.output)
        app.read(0.3)
        os.set_blocking(app.master, False)
        yield app


def test_a_line_of_two_kilobytes_a_second_answers_keys_and_catches_up(slow: SlowTerminal, filler: Filler) -> None:
    busy_until = time.monotonic() + 3
    written = len(slow.output)
    began = time.monotonic()
    chance = random.Random(1)
    for number in range(1000):
        # Four times a second the events are others: some three times what the line carries.
        for _ in range(8):
            filler.event("".join(chance.choices("abcdefghijklmnopqrstuvwxyz ", k=100)))
        filler.event(f"the {number}th time")
        filler.tick()
        slow.crawl(0.25)
        if time.monotonic() > busy_until and " behind" in slow.terminal.lines[-1]:
            break
        assert time.monotonic() < busy_until + 10, slow.terminal.text
    assert len(slow.output) - written <= 2000 * (time.monotonic() - began) * 1.2
    slow.type("?")
    asked = time.monotonic()
    while "Keys" not in slow.terminal.text:
        slow.crawl_once()
        assert time.monotonic() - asked < 6, slow.terminal.text
    os.set_blocking(slow.master, True)
    slow.type("\x1b")
    newest = f"the {number}th time"
    slow.read_until(lambda: "Keys" not in slow.terminal.text and newest in slow.terminal.text)


def test_while_answers_are_late_frames_wait_and_the_next_carries_all(filler: Filler, workspace: Workspace) -> None:
    """The line's buffers take everything and deliver it late, as ssh does: only the answers tell."""
    filler.overnight()
    home = str(workspace.state.parent)
    with PtyApp(["tests.tui.screen_app", home], size=(100, 30)) as app:
        app.read_until(lambda: QUESTION in app.output)
        os.write(app.master, ANSWER)
        app.read_until(lambda: "quit" in app.terminal.text)
        app.read(0.5)
        count = app.output.count(QUESTION)
        filler.event("first of the late ones")
        app.read_until(lambda: app.output.count(QUESTION) > count)
        app.read(1.0)
        mark = len(app.output)
        filler.event("second of the late ones")
        app.type("j")
        assert app.read(1.5) == b"", "a frame was written on top of one that was not drawn yet"
        os.write(app.master, ANSWER)
        app.read_until(lambda: "second of the late ones" in app.terminal.text)
        app.read_until(lambda: "▸" in next(line for line in app.terminal.lines if "gpt2-124m-1  " in line))
        assert app.output[mark:].count(QUESTION) <= 2
        app.read_until(lambda: "behind" in app.terminal.lines[-1])


def test_the_screen_works_where_no_answer_comes(filler: Filler, workspace: Workspace) -> None:
    filler.overnight()
    with PtyApp(["tests.tui.screen_app", str(workspace.state.parent)], size=(100, 30)) as app:
        app.read_until(lambda: "quit" in app.terminal.text)
        for key, text, is_there in (
            ("?", "Keys", True),
            ("\x1b", "Keys", False),
            ("a", "no samples in the last", True),
        ):
            app.type(key)
            started = time.monotonic()
            app.read_until(lambda t=text, there=is_there: (t in app.terminal.text) == there)  # type: ignore[misc]
            assert time.monotonic() - started < 2
        app.type("q")
        app.read_until(lambda: app.process.poll() is not None)


def test_answers_are_no_keys(filler: Filler, workspace: Workspace, tmp_path: Path) -> None:
    """However many answers come, wherever the cursor is said to be, nothing is done."""
    filler.overnight()
    with PtyApp(["tests.tui.screen_app", str(workspace.state.parent)], size=(100, 30)) as app:
        app.read_until(lambda: "quit" in app.terminal.text)
        app.read(0.3)
        before = app.terminal.lines[1:]
        for row in range(1, 31):
            os.write(app.master, b"\x1b[%d;%dR" % (row, row + 1))
        app.read(0.5)
        assert app.terminal.lines[1:] == before
