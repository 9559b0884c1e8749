"""What became of the agent before this one."""

from __future__ import annotations

import sqlite3

from gputui.charts.units import duration
from gputui.runs.identity import boot_id
from gputui.store.events import add_event


def note_predecessor(connection: sqlite3.Connection, now: float) -> None:
    """An event where the agent before this one did not leave by itself: what happened meanwhile was not recorded.

    ``now`` is UTC unix seconds. Raises sqlite3.Error.
    """
    row = connection.execute("SELECT pid, boot_id, heartbeat_at FROM agent WHERE ended_at IS NULL").fetchone()
    if row is None:
        return
    pid, boot, heartbeat_at = row
    lost = duration(max(0.0, now - heartbeat_at))
    if boot == boot_id():
        words = f"the agent (pid {pid}) was killed or crashed and another took over; GPUs and host were not recorded"
    else:
        words = "the machine went down while the agent ran; GPUs and host were not recorded"
    add_event(connection, "recording_interrupted", f"{words} for {lost}", now=now, severity="warning")
