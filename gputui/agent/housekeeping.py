"""Periodic upkeep: log sizes, orphaned processes, and a warning about logouts."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, field

from gputui.agent import agent_log
from gputui.agent.context import AgentContext
from gputui.agent.health.log_bounds import AttemptFolder, LogBounds
from gputui.agent.health.orphan_watch import OrphanWatch
from gputui.core.units import duration
from gputui.machine.systemd import logout_end
from gputui.runs.identity import is_of_this_boot
from gputui.store.events import add_event, has_event

log = logging.getLogger(__name__)

LOG_SECONDS = 10.0


@dataclass(slots=True)
class Housekeeping:
    """The upkeep of one state directory."""

    context: AgentContext
    log_at: float = 0.0
    log_is_stuck: bool = False
    orphans: OrphanWatch = field(init=False)
    log_bounds: LogBounds = field(init=False)

    def __post_init__(self) -> None:
        self.orphans = OrphanWatch(self.context)
        self.log_bounds = LogBounds(self.context)

    def begin(self) -> None:
        """Warn once per database if a logout would end the agent. Raises sqlite3.Error."""
        end = logout_end()
        if end is not None and not has_event(self.context.connection, "logout_ends_agent"):
            text = f"{end.problem}: {end.remedy}"
            add_event(self.context.connection, "logout_ends_agent", text, now=self.context.now(), severity="warning")

    def turn(self, now: float, living: Iterable[AttemptFolder]) -> None:
        """Do what is due; ``now`` is monotonic, ``living`` are the attempts that run. Raises sqlite3.Error."""
        self.orphans.turn(now)
        self.log_bounds.turn(now, living)
        if now >= self.log_at:
            self.log_at = now + LOG_SECONDS
            self._bound_log()

    def _bound_log(self) -> None:
        try:
            agent_log.rotate(self.context.workspace.agent_log)
            self.log_is_stuck = False
        except OSError as error:
            # Logged once: repetitions would make the log grow faster.
            if not self.log_is_stuck:
                log.warning("%s cannot be rotated: %s", self.context.workspace.agent_log, error)
            self.log_is_stuck = True


def note_predecessor(connection: sqlite3.Connection, now: float) -> None:
    """Add an event if the previous agent crashed or was killed: there is a gap in the record.

    ``now`` is UTC unix seconds. Raises sqlite3.Error.
    """
    row = connection.execute("SELECT pid, boot_id, heartbeat_at FROM agent WHERE ended_at IS NULL").fetchone()
    if row is None:
        return
    pid, boot, heartbeat_at = row
    lost = duration(max(0.0, now - heartbeat_at))
    if is_of_this_boot(boot):
        words = f"the agent (pid {pid}) was killed or crashed and another took over; GPUs and host were not recorded"
    else:
        words = "the machine went down while the agent ran; GPUs and host were not recorded"
    add_event(connection, "recording_interrupted", f"{words} for {lost}", now=now, severity="warning")
