"""What one read of a metrics file brought: the batch of lines that is stored in one transaction."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from gputui.metrics.contract import ParsedLine, Rejected, excerpt
from gputui.metrics.reduction import MetricLine
from gputui.redaction import BY_LOOK, Redactor
from gputui.store.events import EventKind
from gputui.store.metrics.queries import as_float

# What one batch may hold. A line costs time beyond its bytes: a megabyte of two-byte lines must not block the loop.
BATCH_BYTES = 256 << 10
BATCH_LINES = 1024
# For formats whose bytes do not tell how much work a record is.
READ_SECONDS = 0.02

EVENT_CHARACTERS = 64

_NUMBERS = frozenset({int, float})

Row = tuple[int, int, int, int, int | None, int | None, float | None, str]
"""source_id, generation, byte_offset, attempt, rank, step, at, data: the columns of the table ``metrics``."""


@dataclass(frozen=True, slots=True)
class SourceState:
    """How far a file was read: the committed columns of ``metric_sources``."""

    inode: int | None = None
    # Counts the files and versions of a file that the source was read from.
    generation: int = 0
    byte_offset: int = 0
    # Bytes of an over-long line that were passed over so far; 0 outside of one.
    skipping: int = 0
    # Shows whether the bytes before ``byte_offset`` are still those that were read.
    fingerprint: str | None = None
    # How many lines lie before ``byte_offset``, each with a mark in the store; None if there are no marks.
    mark_count: int | None = None
    # It was reported that the file is rewritten in place.
    is_rewritten: bool = False

    @property
    def place(self) -> tuple[int, int]:
        return self.generation, self.byte_offset


class RejectedLine(NamedTuple):
    """A line that is set aside."""

    generation: int
    byte_offset: int
    attempt: int
    # Without the newline.
    length_bytes: int
    reason: str
    # Its beginning, without secrets.
    excerpt: str


class MetricsNote(NamedTuple):
    """Something that a person should know about a file of metrics; ``kind`` and ``key`` are those of its event."""

    kind: EventKind
    key: str | None
    text: str


@dataclass(slots=True)
class MeasuredSteps:
    """The first and the newest step of some lines, and the times (UTC unix seconds) of those lines. A line of an event
    has no measured step: an event tells where it happened (a start, a resume)."""

    first: int | None = None
    first_at: float | None = None
    last: int | None = None
    last_at: float | None = None

    def add(self, step: int, at: float | None) -> None:
        if self.last is None:
            self.first, self.first_at = step, at
        if self.last is None or step >= self.last:
            self.last, self.last_at = step, at


@dataclass(slots=True)
class Batch:
    """Lines of one attempt and the state after them; both are stored together or not at all."""

    state: SourceState
    attempt: int
    # Knows the secrets of the run.
    redactor: Redactor = BY_LOOK
    # When the lines were written at the latest (UTC unix seconds): the time of those that have none.
    arrived_at: float | None = None
    rows: list[Row] = field(default_factory=list)
    # Those of the lines that charts show.
    to_reduce: list[MetricLine] = field(default_factory=list)
    rejected: list[RejectedLine] = field(default_factory=list)
    # The last number of each name, by rank; under "time" that of the last line.
    newest: dict[int | None, dict[str, Any]] = field(default_factory=dict)
    # How many lines each event has.
    events: dict[str, int] = field(default_factory=dict)
    steps: MeasuredSteps = field(default_factory=MeasuredSteps)
    # (offset, length so far) of an over-long line that was reported before.
    long_line: tuple[int, int] | None = None
    # The marks of the lines, up to the last that ``state`` counts. Marks that the store has behind them are void.
    marks: array[int] = field(default_factory=lambda: array("I"))
    # What is to be added to the list of all lines that were stored from a rewritten file; ``clears_list``: that list
    # is another attempt's.
    listed: array[int] = field(default_factory=lambda: array("I"))
    clears_list: bool = False
    bytes_read: int = 0
    # There is more to read at once.
    more: bool = False
    note: MetricsNote | None = None

    def take(self, source_id: int, generation: int, offset: int, parsed: ParsedLine) -> None:
        """Add a line."""
        step, at, rank, data, values = parsed
        if at is None:
            at = self.arrived_at
        is_numeric = _NUMBERS.issuperset(map(type, values.values()))
        self._note_newest(rank, at, values, is_numeric)
        if not is_numeric:
            data, values = self._without_secrets(data, values)
        self.rows.append((source_id, generation, offset, self.attempt, rank, step, at, data))
        if not rank and step is not None:
            self.to_reduce.append(MetricLine(generation, offset, self.attempt, step, at, values))
        if "event" in values:
            name = str(values["event"])[:EVENT_CHARACTERS]
            self.events[name] = self.events.get(name, 0) + 1
        elif step is not None:
            self.steps.add(step, at)

    def reject(self, generation: int, offset: int, line: bytes, answer: Rejected) -> None:
        """Add a line that is set aside."""
        shown = excerpt(line, self.redactor)
        self.rejected.append(RejectedLine(generation, offset, self.attempt, len(line), answer.reason, shown))

    def _note_newest(self, rank: int | None, at: float | None, values: Mapping[str, Any], is_numeric: bool) -> None:
        """Keep the line's numbers as the newest of its rank."""
        newest = self.newest.get(rank)
        if newest is None:
            newest = self.newest[rank] = {}
        if is_numeric:
            newest.update(values)
        else:
            newest.update((name, value) for name, value in values.items() if as_float(value) is not None)
        if at is not None:
            # How old the newest values are, also where lines have no time of their own.
            newest["time"] = at

    def _without_secrets(self, data: str, values: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """A line with text in it, as it may be stored; as it was written if it holds no secret."""
        shown = self.redactor.value(values)
        return (data, values) if shown == values else (orjson.dumps(shown).decode(), shown)
