"""When a line of a log was written: dates of ISO 8601, as most loggers write them, and glog's.

A time of day without a day does not count: a log may go on for days.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

# A stamp begins within so many characters.
_HEAD_CHARACTERS = 96
_STAMP = re.compile(
    r"[\[(\"']?(?:"
    r"(?P<day>\d{4}-\d\d-\d\d)[T ](?P<clock>\d\d:\d\d:\d\d)(?:[.,](?P<part>\d{1,6}))?\d*(?P<zone>Z|[+-]\d\d:?\d\d)?"
    r"|[IWEF](?P<month>\d\d)(?P<date>\d\d) (?P<glog>\d\d:\d\d:\d\d))"
)
# What stands before a stamp: text in brackets, a level, a name with a colon, a word in quotes (of JSON), a separator.
_BEFORE_STAMP = re.compile(
    r"\[[^\]]{0,60}\]|\([^)]{0,60}\)|<[^>]{0,60}>|(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)\b|[\w.@/-]{1,40}:|\""
    r"\w{1,20}\"|[\s{|:,-]"
)


def line_time(line: str, near: float) -> float | None:
    """When the line was written, in UTC unix seconds; None if it does not begin with a stamp, behind what launchers and
    loggers put before one. A stamp without a zone is local time; one without a year is of the year that brings it
    nearest to ``near`` (UTC unix seconds)."""
    found = _stamp(line[:_HEAD_CHARACTERS])
    if found is None:
        return None
    if found["glog"] is not None:
        year = datetime.fromtimestamp(near).year
        stamps = [
            _seconds(f"{one}-{found['month']}-{found['date']}T{found['glog']}") for one in (year, year - 1, year + 1)
        ]
        return min((stamp for stamp in stamps if stamp is not None), key=lambda stamp: abs(stamp - near), default=None)
    zone = (found["zone"] or "").replace("Z", "+00:00")
    part = f".{found['part']:0<6}" if found["part"] else ""
    return _seconds(f"{found['day']}T{found['clock']}{part}{zone}")


def lines_by(lines: Sequence[str], at: float) -> int | None:
    """How many of the lines had been written by a moment (UTC unix seconds); None if no line has a time. A line without
    a time belongs to the one before it."""
    is_timed = False
    for number in range(len(lines) - 1, -1, -1):
        written_at = line_time(lines[number], at)
        if written_at is None:
            continue
        is_timed = True
        if written_at <= at:
            return _next_timed(lines, number + 1, at)
    return 0 if is_timed else None


def _stamp(head: str) -> re.Match[str] | None:
    """The stamp with which a line begins, behind any number of prefixes."""
    position = 0
    while True:
        found = _STAMP.match(head, position)
        if found is not None:
            return found
        before = _BEFORE_STAMP.match(head, position)
        if before is None:
            return None
        position = before.end()


def _seconds(text: str) -> float | None:
    """UTC unix seconds of a date of ISO 8601; None if there is no such day."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _next_timed(lines: Sequence[str], number: int, near: float) -> int:
    """The index of the first line with a time from ``number`` on; their count if there is none."""
    while number < len(lines) and line_time(lines[number], near) is None:
        number += 1
    return number
