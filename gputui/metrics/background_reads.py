"""Reads of metrics files in other threads: their file system may not answer, and a search for them may be long.

A read uses the reader of one source, which no other thread uses meanwhile. It writes nothing; its batch is stored by
the caller, if the source is still at the same position.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from gputui.metrics.batch import Batch, SourceState
from gputui.metrics.custody import Custody, WrittenBy
from gputui.metrics.source_reader import Boundary, SourceReader

# A file system that has not answered for this long is reported.
ANSWER_SECONDS = 10.0
# A read that takes longer may hang: no other begins on the same device, and few elsewhere.
SLOW_SECONDS = 1.0
MOST_SLOW = 4
# Between two reads of a source, while lines come and in silence.
ACTIVE_INTERVAL_SECONDS = 0.25
QUIET_INTERVAL_SECONDS = 1.0
# A reader that compares a rewritten file needs many calls.
WORK_SECONDS = 0.5


class PendingWork(Protocol):
    """Work in another thread, as `gputui.agent.jobs.Job`."""

    @property
    def is_over(self) -> bool: ...

    def result(self) -> Any: ...


class ReadContext(Struct, frozen=True):
    """What reads in other threads need.

    Attributes:
        home: the folder of the store; its file system always answers, or nothing works.
        start: begins work in another thread, by a name for the log.
        connect: opens the store for reading, for the thread that calls it.
        run_dir: the folder of a run by its ID.
        written_by: see `WrittenBy`; called in another thread.
    """

    home: Path
    start: Callable[[str, Callable[[], Any]], PendingWork]
    connect: Callable[[], sqlite3.Connection]
    run_dir: Callable[[str], Path]
    written_by: WrittenBy


class ReadResult(Struct, frozen=True):
    """The result of a read. ``device`` is that of the file, None without one; ``is_cut``: the search for it ended
    early; ``doubtful`` is a file that another run may write."""

    batch: Batch | None
    device: int | None
    is_cut: bool = False
    doubtful: str | None = None


@dataclass(slots=True)
class BackgroundRead:
    """A read in progress. ``ended`` is the argument of its `SourceReader.read`, ``rivals`` are the attempts of other
    runs that could write the same files when it began, at ``begun_at`` (monotonic seconds)."""

    reader: SourceReader
    job: PendingWork
    ended: bool
    rivals: list[tuple[str, int]]
    begun_at: float
    closing: _DeferredClose

    @property
    def is_slow(self) -> bool:
        return not self.job.is_over and time.monotonic() - self.begun_at > SLOW_SECONDS

    def close_reader(self) -> None:
        """Close the reader now, or as soon as the read returns."""
        self.closing.close(self.reader)


@dataclass(slots=True)
class _DeferredClose:
    """Closes a reader in the thread that is the last to use it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    is_in_use: bool = True
    is_wanted: bool = False

    def close(self, reader: SourceReader) -> None:
        with self.lock:
            self.is_wanted = True
            if not self.is_in_use:
                reader.close()

    def end_use(self, reader: SourceReader) -> None:
        with self.lock:
            self.is_in_use = False
            if self.is_wanted:
                reader.close()


def begin_read(
    read_context: ReadContext,
    name: str,
    reader: SourceReader,
    state: SourceState,
    boundaries: list[Boundary],
    *,
    budget_bytes: int,
    ended: bool,
    custody: Custody | None,
    rivals: list[tuple[str, int]],
) -> BackgroundRead:
    """Read the next batch of a source in another thread. The result of the job is a `ReadResult`."""
    closing = _DeferredClose()
    begins = tuple(boundaries)

    def work() -> ReadResult:
        try:
            return _read(reader, state, begins, budget_bytes, ended, custody)
        finally:
            closing.end_use(reader)

    reader.custody = custody
    job = read_context.start(name, work)
    return BackgroundRead(reader, job, ended, rivals, time.monotonic(), closing)


def _read(
    reader: SourceReader,
    state: SourceState,
    boundaries: tuple[Boundary, ...],
    budget_bytes: int,
    ended: bool,
    custody: Custody | None,
) -> ReadResult:
    until = time.monotonic() + WORK_SECONDS
    while True:
        batch = reader.read(state, boundaries, budget_bytes=budget_bytes, ended=ended)
        if batch is not None or not reader.is_busy or time.monotonic() >= until:
            break
    if batch is not None and custody is not None and not custody.still_admits():
        batch = None
    return ReadResult(batch, reader.device, reader.is_cut, None if custody is None else custody.doubtful)
