"""Export a run: once, or into a sink while it is active.

An item is on the disk before the sink's cursor is stored, and a sink removes what lies behind its
position. So a process can be killed at any time, and the next one continues.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from msgspec.structs import replace

from gputui.core.config import PRIVATE_DIR_MODE, Workspace
from gputui.core.files import replaced
from gputui.reports.export.files import cannot_write, make_folder, refuse_full_file, refuse_other_than_files
from gputui.reports.export.formats import FORMATS, Format, missing_package
from gputui.reports.export.sink import ExportError, Sink
from gputui.reports.export.subject import Subject, read_subject
from gputui.runs import identity
from gputui.store.database import open_commander
from gputui.store.metrics.exported import (
    ExportProgress,
    HistoryLostError,
    RunGoneError,
    SinkCursor,
    is_exported,
    read_cursor,
    read_piece,
    save_cursor,
)
from gputui.store.runs import RunLookupError

PIECE_LINES = 2000
CPU_SHARE = 0.002
"""The share of a core; a costly format is updated less often while the run is active."""
CATCHING_UP_SHARE = 0.25
"""The same while the sink catches up with an active run."""
POLL_SECONDS = 2.0


def make_sink(name: Format, subject: Subject, target: str) -> Sink:
    """A sink for an absolute target. Raises ExportError if its library is missing."""
    missing = missing_package(name, target)
    if missing is not None:
        raise ExportError(missing)
    module, _, class_name = FORMATS[name].sink.partition(":")
    sink: Sink = getattr(import_module(f"{__package__}.{module}"), class_name)(subject, target)
    return sink


def export(subject: Subject, name: Format, target: str, *, replaces: bool) -> int:
    """Write what a run has so far to a target; returns the lines or steps.

    A file is written completely or not at all. Nothing but the folder is left behind, except in a tracker that failed.

    Args:
        target: Absolute.
        replaces: A file is replaced, a tracker gets another run.

    Raises:
        ExportError: It cannot be written.
    """
    if FORMATS[name].is_folder or FORMATS[name].is_address:
        if replaces:
            subject = replace(subject, key=secrets.token_hex(8))
        sink = make_sink(name, subject, target)
        if not (replaces and FORMATS[name].is_address):
            sink.refuse_taken()
        make_folder(target)
        return _write_all(sink, subject, Path(target))
    path = Path(target)
    if replaces:
        refuse_other_than_files(path)
    else:
        refuse_full_file(path)
    make_folder(target)
    try:
        with replaced(path) as file:
            return _write_all(make_sink(name, subject, file.name), subject, path)
    except OSError as error:
        raise cannot_write(path, error) from error


def _write_all(sink: Sink, subject: Subject, path: Path) -> int:
    progress = ExportProgress()
    run_id = subject.run.run_id
    try:
        with closing(sink):
            sink.begin({})
            while True:
                piece = read_piece(subject.connection, run_id, progress, PIECE_LINES)
                sink.write(piece.items, piece.has_more)
                progress = piece.progress
                if not piece.has_more:
                    sink.finish(piece.state, piece.ended_at or time.time())
                    return sink.written
    except OSError as error:
        raise cannot_write(path, error) from error
    except (RunGoneError, HistoryLostError) as error:
        raise ExportError(f"{run_id} was removed while it was exported") from error


class StoreReplacedError(Exception):
    """The database file was replaced."""


@dataclass(slots=True)
class Follower:
    """One live export.

    Attributes:
        name: the format that is written.
        target: an absolute path or the URL of a tracker.
        metrics: the metrics to export; none for all.
        environment: the settings of a tracker.
        is_sink: whether the run's profile asks for the export.
        wall: returns the time, UTC unix seconds.
        cpu: returns the processor time of this thread.
        clock: returns monotonic seconds.
        wait: waits for so many seconds.
        on_write: is called with the time of each write.
    """

    workspace: Workspace
    run_id: str
    name: Format
    target: str
    metrics: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    is_sink: bool = False
    wall: Callable[[], float] = time.time
    cpu: Callable[[], float] = time.thread_time
    clock: Callable[[], float] = time.monotonic
    wait: Callable[[float], None] = time.sleep
    on_write: Callable[[float], object] = float

    def run(self) -> int:
        """Export until the run is over and everything is written, or the run is gone.

        Returns how much was written. Raises ExportError, HeldElsewhereError, OSError, StoreError or
        sqlite3.Error.
        """
        with closing(open_commander(self.workspace.database)) as connection:
            # The agent's janitor moves the log into the file.
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            try:
                subject = read_subject(
                    connection,
                    self.run_id,
                    self.name,
                    target=self.target,
                    requested_metrics=self.metrics,
                    environment=self.environment,
                )
                return self._locked(subject)
            except (RunLookupError, RunGoneError, StoreReplacedError):
                return 0
            except (FileNotFoundError, ExportError):
                # The folder of a removed run is gone as well.
                query = "SELECT 1 FROM runs WHERE run_id = ?"
                if connection.execute(query, (self.run_id,)).fetchone() is None:
                    return 0
                raise

    def _locked(self, subject: Subject) -> int:
        """Follow while no other process writes this target: a person may follow it, too."""
        folder = self.workspace.run_dir(self.run_id) / "sinks"
        folder.mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
        lock = identity.take(folder / f"{self.name}-{subject.key[:8]}.lock", is_agents=False)
        try:
            cursor = read_cursor(subject.connection, self.run_id, subject.key)
            if cursor is not None and is_complete(subject.connection, self.run_id, cursor):
                return 0
            with closing(make_sink(self.name, subject, self.target)) as sink:
                if cursor is None:
                    cursor = self._take_target(subject, sink, folder)
                return self._follow(subject, sink, cursor)
        finally:
            os.close(lock)

    def _take_target(self, subject: Subject, sink: Sink, folder: Path) -> SinkCursor:
        """Make the target this sink's, even if `begin` fails. One in the run's own folder is its,
        from before the database was lost."""
        target = Path(self.target)
        is_address = FORMATS[self.name].is_address
        if is_address or not target.is_relative_to(folder):
            sink.refuse_taken()
        make_folder(self.target)
        name = self.name if self.is_sink else None
        return self._save(subject, SinkCursor(name, written_at=self.wall()))

    def _save(self, subject: Subject, cursor: SinkCursor) -> SinkCursor:
        save_cursor(subject.connection, self.run_id, subject.key, cursor)
        return cursor

    def _begin(self, subject: Subject, sink: Sink, cursor: SinkCursor) -> SinkCursor:
        """Open the target. `written_at` stays: nothing has been written yet."""
        progress = cursor.progress
        if sink.begin(cursor.position):
            progress = ExportProgress()
        fresh = replace(cursor, progress=progress, position=sink.position(), ended_at=None)
        return self._save(subject, fresh)

    def _follow(self, subject: Subject, sink: Sink, cursor: SinkCursor) -> int:
        cursor = self._begin(subject, sink, cursor)
        inode = self.workspace.database.stat().st_ino
        while True:
            began = self.cpu()
            try:
                piece = read_piece(subject.connection, self.run_id, cursor.progress, PIECE_LINES)
            except HistoryLostError:
                cursor = self._begin(subject, sink, replace(cursor, progress=ExportProgress(), position={}))
                continue
            if piece.items:
                sink.write(piece.items, piece.has_more)
            if piece.is_last:
                sink.finish(piece.state, piece.ended_at or self.wall())
            if piece.items or piece.is_last:
                at = self.wall()
                position = sink.position()
                ended_at = piece.ended_at if piece.is_last else None
                cursor = self._save(subject, SinkCursor(cursor.sink, piece.progress, position, at, ended_at))
                self.on_write(at)
            if piece.is_last:
                return sink.written
            spent_seconds = self.cpu() - began
            if not piece.has_more:
                self._pause(subject.connection, spent_seconds, inode)
            elif piece.ended_at is None and spent_seconds > 0:
                self.wait(spent_seconds * (1 / CATCHING_UP_SHARE - 1))

    def _pause(self, connection: sqlite3.Connection, spent_seconds: float, inode: int) -> None:
        """Wait so long that the work takes its share of a core, but at most until the run ends."""
        ends_at = self.clock() + max(FORMATS[self.name].seconds, spent_seconds / CPU_SHARE)
        query = "SELECT ended_at FROM runs WHERE run_id = ?"
        while (remaining := ends_at - self.clock()) > 0:
            self.wait(min(POLL_SECONDS, remaining))
            database = self.workspace.database
            if not database.exists() or database.stat().st_ino != inode:
                raise StoreReplacedError
            row = connection.execute(query, (self.run_id,)).fetchone()
            if row is None or row[0] is not None:
                return


def is_complete(connection: sqlite3.Connection, run_id: str, cursor: SinkCursor) -> bool:
    return cursor.ended_at is not None and is_exported(connection, run_id, cursor.progress)
