"""The traceback with which a launcher ends because it was asked to end: no failure, though it looks like one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from gputui.runs.log_levels import TRACEBACK

# torchrun's, and that of launchers that end with it.
_STOP_EXCEPTION = re.compile(r"\b(SignalException|SIGTERMException)\b")
# The traceback is looked for in so many lines at the end of a log.
_MOST_LINES = 100


class StopReport(NamedTuple):
    """The indexes of the first and the last line of such a traceback, and its exception."""

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
