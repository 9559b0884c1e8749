"""The thread that reads the store for the screen.

It has its own read-only connection, checks a few times a second whether anything was committed, and posts the newest
snapshot as a message that replaces an older waiting one: a slow screen builds no queue, and a slow database never
blocks the screen. Errors become a sentence in the snapshot.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from gputui.core.config import Workspace
from gputui.store import commands
from gputui.store.commands import CommandAnswer
from gputui.store.database import (
    StoreError,
    StoreMissingError,
    data_version,
    is_fixed,
    is_locked,
    open_reader,
)
from gputui.ui.tui.data.reader import SnapshotReader
from gputui.ui.views.snapshot import Interest, Moment, Snapshot

LOOK_SECONDS = 0.15
QUIET_LOOK_SECONDS = 0.4
"""How often the store is checked for commits; the latter while no run is active and no answer is awaited."""

APART_SECONDS = 0.25
"""Least time between two snapshots."""

PAST_SECONDS = 10.0
"""Least time between two reads of a past moment, whose rows may come late."""

CLOCK_SECONDS = 1.0
"""How often clock and ages are updated without commits."""

REOPEN_SECONDS = 1.0  # as often as the clock on the screen moves

BUSY_MILLISECONDS = 1000  # the agent's writes take less


class Feed:
    """Reads the store in its own thread, and hands snapshots and answers to the functions given to `attach`.

    Attributes:
        interest: what is read, and at which moment; set by the screen, read by the thread.
        _wall: UTC unix seconds.
        _clock: monotonic seconds.
        _show: gets new snapshots; None before `attach`.
        _tell: gets answers; None before `attach`.
        _watched: the ids of the commands whose answers are awaited.
        _is_due: a commit came too soon after the last snapshot.
        _wake: ends the pause of the thread.
        _stop: ends the thread.
        _has_looked: the thread has looked at the store once.
    """

    def __init__(
        self,
        workspace: Workspace,
        *,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.interest = Interest()
        self._workspace = workspace
        self._wall = wall
        self._clock = clock
        self._show: Callable[[Snapshot], object] | None = None
        self._tell: Callable[[CommandAnswer], object] | None = None
        self._store = FeedStore(workspace)
        self._newest = NewestSnapshot(wall())
        self._watched: set[int] = set()
        self._is_due = False
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._has_looked = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)

    # --- the screen's side

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def first(self, timeout_seconds: float) -> Snapshot:
        """The first snapshot, for a full first frame; an empty one after ``timeout_seconds``."""
        self._has_looked.wait(timeout_seconds)
        return self._newest.snapshot

    def attach(self, show: Callable[[Snapshot], object], tell: Callable[[CommandAnswer], object]) -> None:
        """Hand new snapshots to ``show``, and answers to watched commands to ``tell``. Both are called from the feed's
        thread and must only post a message."""
        self._show = show
        self._tell = tell

    def stop(self) -> None:
        """End the thread, waiting only briefly: a read of a locked database may hang."""
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout=0.5)

    def look_at(self, interest: Interest) -> None:
        """Set what to read from now on, at the current moment."""
        self._set_interest(replace(interest, moment=self.interest.moment))

    def look_back(self, moment: Moment | None) -> None:
        """Set the past moment to read from now on; None returns to the present."""
        self._set_interest(replace(self.interest, moment=moment))

    def _set_interest(self, interest: Interest) -> None:
        if interest != self.interest:
            self.interest = interest
            self._wake.set()

    def watch(self, command_id: int) -> None:
        """Report the answer to this command."""
        self._watched.add(command_id)
        self._wake.set()

    # --- the thread

    def _run(self) -> None:
        while not self._stop.is_set():
            is_new = self._check_store()
            self._has_looked.set()
            if is_new and self._show is not None:
                self._show(self._newest.snapshot)
            self._wake.wait(self._pause_seconds())
            self._wake.clear()
        self._store.close()

    def _pause_seconds(self) -> float:
        """The time until the next look."""
        if self._is_due:
            return min(LOOK_SECONDS, max(0.01, self._newest.made_at + APART_SECONDS - self._clock()))
        if self._watched:
            return LOOK_SECONDS
        return look_seconds(self._newest.snapshot)

    def _check_store(self) -> bool:
        """Check the store once; returns whether there is a new snapshot."""
        now = self._wall()
        clock = self._clock()
        self._is_due = False
        try:
            return self._read_news(now, clock)
        except StoreMissingError:
            problem = None
        except (StoreError, sqlite3.Error, OSError) as error:
            problem = _problem(error)
        except Exception as error:
            # An unexpected error must not end the thread: a frozen screen looks like a quiet machine.
            problem = _unexpected_problem(error)
        self._store.close()
        return self._pass_time(now, clock, problem)

    def _read_news(self, now: float, clock: float) -> bool:
        """Hand out answers, and read a snapshot if there is news and the last one was long enough ago; returns whether
        there is a new snapshot. Raises StoreError, sqlite3.Error or OSError."""
        interest = self.interest
        newest = self._newest
        connection = self._store.open(clock)
        if connection is None:
            return self._pass_time(now, clock, newest.problem)
        self._answer(connection)
        version = data_version(connection)
        is_other = interest != newest.interest
        if not is_other and not self._has_news(interest, version, clock):
            return self._pass_time(now, clock, problem=None)
        self._is_due = not is_other and clock - newest.made_at < APART_SECONDS
        if self._is_due:
            return self._pass_time(now, clock, newest.problem)
        newest.snapshot = self._store.reader.read(connection, now, interest)
        newest.interest = interest
        newest.made_at = clock
        newest.read_at = clock
        newest.problem = None
        self._store.version = version
        return True

    def _has_news(self, interest: Interest, version: int, clock: float) -> bool:
        """Return whether the store has something to read for the same interest."""
        if interest.moment is not None and clock - self._newest.read_at < PAST_SECONDS:
            return False
        return version != self._store.version or self._store.reader.is_behind

    def _pass_time(self, now: float, clock: float, problem: str | None) -> bool:
        """Update clock and ages of the old snapshot, once a second or if the problem changed."""
        newest = self._newest
        if clock - newest.made_at < CLOCK_SECONDS and problem == newest.problem:
            return False
        newest.made_at = clock
        newest.problem = problem
        later = self._store.reader.later(newest.snapshot, now, newest.interest)
        if problem is not None:
            later = replace(later, problem=problem)
        newest.snapshot = later
        return True

    def _answer(self, connection: sqlite3.Connection) -> None:
        for command_id in tuple(self._watched):
            answer = commands.answer(connection, command_id)
            if answer is not None and self._tell is not None:
                self._watched.discard(command_id)
                self._tell(answer)


class NewestSnapshot:
    """The newest snapshot, and what it is of. Times are monotonic.

    Attributes:
        interest: what was asked for when its rows were read.
        read_at: when its rows were read.
        made_at: when its rows were read, or its clock and ages last updated.
        problem: the sentence in it about why newer rows cannot be read; None without one.
    """

    def __init__(self, now: float) -> None:
        self.snapshot = Snapshot(at=now)
        self.interest = Interest()
        self.read_at = float("-inf")
        self.made_at = float("-inf")
        self.problem: str | None = None


class FeedStore:
    """The connection to the store, which is opened again when it was lost or its file was replaced.

    Attributes:
        connection: None while there is none.
        reader: what reads from it; it knows the rows of one file.
        version: that of the data in the newest snapshot; None if an earlier connection has read that.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.connection: sqlite3.Connection | None = None
        self.reader = SnapshotReader(workspace)
        self.version: int | None = None
        self._file: tuple[int, int, bool] | None = None
        self._opened_at = float("-inf")

    def open(self, clock: float) -> sqlite3.Connection | None:
        """The connection. At most once a second it is opened again if it was lost or if the file was replaced."""
        if clock - self._opened_at < REOPEN_SECONDS:
            return self.connection
        self._opened_at = clock
        file = _identity(self.workspace)
        if file != self._file:
            self.close()
            # Ids of the old file name other rows in the new one.
            self.reader = SnapshotReader(self.workspace)
            self._file = file
        if self.connection is None:
            self.connection = open_reader(self.workspace.database)
            self.connection.execute(f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
        return self.connection

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection = None
        self.version = None


def look_seconds(newest: Snapshot) -> float:
    """How often to look for commits after this snapshot."""
    if any(not row.run.state.is_over for row in newest.runs):
        return LOOK_SECONDS
    return QUIET_LOOK_SECONDS


def _identity(workspace: Workspace) -> tuple[int, int, bool] | None:
    """A value that changes when the database is replaced, or when its owner's agent begins or ends."""
    try:
        status = os.stat(workspace.database)  # noqa: PTH116 - one call, the path is ready
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino, is_fixed(workspace.database)


def _problem(error: Exception) -> str:
    """A sentence about what keeps the store from being read."""
    text = str(error).rstrip(".")
    if is_locked(error):
        return "The database is locked by another program; the last values stay until it lets go."
    if isinstance(error, StoreError):
        return f"{text[:1].upper()}{text[1:]}."
    return f"Cannot read the database: {text}; the last values stay."


def _unexpected_problem(error: Exception) -> str:
    """A sentence about a fault of gputui itself."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    what = f"{type(error).__name__} in {Path(frame.filename).name}, line {frame.lineno}"
    return f"What was recorded cannot be shown: {what}; the last values stay. Please report it."
