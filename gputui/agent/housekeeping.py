"""Periodic upkeep: sizes of logs, orphaned processes, folders of removed runs, a warning about
logouts."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from gputui.agent.context import AgentContext
from gputui.agent.log_sizes import DEADLINE_SECONDS, LogBounds, rotate
from gputui.core.config import PRIVATE_DIR_MODE, Workspace
from gputui.core.units import bytes_text, duration
from gputui.machine.systemd import logout_end
from gputui.runs import orphans, repository
from gputui.runs.executors import EXECUTORS, Executors
from gputui.runs.identity import ProcessIdentity, is_of_this_boot
from gputui.runs.spec import SpecError
from gputui.runs.submission import SPEC_FILE, read_spec
from gputui.store.attempts import Attempt
from gputui.store.events import has_event
from gputui.store.runs import get_run

log = logging.getLogger(__name__)

LOG_SECONDS = 10.0
LOOK_SECONDS = 30.0
ORPHANS_SECONDS = 60.0
TICKET_SECONDS = 3600.0


@dataclass(slots=True)
class Housekeeping:
    """The upkeep of one state directory."""

    context: AgentContext
    log_at: float = 0.0
    orphans: OrphanWatch = field(init=False)
    log_bounds: LogBounds = field(init=False)

    def __post_init__(self) -> None:
        self.orphans = OrphanWatch(self.context)
        self.log_bounds = LogBounds(self.context)

    def begin(self) -> None:
        """Warn once per database if a logout would end the agent, and complete what a former agent
        began. Raises sqlite3.Error and OSError."""
        delete_old_tickets(self.context)
        finish_removals(self.context)
        end = logout_end()
        if end is not None and not has_event(self.context.connection, "logout_ends_agent"):
            text = f"{end.problem}: {end.remedy}"
            self.context.note("logout_ends_agent", text, severity="warning")

    def turn(self, now: float, living: Iterable[Attempt]) -> None:
        """Do what is due; ``now`` is monotonic, ``living`` are the attempts that run. Raises
        sqlite3.Error."""
        self.orphans.turn(now)
        self.log_bounds.turn(now, living)
        if now >= self.log_at:
            self.log_at = now + LOG_SECONDS
            rotate(self.context.workspace.agent_log)


def delete_old_tickets(context: AgentContext) -> None:
    """Delete specifications whose command was withdrawn: they may contain secrets."""
    for path in (context.workspace.state / "inbox").glob("*.json*"):
        if context.now() - path.stat().st_mtime > TICKET_SECONDS:
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
    """Reports each orphan once, when two scans in a row find it: a process may outlive its attempt
    for a moment. ``seen`` are the orphans of the last scan."""

    context: AgentContext
    next_at: float = 0.0
    seen: set[ProcessIdentity] = field(default_factory=set)

    def turn(self, now: float) -> None:
        """Start a scan if it is due, and report its results; ``now`` is monotonic. Raises
        sqlite3.Error, or OSError if procfs cannot be read."""
        if now < self.next_at:
            return
        find = partial(orphans.find_marked, self.context.workspace.runs)
        job = self.context.jobs.ask("orphans", find, deadline_seconds=ORPHANS_SECONDS)
        if job is None:
            return
        self.next_at = now + LOOK_SECONDS
        marked = job.result()
        connection = self.context.connection
        found = orphans.orphans(marked, repository.run_statuses(connection)) if marked else []
        for orphan in found:
            key = str(orphan.identity.pid)
            if orphan.identity not in self.seen:
                continue
            if has_event(connection, "orphan", run_id=orphan.run_id, key=key):
                continue
            memory_bytes = sum(
                process.memory_bytes or 0
                for processes in self.context.recorder.processes.values()
                for process in processes or ()
                if (process.pid, process.start_ticks) == orphan.identity[:2]
            )
            memory = f" and holds {bytes_text(memory_bytes)} of GPU memory" if memory_bytes else ""
            remedy = "though its attempt is over; gputui orphans --kill ends it"
            text, number = f"process {key} is still alive{memory}, {remedy}", orphan.attempt
            self.context.note("orphan", text, orphan.run_id, number, key=key, severity="warning")
        self.seen = {orphan.identity for orphan in found}


# --- folders of removed runs --------------------------------------------------------------------
# A run's row is deleted in the transaction of the command's answer, its metrics lines by the
# janitor, and its folder, once it lies in ``removed``, by a job. The successor of a killed agent
# finds there what is left to delete.


def move_to_removed(workspace: Workspace, run_id: str) -> Path | None:
    """Move a run's folder to ``removed``; None if there is none. Raises OSError with nothing
    changed."""
    folder = workspace.run_dir(run_id)
    if not folder.exists():
        return None
    removed = workspace.state / "removed"
    removed.mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
    number = 1
    while (target := removed / f"{run_id}.{number}").exists():
        number += 1
    return folder.rename(target)


def finish_removals(context: AgentContext) -> None:
    """Delete the folders that a former agent left. One whose run still exists is moved back,
    because its removal was not completed."""
    removed = context.workspace.state / "removed"
    for path in list(removed.iterdir()) if removed.is_dir() else []:
        origin = context.workspace.run_dir(path.name.rpartition(".")[0])
        if get_run(context.connection, origin.name) is not None and not origin.exists():
            path.rename(origin)
        else:
            delete_folder(context, path)


def delete_folder(context: AgentContext, folder: Path) -> None:
    """Delete a removed folder in a job: large checkpoints take minutes."""
    work = partial(_delete, folder, context.executors)
    context.jobs.start(f"remove {folder.name}", work, deadline_seconds=DEADLINE_SECONDS)


def _delete(folder: Path, executors: Executors) -> None:
    """Delete a run's folder, and its files on its target. If the target cannot be reached, the
    records with its address stay here."""
    target = None
    with suppress(SpecError):
        target = read_spec(folder / SPEC_FILE).target
    try:
        if target is not None and target.get("kind") in EXECUTORS:
            executors.of(target).clear(folder, target)
        shutil.rmtree(folder)
    except OSError as error:
        log.warning("%s is not removed, the next agent tries again: %s", folder.name, error)
        for path in folder.rglob("*"):
            if path.suffix != ".json" and (path.is_symlink() or not path.is_dir()):
                with suppress(OSError):
                    path.unlink()
