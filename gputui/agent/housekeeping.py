"""Periodic upkeep: log sizes, orphaned processes, and a warning about logouts."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from gputui.agent import lock
from gputui.agent.context import AgentContext
from gputui.agent.health.log_bounds import AttemptFolder, LogBounds
from gputui.agent.jobs import Job
from gputui.core.units import bytes_text, duration
from gputui.machine.systemd import logout_end
from gputui.runs import orphans, repository
from gputui.runs.identity import ProcessIdentity, is_of_this_boot
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
            lock.rotate(self.context.workspace.agent_log)
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


# An orphan is reported when the second scan finds it: by then, processes of an attempt that just
# ended are gone.
LOOK_SECONDS = 30.0
DEADLINE_SECONDS = 60.0


@dataclass(slots=True)
class OrphanWatch:
    """Reports each orphan once, when two scans in a row find it: a process may outlive its attempt
    for a moment. ``seen`` are the orphans of the last scan."""

    context: AgentContext
    next_at: float = 0.0
    seen: set[ProcessIdentity] = field(default_factory=set)
    reported: set[ProcessIdentity] = field(default_factory=set)
    scan: Job[list[orphans.MarkedProcess]] | None = None

    def turn(self, now: float) -> None:
        """Start a scan if it is due, and report its results; ``now`` is monotonic. Raises
        sqlite3.Error, or OSError if procfs cannot be read."""
        if self.scan is None and now >= self.next_at:
            self.next_at = now + LOOK_SECONDS
            find = partial(orphans.find_marked, self.context.workspace.runs)
            self.scan = self.context.jobs.start("looking for orphans", find, deadline_seconds=DEADLINE_SECONDS)
        if self.scan is None or not self.scan.is_over:
            return
        scan, self.scan = self.scan, None
        marked = scan.result()
        current = orphans.orphans(marked, repository.run_statuses(self.context.connection)) if marked else []
        for orphan in current:
            if orphan.identity in self.seen and orphan.identity not in self.reported:
                self._report(orphan)
                self.reported.add(orphan.identity)
        self.seen = {orphan.identity for orphan in current}
        self.reported &= self.seen

    def _report(self, orphan: orphans.MarkedProcess) -> None:
        pid = orphan.identity.pid
        if has_event(self.context.connection, "orphan", run_id=orphan.run_id, key=str(pid)):
            # A former agent reported it.
            return
        memory_bytes = sum(
            process.memory_bytes or 0
            for processes in self.context.recorder.processes.values()
            for process in processes or ()
            if (process.pid, process.start_ticks) == (orphan.identity.pid, orphan.identity.start_ticks)
        )
        memory = f" and holds {bytes_text(memory_bytes)} of GPU memory" if memory_bytes else ""
        add_event(
            self.context.connection,
            "orphan",
            f"process {pid} is still alive{memory}, though its attempt is over; gputui orphans --kill ends it",
            now=self.context.now(),
            key=str(pid),
            severity="warning",
            run_id=orphan.run_id,
            attempt=orphan.attempt,
        )
