"""What a reader of a metrics file answers, and how lines belong to attempts."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import orjson

from gputui.metrics.contract import ParsedLine, Rejected, excerpt
from gputui.metrics.reduction import MetricLine
from gputui.redaction import BY_LOOK, Redactor
from gputui.store.events import EventKind
from gputui.store.metrics.queries import as_float

# What one answer may hold. A line costs time beyond its bytes: a megabyte of two-byte lines must not block the loop.
BATCH_BYTES = 256 << 10
BATCH_LINES = 1024

EVENT_CHARACTERS = 64

_ANY_ATTEMPT = 2**63
_NUMBERS = frozenset({int, float})
_line = tuple.__new__

Row = tuple[int, int, int, int, int | None, int | None, float | None, str]
"""source_id, generation, byte_offset, attempt, rank, step, at, data: the columns of the table ``metrics``."""


@dataclass(frozen=True, slots=True)
class SourceState:
    """How far a file was read: the committed columns of ``metric_sources``.

    ``skipping`` counts the bytes of an over-long line passed over so far; 0 when not in one. ``fingerprint`` tells
    whether the bytes before ``byte_offset`` are still those that were read. ``mark_count`` is how many lines that is,
    each with a mark in the store; None where there are no marks. ``is_rewritten``: it was reported that the file is.
    """

    inode: int | None = None
    generation: int = 0
    byte_offset: int = 0
    skipping: int = 0
    fingerprint: str | None = None
    mark_count: int | None = None
    is_rewritten: bool = False

    @property
    def place(self) -> tuple[int, int]:
        return self.generation, self.byte_offset


class Boundary(NamedTuple):
    """Where an attempt's lines begin."""

    generation: int
    byte_offset: int
    attempt: int


class RejectedLine(NamedTuple):
    """A line set aside: its place, length in bytes without the newline, the reason and its beginning."""

    generation: int
    byte_offset: int
    attempt: int
    length_bytes: int
    reason: str
    excerpt: str


class MetricsNote(NamedTuple):
    """Something that a person should know about a file of metrics; ``kind`` and ``key`` are those of its event."""

    kind: EventKind
    key: str | None
    text: str


@dataclass(slots=True)
class Batch:
    """Lines of one attempt and the state after them; both are stored together or not at all.

    ``redactor`` knows the secrets of the run. ``to_reduce`` are those lines that charts show. ``newest`` holds the last
    number of each name by rank, ``events`` how many lines told of each event. ``long_line`` is (offset, length so far)
    of an over-long line that was told of before. ``marks`` are those of the lines, the last that the state counts; all
    that the store has behind them are void. ``arrived_at`` (UTC unix seconds) is when they were written at the latest,
    and the time of those that tell none. ``more``: there is more to read at once.
    """

    state: SourceState
    attempt: int
    redactor: Redactor = BY_LOOK
    arrived_at: float | None = None
    rows: list[Row] = field(default_factory=list)
    to_reduce: list[MetricLine] = field(default_factory=list)
    rejected: list[RejectedLine] = field(default_factory=list)
    newest: dict[int | None, dict[str, Any]] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)
    first_step: int | None = None
    first_at: float | None = None
    last_step: int | None = None
    last_at: float | None = None
    long_line: tuple[int, int] | None = None
    marks: array[int] = field(default_factory=lambda: array("I"))
    bytes_read: int = 0
    more: bool = False
    note: MetricsNote | None = None

    def take(self, source_id: int, generation: int, offset: int, parsed: ParsedLine) -> None:
        """Add a line's row."""
        step, at, rank, data, values = parsed
        if at is None:
            at = self.arrived_at
        known = self.newest.get(rank)
        if known is None:
            known = self.newest[rank] = {}
        if _NUMBERS.issuperset(map(type, values.values())):
            known.update(values)
        else:
            known.update((name, value) for name, value in values.items() if as_float(value) is not None)
            data, values = self._without_secrets(data, values)
        self.rows.append((source_id, generation, offset, self.attempt, rank, step, at, data))
        if not rank and step is not None:
            self.to_reduce.append(_line(MetricLine, (generation, offset, self.attempt, step, at, values)))
        # An event tells where it happened (a start, a resume); only a measured step is progress.
        if "event" in values:
            name = str(values["event"])[:EVENT_CHARACTERS]
            self.events[name] = self.events.get(name, 0) + 1
        elif step is not None:
            if self.last_step is None:
                self.first_step, self.first_at = step, at
                self.last_step, self.last_at = step, at
            elif step >= self.last_step:
                self.last_step, self.last_at = step, at

    def reject(self, generation: int, offset: int, line: bytes, answer: Rejected) -> None:
        """Add a line that is set aside."""
        shown = excerpt(line, self.redactor)
        self.rejected.append(RejectedLine(generation, offset, self.attempt, len(line), answer.reason, shown))

    def _without_secrets(self, data: str, values: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """A line with text in it, as it may be stored; as it was written where it holds no secret."""
        shown = self.redactor.value(values)
        return (data, values) if shown == values else (orjson.dumps(shown).decode(), shown)


class SourceReader(Protocol):
    """Reads one source. It changes nothing by itself: the state it is given is the truth, the state it answers counts
    once it is committed. ``is_busy``: it answered None because it is not done with looking; it is to be asked again."""

    is_busy: bool

    def read(
        self,
        state: SourceState,
        boundaries: Sequence[Boundary],
        *,
        budget_bytes: int = BATCH_BYTES,
        ended: bool = False,
    ) -> Batch | None:
        """What is new after ``state``, or None. ``ended``: nothing more will be written, so that an unfinished last
        line is decided. Raises OSError where the file cannot be read."""

    def end_place(self, state: SourceState, at_most: int | None = None) -> SourceState:
        """The state of a reader that had read all there is now: where the next attempt's lines will begin. With
        ``at_most``, of one that had read up to this offset; from the start where the file does not reach that far."""

    def close(self) -> None:
        """Let go of open files."""


def owner(boundaries: Sequence[Boundary], place: tuple[int, int]) -> tuple[int | None, int | None]:
    """Which attempt the line at ``place`` (generation, offset) belongs to, and the offset in the same generation at
    which the next attempt begins. ``boundaries`` are sorted; None where there is no such."""
    index = bisect_right(boundaries, (*place, _ANY_ATTEMPT))
    attempt = boundaries[index - 1].attempt if index else None
    following = boundaries[index] if index < len(boundaries) else None
    same = following is not None and following.generation == place[0]
    return attempt, following.byte_offset if following is not None and same else None
