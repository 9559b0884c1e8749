"""The janitor: a thread that tidies the store beside the loop, with a connection of its own.

It rolls up samples, sums energy, deletes what is beyond the limits of record.yaml and the lines of
removed runs, returns free pages, and moves the write-ahead log into the database. Each of its
transactions changes at most about 1000 rows, and takes the lock that the loop holds during a turn,
so neither waits for the other longer than that.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from gputui.agent.recording.recorder import Recorder
from gputui.agent.recording.retention import Pruning
from gputui.agent.recording.sample_rollups import Rollups, add_energy_readings
from gputui.core.config import Workspace
from gputui.core.units import bytes_text
from gputui.core.yaml_forms.problems import ProfileError
from gputui.profiles.home_files import SettingsFile, load_retention
from gputui.runs.repository import transaction
from gputui.store.agent import Retention
from gputui.store.database import is_locked, open_commander, pragma, used_space
from gputui.store.events import EventKind, NewEvent, add_event

log = logging.getLogger(__name__)

ROWS_AT_ONCE = 1000  # deleted in a few milliseconds, for which others wait
# A block has as many bytes as a hundred lines.
BLOCKS_AT_ONCE = 10
ENERGY_SECONDS = 10.0  # as often as a person may look at a run's energy
PRUNE_SECONDS = 30.0  # deletes what a few thousand samples have added
EXPIRE_SECONDS = 3600.0  # days are kept, of which an hour is little
FAILED_SECONDS = 20.0  # a full or locked database is seldom free sooner
STOP_SECONDS = 2.0  # one batch ends well within
BUSY_MILLISECONDS = 20
# 32 MiB, which new samples soon use again.
KEPT_FREE_PAGES = 8192

MOVED_AT_BYTES = 4 << 20  # SQLite's own default of 1000 pages
# What can wait is not written while the log is this long.
LONG_LOG_BYTES = 12 << 20
# A commit of the loop moves a log of this size itself, so that the log is bounded even if this
# thread hangs.
LIMIT_PAGES = 8192
_KEPT_LOG_BYTES = 1 << 20  # what is reused is not allocated again on each turn

# What a removed run's sources have: table, key, and the rows of one transaction.
_OF_SOURCES = (
    ("metrics", "generation, byte_offset", ROWS_AT_ONCE),
    ("metric_stretches", "generation, byte_offset", ROWS_AT_ONCE),
    ("rejected_lines", "generation, byte_offset", ROWS_AT_ONCE),
    ("metric_envelopes", "rowid", BLOCKS_AT_ONCE),
)
# Table, key, and the condition of expired rows; ?1 is the oldest time to keep. Events of a run go
# with the run.
_EXPIRING = (
    ("alerts", "alert_id", "raised_at < ?1 AND cleared_at < ?1"),
    ("events", "event_id", "at < ?1 AND (run_id IS NULL OR run_id NOT IN (SELECT run_id FROM runs))"),
    ("gpu_events", "event_id", "at < ?1"),
    ("commands", "command_id", "answered_at < ?1"),
    ("notices", "notice_id", "coalesce(sent_at, gave_up_at) < ?1"),
)

_NEXT_SOURCE = "SELECT source_id FROM metric_sources WHERE run_id IS NULL LIMIT 1"


@dataclass(slots=True)
class Tidying:
    """The upkeep of one store, step by step.

    Attributes:
        interval_seconds: that of samples.
        now: returns UTC unix seconds.
        monotonic: returns seconds, for durations.
        writing: held by whoever writes.
        retention: the limits of record.yaml.
        has_lines: lines of removed runs are left.
        is_moving_log: the write-ahead log is being moved into the database.
        file: record.yaml.
        _due: when a thing is due that is not done each time (monotonic), by its name.
        _is_too_large: what cannot be deleted exceeds the limit, of which people were told.
    """

    workspace: Workspace
    recorder: Recorder
    interval_seconds: float
    now: Callable[[], float]
    monotonic: Callable[[], float] = time.monotonic
    writing: threading.Lock = field(default_factory=threading.Lock)
    retention: Retention = field(default_factory=Retention)
    has_lines: bool = False
    is_moving_log: bool = False
    file: SettingsFile[Retention] = field(init=False)
    _connection: sqlite3.Connection | None = None
    _due: dict[str, float] = field(default_factory=dict)
    _is_too_large: bool = False

    def __post_init__(self) -> None:
        self.file = SettingsFile(self.workspace.record, load_retention)

    @property
    def is_log_late(self) -> bool:
        """True if a long log is being moved.

        Metrics should not be added meanwhile: the log restarts only once all of it is moved, and at its limit
        a commit of the loop has to move it.
        """
        return self.is_moving_log and self._log_bytes() >= LONG_LOG_BYTES

    @property
    def connection(self) -> sqlite3.Connection:
        """The janitor's own connection."""
        if self._connection is None:
            # One thread at a time uses it: the one that starts the janitor hands it over.
            self._connection = open_commander(self.workspace.database, check_same_thread=False)
            # What is done under the lock must wait neither for the disk nor for another program: no
            # sync at a commit, no move of the log, no patience.
            for setting in ("synchronous = NORMAL", "wal_autocheckpoint = 0", f"busy_timeout = {BUSY_MILLISECONDS}"):
                self._connection.execute(f"PRAGMA {setting}")
            self._connection.execute(f"PRAGMA journal_size_limit = {_KEPT_LOG_BYTES}")
            self._connection.execute("PRAGMA foreign_keys = ON")
        return self._connection

    def look_for_lines(self) -> None:
        """Find out whether lines of removed runs are left. Raises sqlite3.Error."""
        self.has_lines = self.connection.execute(_NEXT_SOURCE).fetchone() is not None

    def work(self) -> bool:
        """Do one step of each thing that is due; True if more is left. Raises sqlite3.Error, OSError."""
        self._move_log()
        if self._log_bytes() >= LONG_LOG_BYTES:
            return False
        wall = self.now()
        is_more = False
        # Spans are rolled up only when all their samples are stored. Deletion goes on: it may make
        # room.
        if not self.recorder.is_waiting:
            is_more = Rollups(self.connection, self.interval_seconds, self.write).roll_up(wall)
            if self._is_due("energy", ENERGY_SECONDS):
                with self.write():
                    add_energy_readings(self.connection, wall)
        if self._is_due("pruning", PRUNE_SECONDS):
            self._follow_file()
            if Pruning(self.connection, self.write).prune(self.retention, wall):
                is_more = True
                del self._due["pruning"]
            else:
                self._warn_if_too_large()
        if self._is_due("expiry", EXPIRE_SECONDS) and self.expire(wall):
            is_more = True
            del self._due["expiry"]
        return self._delete_lines() or self._return_pages() or is_more

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """A transaction while the loop is between two turns. Raises sqlite3.Error."""
        with self.writing, transaction(self.connection) as connection:
            yield connection

    def _is_due(self, what: str, seconds: float) -> bool:
        now = self.monotonic()
        if now < self._due.get(what, 0.0):
            return False
        self._due[what] = now + seconds
        return True

    def expire(self, now: float) -> bool:
        """Delete some rows of each table whose rows expire; True if more are left."""
        if self.retention.events_seconds is None:
            return False
        is_more = False
        for table, key, condition in _EXPIRING:
            with self.write() as connection:
                deleted = connection.execute(
                    f"DELETE FROM {table} WHERE {key} IN "  # noqa: S608 - names of our own
                    f"(SELECT {key} FROM {table} WHERE {condition} LIMIT {ROWS_AT_ONCE})",
                    (now - self.retention.events_seconds,),
                ).rowcount
            is_more |= deleted == ROWS_AT_ONCE
        return is_more

    def _delete_lines(self) -> bool:
        """Delete lines of one source of a removed run, and a source without lines; True if more are
        left."""
        row = self.connection.execute(_NEXT_SOURCE).fetchone()
        self.has_lines = row is not None
        if row is None:
            return False
        for table, key, count in _OF_SOURCES:
            with self.write() as connection:
                deleted = connection.execute(
                    f"DELETE FROM {table} WHERE source_id = ?1 AND ({key}) IN "  # noqa: S608
                    f"(SELECT {key} FROM {table} WHERE source_id = ?1 LIMIT {count})",
                    row,
                ).rowcount
            if deleted:
                return True
        with self.write() as connection:
            connection.execute("DELETE FROM metric_sources WHERE source_id = ?", row)
        return True

    def _return_pages(self) -> bool:
        """Return free pages, which removed runs leave, to the file system; True if more may be
        left."""
        if pragma(self.connection, "freelist_count") <= KEPT_FREE_PAGES:
            return False
        with self.writing:
            # Not execute(): it steps the statement once, which frees one page.
            self.connection.executescript("PRAGMA incremental_vacuum(256)")
        return True

    # --- the write-ahead log --------------------------------------------------------------------------------------

    def _move_log(self) -> None:
        """Move a log that has grown into the database, as much as readers of an old state allow.

        A commit does not wait for the disk, but this does, and a run that saves may keep the disk busy for
        seconds.
        """
        if self._log_bytes() >= MOVED_AT_BYTES:
            self.is_moving_log = True
            try:
                # https://www.sqlite.org/wal.html#ckpt
                self.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            finally:
                self.is_moving_log = False

    def _log_bytes(self) -> int:
        # Not opened, because closing the file would drop this process's POSIX locks on it.
        path = self.workspace.database.with_name(self.workspace.database.name + "-wal")
        if path.exists():
            return path.stat().st_size
        return 0

    # --- the limits -----------------------------------------------------------------------------------------------

    def _follow_file(self) -> None:
        version = self.file.newer()
        if version is None:
            return
        if isinstance(version.content, ProfileError):
            self._warn("retention_unusable", f"{version.content.problems[0]}; samples are kept as before")
        else:
            self.retention = version.content
        self.file.follow(version)

    def _warn_if_too_large(self) -> None:
        limit = self.retention.size_bytes
        _, used = used_space(self.connection)
        is_too_large = limit is not None and used > limit
        if is_too_large and not self._is_too_large:
            self._warn(
                "database_full",
                f"the database uses {bytes_text(used)} of {bytes_text(limit)} although all old samples are deleted; "
                "the metrics of runs take the rest: forget old runs with gputui rm, or raise size in record.yaml",
            )
        self._is_too_large = is_too_large

    def _warn(self, kind: EventKind, text: str) -> None:
        with self.write() as connection:
            add_event(connection, NewEvent(kind, text, severity="warning"), now=self.now())


class Janitor:
    """The thread that tidies one store.

    Attributes:
        tidying: what it does.
        failure: the damage of the database that has ended the thread.
    """

    def __init__(self, tidying: Tidying) -> None:
        self.tidying = tidying
        self.failure: Exception | None = None
        self._thread: threading.Thread | None = None
        self._is_called = threading.Event()
        self._is_stopping = threading.Event()
        self._problem: str | None = None

    # --- what the loop calls --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread. Raises sqlite3.Error."""
        self.tidying.look_for_lines()
        self._thread = threading.Thread(target=self._run, name="janitor", daemon=True)
        self._thread.start()

    def call(self) -> None:
        """Let the thread look for work, once a second. Raises its `failure`."""
        if self.failure is not None:
            raise self.failure
        self._is_called.set()

    def note_removal(self) -> None:
        """Let the thread delete the lines of a run that was removed."""
        self.tidying.has_lines = True
        self._is_called.set()

    def stop(self) -> None:
        """End the thread; one that waits for the disk is left behind."""
        self._is_stopping.set()
        self._is_called.set()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    # --- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            self._is_called.wait()
            self._is_called.clear()
            try:
                began = time.monotonic()
                while not self._is_stopping.is_set() and self.tidying.work():
                    # Half of the time belongs to the loop.
                    self._is_stopping.wait(time.monotonic() - began)
                    began = time.monotonic()
                self._problem = None
            except sqlite3.OperationalError as error:
                if not is_locked(error):
                    self._note(f"the record is not tidied until the database can be written: {error}")
                    self._is_stopping.wait(FAILED_SECONDS)
            except Exception as error:
                if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                    self.failure = error
                    break
                log.exception("the janitor")
                self._note(f"the upkeep of the record failed: {error}")
                self._is_stopping.wait(FAILED_SECONDS)
        self.tidying.connection.close()

    def _note(self, text: str) -> None:
        if text != self._problem:
            log.warning("%s", text)
        self._problem = text


def bound_log(connection: sqlite3.Connection) -> None:
    """Leave it to the janitor to move the write-ahead log of the loop's connection, up to LIMIT_PAGES.

    An emptied log is truncated, so that its size says how much is to be moved; the rest is a reserve for a
    full disk.
    """
    connection.execute(f"PRAGMA wal_autocheckpoint = {LIMIT_PAGES}")
    connection.execute(f"PRAGMA journal_size_limit = {_KEPT_LOG_BYTES}")
