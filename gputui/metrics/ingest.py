"""Store metrics files exactly once: a file's offset is committed together with the lines before it.

Plain files in the folders of runs are read in the caller's thread, all others in threads of their
own: their file system may not answer, or they must be searched, parsed whole or compared.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gputui.core.redaction import BY_LOOK, Redactor
from gputui.metrics.background import BackgroundReader
from gputui.metrics.batch import Batch, store_batch
from gputui.metrics.formats import DEFAULT_READING, Reading
from gputui.metrics.history import HistoryReader
from gputui.metrics.name_owners import NameOwners
from gputui.metrics.reader import FileReader
from gputui.metrics.reduction import MetricLine, Reducer
from gputui.metrics.source_state import Arrivals, Boundary, SourceState
from gputui.metrics.sources import ATTEMPT_OUTPUT, ReadContext, SourceEnds, SourceRow, SourceTable
from gputui.metrics.step_sources import store_steps
from gputui.metrics.written_sources import FoundSource
from gputui.store.events import EventKind, NewEvent

# The agent's loop has other work; the rest is read in its next turn.
PUMP_SECONDS = 0.016

OUTPUT = "output.log"
"""The output of an attempt's command in its folder, both streams in one file."""


STARTS_AGAIN = (
    "its steps start again at their first within an attempt, so that charts by step lay its epochs "
    "over each other; let the script count on, or have the pattern name epoch and iter"
)


@dataclass(slots=True)
class StepOrder:
    """The steps of one source. A script may restart them once; twice means that it counts per
    epoch."""

    attempt: int = 0
    first: int = 0
    last: int = 0
    starts: int = 0

    def add(self, lines: Sequence[MetricLine]) -> bool:
        """Take the next lines; True if they start again for the second time in their attempt."""
        is_restarted = False
        for line in lines:
            if "event" in line.values:
                continue
            if line.attempt != self.attempt:
                self.attempt = line.attempt
                self.first = line.step
                self.starts = 0
            elif line.step <= self.first and self.last > line.step + 1:
                self.starts += 1
                is_restarted = is_restarted or self.starts == 2
                self.first = line.step
            self.last = line.step
        return is_restarted


@dataclass(slots=True)
class IngestReport:
    """The result of one round.

    Attributes:
        lines: How many lines were stored.
        rejected: How many lines were rejected.
        more: The budget ended before the files.
        awaits: A read in another thread goes on.
        progress: The attempts with new lines: run and number.
        notes: Remarks, with their runs.
    """

    lines: int = 0
    rejected: int = 0
    more: bool = False
    awaits: bool = False
    progress: set[tuple[str, int]] = field(default_factory=set)
    notes: list[tuple[str, NewEvent]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class OpenSource:
    """A source that is being read.

    Attributes:
        reducer: What charts show of the lines that are stored.
        state: The position up to which lines are stored.
        boundaries: Where attempts begin.
        order: Whether its steps start again.
        arrivals: When its lines were first read.
        reader: None until it is read, and after `close`.
        reported: The kinds and keys of the notes that were reported.
        learned: `LineFormat.learned` as it is stored.
    """

    row: SourceRow
    reducer: Reducer
    state: SourceState
    boundaries: list[Boundary]
    order: StepOrder = field(default_factory=StepOrder)
    arrivals: Arrivals = field(default_factory=Arrivals)
    reader: FileReader | HistoryReader | BackgroundReader | None = None
    reported: set[tuple[EventKind, str | None]] = field(default_factory=set)
    learned: Any = None

    @property
    def background(self) -> BackgroundReader | None:
        """Its reader, if that reads in another thread."""
        if isinstance(self.reader, BackgroundReader):
            return self.reader
        return None

    def close(self) -> None:
        """Close the reader; the next read creates another one."""
        if self.reader is not None:
            self.reader.close()
        self.reader = None


class MetricsIngest:
    """Stores the metrics files of all runs that are not over. ``connection`` is the agent's, in
    autocommit mode; without ``read_context`` all files are read in the caller's thread.

    The files and the store hold the whole state: a new object continues from the last commit.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        clock: Callable[[], float] = time.time,
        redactor_of: Callable[[str], Redactor] = lambda _: BY_LOOK,
        read_context: ReadContext | None = None,
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._table = SourceTable(connection, clock, redactor_of, read_context)
        self.ends = SourceEnds(self._table)
        self._sources: dict[int, OpenSource] = {}
        self._rivals: dict[int, str] | None = None
        self._owners: dict[str, NameOwners] = {}
        # The sources that did not fit into the last budget.
        self._waiting: list[int] = []
        self._report = IngestReport()

    # --- inside the caller's transaction ----------------------------------------------------------

    def open_source(self, run_id: str, path: str, kind: str, reading: Reading = DEFAULT_READING) -> None:
        """Register a source of a run's metrics, inside the caller's transaction or not. Idempotent.

        Args:
            path: A file (``jsonl``, ``csv``), a glob (``hf``), the folder of files or a glob of such folders
                (``tensorboard``, ``wandb``), or the run's folder (``stdout``, ``stderr``, ``output``).
            kind: One of these.

        Raises:
            ValueError: The kind is unknown, or the patterns are bad.
        """
        self._table.register(run_id, path, kind, reading)

    def add_source(self, run_id: str, attempt: int, source: FoundSource, begin: SourceState | None) -> bool:
        """Register a source that a live attempt has begun to write, inside the caller's transaction.

        Args:
            begin: The state before its first line, None at the file's start.

        Returns:
            False if the run has it already.
        """
        self._rivals = None
        return self._table.add(run_id, attempt, source, begin)

    def begin_attempt(
        self, run_id: str, attempt: int, rank_output: str = OUTPUT, ends: Mapping[int, SourceState] | None = None
    ) -> None:
        """Record, inside the caller's transaction, that new lines belong to an attempt. Lines before a run's first
        attempt are not read.

        Args:
            rank_output: A glob, below the attempt's folder, for the output of its first rank, with ``{stream}`` if
                stdout and stderr are separate.
            ends: Where the new lines begin (`SourceEnds.of`); None to find it now.

        Raises:
            OSError: A file cannot be read.
            sqlite3.Error: The store cannot be written.
        """
        if ends is None:
            ends = self.ends.of(run_id)
        self._table.begin_attempt(run_id, attempt, ends, rank_output)
        self._rivals = None
        self.forget(run_id)

    def readmit_attempt(self, run_id: str, attempt: int, offsets: Mapping[str, int], rank_output: str = OUTPUT) -> None:
        """Record an attempt that the store has lost, as `begin_attempt`; call it in the order of the attempts.

        Args:
            offsets: Where its lines begin in each file, by path.
        """
        self.begin_attempt(run_id, attempt, rank_output, self.ends.at(run_id, offsets))

    def forget(self, run_id: str) -> None:
        """Close a run's files; the store does not change. The next call that names the run opens
        them again."""
        for source in [source for source in self._sources.values() if source.row.run_id == run_id]:
            source.close()
            del self._sources[source.row.source_id]
        self._owners.pop(run_id, None)
        self.ends.forget(run_id)

    def close(self) -> None:
        """Close all files."""
        for source in self._sources.values():
            source.close()
        self._sources.clear()

    # --- in separate transactions -----------------------------------------------------------------

    def pump(self, budget_seconds: float = PUMP_SECONDS) -> IngestReport:
        """Store new whole lines of all runs with an attempt, for about ``budget_seconds``, a batch
        of each source per transaction. Sources that did not fit come first in the next call.

        Raises sqlite3.OperationalError (the disk is full, the database is locked); earlier
        transactions are kept, and the next report includes what this one stored. Raises
        RuntimeError inside a transaction.
        """
        return self._drain(None, budget_seconds)

    def finish(self, run_id: str, budget_seconds: float = math.inf) -> IngestReport:
        """Store the lines of one run after an attempt has ended, up to the end of its files: a last line without a
        newline is stored or rejected. A file that does not answer is given up after ANSWER_SECONDS.

        Returns:
            A report that asks for another call by ``more``, and for one after a while by ``awaits``.
        """
        report = self._drain(run_id, budget_seconds)
        if not report.more and not report.awaits:
            self.forget(run_id)
        return report

    def has_answers(self) -> bool:
        """Return whether a read in another thread has ended."""
        return any(source.background.has_answer for source in self._sources.values() if source.background)

    def _drain(self, run_id: str | None, budget_seconds: float) -> IngestReport:
        """Store what there is of one run whose attempt has ended, or of all."""
        if self._connection.in_transaction:
            raise RuntimeError("metrics are stored in transactions of their own")
        sources = self._open_sources(run_id)
        rank = {source_id: index for index, source_id in enumerate(self._waiting)}
        queue = deque(sorted(sources, key=lambda source: rank.get(source.row.source_id, len(rank))))
        deadline = time.monotonic() + budget_seconds
        while queue and (now := time.monotonic()) < deadline:
            self._store_round(queue, min(deadline, now + PUMP_SECONDS), ended=run_id is not None)
        self._waiting = [source.row.source_id for source in queue]
        readers = [source.background for source in sources if source.background is not None]
        self._report.awaits = any(reader.is_reading and not reader.is_unanswered for reader in readers)
        report = self._report
        self._report = IngestReport()
        report.more = bool(queue)
        return report

    def _store_round(self, queue: deque[OpenSource], deadline: float, *, ended: bool) -> None:
        """Store one batch of each source at the head of the queue in one transaction, and move
        sources with more lines to its end.

        A source comes once per transaction: its reader closes a replaced file as soon as it sees
        the state behind it, which must be committed by then.
        """
        stored: list[tuple[OpenSource, Batch]] = []
        try:
            for source in list(queue):
                if time.monotonic() >= deadline:
                    break
                try:
                    batch = self._read(source, ended=ended)
                except sqlite3.Error:
                    self._reopen(source)
                    raise
                queue.popleft()
                if batch is None:
                    continue
                stored.append((source, batch))
                if not self._connection.in_transaction:
                    self._connection.execute("BEGIN IMMEDIATE")
                if not self._store(source, batch):
                    stored.pop()
                    self.forget(source.row.run_id)
            if self._connection.in_transaction:
                self._connection.execute("COMMIT")
        except BaseException:
            for source, batch in stored:
                self._undo(source, batch)
            # After some errors, such as a full disk, SQLite has already rolled back.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        for source, batch in stored:
            self._note_stored(source, batch, ended=ended)
            if batch.more and source.background is None:
                queue.append(source)

    def _store(self, source: OpenSource, batch: Batch) -> bool:
        """Store a batch with all that follows from it, inside the transaction; False if another process did."""
        now = self._clock()
        if not store_batch(self._connection, source.state, batch, now, source.reducer):
            return False
        self._note_names(source, batch)
        store_steps(self._connection, batch, now)
        if batch.learned is not None and batch.learned != source.learned:
            source.row = source.row.with_learned(batch.learned)
            self._table.learn(source.row, batch.inherited)
        return True

    def _undo(self, source: OpenSource, batch: Batch) -> None:
        """Forget in memory what a transaction that failed would have stored."""
        source.reducer.forget()
        batch.source.nulls.forget()
        if source.row.run_id in self._owners:
            self._owners[source.row.run_id].forget()
        if batch.learned is not None:
            self._reopen(source)
        if batch.comparison is not None:
            batch.comparison.earlier.forget()

    def _reopen(self, source: OpenSource) -> None:
        """Open a source again from what is stored: its reader is ahead of that."""
        source.close()
        self._sources.pop(source.row.source_id, None)

    def _note_names(self, source: OpenSource, batch: Batch) -> None:
        """Take in the names of a stored batch, inside its transaction."""
        names = {name for values in batch.newest.values() for name in values}
        for source_id in self._owners_of(source.row).take(self._connection, source.row.source_id, names):
            if source_id in self._sources:
                self._sources[source_id].reducer.forget()

    def _owners_of(self, row: SourceRow) -> NameOwners:
        """The owners of names of a source's run, of which it is one."""
        owners = self._owners.setdefault(row.run_id, NameOwners())
        if row.source_id not in owners:
            for source_row in self._table.read_of(row.run_id):
                owners.add_source(source_row.source_id, source_row.format, source_row.how)
        owners.refresh(self._connection)
        return owners

    def _note_stored(self, source: OpenSource, batch: Batch, *, ended: bool) -> None:
        """Go on behind a batch that was committed."""
        if batch.state.generation > source.state.generation:
            source.order = StepOrder()
        source.state = batch.state
        source.learned = batch.learned
        self._report.lines += len(batch.rows)
        self._report.rejected += len(batch.rejected)
        if batch.rows or batch.rejected:
            self._report.progress.add((source.row.run_id, batch.attempt))
        if source.order.add(batch.to_reduce):
            self._note(source, NewEvent("steps_restarted", STARTS_AGAIN))
        for note in batch.notes.values():
            self._note(source, note)
        if source.background is not None:
            source.background.begin(source.state, source.boundaries, ended=ended, is_due=batch.more)

    def _read(self, source: OpenSource, *, ended: bool) -> Batch | None:
        """The next batch of a source, None if there is none now."""
        if self._rivals is None:
            self._rivals = self._table.rivals()
        if rivals := self._rivals.get(source.row.source_id):
            # Whose lines they are cannot be told, and a value of another run would end this one.
            pattern = source.row.pattern
            text = f"{pattern} is not read, since {rivals} may write it too; let each run write below {{run_dir}}"
            self._note(source, NewEvent("metrics_doubtful", text, pattern))
            source.close()
            return None
        reader = self._reader(source)
        try:
            batch = reader.read(source.state, source.boundaries, ended=ended)
        except OSError as error:
            text = f"metrics cannot be read: {error}"
            self._note(source, NewEvent("metrics_unreadable", text, str(error)))
            return None
        if isinstance(reader, BackgroundReader) and reader.is_unanswered:
            pattern = source.row.pattern
            text = f"{pattern} does not answer; its metrics are read once it does"
            self._note(source, NewEvent("metrics_unanswered", text, pattern))
        return batch

    def _reader(self, source: OpenSource) -> FileReader | HistoryReader | BackgroundReader:
        """The reader of a source. One for the caller's thread shares its connection."""
        context = self._table.context
        is_compared = source.state.first_generation < source.state.generation
        in_thread = context is not None and (is_compared or self._table.needs_thread(source.row))
        background = source.background
        is_reading = background is not None and background.is_reading
        if source.reader is not None and in_thread != (background is not None) and not is_reading:
            source.close()
        if source.reader is None:
            refused = self._owners_of(source.row).refused(source.row.source_id)
            arrivals = None
            if source.row.format == ATTEMPT_OUTPUT:
                arrivals = source.arrivals
            reader = self._table.reader(source.row, in_thread=in_thread, refused=refused, arrivals=arrivals)
            source.reader = reader
            if in_thread and context is not None:
                source.reader = BackgroundReader(reader, context.start, source.row.pattern)
        return source.reader

    def _note(self, source: OpenSource, note: NewEvent) -> None:
        """Report a remark about a source once."""
        if (note.kind, note.key) not in source.reported:
            source.reported.add((note.kind, note.key))
            self._report.notes.append((source.row.run_id, note))

    def _open_sources(self, run_id: str | None) -> list[OpenSource]:
        """The sources of one run, or of all runs that live."""
        if run_id is None:
            rows = self._table.growing("runs.state IN ('starting', 'running', 'stopping')")
        else:
            rows = self._table.growing("runs.run_id = ?", run_id)
        for row in rows:
            if row.source_id not in self._sources:
                position = self._table.position(row.source_id)
                self._sources[row.source_id] = OpenSource(row, Reducer(row.source_id), *position)
        return [self._sources[row.source_id] for row in rows]
