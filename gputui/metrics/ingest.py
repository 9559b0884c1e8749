"""From metrics files into the store, exactly once: a file's offset is committed together with the lines before it."""

from __future__ import annotations

import glob
import math
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from gputui.metrics.batch import BATCH_BYTES, Batch, MetricsNote, SourceState
from gputui.metrics.batch_writer import store_batch
from gputui.metrics.earlier_lines import EarlierLines
from gputui.metrics.formats import AS_USUAL, PRINTED_STREAMS, Reading, line_format
from gputui.metrics.history import HistoryReader
from gputui.metrics.marks import listed_marks, stored_marks
from gputui.metrics.records import TRACKERS, RecordReader
from gputui.metrics.reduction import STRETCHES_AT_ONCE, Reducer
from gputui.metrics.report import IngestReport
from gputui.metrics.source_reader import Boundary, SourceReader
from gputui.metrics.step_order import STARTS_AGAIN, StepOrder
from gputui.metrics.tailer import SourceTailer
from gputui.redaction import BY_LOOK, Redactor

PUMP_BYTES = 4 << 20
# The loop that reads also looks after runs: what is left over is read in its next turn.
PUMP_SECONDS = 0.03

# A batch is made as large as the time that is left allows, by what the ones before took; but not smaller than this.
_LEAST_BATCH_BYTES = 16 << 10
_FIRST_BYTES_PER_SECOND = 4 << 20

# What a line costs beyond its bytes, in bytes, so that a budget also bounds a flood of tiny lines.
_LINE_COST_BYTES = 128

# The format of the sources of one attempt's output; its run's source of format "stdout" only says how to read them.
_PRINTED = "stdout"
_ATTEMPT_OUTPUT = "output"

OUTPUT = "output.log"
"""Below an attempt's folder: what its command prints, both streams in one."""


@dataclass(slots=True, eq=False)
class _Source:
    """``make`` knows how its reader is made, which takes a millisecond: one is made when it is first read."""

    source_id: int
    run_id: str
    make: Callable[[], SourceReader]
    reducer: Reducer
    made: SourceReader | None = None
    state: SourceState = field(default_factory=SourceState)
    boundaries: list[Boundary] = field(default_factory=list)
    order: StepOrder = field(default_factory=StepOrder)
    is_loaded: bool = False
    problem: str | None = None

    @property
    def reader(self) -> SourceReader:
        if self.made is None:
            self.made = self.make()
        return self.made

    def close(self) -> None:
        if self.made is not None:
            self.made.close()


class MetricsIngest:
    """All metrics files of the runs that are not over. ``connection`` is the agent's, in autocommit mode; ``clock``
    gives UTC unix seconds; ``redactor_of`` knows the secrets of a run by its id.

    What the files and the store say is all there is: a new object, in a new process, carries on where the last one
    committed.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        clock: Callable[[], float] = time.time,
        redactor_of: Callable[[str], Redactor] = lambda _: BY_LOOK,
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._redactor_of = redactor_of
        self._sources: dict[int, _Source] = {}
        # Runs whose sources are to be read from the store again; None for all.
        self._stale: set[str] | None = None
        self._waiting: deque[int] = deque()
        self._report = IngestReport()
        self._to_reduce: list[int] | None = None
        self._bytes_per_second = float(_FIRST_BYTES_PER_SECOND)

    # --- what the caller's transaction covers -----------------------------------------------------------------------

    def open_source(self, run_id: str, path: str, kind: str, reading: Reading = AS_USUAL) -> None:
        """Note one of the places where a run's metrics come from. May be called again, and inside the caller's
        transaction.

        ``kind`` is ``jsonl`` or ``csv`` (``path`` is the file), ``hf`` (``path`` is a glob pattern), ``tensorboard`` or
        ``wandb`` (``path`` is the folder with their files, or a glob of such), or ``stdout``, ``stderr`` or ``output``
        (``path`` is the run's folder, below which each attempt has its output). Raises ValueError for an unknown kind
        or bad patterns.
        """
        if kind in PRINTED_STREAMS:
            reading = reading._replace(streams=PRINTED_STREAMS[kind])
            kind = _PRINTED
        if kind != "hf" and kind not in TRACKERS:
            line_format(kind, reading)
        self._connection.execute(
            "INSERT OR IGNORE INTO metric_sources (run_id, path, format, reading, mark_count) VALUES (?, ?, ?, ?, 0)",
            (run_id, path, kind, reading.to_json()),
        )

    def begin_attempt(self, run_id: str, attempt: int, rank_output: str = OUTPUT) -> None:
        """Record that what is appended from now on belongs to ``attempt``. To be called before the attempt is started,
        inside the caller's transaction. ``rank_output`` is a glob below the attempt's folder for what its first rank
        prints, with ``{stream}`` where stdout and stderr are kept apart.

        What is in a file before a run's first attempt is not the run's, and is not read. Raises OSError if the file
        is there and cannot be read, and sqlite3.Error.
        """
        self._begin(run_id, attempt, None, rank_output)

    def readmit_attempt(
        self, run_id: str, attempt: int, offsets: Mapping[str, int] | int, rank_output: str = OUTPUT
    ) -> None:
        """The same for an attempt that the store has lost: its lines begin at so many bytes of each file, or at its
        start where it is shorter by now (it was rotated since). ``offsets`` are by path, or one number for a run's only
        file. To be called in the order of the attempts."""
        self._begin(run_id, attempt, offsets, rank_output)

    def forget(self, run_id: str) -> None:
        """Let go of a run's files; nothing in the store changes. The next call that names the run finds them again."""
        for source in [source for source in self._sources.values() if source.run_id == run_id]:
            source.close()
            del self._sources[source.source_id]

    def close(self) -> None:
        """Let go of all files."""
        for source in self._sources.values():
            source.close()
        self._sources.clear()
        self._stale = None

    # --- what makes transactions of its own -------------------------------------------------------------------------

    def pump(
        self, run_id: str | None = None, budget_bytes: int = PUMP_BYTES, budget_seconds: float = PUMP_SECONDS
    ) -> IngestReport:
        """Store what is new of one run, or of all that have an attempt: whole lines, about ``budget_bytes`` of them,
        for about ``budget_seconds``. What the budget left out comes first in the next call.

        A batch of each source that has something new is stored in one transaction. Raises sqlite3.OperationalError
        (the disk is full, the database is locked) with everything before the failing transaction stored and the rest
        untouched: the next call tries again, and its report tells what this one stored. A file that cannot be read is
        a note in the report. Raises RuntimeError inside a transaction.
        """
        return self._drain(self._open_sources(run_id), budget_bytes, budget_seconds, ended=False)

    def finish(self, run_id: str, budget_bytes: int | None = None, budget_seconds: float = math.inf) -> IngestReport:
        """The same after an attempt's end, to the end of its files; the last line is stored without its newline where
        it is complete, and set aside where it is not. With a budget, ``more`` tells that it is to be called again.
        """
        report = self._drain(self._open_sources(run_id), budget_bytes, budget_seconds, ended=True)
        if not report.more:
            self.forget(run_id)
        return report

    def reduce_more(self, most: int = STRETCHES_AT_ONCE) -> bool:
        """Reduce for charts at most so many stretches of the lines that were stored before there were envelopes, the
        newest sources first, in one transaction; whether there is more to look at. Raises sqlite3.OperationalError."""
        if self._to_reduce is None:
            rows = self._connection.execute(
                "SELECT source_id FROM metric_sources WHERE run_id IS NOT NULL ORDER BY source_id"
            ).fetchall()
            self._to_reduce = [row[0] for row in rows]
        if not self._to_reduce:
            return False
        source_id = self._to_reduce[-1]
        known = self._sources.get(source_id)
        reducer = Reducer(source_id) if known is None else known.reducer
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            has_more = reducer.catch_up(self._connection, most)
            self._connection.execute("COMMIT")
        except BaseException:
            reducer.forget()
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        if not has_more:
            self._to_reduce.pop()
        return bool(self._to_reduce)

    def _drain(
        self, sources: list[_Source], budget_bytes: int | None, budget_seconds: float, *, ended: bool
    ) -> IngestReport:
        if self._connection.in_transaction:
            raise RuntimeError("metrics are stored in transactions of their own")
        places = {source.source_id: index for index, source in enumerate(sources)}
        first = [sources[places[source_id]] for source_id in self._waiting if source_id in places]
        queue = deque(first + [source for source in sources if source not in first])
        until = time.monotonic() + budget_seconds
        left = math.inf if budget_bytes is None else budget_bytes
        while queue and left > 0 and time.monotonic() < until:
            left -= self._advance(queue, left, min(until, time.monotonic() + PUMP_SECONDS), ended)
        self._waiting = deque(source.source_id for source in queue)
        report, self._report = self._report, IngestReport()
        report.more = bool(queue)
        return report

    def _advance(self, queue: deque[_Source], budget_bytes: float, until: float, ended: bool) -> int:
        """Store one batch of each source at the head of the queue in one transaction, and put those that have more at
        its end. Returns what that cost of the budget.

        A source comes once at most: its reader keeps a file that was replaced only until it sees the state behind it,
        which must have been committed by then.
        """
        taken: list[tuple[_Source, Batch]] = []
        began = time.monotonic()
        spent = read = 0
        try:
            for source in list(queue):
                left_seconds = until - time.monotonic()
                if spent >= budget_bytes or left_seconds <= 0:
                    break
                fitting = max(_LEAST_BATCH_BYTES, left_seconds * self._bytes_per_second)
                batch = self._read(source, int(min(BATCH_BYTES, budget_bytes - spent, fitting)), ended)
                queue.popleft()
                if batch is None:
                    if source.reader.is_busy:
                        queue.append(source)
                        spent += BATCH_BYTES
                    continue
                if not self._connection.in_transaction:
                    self._connection.execute("BEGIN IMMEDIATE")
                taken.append((source, batch))
                now = self._clock()
                if not store_batch(self._connection, source.source_id, source.state, batch, now, source.reducer):
                    taken.pop()
                    self.forget(source.run_id)
                    self._note_stale(source.run_id)
                    continue
                read += batch.bytes_read
                spent += max(batch.bytes_read, _LINE_COST_BYTES * (len(batch.rows) + len(batch.rejected)), 1)
            if self._connection.in_transaction:
                self._connection.execute("COMMIT")
        except BaseException:
            for source, _ in taken:
                source.reducer.forget()
            # SQLite has rolled back by itself after some errors, a full disk among them.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        if read >= _LEAST_BATCH_BYTES:
            # A disk that was busy for a moment is no reason to continue with small batches for long.
            pace = read / max(time.monotonic() - began, 1e-6)
            self._bytes_per_second += (pace - self._bytes_per_second) / 2
        for source, batch in taken:
            source.state = batch.state
            self._report.add(source.run_id, batch)
            if source.order.add(batch.to_reduce):
                self._report.notes.append((source.run_id, MetricsNote("steps_restarted", None, STARTS_AGAIN)))
            if batch.more:
                queue.append(source)
        return spent

    def _read(self, source: _Source, budget_bytes: int, ended: bool) -> Batch | None:
        if not source.is_loaded:
            source.state, source.boundaries = self._stored(source.source_id)
            source.is_loaded = True
        try:
            batch = source.reader.read(source.state, source.boundaries, budget_bytes=budget_bytes, ended=ended)
        except OSError as error:
            problem = f"metrics cannot be read: {error}"
            if source.problem != problem:
                source.problem = problem
                self._report.notes.append((source.run_id, MetricsNote("metrics_unreadable", str(error), problem)))
            return None
        source.problem = None
        return batch

    # --- which sources there are ------------------------------------------------------------------------------------

    def _open_sources(self, run_id: str | None) -> list[_Source]:
        if self._stale is None:
            self._open("runs.state IN ('starting', 'running', 'stopping')", ())
        for stale in self._stale or ():
            for source in self._sources.values():
                if source.run_id == stale:
                    source.is_loaded = False
            self._open("runs.run_id = ? AND runs.ended_at IS NULL", (stale,))
        self._stale = set()
        if run_id is None:
            return list(self._sources.values())
        if not any(source.run_id == run_id for source in self._sources.values()):
            self._open("runs.run_id = ?", (run_id,))
        return [source for source in self._sources.values() if source.run_id == run_id]

    def _note_stale(self, run_id: str) -> None:
        if self._stale is not None:
            self._stale.add(run_id)

    def _open(self, condition: str, values: tuple[str, ...]) -> None:
        """Open the sources that can still grow: of a run's outputs only those of its newest attempt."""
        rows = self._connection.execute(
            "SELECT s.source_id, s.run_id, s.path, s.format, s.reading FROM metric_sources AS s "  # noqa: S608
            f"JOIN runs USING (run_id) WHERE {condition} AND s.format != '{_PRINTED}' "
            f"AND (s.format != '{_ATTEMPT_OUTPUT}' OR "
            "(SELECT max(b.attempt) FROM metric_boundaries AS b WHERE b.source_id = s.source_id) = "
            "(SELECT max(b.attempt) FROM metric_sources AS o JOIN metric_boundaries AS b USING (source_id) "
            f"WHERE o.run_id = s.run_id AND o.format = '{_ATTEMPT_OUTPUT}')) ORDER BY s.source_id",
            values,
        ).fetchall()
        for source_id, run_id, *how in rows:
            if source_id not in self._sources:
                make = partial(self._reader, run_id, source_id, *how)
                self._sources[source_id] = _Source(source_id, run_id, make, Reducer(source_id))

    def _reader(self, run_id: str, source_id: int, path: str, name: str, reading: str | None) -> SourceReader:
        redactor = self._redactor_of(run_id)
        known = partial(stored_marks, self._connection, source_id)
        if name == "hf":
            return HistoryReader(source_id, path, redactor, known=known, clock=self._clock)
        if name in TRACKERS:
            return RecordReader(source_id, path, name, redactor)
        is_printed = name == _ATTEMPT_OUTPUT
        format_ = line_format(_PRINTED if is_printed else name, Reading.from_json(reading))
        earlier = EarlierLines(known, partial(listed_marks, self._connection, source_id))
        return SourceTailer(
            source_id, path, format_, redactor, is_pattern=is_printed, known=known, earlier=earlier, clock=self._clock
        )

    def _begin(self, run_id: str, attempt: int, offsets: Mapping[str, int] | int | None, rank_output: str) -> None:
        rows = self._connection.execute(
            "SELECT source_id, path, format, reading FROM metric_sources WHERE run_id = ? AND format != ?",
            (run_id, _ATTEMPT_OUTPUT),
        ).fetchall()
        for source_id, path, name, reading in rows:
            if name == _PRINTED:
                self._begin_output(run_id, attempt, f"{glob.escape(path)}/attempts/{attempt}/{rank_output}", reading)
                continue
            known = self._sources.get(source_id)
            reader = self._reader(run_id, source_id, path, name, reading) if known is None else known.reader
            state, boundaries = self._stored(source_id)
            offset = offsets.get(path, 0) if isinstance(offsets, Mapping) else offsets
            end = reader.end_place(state, offset)
            if not boundaries and end.byte_offset:
                self._connection.execute(
                    "UPDATE metric_sources SET inode = ?, generation = ?, byte_offset = ?, fingerprint = ?, "
                    "mark_count = NULL WHERE source_id = ?",
                    (end.inode, end.generation, end.byte_offset, end.fingerprint, source_id),
                )
            self._add_boundary(source_id, end.place, attempt)
            if known is None:
                reader.close()
        self._note_stale(run_id)

    def _begin_output(self, run_id: str, attempt: int, output: str, reading: str | None) -> None:
        """An attempt's output is one file, or one per stream: ``output`` with ``{stream}`` replaced."""
        for path in dict.fromkeys(output.replace("{stream}", one) for one in Reading.from_json(reading).streams):
            self._connection.execute(
                "INSERT OR IGNORE INTO metric_sources (run_id, path, format, reading) VALUES (?, ?, ?, ?)",
                (run_id, path, _ATTEMPT_OUTPUT, reading),
            )
            (source_id,) = self._connection.execute(
                "SELECT source_id FROM metric_sources WHERE run_id = ? AND path = ?", (run_id, path)
            ).fetchone()
            self._add_boundary(source_id, (0, 0), attempt)

    def _add_boundary(self, source_id: int, place: tuple[int, int], attempt: int) -> None:
        self._connection.execute(
            "INSERT OR IGNORE INTO metric_boundaries (source_id, generation, byte_offset, attempt) VALUES (?, ?, ?, ?)",
            (source_id, *place, attempt),
        )

    def _stored(self, source_id: int) -> tuple[SourceState, list[Boundary]]:
        row = self._connection.execute(
            "SELECT inode, generation, byte_offset, skipping, fingerprint, mark_count, is_rewritten "
            "FROM metric_sources WHERE source_id = ?",
            (source_id,),
        ).fetchone()
        boundaries = self._connection.execute(
            "SELECT generation, byte_offset, attempt FROM metric_boundaries WHERE source_id = ? "
            "ORDER BY generation, byte_offset, attempt",
            (source_id,),
        ).fetchall()
        return SourceState(*(row or ())), [Boundary(*values) for values in boundaries]
