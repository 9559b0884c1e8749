"""Periodic maintenance: sizes of logs and runs, orphaned processes, a warning about logouts."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from gputui.agent.context import AgentContext
from gputui.agent.jobs import JobKey, Purpose
from gputui.agent.log_sizes import LogBounds, rotate
from gputui.agent.removal import finish_removals
from gputui.core.units import bytes_text, duration
from gputui.machine.systemd import logout_end
from gputui.runs import orphans, repository
from gputui.runs.disk_use import folder_bytes
from gputui.runs.identity import ProcessIdentity, is_of_this_boot
from gputui.store.attempts import Attempt
from gputui.store.events import has_event

log = logging.getLogger(__name__)

FILES_SECONDS = 10.0  # a run whose folder was removed is told of soon enough
LOOK_SECONDS = 30.0
ORPHANS_SECONDS = 60.0  # reads /proc of every process, also on a busy machine
SIZES_SECONDS = 5.0  # between looks, once all runs that are over are measured
RUNS_AT_ONCE = 20  # a long job would keep others waiting for a thread
# Hundreds of thousands of files on a disk that is busy with checkpoints.
FOLDER_SECONDS = 120.0
TICKET_SECONDS = 3600.0  # its command is answered or forgotten long before


@dataclass(slots=True)
class Maintenance:
    """The maintenance of one state directory."""

    context: AgentContext
    files_at: float = 0.0
    orphans: OrphanWatch = field(init=False)
    log_bounds: LogBounds = field(init=False)
    run_sizes: RunSizes = field(init=False)

    def __post_init__(self) -> None:
        self.orphans = OrphanWatch(self.context)
        self.log_bounds = LogBounds(self.context)
        self.run_sizes = RunSizes(self.context)

    def begin(self) -> None:
        """Warn once per database if a logout would end the agent, and complete the removals of a
        former agent. Raises sqlite3.Error and OSError."""
        finish_removals(self.context)
        end = logout_end()
        if end is not None and not has_event(self.context.connection, "logout_ends_agent"):
            text = f"{end.problem}: {end.remedy}"
            self.context.note("logout_ends_agent", text, severity="warning")

    def poll(self, now: float, living: Iterable[Attempt]) -> None:
        """Do what is due; ``now`` is monotonic, ``living`` are the attempts that run. Raises
        sqlite3.Error."""
        self.orphans.poll(now)
        self.log_bounds.poll(now, living)
        self.run_sizes.poll(now)
        if now >= self.files_at:
            self.files_at = now + FILES_SECONDS
            rotate(self.context.workspace.agent_log)
            # Specifications whose command was withdrawn may contain secrets.
            for path in (self.context.workspace.state / "inbox").glob("*.json*"):
                # Its command may take it away at the same time.
                with suppress(FileNotFoundError):
                    if self.context.now() - path.stat().st_mtime > TICKET_SECONDS:
                        path.unlink()


def note_predecessor(context: AgentContext) -> None:
    """Add an event if the previous agent crashed or was killed: there is a gap in the record.
    Raises sqlite3.Error."""
    row = context.connection.execute("SELECT pid, boot_id, heartbeat_at FROM agent WHERE ended_at IS NULL").fetchone()
    if row is None:
        return
    pid, boot, heartbeat_at = row
    why = "the machine went down while the agent ran"
    if is_of_this_boot(boot):
        why = f"the agent (pid {pid}) was killed or crashed and another took over"
    lost = duration(max(0.0, context.now() - heartbeat_at))
    text = f"{why}; GPUs and host were not recorded for {lost}"
    context.note("recording_interrupted", text, severity="warning")


@dataclass(slots=True)
class OrphanWatch:
    """Reports each orphan once, when two scans in a row find it: a process may outlive its attempt.

    ``unclaimed`` are the orphans of the last scan.
    """

    context: AgentContext
    next_at: float = 0.0
    unclaimed: set[ProcessIdentity] = field(default_factory=set)

    def poll(self, now: float) -> None:
        """Start a scan if it is due, and report its results; ``now`` is monotonic. Raises
        sqlite3.Error, or OSError if procfs cannot be read."""
        if now < self.next_at:
            return
        find = partial(orphans.find_marked, self.context.workspace.runs)
        job = self.context.jobs.ask(JobKey(Purpose.ORPHANS), find, deadline_seconds=ORPHANS_SECONDS)
        if job is None:
            return
        self.next_at = now + LOOK_SECONDS
        marked = job.result()
        connection = self.context.connection
        unclaimed: list[orphans.MarkedProcess] = []
        if marked:
            unclaimed = orphans.orphans(marked, repository.run_statuses(connection))
        for orphan in unclaimed:
            key = str(orphan.identity.pid)
            is_reported = has_event(connection, "orphan", run_id=orphan.run_id, key=key)
            if orphan.identity in self.unclaimed and not is_reported:
                memory_bytes = self.context.recorder.memory_of(*orphan.identity[:2])
                text = f"process {key} is still alive"
                if memory_bytes:
                    text += f" and holds {bytes_text(memory_bytes)} of GPU memory"
                text += ", though its attempt is over; gputui agent orphans --kill ends it"
                self.context.note("orphan", text, orphan.run_id, orphan.attempt, key=key, severity="warning")
        self.unclaimed = {orphan.identity for orphan in unclaimed}


@dataclass(slots=True)
class RunSizes:
    """Measures the folder of each run that is over once, so that lists of runs are quick.

    ``unreadable`` are the run and the end (UTC unix seconds) of those whose folder cannot be measured.
    """

    context: AgentContext
    next_at: float = 0.0
    unreadable: set[tuple[str, float]] = field(default_factory=set)

    def poll(self, now: float) -> None:
        """Store what was measured, and look for more; ``now`` is monotonic. Raises sqlite3.Error."""
        if now < self.next_at:
            return
        ends = [end for end in repository.unmeasured_runs(self.context.connection) if end not in self.unreadable]
        if not ends:
            self.next_at = now + SIZES_SECONDS
            return
        work = partial(self._measure, ends[:RUNS_AT_ONCE])
        most_seconds = RUNS_AT_ONCE * FOLDER_SECONDS
        job = self.context.jobs.ask(JobKey(Purpose.RUN_SIZES), work, deadline_seconds=most_seconds)
        if job is None:
            return
        for end, size_bytes in job.result():
            if size_bytes is None:
                self.unreadable.add(end)
            else:
                repository.set_size(self.context.connection, *end, size_bytes)

    def _measure(self, ends: Sequence[tuple[str, float]]) -> list[tuple[tuple[str, float], int | None]]:
        folder = self.context.workspace.run_dir
        return [(end, folder_bytes(folder(end[0]), FOLDER_SECONDS)) for end in ends]
