"""Export a run into a sink while it is active.

An item is on the disk before the sink's cursor is stored, and a sink removes what lies behind its
position. So a process can be killed at any time, and the next one continues.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from gputui.core.config import PRIVATE_DIR_MODE, Workspace
from gputui.reports.export.files import make_folder
from gputui.reports.export.formats import FORMATS, Format
from gputui.reports.export.sink import ExportError, Sink
from gputui.reports.export.subject import Subject, read_subject
from gputui.reports.export.whole import PIECE_LINES, make_sink
from gputui.runs import identity
from gputui.store.database import is_same_file, open_commander
from gputui.store.metrics.exported import (
    ExportProgress,
    HistoryLostError,
    Piece,
    RunGoneError,
    SinkCursor,
    is_exported,
    read_cursor,
    read_piece,
    save_cursor,
)
from gputui.store.runs import RunLookupError

CPU_SHARE = 0.002
"""The share of a core; a costly format is updated less often while the run is active."""
CATCHING_UP_SHARE = 0.25
"""The same while the sink catches up with an active run."""
POLL_SECONDS = 2.0
"""How often to look whether the run has ended."""


class StoreReplacedError(Exception):
    """The database file was replaced."""


def is_complete(connection: sqlite3.Connection, run_id: str, cursor: SinkCursor) -> bool:
    """Return whether the sink at a cursor has all of a run that is over."""
    return cursor.ended_at is not None and is_exported(connection, run_id, cursor.progress)


@dataclass(slots=True)
class OpenSink:
    """A sink whose cursor is stored whenever it changes."""

    subject: Subject
    sink: Sink
    cursor: SinkCursor

    def begin(self) -> None:
        """Open the target behind what was written. `written_at` stays: nothing has been written yet."""
        progress = self.cursor.progress
        if self.sink.begin(self.cursor.position):
            progress = ExportProgress()
        self.save(replace(self.cursor, progress=progress, position=self.sink.position(), ended_at=None))

    def begin_anew(self) -> None:
        """Open the target, and write all of it again."""
        self.cursor = replace(self.cursor, progress=ExportProgress(), position={})
        self.begin()

    def write(self, piece: Piece, wall: Callable[[], float]) -> float | None:
        """Write a piece, and what ends the target if it is the last one; returns when, None without anything to
        write."""
        if piece.items:
            self.sink.write(piece.items, piece.has_more)
        if piece.is_last:
            self.sink.finish(piece.state, piece.ended_at or wall())
        if not piece.items and not piece.is_last:
            return None
        written_at = wall()
        ended_at = piece.ended_at if piece.is_last else None
        position = self.sink.position()
        self.save(SinkCursor(self.cursor.sink, piece.progress, position, written_at=written_at, ended_at=ended_at))
        return written_at

    def save(self, cursor: SinkCursor) -> None:
        save_cursor(self.subject.connection, self.subject.run.run_id, self.subject.key, cursor)
        self.cursor = cursor


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
    on_write: Callable[[float], None] | None = None

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
                return self._follow_alone(subject)
            except (RunLookupError, RunGoneError, StoreReplacedError):
                return 0
            except (FileNotFoundError, ExportError):
                # The folder of a removed run is gone as well.
                query = "SELECT 1 FROM runs WHERE run_id = ?"
                if connection.execute(query, (self.run_id,)).fetchone() is None:
                    return 0
                raise

    def _follow_alone(self, subject: Subject) -> int:
        """Follow while no other process writes this target: a person may follow it, too."""
        folder = self.workspace.run_dir(self.run_id) / "sinks"
        folder.mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
        lock = identity.take(folder / f"{self.name}-{subject.key[:8]}.lock", is_agents=False)
        try:
            cursor = read_cursor(subject.connection, self.run_id, subject.key)
            if cursor is not None and is_complete(subject.connection, self.run_id, cursor):
                return 0
            with closing(make_sink(self.name, subject, self.target)) as sink:
                if cursor is not None:
                    return self._follow(OpenSink(subject, sink, cursor))
                self._take_target(sink, folder)
                name = self.name if self.is_sink else None
                open_sink = OpenSink(subject, sink, SinkCursor(name, written_at=self.wall()))
                # Stored before it begins: the target is this sink's even if that fails.
                open_sink.save(open_sink.cursor)
                return self._follow(open_sink)
        finally:
            os.close(lock)

    def _take_target(self, sink: Sink, folder: Path) -> None:
        """Make the folder of a new target. Raises ExportError if another has written there.

        A target in the run's own folder is taken over: only a sink whose cursor went with a lost database was there.
        """
        is_own = not FORMATS[self.name].is_address and Path(self.target).is_relative_to(folder)
        if not is_own:
            sink.refuse_taken()
        make_folder(self.target)

    def _follow(self, target: OpenSink) -> int:
        """Write what the run has, and then what comes, until it is over."""
        connection = target.subject.connection
        target.begin()
        database = self.workspace.database.stat()
        while True:
            began = self.cpu()
            try:
                piece = read_piece(connection, self.run_id, target.cursor.progress, PIECE_LINES)
            except HistoryLostError:
                target.begin_anew()
                continue
            written_at = target.write(piece, self.wall)
            if written_at is not None and self.on_write is not None:
                self.on_write(written_at)
            if piece.is_last:
                return target.sink.written
            spent_seconds = self.cpu() - began
            if not piece.has_more:
                self._pause(connection, spent_seconds, database)
            elif piece.ended_at is None and spent_seconds > 0:
                self.wait(spent_seconds * (1 / CATCHING_UP_SHARE - 1))

    def _pause(self, connection: sqlite3.Connection, spent_seconds: float, database: os.stat_result) -> None:
        """Wait so long that the work takes its share of a core, but at most until the run ends. Raises
        StoreReplacedError if the path of the ``database`` names another file."""
        ends_at = self.clock() + max(FORMATS[self.name].seconds, spent_seconds / CPU_SHARE)
        query = "SELECT ended_at FROM runs WHERE run_id = ?"
        while (remaining := ends_at - self.clock()) > 0:
            self.wait(min(POLL_SECONDS, remaining))
            if not is_same_file(self.workspace.database, database):
                raise StoreReplacedError
            row = connection.execute(query, (self.run_id,)).fetchone()
            if row is None or row[0] is not None:
                return
