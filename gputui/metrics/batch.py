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
from gputui.metrics.arrivals import Arrivals
from gputui.metrics.contract import ParsedLine, Rejected, excerpt
from gputui.metrics.reduction import MetricLine, Reducer
from gputui.metrics.rewritten import Correction, VersionComparison
from gputui.metrics.source_state import SourceState
from gputui.metrics.values import NullReader
from gputui.store.events import EventKind
from gputui.store.metrics.roles import take_names
from gputui.store.metrics.stored_lines import NOT_METRICS, OF_EVENTS, as_float, named_by_event

# A batch takes about 5 ms of the agent's loop, also of two-byte lines.
BATCH_BYTES = 128 << 10
BATCH_LINES = 512
# The limit for formats in which the work per byte varies.
READ_SECONDS = 0.01

# A broken script may write a million broken lines. All are counted, only the first are stored.
MAX_REJECTED = 1000
MAX_NEWEST_NAMES = 500

# Scripts also call a duration "time". Unix seconds of a training are after 2000-01-01, and not
# after their arrival, with a day for clocks that are wrong.
_FIRST_TIME_SECONDS = 946_684_800.0
_CLOCK_ERROR_SECONDS = 86_400.0
# The events of the bundled trainer, see docs/trainer.md: their lines may have metrics, and are no
# steps.
EVENTS_WITH_METRICS = frozenset({
    "start", "phase", "resume", "checkpoint_rejected", "prepared", "answer", "export",
    "batch_found", "batch_reduced", "validation_batch_reduced", "sample_skipped", "validation",
    "checkpoint", "checkpoint_failed", "checkpoint_skipped", "bottleneck", "trace", "stop", "end",
})  # fmt: skip
_NOT_MEASURED = NOT_METRICS | OF_EVENTS | {"epoch", "total_steps"}
_TIME_IS_OTHER = (
    "the time in its metrics lines is not the time of day in unix seconds: the lines have the time "
    "at which they were read, and their own time is the metric time_"
)

Row = tuple[int, int, int, int, int | None, int | None, float | None, str]
"""source_id, generation, byte_offset, attempt, rank, step, at, data: the columns of ``metrics``."""


class MetricsNote(NamedTuple):
    """A remark about a metrics file for a person; ``kind`` and ``key`` are those of its event."""

    kind: EventKind
    key: str | None
    text: str


@dataclass(slots=True)
class Batch:
    """Lines of one attempt and the state after them, stored together or not at all.

    Lines without a time get ``arrived_at`` (UTC unix seconds), the latest at which they can have
    been written. ``comparison`` leaves out what earlier versions of the file had; None to store all.
    ``nulls`` belong to the source; ``refused`` are the names that it leaves to a better source; ``arrivals``, if
    there are any, tell when a line that is read again was first read.
    ``to_reduce`` are the lines that charts show, ``rejected`` generation, byte offset, reason and
    beginning of each rejected line, ``newest`` the last number of each name by rank, ``new_names`` those that the
    source had not in this attempt, once it is stored. The steps are those of lines without an event.
    """

    state: SourceState
    attempt: int = 0
    redactor: Redactor = BY_LOOK
    arrived_at: float | None = None
    comparison: VersionComparison | None = None
    nulls: NullReader = field(default_factory=NullReader)
    refused: Collection[str] = ()
    arrivals: Arrivals | None = None
    rows: list[Row] = field(default_factory=list)
    to_reduce: list[MetricLine] = field(default_factory=list)
    rejected: list[tuple[int, int, str, str]] = field(default_factory=list)
    newest: dict[int | None, dict[str, Any]] = field(default_factory=dict)
    new_names: set[str] = field(default_factory=set)
    first_step: int | None = None
    last_step: int | None = None
    more: bool = False
    notes: dict[EventKind, MetricsNote] = field(default_factory=dict)
    learned: Any = None
    inherited: Any = None

    def add(self, source_id: int, offset: int, line: bytes, parsed: ParsedLine | Rejected | None) -> None:
        """Add a line at an offset of the current generation, which was written as ``line``."""
        if type(parsed) is ParsedLine:
            self._accept(source_id, offset, parsed)
        elif isinstance(parsed, Rejected):
            text = excerpt(line, self.redactor)
            self.rejected.append((self.state.generation, offset, parsed.reason, text))

    def _accept(self, source_id: int, offset: int, parsed: ParsedLine) -> None:
        step, at, rank, data, values, is_numeric = parsed
        latest = math.inf
        if self.arrived_at is not None:
            latest = self.arrived_at + _CLOCK_ERROR_SECONDS
        if at is None or not _FIRST_TIME_SECONDS <= at <= latest:
            if values.get("time") is not None:
                data, values = _renamed(values, "time")
                self.notes["times_unknown"] = MetricsNote("times_unknown", None, _TIME_IS_OTHER)
            at = None
        if self.refused and not values.keys().isdisjoint(self.refused):
            values = {name: value for name, value in values.items() if name not in self.refused}
            if values.keys() <= _NOT_MEASURED:
                return
            data = orjson.dumps(values).decode()
        if not is_numeric:
            data, values = self._without_secrets(step, data, values)
        if "event" not in values:
            with_nan = self.nulls.of(rank).read(values)
            if with_nan is not values:
                data = orjson.dumps(with_nan).decode()
                values = with_nan
        if self.comparison is not None:
            new_part = self.comparison.take_new_part(offset, rank, step, data, values)
            if new_part is None:
                return
            data, values = new_part
        if at is None and self.arrivals is not None:
            # A line that was passed over until its form was known did not arrive now.
            at = self.arrivals.at(offset)
        if at is None:
            at = self.arrived_at
        if not is_numeric:
            values = named_by_event(values)
        self._note_newest(rank, at, values, is_numeric=is_numeric)
        generation = self.state.generation
        self.rows.append((source_id, generation, offset, self.attempt, rank, step, at, data))
        if step is None:
            return
        if not rank:
            self.to_reduce.append(MetricLine(generation, offset, self.attempt, step, at, values))
        if "event" not in values:
            if self.first_step is None or self.last_step is None:
                self.first_step = self.last_step = step
            self.last_step = max(self.last_step, step)

    def _without_secrets(self, step: int | None, data: str, values: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """A line with text, encoded and decoded, as it is stored."""
        if step is not None and "event" in values and _is_measurement(values):
            data, values = _renamed(values, "event")
        redacted = self.redactor.value(values)
        if redacted == values:
            return (data, values)
        return (orjson.dumps(redacted).decode(), redacted)

    def _note_newest(self, rank: int | None, at: float | None, values: Mapping[str, Any], *, is_numeric: bool) -> None:
        newest = self.newest.setdefault(rank, {})
        if is_numeric:
            newest.update(values)
        else:
            newest.update(pair for pair in values.items() if as_float(pair[1]) is not None)
        if at is not None:
            # Gives the age of the newest values even if lines have no time.
            newest["time"] = at


def _is_measurement(values: Mapping[str, Any]) -> bool:
    """Return whether a line with an event measures a step all the same, as loggers write that name
    each line's message "event": it has metrics, and the event is none whose metrics are its own."""
    return str(values["event"]) not in EVENTS_WITH_METRICS and any(
        as_float(value) is not None for name, value in values.items() if name not in _NOT_MEASURED
    )


def _renamed(values: Mapping[str, Any], name: str) -> tuple[str, dict[str, Any]]:
    """A line, encoded and decoded, whose value ``name`` is called ``name_``."""
    renamed = {}
    for key, value in values.items():
        if key == name:
            key = f"{key}_"
        renamed[key] = value
    return orjson.dumps(renamed).decode(), renamed


_ADVANCE = (
    "UPDATE metric_sources SET inode = ?, generation = ?, byte_offset = ?, skipping = ?, "
    "fingerprint = ?, first_generation = ?, line_count = line_count + ?, "
    "rejected_count = rejected_count + ? "
    "WHERE source_id = ? AND generation = ? AND byte_offset = ?"
)


def store_batch(
    connection: sqlite3.Connection,
    source_id: int,
    before: SourceState,
    batch: Batch,
    now: float,
    reducer: Reducer | None = None,
) -> bool:
    """Store the batch that was read after ``before``, and complete stretches for charts, inside the
    caller's transaction; `gputui.metrics.step_sources.store_steps` is to follow. Returns False without a
    change if the source has another position: another process stored these lines, or the run is gone.

    Call `forget` of ``reducer``, which belongs to the source, if the transaction fails. Raises
    sqlite3.Error.
    """
    after = batch.state
    values = (
        after.inode, *after.position, after.skipping, after.fingerprint, after.first_generation,
        len(batch.rows), len(batch.rejected), source_id, *before.position,
    )  # fmt: skip
    if connection.execute(_ADVANCE, values).rowcount != 1:
        return False
    reducer = reducer or Reducer(source_id)
    connection.executemany("INSERT OR IGNORE INTO metrics VALUES (?, ?, ?, ?, ?, ?, ?, ?)", batch.rows)
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
        _store_rejected(connection, source_id, batch, now)
    for rank, newest in batch.newest.items():
        key = (source_id, batch.attempt, -1 if rank is None else rank)
        batch.new_names |= _update_newest(connection, key, newest)
    names = {name for newest in batch.newest.values() for name in newest}
    if (text := take_names(connection, source_id, names)) is not None:
        batch.notes["loss_unknown"] = MetricsNote("loss_unknown", None, text)
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


def _store_rejected(connection: sqlite3.Connection, source_id: int, batch: Batch, now: float) -> None:
    (stored,) = connection.execute("SELECT count(*) FROM rejected_lines WHERE source_id = ?", (source_id,)).fetchone()
    connection.executemany(
        "INSERT OR IGNORE INTO rejected_lines (source_id, generation, byte_offset, attempt, at, "
        "reason, excerpt) VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (source_id, generation, offset, batch.attempt, now, reason, text)
            for generation, offset, reason, text in batch.rejected[: max(0, MAX_REJECTED - stored)]
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
