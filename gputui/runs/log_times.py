"""The times of log lines: ISO 8601, as most loggers write them, and glog's.

A time of day without a date is ignored: a log may span days.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

# A timestamp begins within this many characters.
_BEGINS_WITHIN = 96
_ISO = re.compile(
    r"""[\[("']? (?P<day>\d{4}-\d\d-\d\d) [T\ ] (?P<clock>\d\d:\d\d:\d\d) (?:[.,](?P<fraction>\d{1,6})\d*)?
    (?P<zone>Z | [+-]\d\d(?::?\d\d)?(?!\d) | \ [+-]\d{4}\b | \ (?:Z|UTC|GMT)\b)?""",
    re.VERBOSE,
)
# The month of PyTorch's own C++ lines has no leading zero.
_GLOG = re.compile(
    r"""\[? [IWEF] (?P<year>\d{4}(?=\d{4}\ ))? (?P<month>\d{1,2}) (?P<day>\d\d) \ (?P<clock>\d\d:\d\d:\d\d)
    (?:\.(?P<fraction>\d{1,6})\d*)?""",
    re.VERBOSE,
)
# Text before a timestamp: in brackets, a level, a name with a colon, a quoted word (of JSON), a separator.
_BEFORE_STAMP = re.compile(
    r"""\[[^\]]{0,60}\] | \([^)]{0,60}\) | <[^>]{0,60}> | (?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)\b |
    [\w.@/-]{1,40}: | "\w{1,20}" | [\s{|:,-]""",
    re.VERBOSE,
)


def line_time(line: str, near: float) -> float | None:
    """When the line was written, in UTC unix seconds; None if no timestamp is at its start, after the prefixes of
    launchers and loggers. A timestamp without a zone is local time; one without a year is in the year that brings it
    nearest to ``near`` (UTC unix seconds)."""
    position = 0
    while position < _BEGINS_WITHIN:
        if found := _ISO.match(line, position):
            zone = (found["zone"] or "").strip()
            return _seconds(f"{found['day']}T{found['clock']}{_fraction(found)}{'+00:00' if zone.isalpha() else zone}")
        if found := _GLOG.match(line, position):
            return _glog_seconds(found, near)
        before = _BEFORE_STAMP.match(line, position)
        if before is None:
            return None
        position = before.end()
    return None


def lines_by(lines: Sequence[str], at: float) -> int | None:
    """The number of lines written by a time (UTC unix seconds); None if no line has a time. Lines are in time order,
    and one without a time belongs to the line before it."""
    later: int | None = None
    # The time asked for is mostly near the end.
    for number in range(len(lines) - 1, -1, -1):
        written_at = line_time(lines[number], at)
        if written_at is None:
            continue
        if written_at <= at:
            return len(lines) if later is None else later
        later = number
    return None if later is None else 0


def _glog_seconds(found: re.Match[str], near: float) -> float | None:
    here = datetime.fromtimestamp(near).year
    years = (here, here - 1, here + 1) if found["year"] is None else (int(found["year"]),)
    rest = f"{int(found['month']):02}-{found['day']}T{found['clock']}{_fraction(found)}"
    stamps = [_seconds(f"{year}-{rest}") for year in years]
    return min((stamp for stamp in stamps if stamp is not None), key=lambda stamp: abs(stamp - near), default=None)


def _fraction(found: re.Match[str]) -> str:
    return f".{found['fraction']:0<6}" if found["fraction"] else ""


def _seconds(text: str) -> float | None:
    """UTC unix seconds of an ISO 8601 date; None if there is no such day."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
