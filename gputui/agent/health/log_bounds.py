"""The disk quota of running attempts' logs: trim long logs, and report what was dropped.

A rank keeps its log open, often without O_APPEND, so that the file can neither be renamed nor
truncated: the writer would continue at its old offset. Instead, a hole is punched into the middle
(fallocate(2), FALLOC_FL_PUNCH_HOLE): all other bytes keep their offset, and a line before the gap
says how much is missing. Readers skip the gap (`gputui.runs.logs`).
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec import Struct

from gputui.agent.context import AgentContext
from gputui.agent.jobs import Job
from gputui.core.units import bytes_text
from gputui.runs.logs import rank_logs
from gputui.store.events import add_event
from gputui.store.metrics import intake

log = logging.getLogger(__name__)

LOOK_SECONDS = 30.0
# A disk may be busy for minutes with hundreds of gigabytes of checkpoints.
DEADLINE_SECONDS = 3600.0
# linux/falloc.h
_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02
# Holes consist of whole blocks; common file systems have smaller ones.
_BLOCK_BYTES = 64 << 10
# st_blocks is in units of 512 bytes on any file system: stat(2).
_STAT_BLOCK_BYTES = 512


class Quota(Struct, frozen=True):
    """The disk that one log file may take, and what is kept of a larger one."""

    limit_bytes: int = 2 << 30
    head_bytes: int = 64 << 20
    tail_bytes: int = 512 << 20

    def gap(self, size: int, read_bytes: int | None) -> tuple[int, int] | None:
        """The range of whole blocks that a log of this size should lose, or None. ``read_bytes``
        were read as metrics, None if it has none. Unread bytes are kept, and so is the block before
        them, which the reader uses to recognize the file."""
        begin = self.head_bytes // _BLOCK_BYTES * _BLOCK_BYTES
        end = size - self.tail_bytes
        if read_bytes is not None:
            end = min(end, read_bytes - _BLOCK_BYTES)
        end = end // _BLOCK_BYTES * _BLOCK_BYTES
        return (begin, end) if end > begin else None


def trim(path: Path, quota: Quota, read_bytes: int | None = None) -> int | None:
    """Trim a log that exceeds its quota; ``read_bytes`` as for `Quota.gap`. Return the number of
    missing bytes, or None if there was nothing to do. Raises OSError, also if the file system does
    not support holes."""
    status = path.stat()
    hole = quota.gap(status.st_size, read_bytes)
    if hole is None or status.st_blocks * _STAT_BLOCK_BYTES <= quota.limit_bytes:
        return None
    begin, end = hole
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if os.lseek(descriptor, begin, os.SEEK_DATA) >= end:
            # Trimmed already; the rest is not read yet.
            return None
        libc = ctypes.CDLL(None, use_errno=True)
        length = ctypes.c_int64(end - begin)
        if libc.fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, ctypes.c_int64(begin), length) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
        words = f"\n[gputui: {end - begin} bytes of this log were dropped here to bound its size]\n".encode()
        os.pwrite(descriptor, words, begin - len(words))
    finally:
        os.close(descriptor)
    return end - begin


class AttemptFolder(NamedTuple):
    """An attempt and its folder."""

    run_id: str
    number: int
    folder: Path


class _Trimmed(NamedTuple):
    """A log that was trimmed by so many bytes, or why it could not be."""

    attempt: AttemptFolder
    path: Path
    missing_bytes: int
    problem: str | None = None


_LogCheck = tuple[AttemptFolder, list[tuple[str, int]]]
"""An attempt whose logs are checked, with those that are read as metrics: pattern, and bytes
read."""


@dataclass(slots=True)
class LogBounds:
    """Checks the logs periodically. ``unreported`` are results of the last check that are not
    stored yet; ``reported`` are logs that are reported as impossible to trim."""

    context: AgentContext
    quota: Quota = field(default_factory=Quota)
    next_at: float = 0.0
    job: Job[list[_Trimmed]] | None = None
    unreported: list[_Trimmed] = field(default_factory=list)
    reported: set[Path] = field(default_factory=set)

    def turn(self, now: float, attempts: Iterable[AttemptFolder]) -> None:
        """Report the results of the last check, and start another if it is due; ``now`` is
        monotonic. Raises sqlite3.Error without losing results."""
        if self.job is not None:
            if not self.job.is_over:
                return
            job, self.job = self.job, None
            self.unreported = job.result()
        while self.unreported:
            trimmed = self.unreported[0]
            if trimmed.problem is None:
                dropped = f"{bytes_text(trimmed.missing_bytes)} in its middle were dropped"
                self._report(trimmed, "log_trimmed", f"so {dropped}; its beginning and its end are kept")
            elif trimmed.path not in self.reported:
                self._report(trimmed, "log_unbounded", f"and cannot be bounded ({trimmed.problem}); watch the disk")
                self.reported.add(trimmed.path)
            self.unreported.pop(0)
        if now >= self.next_at:
            self.next_at = now + LOOK_SECONDS
            # The bytes read as metrics only grow, so a stale number is safe: it keeps too much.
            read = partial(intake.output_read, self.context.connection)
            checks = [(attempt, read(attempt.run_id, attempt.number)) for attempt in attempts]
            work = partial(_bound_logs, checks, self.quota)
            self.job = self.context.jobs.start("bounding the logs", work, deadline_seconds=DEADLINE_SECONDS)

    def _report(self, trimmed: _Trimmed, kind: Literal["log_trimmed", "log_unbounded"], text: str) -> None:
        attempt = trimmed.attempt
        message = f"{trimmed.path.relative_to(attempt.folder)} grew beyond {bytes_text(self.quota.limit_bytes)}, {text}"
        add_event(
            self.context.connection,
            kind,
            message,
            now=self.context.now(),
            key=str(trimmed.path),
            severity="warning",
            run_id=attempt.run_id,
            attempt=attempt.number,
        )


def _bound_logs(checks: list[_LogCheck], quota: Quota) -> list[_Trimmed]:
    """Drop the middle of logs that are too long, except for metrics that are not read yet."""
    found = []
    for attempt, outputs in checks:
        try:
            logs = [one.path for one in rank_logs(attempt.folder)]
        except OSError as error:
            log.warning("the logs of %s cannot be looked at: %s", attempt.run_id, error)
            continue
        read = {path: offset for pattern, offset in outputs for path in logs if fnmatchcase(str(path), pattern)}
        for path in logs:
            try:
                missing = trim(path, quota, read.get(path))
            except FileNotFoundError:
                continue
            except OSError as error:
                found.append(_Trimmed(attempt, path, 0, error.strerror or str(error)))
                continue
            if missing is not None:
                found.append(_Trimmed(attempt, path, missing))
    return found
