"""How grave a line of a log is, told from its words: logging's levels, glog's letters, Python's errors and tracebacks,
NCCL's warnings."""

from __future__ import annotations

import re
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
