"""From metrics files into the store, exactly once: a file's offset is committed together with the lines before it."""

from __future__ import annotations

import glob
import json
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gputui.metrics.batch import BATCH_BYTES, Boundary, SourceReader, SourceState
from gputui.metrics.formats import line_format
from gputui.metrics.history import HistoryReader
from gputui.metrics.reducing import STRETCHES_AT_ONCE, Reducer
from gputui.metrics.report import IngestReport
from gputui.metrics.storing import store_batch
from gputui.metrics.tailer import SourceTailer
from gputui.redaction import BY_LOOK, Redactor

PUMP_BYTES = 4 << 20

# What a line costs beyond its bytes, in bytes, so that a budget also bounds a flood of tiny lines.
_LINE_COST_BYTES = 128

# The format of the source of one attempt's output; its run's source of format "stdout" only says how to read it.
_ATTEMPT_OUTPUT = "output"


@dataclass(slots=True, eq=False)
class _Source:
    source_id: int
    run_id: str
    reader: SourceReader
    reducer: Reducer
    state: SourceState = field(default_factory=SourceState)
    boundaries: list[Boundary] = field(default_factory=list)
    is_loaded: bool = False
    problem: str | None = None


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
        self._is_stale = True
        self._waiting: deque[int] = deque()
        self._report = IngestReport()
        self._patterns: dict[str, tuple[str, ...]] = {}
        self._to_reduce: list[int] | None = None

    # --- what the caller's transaction covers -----------------------------------------------------------------------

    def open_source(self, run_id: str, path: str, kind: str, patterns: Sequence[str] = ()) -> None:
        """Note where a run's metrics come from. May be called again, and inside the caller's transaction.

        ``kind`` is ``jsonl`` or ``csv`` (``path`` is the file), ``hf`` (``path`` is a glob pattern), or ``stdout``
        (``path`` is the run's folder, below which each attempt has its output; ``patterns`` are the expressions, which
        a later process takes from the run's specification). Raises ValueError for an unknown kind or bad patterns.
        """
        if kind != "hf":
            line_format(kind, patterns)
        self._patterns[run_id] = tuple(patterns)
        self._connection.execute(
            "INSERT OR IGNORE INTO metric_sources (run_id, path, format) VALUES (?, ?, ?)", (run_id, path, kind)
        )
        self._is_stale = True

    def begin_attempt(self, run_id: str, attempt: int) -> None:
        """Record that what is appended from now on belongs to ``attempt``. To be called before the attempt is started,
        inside the caller's transaction.

        What is in a file before a run's first attempt is not the run's, and is not read. Raises OSError where the file
        is there and cannot be read, and sqlite3.Error.
        """
        self._begin(run_id, attempt, None)

    def readmit_attempt(self, run_id: str, attempt: int, offset: int) -> None:
        """The same for an attempt that the store has lost: its lines begin at ``offset`` bytes of the file, or at its
        start where it is shorter by now (it was rotated since). To be called in the order of the attempts."""
        self._begin(run_id, attempt, offset)

    def forget(self, run_id: str) -> None:
        """Let go of a run's files; nothing in the store changes. The next call that names the run finds them again."""
        for source in [source for source in self._sources.values() if source.run_id == run_id]:
            source.reader.close()
            del self._sources[source.source_id]
        self._patterns.pop(run_id, None)

    def close(self) -> None:
        """Let go of all files."""
        for source in self._sources.values():
            source.reader.close()
        self._sources.clear()
        self._is_stale = True

    # --- what makes transactions of its own -------------------------------------------------------------------------

    def pump(self, run_id: str | None = None, budget_bytes: int = PUMP_BYTES) -> IngestReport:
        """Store what is new of one run, or of all that are not over: whole lines, and about ``budget_bytes`` of them.

        Each batch is a transaction. Raises sqlite3.OperationalError (the disk is full, the database is locked) with
        everything before the failing batch stored and the rest untouched: the next call tries again, and its report
        tells what this one stored. A file that cannot be read is a note in the report. Raises RuntimeError inside a
        transaction.
        """
        return self._drain(self._open_sources(run_id), budget_bytes, ended=False)

    def finish(self, run_id: str, budget_bytes: int | None = None) -> IngestReport:
        """The same after an attempt's end, to the end of its files; the last line is stored without its newline where
        it is complete, and set aside where it is not. With a budget, ``more`` tells that it is to be called again.
        """
        report = self._drain(self._open_sources(run_id), budget_bytes, ended=True)
        if not report.more:
            self.forget(run_id)
        return report

    def reduce_more(self, most: int = STRETCHES_AT_ONCE) -> bool:
        """Reduce for charts at most so many stretches of the lines that were stored before there were envelopes, the
        newest sources first, in one transaction; whether there is more to look at. Raises sqlite3.OperationalError."""
        if self._to_reduce is None:
            rows = self._connection.execute("SELECT source_id FROM metric_sources ORDER BY source_id").fetchall()
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

    def _drain(self, sources: list[_Source], budget_bytes: int | None, *, ended: bool) -> IngestReport:
        if self._connection.in_transaction:
            raise RuntimeError("metrics are stored in transactions of their own")
        places = {source.source_id: index for index, source in enumerate(sources)}
        first = [sources[places[source_id]] for source_id in self._waiting if source_id in places]
        queue = deque(first + [source for source in sources if source not in first])
        spent = 0
        while queue and (budget_bytes is None or spent < budget_bytes):
            source = queue.popleft()
            cost, more = self._advance(source, BATCH_BYTES if budget_bytes is None else budget_bytes - spent, ended)
            spent += cost
            if more:
                queue.append(source)
        self._waiting = deque(source.source_id for source in queue)
        report, self._report = self._report, IngestReport()
        report.more = bool(queue)
        return report

    def _advance(self, source: _Source, budget_bytes: int, ended: bool) -> tuple[int, bool]:
        """Store one batch of a source: (what it cost of the budget, whether there is more)."""
        if not source.is_loaded:
            source.state, source.boundaries = self._stored(source.source_id)
            source.is_loaded = True
        try:
            batch = source.reader.read(source.state, source.boundaries, budget_bytes=budget_bytes, ended=ended)
        except OSError as error:
            problem = f"metrics cannot be read: {error}"
            if source.problem != problem:
                source.problem = problem
                self._report.notes.append((source.run_id, problem))
            return 0, False
        source.problem = None
        if batch is None:
            return 0, False
        now = self._clock()
        if not store_batch(self._connection, source.source_id, source.state, batch, now, source.reducer):
            self.forget(source.run_id)
            self._is_stale = True
            return 0, False
        source.state = batch.state
        self._report.add(source.run_id, batch)
        cost = max(batch.bytes_read, _LINE_COST_BYTES * (len(batch.rows) + len(batch.rejected)), 1)
        return cost, batch.more

    # --- which sources there are ------------------------------------------------------------------------------------

    def _open_sources(self, run_id: str | None) -> list[_Source]:
        if self._is_stale:
            for source in self._sources.values():
                source.is_loaded = False
            self._open("runs.ended_at IS NULL", ())
            self._is_stale = False
        if run_id is None:
            return list(self._sources.values())
        if not any(source.run_id == run_id for source in self._sources.values()):
            self._open("runs.run_id = ?", (run_id,))
        return [source for source in self._sources.values() if source.run_id == run_id]

    def _open(self, condition: str, values: tuple[str, ...]) -> None:
        """Open the sources that can still grow: of a run's outputs only that of its newest attempt."""
        rows = self._connection.execute(
            "SELECT s.source_id, s.run_id, s.path, s.format FROM metric_sources AS s JOIN runs USING (run_id) "  # noqa: S608
            f"WHERE {condition} AND s.format != 'stdout' AND (s.format != ? OR s.source_id = (SELECT max(o.source_id) "
            "FROM metric_sources AS o WHERE o.run_id = s.run_id AND o.format = s.format)) ORDER BY s.source_id",
            (*values, _ATTEMPT_OUTPUT),
        ).fetchall()
        for source_id, run_id, path, name in rows:
            if source_id not in self._sources:
                reader = self._reader(run_id, source_id, path, name)
                self._sources[source_id] = _Source(source_id, run_id, reader, Reducer(source_id))

    def _reader(self, run_id: str, source_id: int, path: str, name: str) -> SourceReader:
        redactor = self._redactor_of(run_id)
        if name == "hf":
            return HistoryReader(source_id, path, redactor)
        if name == _ATTEMPT_OUTPUT:
            patterns = self._run_patterns(run_id)
            return SourceTailer(source_id, path, line_format("stdout", patterns), redactor, is_pattern=True)
        return SourceTailer(source_id, path, line_format(name), redactor)

    def _run_patterns(self, run_id: str) -> tuple[str, ...]:
        if run_id not in self._patterns:
            self._patterns[run_id] = tuple(json.loads(self._specification(run_id, "$.metrics.patterns") or "[]"))
        return self._patterns[run_id]

    def _specification(self, run_id: str, path: str) -> str | None:
        row = self._connection.execute("SELECT spec ->> ? FROM runs WHERE run_id = ?", (path, run_id)).fetchone()
        return None if row is None or row[0] is None else str(row[0])

    def _begin(self, run_id: str, attempt: int, offset: int | None) -> None:
        rows = self._connection.execute(
            "SELECT source_id, path, format FROM metric_sources WHERE run_id = ? AND format != ?",
            (run_id, _ATTEMPT_OUTPUT),
        ).fetchall()
        for source_id, path, name in rows:
            if name == "stdout":
                self._begin_output(run_id, attempt, path)
                continue
            known = self._sources.get(source_id)
            reader = self._reader(run_id, source_id, path, name) if known is None else known.reader
            state, boundaries = self._stored(source_id)
            end = reader.end_place(state, offset)
            if not boundaries and end.byte_offset:
                self._connection.execute(
                    "UPDATE metric_sources SET inode = ?, generation = ?, byte_offset = ?, fingerprint = ? "
                    "WHERE source_id = ?",
                    (end.inode, end.generation, end.byte_offset, end.fingerprint, source_id),
                )
            self._add_boundary(source_id, end.place, attempt)
            if known is None:
                reader.close()
        self._is_stale = True

    def _begin_output(self, run_id: str, attempt: int, run_dir: str) -> None:
        """An attempt's output is a file of its own: what torchrun keeps of rank 0, or what the shim caught."""
        folder = f"{glob.escape(run_dir)}/attempts/{attempt}"
        torchrun = self._specification(run_id, "$.launcher") == "torchrun"
        path = f"{folder}/ranks/*/attempt_0/0/stdout.log" if torchrun else f"{folder}/output.log"
        self._connection.execute(
            "INSERT OR IGNORE INTO metric_sources (run_id, path, format) VALUES (?, ?, ?)",
            (run_id, path, _ATTEMPT_OUTPUT),
        )
        row = self._connection.execute(
            "SELECT source_id FROM metric_sources WHERE run_id = ? AND path = ?", (run_id, path)
        ).fetchone()
        self._add_boundary(row[0], (0, 0), attempt)

    def _add_boundary(self, source_id: int, place: tuple[int, int], attempt: int) -> None:
        self._connection.execute(
            "INSERT OR IGNORE INTO metric_boundaries (source_id, generation, byte_offset, attempt) VALUES (?, ?, ?, ?)",
            (source_id, *place, attempt),
        )

    def _stored(self, source_id: int) -> tuple[SourceState, list[Boundary]]:
        row = self._connection.execute(
            "SELECT inode, generation, byte_offset, skipping, fingerprint FROM metric_sources WHERE source_id = ?",
            (source_id,),
        ).fetchone()
        boundaries = self._connection.execute(
            "SELECT generation, byte_offset, attempt FROM metric_boundaries WHERE source_id = ? "
            "ORDER BY generation, byte_offset, attempt",
            (source_id,),
        ).fetchall()
        return SourceState(*(row or ())), [Boundary(*values) for values in boundaries]
