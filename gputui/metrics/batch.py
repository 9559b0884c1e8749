"""The result of one read of a metrics file: a batch of lines that is stored in one transaction."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson
from msgspec import Struct

from gputui.core.redaction import BY_LOOK, Redactor
from gputui.metrics.contract import ParsedLine, Rejected, excerpt
from gputui.metrics.reduction import MetricLine
from gputui.store.events import EventKind
from gputui.store.metrics.queries import NOT_METRICS, OF_EVENTS, as_float, named_by_event

# The limits of a batch. A line costs time beyond its bytes: a megabyte of two-byte lines must not block the loop.
BATCH_BYTES = 256 << 10
BATCH_LINES = 1024
# A batch that is limited by the remaining time is at least this long.
MIN_BATCH_BYTES = 16 << 10
# The limit for formats in which the work per byte varies.
READ_SECONDS = 0.01

EVENT_CHARACTERS = 64

# Scripts also call a duration "time": seconds per iteration, or since the start. Unix seconds of a training are after
# 2000-01-01, even if it was imported, and not after their arrival, with a day for clocks that are wrong.
_FIRST_TIME_SECONDS = 946_684_800.0
_CLOCK_ERROR_SECONDS = 86_400.0
# The events of the bundled trainer, see docs/trainer.md: their lines may have metrics, and are no steps.
EVENTS_WITH_METRICS = frozenset({
    "start", "phase", "resume", "checkpoint_rejected", "prepared", "answer", "export", "batch_found", "batch_reduced",
    "validation_batch_reduced", "sample_skipped", "validation", "checkpoint", "checkpoint_failed",
    "checkpoint_skipped", "bottleneck", "trace", "stop", "end",
})  # fmt: skip
_NOT_MEASURED = NOT_METRICS | OF_EVENTS | {"epoch", "total_steps"}
TIME_IS_OTHER = (
    "the time in its metrics lines is not the time of day in unix seconds: the lines have the time at which they were "
    "read, and their own time is the metric time_"
)

_NUMBERS = frozenset({int, float})

Row = tuple[int, int, int, int, int | None, int | None, float | None, str]
"""source_id, generation, byte_offset, attempt, rank, step, at, data: the columns of the table ``metrics``."""


class SourceState(Struct, frozen=True):
    """The read position of a source: the committed columns of ``metric_sources``."""

    inode: int | None = None
    generation: int = 0
    """Counts the files, and the versions of a file, that were read."""
    byte_offset: int = 0
    skipping: int = 0
    """Skipped bytes of an over-long line so far; 0 outside of one."""
    fingerprint: str | None = None
    """Shows whether the bytes before ``byte_offset`` have changed."""
    mark_count: int | None = None
    """The number of lines before ``byte_offset``, each with a stored mark; None without marks."""
    is_rewritten: bool = False
    """Whether it was reported that the file is rewritten in place."""

    @property
    def position(self) -> tuple[int, int]:
        return self.generation, self.byte_offset


class RejectedLine(NamedTuple):
    """A rejected line."""

    generation: int
    byte_offset: int
    attempt: int
    length_bytes: int
    """Without the newline."""
    reason: str
    excerpt: str
    """Its beginning, without secrets."""


class MetricsNote(NamedTuple):
    """A remark about a metrics file for a person; ``kind`` and ``key`` are those of its event."""

    kind: EventKind
    key: str | None
    text: str


@dataclass(slots=True)
class MeasuredSteps:
    """The first and the newest step of some lines, with the times (UTC unix seconds) of these lines. Lines of events
    are ignored: their step says where something happened."""

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
    """Lines of one attempt and the state after them, stored together or not at all."""

    state: SourceState
    attempt: int
    redactor: Redactor = BY_LOOK
    """The redactor of the run."""
    arrived_at: float | None = None
    """The time (UTC unix seconds) of lines that have none: the latest at which they can have been written."""
    rows: list[Row] = field(default_factory=list)
    to_reduce: list[MetricLine] = field(default_factory=list)
    """The lines that charts show."""
    rejected: list[RejectedLine] = field(default_factory=list)
    newest: dict[int | None, dict[str, Any]] = field(default_factory=dict)
    """The last number of each name, by rank; "time" is the time of the last line."""
    events: dict[str, int] = field(default_factory=dict)
    """The number of lines of each event."""
    steps: MeasuredSteps = field(default_factory=MeasuredSteps)
    long_line: tuple[int, int] | None = None
    """(offset, length so far) of an over-long line that has been reported."""
    marks: array[int] = field(default_factory=lambda: array("I"))
    """The marks of the lines, up to the last that ``state`` counts. They replace stored marks behind these."""
    listed: array[int] = field(default_factory=lambda: array("I"))
    """Marks to add to the list of a rewritten file."""
    clears_list: bool = False
    """Whether that list belongs to another attempt."""
    bytes_read: int = 0
    more: bool = False
    """Whether more can be read at once."""
    note: MetricsNote | None = None
    remarks: dict[EventKind, str] = field(default_factory=dict)
    """What a person should know about the lines, said once per source."""
    learned: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """See `LineFormat.learned`."""
    latest_time: float = field(init=False)
    """The latest time that lines can tell."""

    def __post_init__(self) -> None:
        self.latest_time = math.inf if self.arrived_at is None else self.arrived_at + _CLOCK_ERROR_SECONDS

    def take(self, source_id: int, generation: int, offset: int, parsed: ParsedLine) -> None:
        """Add a line."""
        step, at, rank, data, values = parsed
        if at is None or not _FIRST_TIME_SECONDS <= at <= self.latest_time:
            if values.get("time") is not None:
                data, values = _renamed(values, "time")
                self.remarks["times_unknown"] = TIME_IS_OTHER
            at = self.arrived_at
        is_numeric = _NUMBERS.issuperset(map(type, values.values()))
        if not is_numeric:
            if step is not None and "event" in values and _is_measurement(values):
                data, values = _renamed(values, "event")
            shown = self.redactor.value(values)
            if shown != values:
                data, values = orjson.dumps(shown).decode(), shown
            values = named_by_event(values)
        self._note_newest(rank, at, values, is_numeric)
        self.rows.append((source_id, generation, offset, self.attempt, rank, step, at, data))
        if not rank and step is not None:
            self.to_reduce.append(MetricLine(generation, offset, self.attempt, step, at, values))
        if "event" in values:
            name = str(values["event"])[:EVENT_CHARACTERS]
            self.events[name] = self.events.get(name, 0) + 1
        elif step is not None:
            self.steps.add(step, at)

    def reject(self, generation: int, offset: int, line: bytes, answer: Rejected) -> None:
        """Add a rejected line."""
        shown = excerpt(line, self.redactor)
        self.rejected.append(RejectedLine(generation, offset, self.attempt, len(line), answer.reason, shown))

    def _note_newest(self, rank: int | None, at: float | None, values: Mapping[str, Any], is_numeric: bool) -> None:
        """Note the line's numbers as the newest of its rank."""
        newest = self.newest.get(rank)
        if newest is None:
            newest = self.newest[rank] = {}
        if is_numeric:
            newest.update(values)
        else:
            newest.update((name, value) for name, value in values.items() if as_float(value) is not None)
        if at is not None:
            # Gives the age of the newest values even if lines have no time.
            newest["time"] = at


def _is_measurement(values: Mapping[str, Any]) -> bool:
    """Whether a line with an event measures a step all the same, as loggers write that name each line's message
    "event": it has metrics, and the event is none whose metrics are its own."""
    return str(values["event"]) not in EVENTS_WITH_METRICS and any(
        as_float(value) is not None for name, value in values.items() if name not in _NOT_MEASURED
    )


def _renamed(values: Mapping[str, Any], name: str) -> tuple[str, dict[str, Any]]:
    """A line, encoded and decoded, whose value ``name`` is something else than a line's: it becomes ``name_``, as in
    other trackers' files."""
    renamed = {f"{key}_" if key == name else key: value for key, value in values.items()}
    return orjson.dumps(renamed).decode(), renamed
