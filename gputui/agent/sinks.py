"""The process that writes the sinks of all runs: started when a run with sinks changes its state."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from gputui.agent.children import Child
from gputui.agent.context import AgentContext
from gputui.core.units import duration
from gputui.reports.export.exporter import LOCK_FILE, LOG_FILE, RECENT_SECONDS
from gputui.store.metrics.exported import runs_with_sinks

log = logging.getLogger(__name__)

AGAIN_SECONDS = (2.0, 5.0, 15.0, 60.0, 300.0)
"""Delays before a restart, by the number of consecutive failures."""
_MAX_FAILURES = 3
"""An agent that nobody needs stays for so many failures of the process."""


@dataclass(slots=True)
class Sinks:
    """The exporter of one home. ``is_needed``: something may be left that the process which was
    started last does not know of."""

    context: AgentContext
    child: Child = field(init=False)
    is_needed: bool = False
    newest_transition: int = 0
    reported: str = ""

    def __post_init__(self) -> None:
        state = self.context.workspace.state
        arguments = ("--state", str(state))
        lock = state / LOCK_FILE
        log_file = state / LOG_FILE
        self.child = Child("gputui.reports.export.exporter", arguments, lock, log_file, AGAIN_SECONDS)

    def turn(self) -> None:
        """Start or restart the process if it is needed; called once a second. Raises
        sqlite3.Error."""
        context = self.context
        child = self.child
        recent = context.now() - RECENT_SECONDS
        self.newest_transition, changed = runs_with_sinks(context.connection, self.newest_transition, recent)
        self.is_needed |= bool(changed)
        was_running = child.is_running
        was_adopted = child.adopted is not None
        if not (was_running or self.is_needed):
            return
        problem = child.turn(context.monotonic())
        if child.is_running and not was_running:
            # It finds all that there is until now.
            self.is_needed = False
        elif problem is not None or (was_adopted and not child.is_running):
            # How an adopted process ended is unknown.
            self.is_needed = True
        if problem is not None:
            seconds = duration(child.next_start - context.monotonic())
            log.warning("exporter: %s; again in %s", problem, seconds)
            if problem != self.reported:
                self.reported = problem
                text = f"exporter: {problem}; runs continue; it will be restarted"
                context.note("exporter_failed", text, severity="warning")

    def is_busy(self) -> bool:
        """Return whether something may be left to write."""
        is_hopeful = self.child.failures < _MAX_FAILURES
        return self.child.is_running or (self.is_needed and is_hopeful)

    def close(self) -> None:
        """Release the process; it continues, and the next agent adopts it."""
        self.child.release()
