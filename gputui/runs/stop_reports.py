"""The traceback of a launcher that was asked to end, which is no failure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from gputui.runs.logs import TRACEBACK

# Those of torchrun and of launchers built on it.
_STOP_EXCEPTION = re.compile(r"\b(SignalException|SIGTERMException)\b")
# The traceback is within this many lines of the end of a log.
_MOST_LINES = 100


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
                if found := _STOP_EXCEPTION.search(lines[last]):
                    return StopReport(first, last, found[1])
            return None
    return None
