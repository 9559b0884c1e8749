"""Batches of metrics lines: the result of one read of a source, stored in one transaction."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from gputui.core.redaction import BY_LOOK, Redactor
from gputui.metrics.contract import ParsedLine, Rejected, excerpt
from gputui.metrics.earlier_lines import Correction, LineComparison
from gputui.metrics.null_values import NullReader
from gputui.metrics.reduction import MetricLine, Reducer
from gputui.metrics.source_state import Arrivals, SourceState
from gputui.store.events import EventKind, NewEvent
from gputui.store.metrics.roles import take_names
from gputui.store.metrics.stored_lines import NOT_METRICS, OF_EVENTS, as_float, named_by_event

# A batch takes about 5 ms of the agent's loop, also of two-byte lines.
BATCH_BYTES = 128 << 10
BATCH_LINES = 512
# The limit for formats in which the work per byte varies.
READ_SECONDS = 0.01

# A broken script may write a million broken lines. All are counted, only the first are stored.
MAX_REJECTED = 1000
MAX_NEWEST_NAMES = 500  # as many as one view of names can show; the rest stays in the lines
# The rank of newest values of lines without one.
_NO_RANK = -1

# Scripts also call a duration "time". Unix seconds of a training are after 2000-01-01, and not
# after their arrival, with a day for clocks that are wrong.
_FIRST_TIME_SECONDS = 946_684_800.0
_CLOCK_ERROR_SECONDS = 86_400.0
# The events of the bundled trainer, see docs/trainer.md: their lines may have metrics, and are no
# steps.
EVENTS_WITH_METRICS = frozenset({
    "start", "phase", "resume", "checkpoint_rejected", "prepared", "answer", "export",
    "batch_found", "batch_reduced", "validation_batch_reduced", "sample_skipped", "validation",
    "checkpoint", "checkpoint_failed", "checkpoint_skipped", "gradients_checked", "gradients_differ",
    "bottleneck", "trace", "stop", "end",
})  # fmt: skip
_NOT_MEASURED = NOT_METRICS | OF_EVENTS | {"epoch", "total_steps"}
_TIME_IS_OTHER = (
    "the time in its metrics lines is not the time of day in unix seconds: the lines have the time "
    "at which they were read, and their own time is the metric time_"
)

_ADVANCE = (
    "UPDATE metric_sources SET inode = ?, generation = ?, byte_offset = ?, skipping = ?, "
    "fingerprint = ?, first_generation = ?, line_count = line_count + ?, "
    "rejected_count = rejected_count + ? "
    "WHERE source_id = ? AND generation = ? AND byte_offset = ?"
)


class MetricRow(NamedTuple):
    """A line as a row of ``metrics``.

    Attributes:
        rank: The rank that the line names, None without one.
        step: The step that the line names, None without one.
        at: UTC unix seconds, None if nobody knows when it was written.
        data: The line as JSON.
    """

    source_id: int
    generation: int
    byte_offset: int
    attempt: int
    rank: int | None
    step: int | None
    at: float | None
    data: str


@dataclass(frozen=True, slots=True)
class LineSource:
    """What the lines of a source are read with.

    Attributes:
        nulls: What its nulls mean.
        refused: The names that it leaves to a better source.
        arrivals: Tells when a line that is read again was first read; None if no line is.
    """

    source_id: int
    redactor: Redactor = BY_LOOK
    nulls: NullReader = field(default_factory=NullReader)
    refused: Collection[str] = ()
    arrivals: Arrivals | None = None


@dataclass(slots=True)
class Batch:
    """Lines of one attempt and the state after them, stored together or not at all.

    Attributes:
        arrived_at: The latest time (UTC unix seconds) at which its lines can have been written, for those without one.
        comparison: Leaves out what earlier versions of the file had; None to store all.
        to_reduce: The lines that charts show.
        rejected: The byte offset, the reason and the beginning of each rejected line.
        newest: The last number of each name, by rank.
        new_names: Names that the source had not in this attempt, once the batch is stored.
        first_step: The step of the first line that is no event, None without such a line.
        last_step: The highest step of a line that is no event, None without such a line.
        more: The next batch is to be read at once.
        notes: Remarks for a person, by kind, without the run.
        learned: `LineFormat.learned` after the lines.
        inherited: `LineFormat.inherited` after the lines.
    """

    source: LineSource
    state: SourceState
    attempt: int = 0
    arrived_at: float | None = None
    comparison: LineComparison | None = None
    rows: list[MetricRow] = field(default_factory=list)
    to_reduce: list[MetricLine] = field(default_factory=list)
    rejected: list[tuple[int, str, str]] = field(default_factory=list)
    newest: dict[int | None, dict[str, Any]] = field(default_factory=dict)
    new_names: set[str] = field(default_factory=set)
    first_step: int | None = None
    last_step: int | None = None
    more: bool = False
    notes: dict[EventKind, NewEvent] = field(default_factory=dict)
    learned: Any = None
    inherited: Any = None

    def add(self, offset: int, line: bytes, parsed: ParsedLine | Rejected | None) -> None:
        """Add a line at an offset of the current generation, which was written as ``line``."""
        if isinstance(parsed, Rejected):
            text = excerpt(line, self.source.redactor)
            self.rejected.append((offset, parsed.reason, text))
        elif parsed is not None:
            new_part = self._new_part(offset, parsed)
            if new_part is not None:
                self._append(offset, new_part)

    def _new_part(self, offset: int, parsed: ParsedLine) -> ParsedLine | None:
        """What is stored of a line: without what is another source's, secret or stored already. None if nothing."""
        timed = parsed
        latest = math.inf
        if self.arrived_at is not None:
            latest = self.arrived_at + _CLOCK_ERROR_SECONDS
        if parsed.time is None or not _FIRST_TIME_SECONDS <= parsed.time <= latest:
            timed = self._without_time(parsed)
        unrefused: ParsedLine | None = timed
        if self.source.refused:
            unrefused = self._without_refused(timed)
        if unrefused is None:
            return None
        public = unrefused
        if not unrefused.is_numeric:
            public = self._without_secrets(unrefused)
        measured = public
        if "event" not in public.values:
            with_nan = self.source.nulls.of(public.rank).read(public.values)
            if with_nan is not public.values:
                measured = _with_values(public, with_nan)
        if self.comparison is None:
            return measured
        new_part = self.comparison.take_new_part(offset, measured)
        if new_part is None:
            return None
        data, values = new_part
        return measured._replace(data=data, values=values)

    def _append(self, offset: int, line: ParsedLine) -> None:
        """Add a line to the rows, and to what charts and the newest values show."""
        step, at, rank, data, values, is_numeric = line
        generation = self.state.generation
        if at is None and self.source.arrivals is not None:
            # A line that was passed over until its form was known did not arrive now.
            at = self.source.arrivals.at(offset)
        if at is None:
            at = self.arrived_at
        if not is_numeric:
            values = named_by_event(values)
        self._note_newest(rank, at, values, is_numeric=is_numeric)
        # Made by place, which takes a third of the time that names take: a long run has millions of lines.
        row = (self.source.source_id, generation, offset, self.attempt, rank, step, at, data)
        self.rows.append(MetricRow._make(row))
        if step is None:
            return
        if rank in (None, 0):
            self.to_reduce.append(MetricLine._make((generation, offset, self.attempt, step, at, values)))
        if "event" in values:
            return
        if self.first_step is None or self.last_step is None:
            self.first_step = step
            self.last_step = step
        self.last_step = max(self.last_step, step)

    def _without_time(self, line: ParsedLine) -> ParsedLine:
        """A line whose time is not the time of day of a training: if it is there, that is called ``time_``."""
        if line.values.get("time") is None:
            return line._replace(time=None)
        self.notes["times_unknown"] = NewEvent("times_unknown", _TIME_IS_OTHER)
        return _renamed(line, "time")._replace(time=None)

    def _without_refused(self, line: ParsedLine) -> ParsedLine | None:
        """A line without the names that are left to a better source; None if nothing else is measured."""
        refused = self.source.refused
        if line.values.keys().isdisjoint(refused):
            return line
        values = {name: value for name, value in line.values.items() if name not in refused}
        if values.keys() <= _NOT_MEASURED:
            return None
        return _with_values(line, values)

    def _without_secrets(self, line: ParsedLine) -> ParsedLine:
        """A line whose text is redacted. Where "event" is a logger's message, that is called ``event_``."""
        if line.step is not None and "event" in line.values and _is_measurement(line.values):
            line = _renamed(line, "event")
        redacted = self.source.redactor.value(line.values)
        if redacted == line.values:
            return line
        return _with_values(line, redacted)

    def _note_newest(self, rank: int | None, at: float | None, values: Mapping[str, Any], *, is_numeric: bool) -> None:
        newest = self.newest.setdefault(rank, {})
        if is_numeric:
            newest.update(values)
        else:
            newest.update((name, value) for name, value in values.items() if as_float(value) is not None)
        if at is not None:
            # Gives the age of the newest values even if lines have no time.
            newest["time"] = at


def _is_measurement(values: Mapping[str, Any]) -> bool:
    """Return whether a line with an event measures a step all the same, as loggers write that name
    each line's message "event": it has metrics, and the event is none whose metrics are its own."""
    return str(values["event"]) not in EVENTS_WITH_METRICS and any(
        as_float(value) is not None for name, value in values.items() if name not in _NOT_MEASURED
    )


def _renamed(line: ParsedLine, name: str) -> ParsedLine:
    """A line whose value ``name`` is called ``name_``, in its place."""
    renamed = {}
    for key, value in line.values.items():
        if key == name:
            key = f"{key}_"
        renamed[key] = value
    return _with_values(line, renamed)


def _with_values(line: ParsedLine, values: Mapping[str, Any]) -> ParsedLine:
    return line._replace(data=orjson.dumps(values).decode(), values=values)


def store_batch(
    connection: sqlite3.Connection,
    before: SourceState,
    batch: Batch,
    now: float,
    reducer: Reducer | None = None,
) -> bool:
    """Store a batch, and complete stretches for charts, inside the caller's transaction;
    `gputui.metrics.step_sources.store_steps` is to follow.

    Args:
        before: The state after which the batch was read.
        now: UTC unix seconds.
        reducer: That of the source, whose `forget` is to be called if the transaction fails; None to use a new one.

    Returns:
        False without a change if the source has another position: another process stored these lines, or the run is
        gone.

    Raises:
        sqlite3.Error: The store cannot be written.
    """
    source_id = batch.source.source_id
    after = batch.state
    values = (
        after.inode, *after.position, after.skipping, after.fingerprint, after.first_generation,
        len(batch.rows), len(batch.rejected), source_id, *before.position,
    )  # fmt: skip
    if connection.execute(_ADVANCE, values).rowcount != 1:
        return False
    reducer = reducer or Reducer(source_id)
    # Plain tuples are bound in half the time of named ones.
    connection.executemany("INSERT OR IGNORE INTO metrics VALUES (?, ?, ?, ?, ?, ?, ?, ?)", map(tuple, batch.rows))
    if before.generation < after.generation and not after.byte_offset:
        # The file is read again from its start, with its rejected lines.
        forgotten = connection.execute(
            "DELETE FROM rejected_lines WHERE source_id = ? AND generation >= ?", (source_id, after.first_generation)
        )
        connection.execute(
            "UPDATE metric_sources SET rejected_count = rejected_count - ? WHERE source_id = ?",
            (forgotten.rowcount, source_id),
        )
    if batch.comparison is not None and batch.comparison.corrections:
        _correct(connection, source_id, batch.comparison.corrections)
        reducer.forget()
    reducer.add(connection, batch.to_reduce)
    if batch.rejected:
        _store_rejected(connection, batch, now)
    for rank, newest in batch.newest.items():
        stored_rank = _NO_RANK
        if rank is not None:
            stored_rank = rank
        batch.new_names |= _update_newest(connection, (source_id, batch.attempt, stored_rank), newest)
    names = {name for newest in batch.newest.values() for name in newest}
    if (text := take_names(connection, source_id, names)) is not None:
        batch.notes["loss_unknown"] = NewEvent("loss_unknown", text)
    return True


def _correct(connection: sqlite3.Connection, source_id: int, corrections: Sequence[Correction]) -> None:
    """Store what lines of an output are taken for now. What charts have reduced already stays as it was read first."""
    key = "source_id = ? AND generation = ? AND byte_offset = ?"
    connection.executemany(
        f"UPDATE metrics SET step = ?, data = ? WHERE {key}",  # noqa: S608
        [(line.step, line.data, source_id, *line.position) for line in corrections if line.data is not None],
    )
    withdrawn = [(source_id, *line.position) for line in corrections if line.data is None]
    connection.executemany(f"DELETE FROM metrics WHERE {key}", withdrawn)  # noqa: S608
    connection.execute(
        "UPDATE metric_sources SET line_count = line_count - ? WHERE source_id = ?", (len(withdrawn), source_id)
    )


def _store_rejected(connection: sqlite3.Connection, batch: Batch, now: float) -> None:
    source_id = batch.source.source_id
    (stored,) = connection.execute("SELECT count(*) FROM rejected_lines WHERE source_id = ?", (source_id,)).fetchone()
    connection.executemany(
        "INSERT OR IGNORE INTO rejected_lines (source_id, generation, byte_offset, attempt, at, "
        "reason, excerpt) VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (source_id, batch.state.generation, offset, batch.attempt, now, reason, text)
            for offset, reason, text in batch.rejected[: max(0, MAX_REJECTED - stored)]
        ],
    )


def _update_newest(connection: sqlite3.Connection, key: tuple[int, int, int], values: Mapping[str, Any]) -> set[str]:
    """Store the newest values of a rank; returns the names that it did not have."""
    row = connection.execute(
        "SELECT data FROM metric_newest WHERE source_id = ? AND attempt = ? AND rank = ?", key
    ).fetchone()
    newest: dict[str, Any] = {}
    if row is not None:
        newest = json.loads(row[0])
    new_names = values.keys() - newest.keys()
    for name, value in values.items():
        if name in newest or len(newest) < MAX_NEWEST_NAMES:
            newest[name] = value
    connection.execute(
        "INSERT OR REPLACE INTO metric_newest (source_id, attempt, rank, data) VALUES (?, ?, ?, ?)",
        (*key, json.dumps(newest, allow_nan=False)),
    )
    return new_names
