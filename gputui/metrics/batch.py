"""The result of one read of a metrics file: a batch of lines that is stored in one transaction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
from msgspec import Struct

from gputui.core.redaction import BY_LOOK, Redactor
from gputui.metrics.contract import ParsedLine, Rejected, excerpt
from gputui.metrics.reduction import MetricLine
from gputui.store.events import EventKind
from gputui.store.metrics.queries import (
    NOT_METRICS,
    OF_EVENTS,
    FilePosition,
    as_float,
    named_by_event,
)

if TYPE_CHECKING:
    from gputui.metrics.earlier import LineComparison

# The limits of a batch. A line costs time beyond its bytes: a megabyte of two-byte lines must not
# block the loop.
BATCH_BYTES = 256 << 10
BATCH_LINES = 1024
# A batch that is limited by the remaining time is at least this long.
MIN_BATCH_BYTES = 16 << 10
# The limit for formats in which the work per byte varies.
READ_SECONDS = 0.01

EVENT_CHARACTERS = 64

# Scripts also call a duration "time": seconds per iteration, or since the start. Unix seconds of a
# training are after 2000-01-01, even if it was imported, and not after their arrival, with a day
# for clocks that are wrong.
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
TIME_IS_OTHER = (
    "the time in its metrics lines is not the time of day in unix seconds: the lines have the time "
    "at which they were read, and their own time is the metric time_"
)
STARTS_AGAIN = (
    "its steps start again at their first within an attempt, so that charts by step lay its epochs "
    "over each other; let the script count on, or have the pattern name epoch and iter"
)

_NUMBERS = frozenset({int, float})

Row = tuple[int, int, int, int, int | None, int | None, float | None, str]
"""source_id, generation, byte_offset, attempt, rank, step, at, data: the columns of ``metrics``."""

RejectedRow = tuple[int, int, int, str, str]
"""generation, byte_offset, attempt, reason, and the line's beginning without secrets."""


class SourceState(Struct, frozen=True):
    """The read position of a source: the committed columns of ``metric_sources``.

    Attributes:
        generation: counts the files, and the versions of a file, that were read.
        byte_offset: the bytes that were read of this version; entries of a Hugging Face history.
        skipping: the rest of an over-long line is skipped.
        fingerprint: shows whether what is before ``byte_offset`` has changed.
        first_generation: the first version of this file; older generations are other files.
    """

    inode: int | None = None
    generation: int = 0
    byte_offset: int = 0
    skipping: bool = False
    fingerprint: str | None = None
    first_generation: int = 0

    @property
    def position(self) -> FilePosition:
        return self.generation, self.byte_offset


class MetricsNote(NamedTuple):
    """A remark about a metrics file for a person; ``kind`` and ``key`` are those of its event."""

    kind: EventKind
    key: str | None
    text: str


@dataclass(slots=True)
class MeasuredSteps:
    """The first and the newest step of some lines, with their times (UTC unix seconds)."""

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
    """Lines of one attempt and the state after them, stored together or not at all.

    Attributes:
        redactor: the redactor of the run.
        arrived_at: the time (UTC unix seconds) of lines that have none: the latest at which they
            can have been written.
        earlier: compares lines with those of earlier versions of the file; None to store all.
        to_reduce: the lines that charts show.
        newest: the last number of each name, by rank; "time" is the time of the last line.
        events: the number of lines of each event.
        steps: of lines without an event: the step of an event says where something happened.
        replaced: what is left of stored lines whose values changed, by position.
        more: more can be read at once.
        learned: see `LineFormat.learned`.
    """

    state: SourceState
    attempt: int
    redactor: Redactor = BY_LOOK
    arrived_at: float | None = None
    earlier: LineComparison | None = None
    rows: list[Row] = field(default_factory=list)
    to_reduce: list[MetricLine] = field(default_factory=list)
    rejected: list[RejectedRow] = field(default_factory=list)
    newest: dict[int | None, dict[str, Any]] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)
    steps: MeasuredSteps = field(default_factory=MeasuredSteps)
    replaced: Mapping[FilePosition, Mapping[str, Any]] = field(default_factory=dict)
    bytes_read: int = 0
    more: bool = False
    notes: dict[EventKind, MetricsNote] = field(default_factory=dict)
    learned: Mapping[str, Sequence[int]] = field(default_factory=dict)
    _latest_time: float = field(init=False)

    def __post_init__(self) -> None:
        arrived = math.inf if self.arrived_at is None else self.arrived_at
        self._latest_time = arrived + _CLOCK_ERROR_SECONDS

    def take(self, source_id: int, generation: int, offset: int, parsed: ParsedLine) -> None:
        """Add a line."""
        step, at, rank, data, values = parsed
        if at is None or not _FIRST_TIME_SECONDS <= at <= self._latest_time:
            if values.get("time") is not None:
                data, values = _renamed(values, "time")
                self.note("times_unknown", None, TIME_IS_OTHER)
            at = self.arrived_at
        is_numeric = _NUMBERS.issuperset(map(type, values.values()))
        if not is_numeric:
            if step is not None and "event" in values and _is_measurement(values):
                data, values = _renamed(values, "event")
            shown = self.redactor.value(values)
            if shown != values:
                data, values = orjson.dumps(shown).decode(), shown
        if self.earlier is not None:
            unknown = self.earlier.unknown(rank, step, values, data)
            if unknown is None:
                return
            if unknown is not values:
                data, values = orjson.dumps(unknown).decode(), unknown
        if not is_numeric:
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
        self.rejected.append((generation, offset, self.attempt, answer.reason, shown))

    def note(self, kind: EventKind, key: str | None, text: str) -> None:
        """Add a remark. Each kind is reported once per source."""
        self.notes[kind] = MetricsNote(kind, key, text)

    def _note_newest(self, rank: int | None, at: float | None, values: Mapping[str, Any], is_numeric: bool) -> None:
        """Note the line's numbers as the newest of its rank."""
        newest = self.newest.get(rank)
        if newest is None:
            newest = self.newest[rank] = {}
        if is_numeric:
            newest.update(values)
        else:
            newest.update(pair for pair in values.items() if as_float(pair[1]) is not None)
        if at is not None:
            # Gives the age of the newest values even if lines have no time.
            newest["time"] = at


def _is_measurement(values: Mapping[str, Any]) -> bool:
    """Whether a line with an event measures a step all the same, as loggers write that name each
    line's message "event": it has metrics, and the event is none whose metrics are its own."""
    return str(values["event"]) not in EVENTS_WITH_METRICS and any(
        as_float(value) is not None for name, value in values.items() if name not in _NOT_MEASURED
    )


def _renamed(values: Mapping[str, Any], name: str) -> tuple[str, dict[str, Any]]:
    """A line, encoded and decoded, whose value ``name`` is something else than a line's: it becomes
    ``name_``, as in other trackers' files."""
    renamed = {f"{key}_" if key == name else key: value for key, value in values.items()}
    return orjson.dumps(renamed).decode(), renamed


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
        is_found = False
        for line in lines:
            if "event" in line.values:
                continue
            if line.attempt != self.attempt:
                self.attempt, self.first, self.starts = line.attempt, line.step, 0
            elif line.step <= self.first and self.last > line.step + 1:
                self.starts += 1
                is_found = is_found or self.starts == 2
                self.first = line.step
            self.last = line.step
        return is_found


@dataclass(slots=True)
class AttemptProgress:
    """What is new of one attempt. The steps are those of new lines without events, None if there
    are none; ``first_at`` and ``last_at`` are their times (unix seconds). ``values`` are the newest
    value of each metric, of rank 0 if every rank writes lines; NaN and infinities are floats.
    ``events`` counts the lines of each event."""

    run_id: str
    attempt: int
    lines: int = 0
    rejected: int = 0
    first_step: int | None = None
    first_at: float | None = None
    last_step: int | None = None
    last_at: float | None = None
    values: dict[str, float] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)

    def add(self, batch: Batch) -> None:
        self.lines += len(batch.rows)
        self.rejected += len(batch.rejected)
        steps = batch.steps
        if steps.last is not None:
            if self.last_step is None:
                self.first_step, self.first_at = steps.first, steps.first_at
            if self.last_step is None or steps.last >= self.last_step:
                self.last_step, self.last_at = steps.last, steps.last_at
        for name, times in batch.events.items():
            self.events[name] = self.events.get(name, 0) + times
        if batch.newest:
            leading = min(batch.newest, key=lambda rank: -1 if rank is None else rank)
            for name, value in batch.newest[leading].items():
                if name not in NOT_METRICS and (number := as_float(value)) is not None:
                    self.values[name] = number


@dataclass(slots=True)
class IngestReport:
    """The result of one round. ``more``: the budget ended before the files. ``awaits``: a file is
    being looked at in another thread. ``notes`` are about files that were rewritten, lost or
    unreadable, with their runs."""

    lines: int = 0
    rejected: int = 0
    bytes: int = 0
    more: bool = False
    awaits: bool = False
    progress: list[AttemptProgress] = field(default_factory=list)
    notes: list[tuple[str, MetricsNote]] = field(default_factory=list)

    def add(self, run_id: str, batch: Batch) -> None:
        self.lines += len(batch.rows)
        self.rejected += len(batch.rejected)
        self.bytes += batch.bytes_read
        if batch.rows or batch.rejected:
            self._progress_of(run_id, batch.attempt).add(batch)

    def _progress_of(self, run_id: str, attempt: int) -> AttemptProgress:
        for progress in self.progress:
            if progress.run_id == run_id and progress.attempt == attempt:
                return progress
        self.progress.append(AttemptProgress(run_id, attempt))
        return self.progress[-1]
