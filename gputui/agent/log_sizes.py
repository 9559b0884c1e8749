"""The sizes of logs: the agent's own is rotated, those of ranks lose their middle.

A rank keeps its log open, often without O_APPEND, so that the file can neither be renamed nor
truncated: the writer would continue at its old offset. Instead, a hole is punched into the middle
of a long log (fallocate(2), FALLOC_FL_PUNCH_HOLE): all other bytes keep their offset, and a line
before the gap says how much is missing. Readers skip the gap (`gputui.runs.logs`).
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from gputui.agent.context import AgentContext
from gputui.agent.jobs import JobKey, Purpose
from gputui.agent.lifecycle.run_files import attempt_dir
from gputui.core.config import PRIVATE_FILE_MODE
from gputui.core.units import bytes_text
from gputui.runs.logs import rank_logs
from gputui.store.attempts import Attempt
from gputui.store.events import EventKind, has_event
from gputui.store.metrics import intake

LOOK_SECONDS = 30.0  # even a script that prints 10 MB/s fills no disk in between
# A disk may be busy for minutes with hundreds of gigabytes of checkpoints.
DEADLINE_SECONDS = 3600.0
AGENT_LOG_BYTES = 4 << 20  # weeks of a healthy agent
# linux/falloc.h
_KEEP_SIZE = 0x01
_PUNCH_HOLE = 0x02
# Holes consist of whole blocks; common file systems have smaller ones.
_BLOCK_BYTES = 64 << 10
# st_blocks is in units of 512 bytes on any file system: stat(2).
_STAT_BLOCK_BYTES = 512


def rotate(path: Path, limit_bytes: int = AGENT_LOG_BYTES) -> bool:
    """Rotate the agent's log if it exceeds the limit; return whether it did. Raises OSError.

    Two predecessors are kept.

    The file is copied and truncated, not renamed, because the agent, the sampler and the process
    that started them keep it open for appending. Lines written during the copy are copied too.
    """
    if not path.exists() or path.stat().st_size <= limit_bytes:
        return False
    first = path.with_name(f"{path.name}.1")
    if first.exists():
        first.replace(path.with_name(f"{path.name}.2"))
    temporary = path.with_name(f"{path.name}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, PRIVATE_FILE_MODE)
    with path.open("r+b", buffering=0) as source, os.fdopen(descriptor, "wb") as copy:
        while source.tell() < os.fstat(source.fileno()).st_size:
            shutil.copyfileobj(source, copy)
        copy.flush()
        source.truncate(0)
    temporary.replace(first)
    return True


class Quota(Struct, frozen=True):
    """The disk that one log file may take, and what is kept of a larger one."""

    limit_bytes: int = 2 << 30
    head_bytes: int = 64 << 20
    tail_bytes: int = 512 << 20


def trim(path: Path, quota: Quota, read_bytes: int | None = None) -> int | None:
    """Punch a hole into the middle of a log that exceeds its quota.

    Args:
        read_bytes: so many were read as metrics; None if the log has none. Unread bytes are kept, and so is the
            block before them, which the reader uses to recognize the file.

    Returns:
        The number of missing bytes, or None if there was nothing to do.

    Raises:
        OSError: the file cannot be written, or its file system does not support holes.
    """
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
        libc = ctypes.CDLL(None, use_errno=True)
        mode = _KEEP_SIZE | _PUNCH_HOLE
        if libc.fallocate(descriptor, mode, ctypes.c_int64(begin), ctypes.c_int64(length)) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
        mark = f"\n[gputui: {length} bytes of this log were dropped here to bound its size]\n"
        os.pwrite(descriptor, mark.encode(), begin - len(mark))
    finally:
        os.close(descriptor)
    return length


class _Trimmed(NamedTuple):
    """A log that was trimmed, with the event about it."""

    attempt: Attempt
    path: Path
    kind: EventKind
    text: str


@dataclass(slots=True)
class LogBounds:
    """Checks the logs of live attempts periodically."""

    context: AgentContext
    quota: Quota = field(default_factory=Quota)
    next_at: float = 0.0

    def poll(self, now: float, attempts: Iterable[Attempt]) -> None:
        """Report the results of the last check, and start another if it is due; ``now`` is
        monotonic. Raises sqlite3.Error."""
        if now < self.next_at:
            return
        # The bytes read as metrics only grow, so a stale number is safe: it keeps too much.
        read = partial(intake.output_read, self.context.connection)
        checks = [(attempt, read(attempt.run_id, attempt.number)) for attempt in attempts]
        work = partial(self._check, checks)
        job = self.context.jobs.ask(JobKey(Purpose.LOG_SIZES), work, deadline_seconds=DEADLINE_SECONDS)
        if job is None:
            return
        self.next_at = now + LOOK_SECONDS
        for attempt, path, kind, text in job.result():
            key = str(path)
            if kind == "log_trimmed" or not has_event(self.context.connection, kind, run_id=attempt.run_id, key=key):
                self.context.note(kind, text, attempt.run_id, attempt.number, key=key, severity="warning")

    def _check(self, checks: list[tuple[Attempt, list[tuple[str, int]]]]) -> list[_Trimmed]:
        """Drop the middle of logs that are too long, except for metrics that are not read yet: of
        each attempt, the patterns of logs that are read as metrics and the bytes read."""
        trimmed = []
        for attempt, outputs in checks:
            folder = attempt_dir(self.context.workspace, attempt.run_id, attempt.number)
            for path in [entry.path for entry in rank_logs(folder)]:
                offsets = [offset for pattern, offset in outputs if fnmatchcase(str(path), pattern)]
                read_bytes = offsets[-1] if offsets else None
                text = f"{path.relative_to(folder)} grew beyond {bytes_text(self.quota.limit_bytes)}, "
                try:
                    missing = trim(path, self.quota, read_bytes)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    text += f"and cannot be bounded ({error.strerror or error}); watch the disk"
                    trimmed.append(_Trimmed(attempt, path, "log_unbounded", text))
                    continue
                if missing is not None:
                    text += f"so {bytes_text(missing)} in its middle were dropped; its beginning and its end are kept"
                    trimmed.append(_Trimmed(attempt, path, "log_trimmed", text))
        return trimmed
