"""Looking for orphans now and then, and saying so once for each."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from gputui.agent.context import AgentContext
from gputui.agent.jobs import Job
from gputui.charts.units import bytes_text
from gputui.runs import orphans, repository
from gputui.runs.identity import ProcessIdentity
from gputui.store.events import add_event, has_event

# Long enough that the processes of an attempt that has just ended are gone by the second look.
LOOK_SECONDS = 30.0
DEADLINE_SECONDS = 60.0


@dataclass(slots=True)
class OrphanWatch:
    """Orphans of the last scan, and those already reported."""

    context: AgentContext
    next_at: float = 0.0
    seen: set[ProcessIdentity] = field(default_factory=set)
    reported: set[ProcessIdentity] = field(default_factory=set)
    look: Job[list[orphans.MarkedProcess]] | None = None

    def turn(self, now: float) -> None:
        """Look when it is time, and take what was found; ``now`` is monotonic. Raises sqlite3.Error, and OSError where
        procfs cannot be read."""
        if self.look is None and now >= self.next_at:
            self.next_at = now + LOOK_SECONDS
            find = partial(orphans.find_marked, self.context.workspace.runs)
            self.look = self.context.jobs.start("looking for orphans", find, deadline_seconds=DEADLINE_SECONDS)
        if self.look is None or not self.look.is_over:
            return
        look, self.look = self.look, None
        found = look.result()
        found = orphans.orphans(found, repository.standings(self.context.connection)) if found else []
        for orphan in found:
            if orphan.identity in self.seen and orphan.identity not in self.reported:
                self._tell(orphan)
                self.reported.add(orphan.identity)
        self.seen = {orphan.identity for orphan in found}
        self.reported &= self.seen

    def _tell(self, orphan: orphans.MarkedProcess) -> None:
        pid = orphan.identity.pid
        if has_event(self.context.connection, "orphan", run_id=orphan.run_id, key=str(pid)):
            # A former agent reported it.
            return
        held = self._gpu_bytes(orphan.identity)
        memory = f" and holds {bytes_text(held)} of GPU memory" if held else ""
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

    def _gpu_bytes(self, identity: ProcessIdentity) -> int:
        return sum(
            process.memory_bytes or 0
            for held in self.context.recorder.processes.values()
            for process in held or ()
            if (process.pid, process.start_ticks) == (identity.pid, identity.start_ticks)
        )
