"""What a line of a log says of itself: how grave it is (levels of logging, the letters of glog, Python's errors and
tracebacks, NCCL's warnings), and when it was written (ISO dates as most loggers write them, and glog's).

A time of day without a day is not taken for one: a log may last for days.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from enum import IntEnum


class Level(IntEnum):
    """How grave."""

    INFO = 0
    WARNING = 1
    ERROR = 2


_TRACEBACK = "Traceback (most recent call last)"
_PREFIX = re.compile(r"\[[^\]]{0,40}\]:?\s?")
_ERROR = re.compile(
    r"\b(?:ERROR|CRITICAL|FATAL)\b|\b[A-Z]\w*(?:Error|Exception)\b|^[EF][0-9]{4} |^(?:fatal )?error:|"
    r"Segmentation fault|core dumped|SIG(?:KILL|SEGV|ABRT|BUS)\b",
    re.MULTILINE,
)
_WARNING = re.compile(r"\bWARN(?:ING)?\b|\b[A-Z]?\w*Warning\b|^W[0-9]{4} |^warning:", re.MULTILINE)


class LevelReader:
    """Tells the levels of lines one after the other; the lines of a traceback belong together."""

    def __init__(self) -> None:
        self._in_traceback = False

    def level(self, line: str) -> Level:
        if self._in_traceback:
            bare = _bare(line)
            # The first line that is not set in names the exception; a traceback without one is over at an empty line.
            self._in_traceback = bare.startswith((" ", "\t"))
            if bare.strip():
                return Level.ERROR
        if _TRACEBACK in line:
            self._in_traceback = True
            return Level.ERROR
        if _ERROR.search(line):
            return Level.ERROR
        return Level.WARNING if _WARNING.search(line) else Level.INFO


def _bare(line: str) -> str:
    """The line without what launchers put before it: ``[rank0]: ``."""
    found = _PREFIX.match(line)
    return line[found.end() :] if found else line


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
