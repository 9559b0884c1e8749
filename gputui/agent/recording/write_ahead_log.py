"""Checkpoints of SQLite's write-ahead log, done by a job. A commit does not wait for the disk, but a checkpoint does,
and a run that saves may keep the disk busy for seconds.

https://www.sqlite.org/wal.html#ckpt
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gputui.agent.jobs import Job, Jobs

log = logging.getLogger(__name__)

MOVED_AT_BYTES = 4 << 20
# Deferrable writes wait while the log is this long; metrics wait only while a job moves it.
LONG_BYTES = 12 << 20
# A commit of the loop moves a log of this size itself, so that the log is bounded even if no job runs.
LIMIT_PAGES = 8192
_KEPT_BYTES = 1 << 20
_DEADLINE_SECONDS = 600.0
# A reader of an old state keeps the log from being emptied.
_AGAIN_SECONDS = 0.5
_FAILED_SECONDS = 20.0


@dataclass(slots=True)
class WriteAheadLog:
    """The write-ahead log of the agent's connection. ``clock`` returns monotonic seconds."""

    connection: sqlite3.Connection
    database: Path
    jobs: Jobs
    clock: Callable[[], float]
    _job: Job[None] | None = None
    _due: float = float("-inf")

    def __post_init__(self) -> None:
        self.connection.execute(f"PRAGMA wal_autocheckpoint = {LIMIT_PAGES}")
        # An emptied log is truncated, so that its size says how much is to be moved. The rest is kept as a reserve for
        # a full disk.
        self.connection.execute(f"PRAGMA journal_size_limit = {_KEPT_BYTES}")

    @property
    def is_long(self) -> bool:
        """Whether deferrable writes should wait until a job has moved the log."""
        return self._bytes() >= LONG_BYTES

    @property
    def is_behind(self) -> bool:
        """Whether a job is moving a long log. Metrics should not be added meanwhile: the log restarts only once all of
        it is moved, and at its limit a commit has to move it."""
        return self._job is not None and not self._job.is_over and self.is_long

    def turn(self) -> None:
        """Start a job to move the log if that is due."""
        if self._job is not None:
            if not self._job.is_over:
                return
            try:
                self._job.result()
            except (OSError, sqlite3.Error) as error:
                log.warning("what was written cannot be moved into the database now: %s", error)
                self._due = self.clock() + _FAILED_SECONDS
            self._job = None
        if self.clock() >= self._due and self._bytes() >= MOVED_AT_BYTES:
            self._due = self.clock() + _AGAIN_SECONDS
            self._job = self.jobs.start(
                "moving what was written", partial(move, self.database), deadline_seconds=_DEADLINE_SECONDS
            )

    def _bytes(self) -> int:
        # Not opened, because closing the file would drop this process's POSIX locks on it.
        path = self.database.with_name(self.database.name + "-wal")
        return path.stat().st_size if path.exists() else 0


def move(database: Path) -> None:
    """Move as much of the log into the database as readers allow. Raises sqlite3.Error."""
    with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=rw", uri=True, timeout=1.0)) as connection:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
