"""The write-ahead log, moved into the database by a job: that waits for the disk, which may be busy for seconds with
somebody's checkpoint, and a commit by itself does not.

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
# What can wait, waits while the log is as long as this; metrics wait only for a job that is moving it.
LONG_BYTES = 12 << 20
# The loop moves the log by itself once it has so many pages: it must not grow without end where no job gets to it.
LIMIT_PAGES = 8192
_KEPT_BYTES = 1 << 20
_DEADLINE_SECONDS = 600.0
# A reader that looks at an old state keeps the log from being emptied.
_AGAIN_SECONDS = 0.5
_FAILED_SECONDS = 20.0


@dataclass(slots=True)
class WriteAheadLog:
    """The log of the agent's connection. ``clock`` gives monotonic seconds."""

    connection: sqlite3.Connection
    database: Path
    jobs: Jobs
    clock: Callable[[], float]
    _job: Job[None] | None = None
    _due: float = float("-inf")

    def __post_init__(self) -> None:
        self.connection.execute(f"PRAGMA wal_autocheckpoint = {LIMIT_PAGES}")
        # An emptied log becomes a short file again, so that its length tells what is to be moved. What is kept of it is
        # room for what must be written on a full disk.
        self.connection.execute(f"PRAGMA journal_size_limit = {_KEPT_BYTES}")

    @property
    def is_long(self) -> bool:
        """Whether what can wait should, for the job is behind."""
        return self._bytes() >= LONG_BYTES

    @property
    def is_behind(self) -> bool:
        """Whether a job is moving a long log, to which nothing that can be read later should be added: the log starts
        again only once all of it is moved, and at its limit a commit would have to move it."""
        return self._job is not None and not self._job.is_over and self.is_long

    def turn(self) -> None:
        """Have the log moved when it is time."""
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
        # Never opened: closing it would take this process's locks from it.
        path = self.database.with_name(self.database.name + "-wal")
        return path.stat().st_size if path.exists() else 0


def move(database: Path) -> None:
    """Move what no reader keeps in the log into the database. Raises sqlite3.Error."""
    with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=rw", uri=True, timeout=1.0)) as connection:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
