"""The sources of metrics: what the store knows of them, and those that are being read."""

from __future__ import annotations

import glob
import json
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from gputui.core.redaction import Redactor
from gputui.metrics.batch import SourceState, StepOrder
from gputui.metrics.earlier import EarlierLines
from gputui.metrics.formats import PRINTED_STREAMS, Reading, line_format
from gputui.metrics.history import HistoryReader
from gputui.metrics.reduction import Reducer
from gputui.metrics.sharing import Custody, WrittenBy
from gputui.metrics.tailer import Boundary, LineReader, SourceReader
from gputui.metrics.trackers import TRACKERS, RecordReader
from gputui.store.events import EventKind

# The format of an attempt's output, which is a source of its own. The run's source of format
# PRINTED only says how to read it.
PRINTED = "stdout"
ATTEMPT_OUTPUT = "output"

# A file system that has not answered for this long is reported.
ANSWER_SECONDS = 10.0

_COLUMNS = "s.source_id, s.run_id, s.path, s.format, s.reading"


class PendingWork(Protocol):
    """Work in another thread, as `gputui.agent.jobs.Job`."""

    @property
    def is_over(self) -> bool: ...

    def result(self) -> Any: ...


class ReadContext(Struct, frozen=True):
    """What reads in other threads need.

    Attributes:
        start: begins work in another thread, by a name for the log.
        connect: opens the store for reading, for the thread that calls it.
        run_dir: the folder of a run by its ID; its file system always answers, or nothing works.
        written_by: see `WrittenBy`; called in another thread.
    """

    start: Callable[[str, Callable[[], Any]], PendingWork]
    connect: Callable[[], sqlite3.Connection]
    run_dir: Callable[[str], Path]
    written_by: WrittenBy


class SourceRow(NamedTuple):
    """A source as it is registered. ``path`` is a file, a glob or a folder, see
    `SourceTable.register`; ``reading`` is a `Reading` as JSON."""

    source_id: int
    run_id: str
    path: str
    format: str
    reading: str | None

    @property
    def pattern(self) -> str:
        """The path or glob of its files."""
        return f"{self.path}/{TRACKERS[self.format][0]}" if self.format in TRACKERS else self.path


class SourceTable:
    """The tables ``metric_sources`` and ``metric_boundaries``. Methods that write work inside the
    caller's transaction. All raise sqlite3.Error."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def register(self, run_id: str, path: str, kind: str, reading: Reading) -> None:
        """Add a source, unless the run has it. See `MetricsIngest.open_source`."""
        if kind in PRINTED_STREAMS:
            reading = reading._replace(streams=PRINTED_STREAMS[kind])
            kind = PRINTED
        if kind != "hf" and kind not in TRACKERS:
            line_format(kind, reading)
        self._insert(run_id, path, kind, reading.to_json())

    def files_of(self, run_id: str) -> list[SourceRow]:
        """The sources that the run's profile names, without the output of its attempts."""
        rows = self.connection.execute(
            f"SELECT {_COLUMNS} FROM metric_sources AS s "  # noqa: S608
            "WHERE run_id = ? AND format NOT IN (?, ?)",
            (run_id, ATTEMPT_OUTPUT, PRINTED),
        )
        return [SourceRow(*row) for row in rows.fetchall()]

    def growing(self, condition: str, values: tuple[str, ...] = ()) -> list[SourceRow]:
        """The sources that can still grow, of runs that satisfy an SQL condition: of outputs only
        those of the newest attempt."""
        rows = self.connection.execute(
            f"SELECT {_COLUMNS} FROM metric_sources AS s "  # noqa: S608
            f"JOIN runs USING (run_id) WHERE {condition} AND s.format != '{PRINTED}' "
            f"AND (s.format != '{ATTEMPT_OUTPUT}' OR (SELECT max(b.attempt) "
            "FROM metric_boundaries AS b WHERE b.source_id = s.source_id) = (SELECT max(b.attempt) "
            "FROM metric_sources AS o JOIN metric_boundaries AS b USING (source_id) "
            f"WHERE o.run_id = s.run_id AND o.format = '{ATTEMPT_OUTPUT}')) ORDER BY s.source_id",
            values,
        )
        return [SourceRow(*row) for row in rows.fetchall()]

    def position(self, source_id: int) -> tuple[SourceState, list[Boundary]]:
        """How far a source was read, and where its attempts begin."""
        row = self.connection.execute(
            "SELECT inode, generation, byte_offset, skipping, fingerprint, first_generation "
            "FROM metric_sources WHERE source_id = ?",
            (source_id,),
        ).fetchone()
        boundaries = self.connection.execute(
            "SELECT generation, byte_offset, attempt FROM metric_boundaries WHERE source_id = ? "
            "ORDER BY generation, byte_offset, attempt",
            (source_id,),
        ).fetchall()
        if row is None:
            return SourceState(), []
        inode, generation, offset, skipping, *rest = row
        state = SourceState(inode, generation, offset, bool(skipping), *rest)
        return state, [Boundary(*values) for values in boundaries]

    def begin_attempt(self, run_id: str, attempt: int, ends: Mapping[int, SourceState], rank_output: str) -> None:
        """Store that lines behind ``ends`` belong to ``attempt``, and register its output: one file
        per stream, ``rank_output`` with ``{stream}`` replaced. See `MetricsIngest.begin_attempt`.
        """
        printed = self.connection.execute(
            "SELECT path, reading FROM metric_sources WHERE run_id = ? AND format = ?",
            (run_id, PRINTED),
        ).fetchall()
        for path, reading in printed:
            output = f"{glob.escape(path)}/attempts/{attempt}/{rank_output}"
            streams = Reading.from_json(reading).streams
            for each in dict.fromkeys(output.replace("{stream}", stream) for stream in streams):
                self._insert(run_id, each, ATTEMPT_OUTPUT, reading)
                (source_id,) = self.connection.execute(
                    "SELECT source_id FROM metric_sources WHERE run_id = ? AND path = ?",
                    (run_id, each),
                ).fetchone()
                self._add_boundary(source_id, (0, 0), attempt)
        for source_id, end in ends.items():
            _, boundaries = self.position(source_id)
            # Lines before a run's first attempt are not its own: they count as read.
            if not boundaries and end.byte_offset:
                self.connection.execute(
                    "UPDATE metric_sources SET inode = ?, generation = ?, byte_offset = ?, "
                    "fingerprint = ?, first_generation = ? WHERE source_id = ?",
                    (end.inode, *end.position, end.fingerprint, end.generation, source_id),
                )
            self._add_boundary(source_id, end.position, attempt)

    def learn(self, source: SourceRow, epochs: Mapping[str, Sequence[int]]) -> None:
        """Keep what an output has shown about its epochs for its next reader, and for the run's
        later attempts."""
        self.connection.execute(
            "UPDATE metric_sources SET reading = json_patch(reading, ?) "
            "WHERE source_id = ? OR (run_id = ? AND format = ?)",
            (json.dumps({"epochs": epochs}), source.source_id, source.run_id, PRINTED),
        )

    def _insert(self, run_id: str, path: str, kind: str, reading: str | None) -> None:
        self.connection.execute(
            "INSERT OR IGNORE INTO metric_sources (run_id, path, format, reading) VALUES (?, ?, ?, ?)",
            (run_id, path, kind, reading),
        )

    def _add_boundary(self, source_id: int, position: tuple[int, int], attempt: int) -> None:
        self.connection.execute(
            "INSERT OR IGNORE INTO metric_boundaries (source_id, generation, byte_offset, attempt) VALUES (?, ?, ?, ?)",
            (source_id, *position, attempt),
        )


class BackgroundRead(Struct):
    """A read in progress since ``begun_at`` (monotonic seconds). ``ended`` is the argument of its
    `SourceReader.read`, ``custody`` is None if no other run could write the same files."""

    job: PendingWork
    ended: bool
    custody: Custody | None
    begun_at: float


@dataclass(slots=True, eq=False)
class OpenSource:
    """A source that is being read. Its reader is created by the first read, because that takes a
    millisecond.

    Attributes:
        make_reader: creates the reader; for reads in other threads it gets True.
        state, boundaries: the committed read position, and where the attempts begin.
        problem: the last error of a read, which is reported once; None after a read without error.
        in_background: whether the source is read in other threads; ``read`` is the read in
            progress.
        next_read_at: when the next background read is due, monotonic seconds.
        awaits_since: since when a background read was wanted and has not answered, monotonic
            seconds; else None.
        unattributed_since: since when there has been a file that another run may write, monotonic
            seconds; else None.
        reported: kinds and keys of the notes that were reported.
        learned: what is stored of `LineFormat.learned`.
    """

    row: SourceRow
    make_reader: Callable[[bool], SourceReader]
    reducer: Reducer
    state: SourceState
    boundaries: list[Boundary]
    order: StepOrder = field(default_factory=StepOrder)
    problem: str | None = None
    in_background: bool = False
    read: BackgroundRead | None = None
    next_read_at: float = 0.0
    awaits_since: float | None = None
    unattributed_since: float | None = None
    reported: set[tuple[EventKind, str | None]] = field(default_factory=set)
    learned: Mapping[str, Sequence[int]] = field(default_factory=dict)
    _reader: SourceReader | None = None

    @property
    def source_id(self) -> int:
        return self.row.source_id

    @property
    def run_id(self) -> str:
        return self.row.run_id

    @property
    def pattern(self) -> str | None:
        """The path or glob of its files; None for the output of an attempt."""
        return None if self.row.format == ATTEMPT_OUTPUT else self.row.pattern

    @property
    def reader(self) -> SourceReader:
        if self._reader is None:
            self._reader = self.make_reader(self.in_background)
        return self._reader

    def close(self) -> None:
        """Close the reader; the next read creates another one. One that another thread still uses
        is closed with its last reference."""
        if self.read is None and self._reader is not None:
            self._reader.close()
        self.read = self._reader = None

    def is_unanswered(self) -> bool:
        since = self.awaits_since
        return since is not None and time.monotonic() - since > ANSWER_SECONDS


class OpenSources:
    """The open sources of all runs with an attempt, and of runs that were asked for."""

    def __init__(
        self,
        table: SourceTable,
        clock: Callable[[], float],
        redactor_of: Callable[[str], Redactor],
        read_context: ReadContext | None,
    ) -> None:
        self._table = table
        self._clock = clock
        self._redactor_of = redactor_of
        self._read_context = read_context
        self.by_id: dict[int, OpenSource] = {}
        # Runs whose sources are to be opened; None for all that live.
        self._unopened: set[str] | None = None

    def refreshed(self, run_id: str | None) -> list[OpenSource]:
        """The open sources of one run or of all, after opening those that the store has since."""
        if self._unopened is None:
            self._open("runs.state IN ('starting', 'running', 'stopping')")
        for unopened in self._unopened or ():
            self._open("runs.run_id = ? AND runs.ended_at IS NULL", unopened)
        self._unopened = set()
        if run_id is None:
            return list(self.by_id.values())
        if not any(source.run_id == run_id for source in self.by_id.values()):
            self._open("runs.run_id = ?", run_id)
        return [source for source in self.by_id.values() if source.run_id == run_id]

    def reopen(self, run_id: str) -> None:
        """Let the next `refreshed` read a run's sources from the store again."""
        self.forget(run_id)
        if self._unopened is not None:
            self._unopened.add(run_id)

    def forget(self, run_id: str) -> None:
        """Close a run's sources."""
        for source in [source for source in self.by_id.values() if source.run_id == run_id]:
            source.close()
            del self.by_id[source.source_id]

    def close(self) -> None:
        """Close all sources."""
        for source in self.by_id.values():
            source.close()
        self.by_id.clear()
        self._unopened = None

    def new_reader(self, row: SourceRow, in_background: bool) -> SourceReader:
        """A reader of a source, for this thread or for others."""
        redactor = self._redactor_of(row.run_id)
        earlier = EarlierLines(row.source_id, lambda: nullcontext(self._table.connection))
        if in_background and self._read_context is not None:
            open_store = self._read_context.connect
            earlier = EarlierLines(row.source_id, lambda: closing(open_store()))
        if row.format == "hf":
            clock = self._clock
            return HistoryReader(row.source_id, row.path, redactor, earlier=earlier, clock=clock)
        if row.format in TRACKERS:
            return RecordReader(row.source_id, row.path, row.format, redactor)
        is_output = row.format == ATTEMPT_OUTPUT
        return LineReader(
            row.source_id,
            row.path,
            line_format(PRINTED if is_output else row.format, Reading.from_json(row.reading)),
            redactor,
            earlier=earlier,
            is_pattern=is_output,
            clock=self._clock,
        )

    def _open(self, condition: str, *values: str) -> None:
        for row in self._table.growing(condition, values):
            if row.source_id not in self.by_id:
                state, boundaries = self._table.position(row.source_id)
                self.by_id[row.source_id] = OpenSource(
                    row, partial(self.new_reader, row), Reducer(row.source_id), state, boundaries
                )
