"""Export a run into a sink while it is active: new items are written, then the position is stored.

The run is not affected, and the store is only read. An item is on the disk before its position is stored, and a sink
removes items behind its position. So a process can be killed at any time, and the next one continues.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from gputui.reports.export.formats import FORMATS, Format
from gputui.reports.export.memory import MemoryPlace, Remembered
from gputui.reports.export.sink import Sink
from gputui.reports.export.sink_factory import make_sink, memory_key_of
from gputui.reports.export.subject import read_subject
from gputui.store.database import open_reader
from gputui.store.metrics.exported import ExportProgress, HistoryLostError, RunGoneError, read_piece
from gputui.store.runs import RunLookupError

PIECE_LINES = 2000
# The share of a core; a costly format is updated less often while the run is active.
CPU_SHARE = 0.002
# The same while the sink catches up with an active run.
CATCHING_UP_SHARE = 0.25
POLL_SECONDS = 2.0
# The limit for a write to a disk or server that hangs. SIGALRM then ends the process, and the next one tries again.
WRITE_SECONDS = 900


class StoreReplacedError(Exception):
    """The database file was replaced."""


class Target(Struct, frozen=True):
    """The run and the target of an export. ``target`` is absolute; ``metrics`` are names, empty for all."""

    run_id: str
    run_dir: Path
    name: Format
    target: str
    metrics: tuple[str, ...] = ()


@dataclass(slots=True)
class Follower:
    """A sink of a run. ``wall`` gives UTC unix seconds, ``cpu`` the processor time of this process, ``clock`` monotonic
    seconds. ``guard`` ends the process after so many seconds; 0 cancels it. ``is_agents``: an agent started this
    process and may end it."""

    database: Path
    target: Target
    wall: Callable[[], float] = time.time
    cpu: Callable[[], float] = time.process_time
    clock: Callable[[], float] = time.monotonic
    wait: Callable[[float], None] = time.sleep
    guard: Callable[[int], object] = int
    is_agents: bool = False

    def run(self) -> int:
        """Export until the run is over and everything is written, or the run is gone. Returns how much this process has
        written. Raises ExportError, HeldElsewhereError, OSError, StoreError or sqlite3.Error."""
        with closing(open_reader(self.database)) as connection:
            try:
                subject = read_subject(connection, self.target.run_id, self.target.metrics)
            except RunLookupError:
                return 0
            key = memory_key_of(self.target.name, subject.run.run_id, self.target.target, subject.wanted)
            place = MemoryPlace.of(self.target.run_dir, self.target.name, key)
            place.make()
            with _locked(place, is_agents=self.is_agents):
                known = place.read()
                created_at = subject.run.created_at if known is None else known.created_at
                subject = replace(subject, run=replace(subject.run, created_at=created_at))
                sink = make_sink(self.target.name, subject, self.target.target)
                try:
                    if known is None:
                        known = self._take_target(place, sink, created_at)
                    elif known.ended_at is not None and self._is_exported(connection, known):
                        return 0
                    return self._follow(connection, place, sink, known)
                except (RunGoneError, FileNotFoundError):
                    if self._is_gone(connection):
                        return 0
                    raise
                except StoreReplacedError:
                    return 0

    def _take_target(self, place: MemoryPlace, sink: Sink, created_at: float) -> Remembered:
        sink.refuse_taken()
        known = Remembered(created_at, ExportProgress(), sink.origin(), self.wall())
        if not FORMATS[self.target.name].is_address:
            Path(self.target.target).parent.mkdir(parents=True, exist_ok=True)
        # From now on the target belongs to this sink, even if `begin` fails.
        place.write(known)
        return known

    def _follow(self, connection: sqlite3.Connection, place: MemoryPlace, sink: Sink, known: Remembered) -> int:
        known = self._begin(place, sink, known)
        inode = self.database.stat().st_ino
        while True:
            before = self.cpu()
            self.guard(WRITE_SECONDS)
            try:
                piece = read_piece(connection, self.target.run_id, known.progress, PIECE_LINES)
            except HistoryLostError:
                known = replace(known, progress=ExportProgress(), position=sink.origin())
                place.write(known)
                known = self._begin(place, sink, known)
                continue
            if piece.items:
                position = sink.write(piece.items, piece.has_more)
                known = replace(known, progress=piece.progress, position=position, at=self.wall())
                place.write(known)
            if piece.is_last:
                assert piece.ended_at is not None
                position = sink.finish(piece.state, piece.ended_at)
                at = self.wall()
                place.write(Remembered(known.created_at, piece.progress, position, at, piece.ended_at))
                return sink.written
            spent_seconds = self.cpu() - before
            if not piece.has_more:
                self._pause(connection, spent_seconds, inode)
            elif piece.ended_at is None and spent_seconds > 0:
                self.wait(spent_seconds * (1 / CATCHING_UP_SHARE - 1))

    def _begin(self, place: MemoryPlace, sink: Sink, known: Remembered) -> Remembered:
        self.guard(WRITE_SECONDS)
        begun = sink.begin(known.position)
        # `at` does not change: nothing has been written yet, and a new time would look like a success.
        progress = ExportProgress() if begun.is_new else known.progress
        fresh = replace(known, progress=progress, position=begun.position, ended_at=None)
        place.write(fresh)
        return fresh

    def _pause(self, connection: sqlite3.Connection, spent_seconds: float, inode: int) -> None:
        """Wait so long that the work takes its share of a core, but at most until the run ends."""
        seconds = max(FORMATS[self.target.name].seconds, spent_seconds / CPU_SHARE)
        until = self.clock() + seconds
        self.guard(0)
        while (left := until - self.clock()) > 0:
            self.wait(min(POLL_SECONDS, left))
            try:
                if self.database.stat().st_ino != inode:
                    raise StoreReplacedError
            except FileNotFoundError as error:
                raise StoreReplacedError from error
            row = connection.execute("SELECT ended_at FROM runs WHERE run_id = ?", (self.target.run_id,)).fetchone()
            if row is None or row[0] is not None:
                return

    def _is_exported(self, connection: sqlite3.Connection, known: Remembered) -> bool:
        try:
            piece = read_piece(connection, self.target.run_id, known.progress, 1)
        except HistoryLostError:
            return False
        return piece.is_last and not piece.items and piece.ended_at == known.ended_at

    def _is_gone(self, connection: sqlite3.Connection) -> bool:
        row = connection.execute("SELECT 1 FROM runs WHERE run_id = ?", (self.target.run_id,)).fetchone()
        return row is None


@contextmanager
def _locked(place: MemoryPlace, *, is_agents: bool) -> Iterator[None]:
    descriptor = place.take(is_agents=is_agents)
    try:
        yield
    finally:
        os.close(descriptor)
