"""Periodic upkeep: sizes of logs, orphaned processes, folders of removed runs, a warning about
logouts.

A rank keeps its log open, often without O_APPEND, so that the file can neither be renamed nor
truncated: the writer would continue at its old offset. Instead, a hole is punched into the middle
of a long log (fallocate(2), FALLOC_FL_PUNCH_HOLE): all other bytes keep their offset, and a line
before the gap says how much is missing. Readers skip the gap (`gputui.runs.logs`).
"""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from gputui.agent.context import AgentContext
from gputui.agent.lifecycle.run_files import attempt_dir
from gputui.core.config import PRIVATE_DIR_MODE, PRIVATE_FILE_MODE, Workspace
from gputui.core.units import bytes_text, duration
from gputui.machine.systemd import logout_end
from gputui.runs import orphans, repository
from gputui.runs.executors import EXECUTORS, Executors
from gputui.runs.identity import ProcessIdentity, is_of_this_boot
from gputui.runs.logs import rank_logs
from gputui.runs.spec import SpecError
from gputui.runs.submission import SPEC_FILE, read_spec
from gputui.store.attempts import Attempt
from gputui.store.events import EventKind, has_event
from gputui.store.metrics import intake
from gputui.store.runs import get_run

log = logging.getLogger(__name__)

LOG_SECONDS = 10.0
LOOK_SECONDS = 30.0
ORPHANS_SECONDS = 60.0
# A disk may be busy for minutes with hundreds of gigabytes of checkpoints.
DEADLINE_SECONDS = 3600.0
# linux/falloc.h
_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02
# Holes consist of whole blocks; common file systems have smaller ones.
_BLOCK_BYTES = 64 << 10
# st_blocks is in units of 512 bytes on any file system: stat(2).
_STAT_BLOCK_BYTES = 512


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
        """Warn once per database if a logout would end the agent, and go on with removals. Raises
        sqlite3.Error."""
        go_on_removing(self.context)
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


AGENT_LOG_BYTES = 4 << 20
KEPT = 3
"""Number of files: the current one and its two predecessors, ``.1`` and ``.2``."""


def rotate(path: Path, limit_bytes: int = AGENT_LOG_BYTES) -> bool:
    """Rotate the log if it exceeds the limit; return whether it did. Raises OSError.

    The file is copied and truncated, not renamed, because the agent, the sampler and the process
    that started them keep it open for appending. Lines written during the copy are copied too.
    """
    if not path.exists() or path.stat().st_size <= limit_bytes:
        return False
    for number in range(KEPT - 1, 1, -1):
        older = path.with_name(f"{path.name}.{number - 1}")
        if older.exists():
            older.replace(path.with_name(f"{path.name}.{number}"))
    temporary = path.with_name(f"{path.name}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, PRIVATE_FILE_MODE)
    with path.open("r+b", buffering=0) as source, os.fdopen(descriptor, "wb") as copy:
        while source.tell() < os.fstat(source.fileno()).st_size:
            shutil.copyfileobj(source, copy)
        copy.flush()
        source.truncate(0)
    temporary.replace(path.with_name(f"{path.name}.1"))
    return True


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


class Quota(Struct, frozen=True):
    """The disk that one log file may take, and what is kept of a larger one."""

    limit_bytes: int = 2 << 30
    head_bytes: int = 64 << 20
    tail_bytes: int = 512 << 20


def trim(path: Path, quota: Quota, read_bytes: int | None = None) -> int | None:
    """Trim a log that exceeds its quota; return the number of missing bytes, or None if there was
    nothing to do. ``read_bytes`` were read as metrics, None if it has none: unread bytes are kept,
    and so is the block before them, which the reader uses to recognize the file. Raises OSError,
    also if the file system does not support holes."""
    status = path.stat()
    begin = quota.head_bytes // _BLOCK_BYTES * _BLOCK_BYTES
    end = status.st_size - quota.tail_bytes
    if read_bytes is not None:
        end = min(end, read_bytes - _BLOCK_BYTES)
    end = end // _BLOCK_BYTES * _BLOCK_BYTES
    if end <= begin or status.st_blocks * _STAT_BLOCK_BYTES <= quota.limit_bytes:
        return None
    length = end - begin
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if os.lseek(descriptor, begin, os.SEEK_DATA) >= end:
            # Trimmed already; the rest is not read yet.
            return None
        libc, mode = ctypes.CDLL(None, use_errno=True), _KEEP_SIZE | _PUNCH_HOLE
        if libc.fallocate(descriptor, mode, ctypes.c_int64(begin), ctypes.c_int64(length)) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
        words = f"\n[gputui: {length} bytes of this log were dropped here to bound its size]\n"
        os.pwrite(descriptor, words.encode(), begin - len(words))
    finally:
        os.close(descriptor)
    return length


class _Trimmed(NamedTuple):
    """A log that was trimmed by so many bytes, or why it could not be."""

    attempt: Attempt
    path: Path
    missing_bytes: int
    problem: str | None = None


@dataclass(slots=True)
class LogBounds:
    """Checks the logs of live attempts periodically. ``unreported`` are results of the last check
    that are not stored yet; ``reported`` are logs that are reported as impossible to trim."""

    context: AgentContext
    quota: Quota = field(default_factory=Quota)
    next_at: float = 0.0
    unreported: list[_Trimmed] = field(default_factory=list)
    reported: set[Path] = field(default_factory=set)

    def turn(self, now: float, attempts: Iterable[Attempt]) -> None:
        """Report the results of the last check, and start another if it is due; ``now`` is
        monotonic. Raises sqlite3.Error without losing results."""
        if now >= self.next_at:
            # The bytes read as metrics only grow, so a stale number is safe: it keeps too much.
            read = partial(intake.output_read, self.context.connection)
            checks = [(each, read(each.run_id, each.number)) for each in attempts]
            work = partial(_bound_logs, self.context.workspace, checks, self.quota)
            job = self.context.jobs.ask("bounding logs", work, deadline_seconds=DEADLINE_SECONDS)
            if job is not None:
                self.next_at = now + LOOK_SECONDS
                self.unreported += job.result()
        while self.unreported:
            self._report(self.unreported[0])
            self.unreported.pop(0)

    def _report(self, trimmed: _Trimmed) -> None:
        run_id, number = trimmed.attempt.run_id, trimmed.attempt.number
        kind: EventKind = "log_trimmed"
        dropped = bytes_text(trimmed.missing_bytes)
        text = f"so {dropped} in its middle were dropped; its beginning and its end are kept"
        if trimmed.problem is not None:
            kind = "log_unbounded"
            text = f"and cannot be bounded ({trimmed.problem}); watch the disk"
            if trimmed.path in self.reported:
                return
            self.reported.add(trimmed.path)
        name = trimmed.path.relative_to(attempt_dir(self.context.workspace, run_id, number))
        text = f"{name} grew beyond {bytes_text(self.quota.limit_bytes)}, {text}"
        key = str(trimmed.path)
        self.context.note(kind, text, run_id, number, key=key, severity="warning")


def _bound_logs(
    workspace: Workspace, checks: list[tuple[Attempt, list[tuple[str, int]]]], quota: Quota
) -> list[_Trimmed]:
    """Drop the middle of logs that are too long, except for metrics that are not read yet: of each
    attempt, the patterns of logs that are read as metrics and the bytes read."""
    found = []
    for attempt, outputs in checks:
        for entry in rank_logs(attempt_dir(workspace, attempt.run_id, attempt.number)):
            path = str(entry.path)
            read = [offset for pattern, offset in outputs if fnmatchcase(path, pattern)]
            try:
                missing = trim(entry.path, quota, read[-1] if read else None)
            except FileNotFoundError:
                continue
            except OSError as error:
                found.append(_Trimmed(attempt, entry.path, 0, error.strerror or str(error)))
                continue
            if missing is not None:
                found.append(_Trimmed(attempt, entry.path, missing))
    return found


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


def go_on_removing(context: AgentContext) -> None:
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
