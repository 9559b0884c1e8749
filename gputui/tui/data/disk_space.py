"""Whether the disk of the state directory is full, which keeps the agent from recording and says nothing by itself."""

from __future__ import annotations

import os
import time
from pathlib import Path

from gputui.store.agent import AgentView

LEAST_BYTES = 1 << 20
"""With less than this free the database cannot grow by a transaction and its log."""

SILENT_SECONDS = 3.0
"""An agent that can write tells of itself at least this often, beyond its interval."""


def full_disk_words(state: Path, agent: AgentView | None, now: float) -> str | None:
    """A sentence when nothing is recorded because the disk is full; None while there is room, or while the agent
    still finds some. ``now`` is UTC unix seconds."""
    if agent is None or now - agent.heartbeat_at <= SILENT_SECONDS + agent.interval_seconds:
        return None
    try:
        disk = os.statvfs(state)
    except OSError:
        return None
    is_full = disk.f_bavail * disk.f_frsize < LEAST_BYTES or (disk.f_files > 0 and disk.f_favail == 0)
    if not is_full:
        return None
    return (
        f"The disk of {state} is full: nothing new is recorded until some of it is freed. What is shown is of "
        f"{time.strftime('%H:%M:%S', time.localtime(agent.heartbeat_at))}; runs go on."
    )
