"""The severity of a log line, by the levels of logging, the letters of glog, Python's errors and tracebacks, and NCCL's
warnings."""

from __future__ import annotations

import re
from enum import IntEnum

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
            # The first line that is not indented names the exception. A traceback without one ends at an empty line.
            self._in_traceback = bare.startswith((" ", "\t"))
            if bare.strip():
                return Level.ERROR
        if TRACEBACK in line:
            self._in_traceback = True
            return Level.ERROR
        if _ERROR.search(line):
            return Level.ERROR
        return Level.WARNING if _WARNING.search(line) else Level.INFO
