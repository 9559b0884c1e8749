"""When a line of a log was written, where it says so itself: ISO dates as most loggers write them, and glog's letters.

A time of day without a day is not taken for one: a log may last for days.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

_HEAD_CHARACTERS = 96
_STAMP = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d)[T ](?P<clock>\d\d:\d\d:\d\d)(?:[.,](?P<part>\d{1,6}))?\d*(?P<zone>Z|[+-]\d\d:?\d\d)?"
    r"|\b[IWEF](?P<month>\d\d)(?P<date>\d\d) (?P<glog>\d\d:\d\d:\d\d)"
)


def line_time(line: str, near: float) -> float | None:
    """When the line was written, in UTC unix seconds; None where it does not begin with that. A stamp without a zone
    is local time; one without a year is of the year of ``near``."""
    found = _STAMP.search(line[:_HEAD_CHARACTERS])
    if found is None:
        return None
    try:
        if found["glog"] is not None:
            year = datetime.fromtimestamp(near).year
            return datetime.fromisoformat(f"{year}-{found['month']}-{found['date']}T{found['glog']}").timestamp()
        zone = (found["zone"] or "").replace("Z", "+00:00")
        part = f".{found['part']:0<6}" if found["part"] else ""
        return datetime.fromisoformat(f"{found['day']}T{found['clock']}{part}{zone}").timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def lines_by(lines: Sequence[str], at: float) -> int | None:
    """How many of the lines had been written by a moment (UTC unix seconds); None where no line tells a time. A line
    without a time belongs to the one before it."""
    is_timed = False
    for number in range(len(lines) - 1, -1, -1):
        written_at = line_time(lines[number], at)
        if written_at is None:
            continue
        is_timed = True
        if written_at <= at:
            return _following(lines, number + 1, at)
    return 0 if is_timed else None


def _following(lines: Sequence[str], number: int, at: float) -> int:
    while number < len(lines) and line_time(lines[number], at) is None:
        number += 1
    return number
