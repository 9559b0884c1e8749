"""The log of a past moment."""

from __future__ import annotations

from datetime import UTC, datetime

from gputui.ui.tui.data.past import TIMELESS, TOO_LONG_AGO, UP_TO_THEN, past_tail
from gputui.ui.views.snapshot import LogTail

AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC).timestamp()
TIMED = LogTail("rank 0", ("rank 0",), ("2026-11-21T11:59:00Z a", "2026-11-21T12:01:00Z b"), levels=b"\0\2")


def test_lines_written_later_are_left_out() -> None:
    tail = past_tail(TIMED, AT, ended_at=None)
    assert (tail.lines, tail.levels, tail.past_note) == (TIMED.lines[:1], b"\0", UP_TO_THEN)
    assert past_tail(TIMED, AT + 90, ended_at=None).lines == TIMED.lines


def test_the_log_of_an_attempt_that_was_over_is_whole() -> None:
    assert past_tail(TIMED, AT, AT - 1) is TIMED
    assert past_tail(TIMED, AT, AT + 1).lines == TIMED.lines[:1]


def test_a_log_that_tells_no_time_says_so() -> None:
    timeless = LogTail("rank 0", ("rank 0",), ("a", "b"), levels=b"\0\0")
    assert past_tail(timeless, AT, ended_at=None) == timeless._replace(past_note=TIMELESS)
    assert past_tail(LogTail(), AT, ended_at=None) == LogTail()


def test_a_moment_before_what_is_loaded() -> None:
    assert past_tail(TIMED, AT - 3600, ended_at=None).lines == ()
    tail = past_tail(TIMED._replace(is_whole=False), AT - 3600, ended_at=None)
    assert (tail.lines, tail.problem) == ((), TOO_LONG_AGO)
