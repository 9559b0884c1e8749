"""Facts from single lines of a log: severity, time of writing, and the traceback of a stop."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from enum import IntEnum
from typing import NamedTuple

TRACEBACK = "Traceback (most recent call last)"
"""The first line of a Python traceback contains it."""

# ``[rank0]: ``, which launchers put before a line.
_PREFIX = re.compile(r"^\[[^\]]{0,40}\]:?\s?")
_ERROR = re.compile(
    r"\b(?:ERROR|CRITICAL|FATAL)\b|\b[A-Z]\w*(?:Error|Exception)\b|(?:^|\[)[EF][0-9]{3,8} \d\d:|^[EF][0-9]{4} |"
    r"^(?:fatal )?error:|Segmentation fault|core dumped|SIG(?:KILL|SEGV|ABRT|BUS)\b",
    re.MULTILINE,
)
_WARNING = re.compile(r"\bWARN(?:ING)?\b|\b\w*Warning\b|(?:^|\[)W[0-9]{3,8} \d\d:|^W[0-9]{4} |^warning:", re.MULTILINE)

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
# Text before a timestamp: in brackets, a level, a name with a colon, a quoted word (of JSON), a
# separator.
_BEFORE_STAMP = re.compile(
    r"""\[[^\]]{0,60}\] | \([^)]{0,60}\) | <[^>]{0,60}> | (?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)\b |
    [\w.@/-]{1,40}: | "\w{1,20}" | [\s{|:,-]""",
    re.VERBOSE,
)

# Those of torchrun and of launchers built on it.
_STOP_EXCEPTION = re.compile(r"\b(?P<type>SignalException|SIGTERMException)\b")
# The traceback is within this many lines of the end of a log.
_MOST_LINES = 100


class Level(IntEnum):
    """The severity of a log line."""

    INFO = 0
    WARNING = 1
    ERROR = 2


class LevelReader:
    """Determines the levels of a log's lines, in order; all lines of a traceback are errors."""

    def __init__(self) -> None:
        self._in_traceback = False

    def level(self, line: str) -> Level:
        """The level of the next line."""
        if self._in_traceback:
            bare = _PREFIX.sub("", line)
            # The first line that is not indented names the exception. A traceback without one ends
            # at an empty line.
            self._in_traceback = bare.startswith((" ", "\t"))
            if bare.strip():
                return Level.ERROR
        if TRACEBACK in line:
            self._in_traceback = True
            return Level.ERROR
        if _ERROR.search(line):
            return Level.ERROR
        if _WARNING.search(line):
            return Level.WARNING
        return Level.INFO


def line_time(line: str, near: float) -> float | None:
    """The time of a line, in UTC unix seconds.

    A timestamp without a zone is local time.

    Args:
        near: a timestamp without a year is in the year that brings it nearest to this time (UTC unix seconds).

    Returns:
        None if no timestamp is at its start, after the prefixes of launchers and loggers.
    """
    position = 0
    while position < _BEGINS_WITHIN:
        if match := _ISO.match(line, position):
            zone = (match["zone"] or "").strip()
            if zone.isalpha():
                zone = "+00:00"
            return _seconds(f"{match['day']}T{match['clock']}{_fraction(match)}{zone}")
        if match := _GLOG.match(line, position):
            return _glog_seconds(match, near)
        before = _BEFORE_STAMP.match(line, position)
        if before is None:
            return None
        position = before.end()
    return None


def lines_by(lines: Sequence[str], at: float) -> int | None:
    """The number of lines written by a time (UTC unix seconds); None if no line has a time.

    Lines are in time order, and one without a time belongs to the line before it.
    """
    later: int | None = None
    # The time asked for is mostly near the end.
    for number in range(len(lines) - 1, -1, -1):
        written_at = line_time(lines[number], at)
        if written_at is None:
            continue
        if written_at <= at:
            if later is None:
                return len(lines)
            return later
        later = number
    if later is None:
        return None
    return 0


def _glog_seconds(match: re.Match[str], near: float) -> float | None:
    here = datetime.fromtimestamp(near).year
    years = (here, here - 1, here + 1) if match["year"] is None else (int(match["year"]),)
    rest = f"{int(match['month']):02}-{match['day']}T{match['clock']}{_fraction(match)}"
    stamps = [_seconds(f"{year}-{rest}") for year in years]
    return min((stamp for stamp in stamps if stamp is not None), key=lambda stamp: abs(stamp - near), default=None)


def _fraction(match: re.Match[str]) -> str:
    if match["fraction"]:
        return f".{match['fraction']:0<6}"
    return ""


def _seconds(text: str) -> float | None:
    """UTC unix seconds of an ISO 8601 date; None if there is no such day."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


class StopReport(NamedTuple):
    """The indexes of a stop traceback's first and last line, and its exception."""

    first: int
    last: int
    exception: str


def stop_report(lines: Sequence[str]) -> StopReport | None:
    """The last traceback near the end of the lines, if it is the report of a stop."""
    for first in range(len(lines) - 1, max(-1, len(lines) - 1 - _MOST_LINES), -1):
        if TRACEBACK in lines[first]:
            for last in range(len(lines) - 1, first, -1):
                if match := _STOP_EXCEPTION.search(lines[last]):
                    return StopReport(first, last, match["type"])
            return None
    return None
