"""Reading a past moment: resolving the request, and cutting a log to what had been written by then."""

from __future__ import annotations

import sqlite3

from gputui.runs.log_lines import lines_by
from gputui.store import timeline
from gputui.ui.views.snapshot import LogTail, Moment, Past

SPANS_SECONDS = (1200.0, 3600.0, 6 * 3600.0, 86_400.0, 7 * 86_400.0, 31 * 86_400.0, 366 * 86_400.0)
"""Possible lengths of the time line: the shortest is taken that holds the moment within `HELD_WELL` of it."""

HELD_WELL = 0.85
"""The part of the time line in which the moment must lie, so that it shows something before the moment."""

TIMELESS = "as it is now: its lines tell no time"
UP_TO_THEN = "as far as it was written then"
TOO_LONG_AGO = "What had been written by then lies further back; gputui logs has all of it."


def past_of(connection: sqlite3.Connection, moment: Moment, now: float) -> tuple[float, Past]:
    """The actual moment for a request (UTC unix seconds), and the time line around it. Raises sqlite3.Error."""
    at = timeline.resolve(connection, moment.at, moment.ticks, moment.direction, now)
    began = timeline.began_at(connection)
    span = next((span for span in SPANS_SECONDS if now - at <= span * HELD_WELL), SPANS_SECONDS[-1])
    start = min(now - span, at)
    if began is not None and at >= began:
        start = max(start, min(began, now - SPANS_SECONDS[0] / 4))
    return at, Past(moment, now, timeline.timeline(connection, start, now), timeline.gap_at(connection, at))


def past_tail(tail: LogTail, at: float, ended_at: float | None) -> LogTail:
    """The part of a log that had been written at a moment. ``ended_at`` is the end of its attempt, None while it runs;
    both are UTC unix seconds."""
    if not tail.lines or (ended_at is not None and ended_at <= at):
        return tail
    count = lines_by(tail.lines, at)
    if count is None:
        return tail._replace(past_note=TIMELESS)
    if not count and not tail.is_whole:
        return tail._replace(lines=(), levels=b"", problem=TOO_LONG_AGO)
    return tail._replace(lines=tail.lines[:count], levels=tail.levels[:count], past_note=UP_TO_THEN)
