"""A line that does not keep up: measured and told, and the rate of updates that follows from it."""

from __future__ import annotations

import pytest

from gputui.ui.tui.terminal.frame_pace import CALM_SECONDS, LONGEST_SECONDS, FramePace
from gputui.ui.tui.terminal.layer import HOLD_SECONDS, LOST_SECONDS, QUESTIONS_WITHOUT_ANSWER, TerminalLink


def ask_and_answer(line: TerminalLink, at: float, lag: float) -> None:
    assert line.should_ask(at)
    line.note_question(at)
    line.note_answer(at + lag)


def test_a_quick_line_is_never_held_and_has_no_lag_to_tell() -> None:
    line = TerminalLink()
    for second in range(10):
        assert line.may_write(second)
        ask_and_answer(line, second, 0.02)
        assert line.lag_seconds(second + 0.5) == pytest.approx(0.02)


def test_frames_wait_for_an_answer_that_is_late_and_its_lag_is_told() -> None:
    line = TerminalLink()
    ask_and_answer(line, 0.0, 0.02)
    line.note_question(1.0)
    assert line.may_write(1.0 + HOLD_SECONDS)
    assert not line.may_write(1.5)
    assert not line.should_ask(1.5)
    assert line.lag_seconds(2.5) == pytest.approx(1.5)
    line.note_answer(3.0)
    assert line.may_write(3.0)
    assert line.lag_seconds(3.1) == pytest.approx(2.0)
    assert line.lag_seconds(30.0) == 0.0


def test_a_far_line_is_not_taken_for_a_slow_one() -> None:
    """Half a second to a satellite and back is its nature: frames are not held until it is much later than that."""
    line = TerminalLink()
    ask_and_answer(line, 0.0, 0.6)
    line.note_question(1.0)
    assert line.may_write(1.9)
    assert not line.may_write(2.6)


def test_a_terminal_that_never_answers_holds_nothing_and_is_left_alone() -> None:
    line = TerminalLink()
    now = 0.0
    for _ in range(QUESTIONS_WITHOUT_ANSWER):
        assert line.should_ask(now)
        line.note_question(now)
        assert line.may_write(now + LOST_SECONDS / 2)
        assert line.lag_seconds(now + LOST_SECONDS / 2) == 0.0
        now += LOST_SECONDS
    assert not line.should_ask(now)
    assert line.may_write(now)


def test_the_rate_halves_step_by_step_and_comes_back() -> None:
    pace = FramePace()
    assert pace.interval(0.25, "auto") == 0.25
    intervals = []
    for second in range(20):
        pace.note_lag(1.0, float(second))
        intervals.append(pace.interval(0.25, "auto"))
    assert intervals[:4] == [2.0, 4.0, 8.0, 8.0]
    assert max(intervals) == LONGEST_SECONDS
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
