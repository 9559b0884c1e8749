"""Periodic search for orphaned processes; each is reported once."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from gputui.agent.context import AgentContext
from gputui.agent.jobs import Job
from gputui.core.units import bytes_text
from gputui.runs import orphans, repository
from gputui.runs.identity import ProcessIdentity
from gputui.store.events import add_event, has_event

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
