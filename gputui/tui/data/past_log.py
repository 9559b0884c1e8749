"""The log of a past moment, as far as its lines tell when they were written."""

from __future__ import annotations

from dataclasses import replace

from gputui.runs.log_lines import lines_by
from gputui.tui.data.snapshot import LogTail

TIMELESS = "as it is now: its lines tell no time"
UP_TO_THEN = "as far as it was written then"
TOO_LONG_AGO = "What had been written by then lies further back; gputui logs has all of it."


def past_tail(tail: LogTail, at: float, ended_at: float | None) -> LogTail:
    """What of a log had been written by a moment. ``ended_at`` is when its attempt had ended, None while it went on;
    both are UTC unix seconds."""
    if not tail.lines or (ended_at is not None and ended_at <= at):
        return tail
    count = lines_by(tail.lines, at)
    if count is None:
        return replace(tail, past_note=TIMELESS)
    if not count and not tail.is_whole:
        return replace(tail, lines=(), levels=b"", problem=TOO_LONG_AGO)
    return replace(tail, lines=tail.lines[:count], levels=tail.levels[:count], past_note=UP_TO_THEN)
