"""The traceback with which a launcher ends because it was asked to end: no failure, though it looks like one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gputui.runs.log_levels import TRACEBACK

# torchrun's, and that of launchers that end with it.
_STOP_EXCEPTION = re.compile(r"\b(SignalException|SIGTERMException)\b")
# The traceback is looked for in so many lines at the end of a log.
_MOST_LINES = 100


def _stop_exception(text: str) -> str | None:
    """The newest exception in the text by which a launcher reports that it was asked to end."""
    found = _STOP_EXCEPTION.findall(text)
    return found[-1] if found else None


def stop_report(lines: Sequence[str]) -> tuple[int, str] | None:
    """The index of the line at which the last traceback begins, and its exception; None if the lines do not end with a
    report of a stop."""
    for number in range(len(lines) - 1, max(-1, len(lines) - 1 - _MOST_LINES), -1):
        if TRACEBACK in lines[number]:
            name = _stop_exception("\n".join(lines[number:]))
            return None if name is None else (number, name)
    return None
