"""Since when a GPU has computed nothing, and since when the processes on it have been there.

Times are UTC unix seconds. Every function raises sqlite3.Error.
"""

from __future__ import annotations

import json
import sqlite3
from typing import NamedTuple

from gputui.store import samples, series

LOOK_BACK_SECONDS = 86_400.0
"""Samples are looked through for so long; a GPU that was idle all the while was idle for so long at least."""

_FIRST_LOOK_SECONDS = 900.0
SETS_READ = 500


class Idleness(NamedTuple):
    """``since``: the first sample from which on nothing ran, None where something runs. ``was_busy``: whether anything
    ran before it, in the time that was looked at."""

    since: float | None
    was_busy: bool


def idleness(connection: sqlite3.Connection, uuid: str, after: float, now: float) -> Idleness:
    """What the samples of a GPU tell from ``after`` on, of LOOK_BACK_SECONDS at most."""
    row = connection.execute("SELECT gpu_id FROM gpus WHERE uuid = ?", (uuid,)).fetchone()
    since: float | None = None
    oldest = max(after, now - LOOK_BACK_SECONDS)
    end, span = now + 1.0, _FIRST_LOOK_SECONDS
    while row is not None and end > oldest:
        begin = max(oldest, end - span)
        found = samples.between(connection, series.GPU, row[0], ("utilization_percent",), begin, end)
        for at, used in reversed(found):
            if used is not None and used > 0:
                return Idleness(since, was_busy=True)
            since = at if used is not None else since
        end, span = begin, span * 4
    return Idleness(since, was_busy=False)


def present_since(connection: sqlite3.Connection, uuid: str) -> dict[int, float]:
    """For each process on a GPU, by PID, since when it has been on the list of the driver without a break."""
    rows = connection.execute(
        "SELECT at, processes FROM gpu_process_sets WHERE gpu_id = (SELECT gpu_id FROM gpus WHERE uuid = ?) "
        "ORDER BY at DESC LIMIT ?",
        (uuid, SETS_READ),
    )
    since: dict[int, float] = {}
    staying: set[int] | None = None
    for at, text in rows:
        pids = {process["pid"] for process in json.loads(text)} if text else set()
        staying = pids if staying is None else staying & pids
        if not staying:
            break
        since |= dict.fromkeys(staying, at)
    return since
