"""Store metrics files exactly once: a file's offset is committed together with the lines before it."""

from __future__ import annotations

import math
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Mapping

from gputui.core.redaction import BY_LOOK, Redactor
from gputui.metrics.background import BackgroundSources, SourceEnds
from gputui.metrics.batch import (
    BATCH_BYTES,
    MIN_BATCH_BYTES,
    STARTS_AGAIN,
    Batch,
    IngestReport,
    MetricsNote,
    SourceState,
)
from gputui.metrics.formats import DEFAULT_READING, Reading
from gputui.metrics.sources import OpenSource, OpenSources, ReadContext, SourceTable
from gputui.metrics.writer import store_batch

PUMP_BYTES = 4 << 20
# The agent's loop has other work; the rest is read in its next turn.
PUMP_SECONDS = 0.016

# The size of a batch follows the measured speed and the remaining time.
_FIRST_BYTES_PER_SECOND = 4 << 20

# The cost of a line beyond its bytes, so that a budget also bounds many tiny lines.
_LINE_COST_BYTES = 128

OUTPUT = "output.log"
"""The output of an attempt's command in its folder, both streams in one file."""


class MetricsIngest:
    """Stores the metrics files of all runs that are not over. ``connection`` is the agent's, in autocommit mode;
    ``clock`` gives UTC unix seconds; ``redactor_of`` returns the redactor of a run by its ID.

    With ``read_context``, the caller's thread touches only plain files in the folders of runs. All others are read in
    the background, see `BackgroundSources`.

    The files and the store hold the whole state: a new object in a new process continues from the last commit.
    ``ends`` finds the ends of a run's files before its next attempt.
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
        self._table = SourceTable(connection)
        self._sources = OpenSources(self._table, clock, redactor_of, read_context)
        self._background: BackgroundSources | None = None
        if read_context is not None:
            self._background = BackgroundSources(read_context, self._table, self._sources, self._note)
        self.ends = SourceEnds(self._table, self._sources, self._background)
        # The sources that did not fit into the last budget.
        self._waiting: list[int] = []
        self._report = IngestReport()
        self._bytes_per_second = float(_FIRST_BYTES_PER_SECOND)

    # --- inside the caller's transaction -----------------------------------------------------------------------

    def open_source(self, run_id: str, path: str, kind: str, reading: Reading = DEFAULT_READING) -> None:
        """Register a source of a run's metrics. Idempotent; may be called inside the caller's transaction.

        ``kind`` is ``jsonl`` or ``csv`` (``path`` is the file), ``hf`` (``path`` is a glob), ``tensorboard`` or
        ``wandb`` (``path`` is the folder of their files, or a glob of such folders), or ``stdout``, ``stderr`` or
        ``output`` (``path`` is the run's folder, which holds the output of each attempt). Raises ValueError for an
        unknown kind or bad patterns.
        """
        self._table.register(run_id, path, kind, reading)

    def begin_attempt(
        self,
        run_id: str,
        attempt: int,
        rank_output: str = OUTPUT,
        ends: Mapping[int, SourceState] | None = None,
    ) -> None:
        """Record that lines behind ``ends`` (`SourceEnds.of`; None to find them now) belong to ``attempt``. Call it
        before the attempt starts, inside the caller's transaction. ``rank_output`` is a glob, below the attempt's
        folder, for the output of its first rank, with ``{stream}`` if stdout and stderr are separate.

        Lines before a run's first attempt do not belong to the run and are not read. Raises OSError if a file exists
        but cannot be read, and sqlite3.Error.
        """
        self._begin(run_id, attempt, self.ends.of(run_id) if ends is None else ends, rank_output)

    def readmit_attempt(self, run_id: str, attempt: int, offsets: Mapping[str, int], rank_output: str = OUTPUT) -> None:
        """The same for an attempt that the store has lost. Its lines begin at the given offset of each file, by path,
        or at the start of a file that is shorter, since that was rotated. Call it in the order of the attempts."""
        self._begin(run_id, attempt, self.ends.at(run_id, offsets), rank_output)

    def _begin(self, run_id: str, attempt: int, ends: Mapping[int, SourceState], rank_output: str) -> None:
        self._table.begin_attempt(run_id, attempt, ends, rank_output)
        if self._background is not None:
            self._background.note_begin()
        self._sources.reopen(run_id)

    def forget(self, run_id: str) -> None:
        """Close a run's files; the store does not change. The next call that names the run opens them again."""
        self._sources.forget(run_id)
        self.ends.forget(run_id)

    def close(self) -> None:
        """Close all files."""
        self._sources.close()

    # --- in separate transactions -------------------------------------------------------------------------

    def pump(
        self, run_id: str | None = None, budget_bytes: int = PUMP_BYTES, budget_seconds: float = PUMP_SECONDS
    ) -> IngestReport:
        """Store new whole lines of one run, or of all runs with an attempt: about ``budget_bytes`` of them, for about
        ``budget_seconds``. Sources that did not fit come first in the next call.

        A batch of each source with new lines is stored in one transaction. Raises sqlite3.OperationalError (the disk is
        full, the database is locked); earlier transactions are kept, the next call tries again, and its report includes
        what this one stored. A file that cannot be read becomes a note in the report. Raises RuntimeError inside a
        transaction.
        """
        return self._drain(run_id, budget_bytes, budget_seconds, ended=False)

    def finish(self, run_id: str, budget_bytes: int | None = None, budget_seconds: float = math.inf) -> IngestReport:
        """The same after an attempt has ended, up to the end of its files. A complete last line without a newline is
        stored, an incomplete one rejected. With a budget, ``more`` in the report asks for another call, and ``awaits``
        for one after a while. A file that does not answer is given up after ANSWER_SECONDS."""
        report = self._drain(run_id, budget_bytes, budget_seconds, ended=True)
        if not report.more and not report.awaits:
            self.forget(run_id)
        return report

    def has_answers(self) -> bool:
        """Whether a background read has ended."""
        return any(source.read.job.is_over for source in self._sources.by_id.values() if source.read is not None)

    def _drain(
        self, run_id: str | None, budget_bytes: int | None, budget_seconds: float, *, ended: bool
    ) -> IngestReport:
        if self._connection.in_transaction:
            raise RuntimeError("metrics are stored in transactions of their own")
        sources = self._sources.refreshed(run_id)
        rank = {source_id: index for index, source_id in enumerate(self._waiting)}
        queue = deque(sorted(sources, key=lambda source: rank.get(source.source_id, len(rank))))
        until = time.monotonic() + budget_seconds
        remaining_bytes = math.inf if budget_bytes is None else budget_bytes
        while queue and remaining_bytes > 0 and time.monotonic() < until:
            round_until = min(until, time.monotonic() + PUMP_SECONDS)
            remaining_bytes -= self._store_round(queue, remaining_bytes, round_until, ended=ended)
        self._waiting = [source.source_id for source in queue]
        self._report.awaits = any(source.awaits_since is not None and not source.is_unanswered() for source in sources)
        report, self._report = self._report, IngestReport()
        report.more = bool(queue)
        return report

    def _store_round(self, queue: deque[OpenSource], budget_bytes: float, until: float, *, ended: bool) -> int:
        """Store one batch of each source at the head of the queue in one transaction, and move sources with more lines
        to its end. Returns the cost in bytes of the budget.

        Each source comes at most once per transaction: its reader closes a replaced file as soon as it sees the state
        behind it, which must be committed by then.
        """
        stored: list[tuple[OpenSource, Batch]] = []
        changed: list[OpenSource] = []
        began = time.monotonic()
        spent_bytes = read_bytes = 0
        try:
            for source in list(queue):
                seconds = until - time.monotonic()
                if spent_bytes >= budget_bytes or seconds <= 0:
                    break
                fitting_bytes = max(MIN_BATCH_BYTES, seconds * self._bytes_per_second)
                batch_bytes = int(min(BATCH_BYTES, budget_bytes - spent_bytes, fitting_bytes))
                batch = self._read(source, batch_bytes, ended=ended)
                queue.popleft()
                if batch is None and (source.read is not None or not source.reducer.is_behind):
                    continue
                if not self._connection.in_transaction:
                    self._connection.execute("BEGIN IMMEDIATE")
                changed.append(source)
                if batch is None:
                    source.reducer.take(self._connection, ())
                    spent_bytes += BATCH_BYTES
                    continue
                stored.append((source, batch))
                now = self._clock()
                if not store_batch(self._connection, source.source_id, source.state, batch, now, source.reducer):
                    stored.pop()
                    self._sources.reopen(source.run_id)
                    continue
                if batch.learned and batch.learned != source.learned:
                    self._table.learn(source.row, batch.learned)
                read_bytes += batch.bytes_read
                spent_bytes += max(batch.bytes_read, _LINE_COST_BYTES * (len(batch.rows) + len(batch.rejected)), 1)
            if self._connection.in_transaction:
                self._connection.execute("COMMIT")
        except BaseException:
            for source in changed:
                source.reducer.forget()
            # After some errors, such as a full disk, SQLite has already rolled back.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        if read_bytes >= MIN_BATCH_BYTES:
            # The average forgets a slow disk within a few batches.
            bytes_per_second = read_bytes / max(time.monotonic() - began, 1e-6)
            self._bytes_per_second += (bytes_per_second - self._bytes_per_second) / 2
        for source, batch in stored:
            source.state, source.learned = batch.state, batch.learned
            self._report.add(source.run_id, batch)
            if source.order.add(batch.to_reduce):
                batch.note("steps_restarted", None, STARTS_AGAIN)
            for note in batch.notes.values():
                self._note(source, note)
            if self._background is not None and source.in_background:
                self._background.read_on(source, batch, ended)
            elif batch.more:
                queue.append(source)
        queue.extend(one for one in changed if one.reducer.is_behind and one not in queue)
        return spent_bytes

    def _read(self, source: OpenSource, budget_bytes: int, *, ended: bool) -> Batch | None:
        """The next batch of a source, None if there is none now. An error is reported once."""
        try:
            if self._background is not None and self._background.includes(source):
                batch = self._background.take(source, budget_bytes, ended)
            else:
                batch = source.reader.read(source.state, source.boundaries, budget_bytes=budget_bytes, ended=ended)
        except OSError as error:
            problem = f"metrics cannot be read: {error}"
            if source.problem != problem:
                source.problem = problem
                self._report.notes.append((source.run_id, MetricsNote("metrics_unreadable", str(error), problem)))
            return None
        source.problem = None
        return batch

    def _note(self, source: OpenSource, note: MetricsNote) -> None:
        """Report a remark about a source once."""
        if (note.kind, note.key) not in source.reported:
            source.reported.add((note.kind, note.key))
            self._report.notes.append((source.run_id, note))
