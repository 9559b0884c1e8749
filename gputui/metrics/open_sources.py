"""The metrics sources that are being read, with their readers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

from gputui.core.redaction import Redactor
from gputui.metrics import background_reads
from gputui.metrics.background_reads import BackgroundRead, ReadContext
from gputui.metrics.batch import SourceState
from gputui.metrics.custody import FileIdentity
from gputui.metrics.earlier_lines import EarlierLines
from gputui.metrics.formats import Reading, line_format
from gputui.metrics.history import HistoryReader
from gputui.metrics.marks import listed_marks, stored_marks
from gputui.metrics.records import TRACKERS, RecordReader
from gputui.metrics.reduction import Reducer
from gputui.metrics.source_reader import Boundary, SourceReader
from gputui.metrics.source_table import ATTEMPT_OUTPUT, PRINTED, SourceRow, SourceTable
from gputui.metrics.step_order import StepOrder
from gputui.metrics.tailer import SourceTailer
from gputui.store.events import EventKind


@dataclass(slots=True, eq=False)
class OpenSource:
    """A source that is being read. Its reader is created by the first read, because that takes a millisecond.

    Attributes:
        make_reader: creates the reader; for reads in other threads it gets True.
        state, boundaries: the committed read position, and where the attempts begin; valid while ``is_loaded``.
        problem: the last error of a read, which is reported once; None after a read without error.
        in_background: whether the source is read in other threads; ``read`` is the read in progress.
        device: the device of the file that was read last, None before.
        next_read_at: when the next background read is due, monotonic seconds.
        awaits_since: since when a background read was wanted and has not answered, monotonic seconds; else None.
        unattributed_since: since when there has been a file that another run may write, monotonic seconds; else None.
        reported: kinds and keys of the notes that were reported.
        remarked: kinds of the remarks about its lines that were made.
        learned: what is stored of `LineFormat.learned`.
        foreign: the files that another run was seen writing.
    """

    row: SourceRow
    make_reader: Callable[[bool], SourceReader]
    reducer: Reducer
    state: SourceState = field(default_factory=SourceState)
    boundaries: list[Boundary] = field(default_factory=list)
    order: StepOrder = field(default_factory=StepOrder)
    is_loaded: bool = False
    problem: str | None = None
    in_background: bool = False
    read: BackgroundRead | None = None
    device: int | None = None
    next_read_at: float = 0.0
    awaits_since: float | None = None
    unattributed_since: float | None = None
    reported: set[tuple[EventKind, str]] = field(default_factory=set)
    remarked: set[EventKind] = field(default_factory=set)
    learned: Mapping[str, Sequence[int]] = field(default_factory=dict)
    foreign: set[FileIdentity] = field(default_factory=set)
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
        """Close the reader; the next read creates another one."""
        if self.read is not None:
            self.read.close_reader()
        elif self._reader is not None:
            self._reader.close()
        self.read = self._reader = None

    def is_unanswered(self) -> bool:
        return self.awaits_since is not None and time.monotonic() - self.awaits_since > background_reads.ANSWER_SECONDS


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
        self._by_id: dict[int, OpenSource] = {}
        # Runs whose sources must be read from the store again; None for all.
        self._stale: set[str] | None = None

    def all(self) -> Iterable[OpenSource]:
        return self._by_id.values()

    def get(self, source_id: int) -> OpenSource | None:
        return self._by_id.get(source_id)

    def refreshed(self, run_id: str | None) -> list[OpenSource]:
        """The open sources of one run or of all, after opening those that the store has since."""
        if self._stale is None:
            self._open(self._table.growing("runs.state IN ('starting', 'running', 'stopping')"))
        for stale in self._stale or ():
            for source in self._by_id.values():
                if source.run_id == stale:
                    source.is_loaded = False
            self._open(self._table.growing("runs.run_id = ? AND runs.ended_at IS NULL", (stale,)))
        self._stale = set()
        if run_id is None:
            return list(self._by_id.values())
        if not any(source.run_id == run_id for source in self._by_id.values()):
            self._open(self._table.growing("runs.run_id = ?", (run_id,)))
        return [source for source in self._by_id.values() if source.run_id == run_id]

    def note_stale(self, run_id: str) -> None:
        """Let the next `refreshed` read a run's sources from the store again."""
        if self._stale is not None:
            self._stale.add(run_id)

    def load(self, source: OpenSource) -> None:
        """Read the position of a source from the store, unless it is known."""
        if source.is_loaded:
            return
        before = source.boundaries
        source.state, source.boundaries = self._table.position(source.source_id)
        source.is_loaded = True
        if source.read is not None and source.boundaries != before:
            source.close()

    def forget(self, run_id: str) -> None:
        """Close a run's sources."""
        for source in [source for source in self._by_id.values() if source.run_id == run_id]:
            source.close()
            del self._by_id[source.source_id]

    def close(self) -> None:
        """Close all sources."""
        for source in self._by_id.values():
            source.close()
        self._by_id.clear()
        self._stale = None

    def new_reader(self, row: SourceRow, in_background: bool) -> SourceReader:
        """A reader of a source, for this thread or for others."""
        redactor = self._redactor_of(row.run_id)
        known = partial(self._marks, stored_marks, in_background, row.source_id)
        if row.format == "hf":
            return HistoryReader(row.source_id, row.path, redactor, known=known, clock=self._clock)
        if row.format in TRACKERS:
            return RecordReader(row.source_id, row.path, row.format, redactor)
        is_output = row.format == ATTEMPT_OUTPUT
        return SourceTailer(
            row.source_id,
            row.path,
            line_format(PRINTED if is_output else row.format, Reading.from_json(row.reading)),
            redactor,
            is_pattern=is_output,
            known=known,
            earlier=EarlierLines(known, partial(self._marks, listed_marks, in_background, row.source_id)),
            clock=self._clock,
        )

    def _open(self, rows: Iterable[SourceRow]) -> None:
        for row in rows:
            if row.source_id not in self._by_id:
                make_reader = partial(self.new_reader, row)
                self._by_id[row.source_id] = OpenSource(row, make_reader, Reducer(row.source_id))

    def _marks(self, read: Callable[..., bytes], in_background: bool, source_id: int, *which: int) -> bytes:
        """Stored marks of a source, for the thread that reads it."""
        if not in_background or self._read_context is None:
            return read(self._table.connection, source_id, *which)
        with closing(self._read_context.connect()) as connection:
            return read(connection, source_id, *which)
