"""Envelopes: metrics reduced for charts, their packed format and queries.

An entry of level 0 summarizes one metric over BLOCK_LINES lines, one of a higher level joins FAN
entries of the level below, so that a chart reads about as many entries as it has bins. A stretch of
STRETCH_LINES lines, one row of level 0, is reduced at once; fewer at the end of an attempt.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gputui.store.metrics.stored_lines import FilePosition, end_positions

BLOCK_LINES = 32  # one entry of 80 bytes for each metric adds a few percent to so many lines
FAN = 16  # all levels above the lowest together take a fifteenth of its room
STRETCH_LINES = BLOCK_LINES * FAN

ENTRY = struct.Struct("<4I4d2q2d")
"""A stored entry: points · FAN + its number in its row, NaNs, infinities, negative infinities, then
the other fields of `Entry`. Little-endian."""

_STRETCH = (
    "SELECT source_id, attempt, number, generation, byte_offset, end_generation, end_offset, "
    "line_count, min_step, max_step, min_at, max_at FROM metric_stretches"
)

_OF_RUN = (
    "WHERE source_id IN (SELECT source_id FROM metric_sources WHERE run_id = ?) "
    "ORDER BY source_id, generation, byte_offset"
)
_LAST = "WHERE source_id = ?1 AND (?2 IS NULL OR attempt = ?2) ORDER BY generation DESC, byte_offset DESC LIMIT 1"


class Entry(NamedTuple):
    """One metric over one or more blocks.

    Attributes:
        place: its number among the entries of its level, from the attempt's begin.
        points: number of values, finite or not.
        nan: number of values that are not a number.
        positive_infinite: number of values.
        negative_infinite: number of values.
        low: the lowest finite value, NaN without any.
        high: the highest finite value, NaN without any.
        first: the first finite value, NaN without any.
        last: the last finite value, NaN without any.
        first_step: the step of ``first``; without a finite value, of the first of the others.
        last_step: the step of ``last``; without a finite value, of the last of the others.
        first_at: the time of ``first_step`` in UTC unix seconds, NaN where unknown.
        last_at: the time of ``last_step`` in UTC unix seconds, NaN where unknown.
    """

    place: int
    points: int
    nan: int
    positive_infinite: int
    negative_infinite: int
    low: float
    high: float
    first: float
    last: float
    first_step: int
    last_step: int
    first_at: float
    last_at: float

    @property
    def has_finite(self) -> bool:
        """True if any value was finite."""
        return self.low == self.low


class Stretch(NamedTuple):
    """Lines of one attempt that are reduced together.

    Attributes:
        number: its place among the stretches of its attempt in its source.
        begin: the position of its first line.
        end: the position behind its last line.
        min_step: the lowest step of its lines.
        max_step: the highest step of its lines.
        min_at: the earliest time of its lines in UTC unix seconds, None where unknown.
        max_at: the latest time of its lines in UTC unix seconds, None where unknown.
    """

    source_id: int
    attempt: int
    number: int
    begin: FilePosition
    end: FilePosition
    line_count: int
    min_step: int
    max_step: int
    min_at: float | None
    max_at: float | None


def pack(entry: Entry) -> bytes:
    """The stored form of an entry."""
    place, points, *others = entry
    return ENTRY.pack(points * FAN + place % FAN, *others)


def unpack(number: int, entries: bytes) -> list[Entry]:
    """The entries of a row."""
    first = number * FAN
    make = tuple.__new__
    return [make(Entry, (first + (word % FAN), word // FAN, *rest)) for word, *rest in ENTRY.iter_unpack(entries)]


def join(position: int, entries: Sequence[Entry]) -> Entry:
    """Join consecutive entries to one."""
    finite = [entry for entry in entries if entry.low == entry.low] or entries
    first = finite[0]
    last = finite[-1]
    return Entry(
        position,
        sum(entry.points for entry in entries),
        sum(entry.nan for entry in entries),
        positive_infinite=sum(entry.positive_infinite for entry in entries),
        negative_infinite=sum(entry.negative_infinite for entry in entries),
        low=min(entry.low for entry in finite),
        high=max(entry.high for entry in finite),
        first=first.first,
        last=last.last,
        first_step=first.first_step,
        last_step=last.last_step,
        first_at=first.first_at,
        last_at=last.last_at,
    )


def unreduced_bytes(connection: sqlite3.Connection, run_id: str) -> int:
    """Bytes of a run's files that are not reduced yet: those since the last stretch, and those
    stored by an older gputui. Raises sqlite3.Error."""
    total = 0
    for source_id, (generation, offset) in end_positions(connection, run_id).items():
        total += offset
        last = last_stretch(connection, source_id)
        if last is None:
            continue
        reduced_generation, reduced_offset = last.end
        if reduced_generation == generation:
            total -= reduced_offset
    return total


def stretches(connection: sqlite3.Connection, run_id: str) -> list[Stretch]:
    """All stretches of a run in the order of writing."""
    rows = connection.execute(f"{_STRETCH} {_OF_RUN}", (run_id,))
    return [_stretch(row) for row in rows.fetchall()]


def last_stretch(connection: sqlite3.Connection, source_id: int, attempt: int | None = None) -> Stretch | None:
    """The newest stretch of a source, or of one attempt in it; None before the first."""
    row = connection.execute(f"{_STRETCH} {_LAST}", (source_id, attempt)).fetchone()
    if row is None:
        return None
    return _stretch(row)


class StoredMetric(NamedTuple):
    """A metric of one attempt in one source."""

    source_id: int
    attempt: int
    name: str


class EntryRange(NamedTuple):
    """The entries of one level with places in [begin, end)."""

    level: int
    begin: int
    end: int


def read_entries(connection: sqlite3.Connection, metric: StoredMetric, entry_range: EntryRange) -> Iterator[Entry]:
    """Read the entries of one metric in a range, in order. Raises sqlite3.Error."""
    level, begin, end = entry_range
    rows = connection.execute(
        "SELECT number, entries FROM metric_envelopes "
        "WHERE source_id = ? AND attempt = ? AND name = ? AND level = ? AND number BETWEEN ? AND ? ORDER BY number",
        (*metric, level, begin // FAN, (end - 1) // FAN),
    )
    for number, packed in rows:
        unpacked = unpack(number, packed)
        if number * FAN >= begin and (number + 1) * FAN <= end:
            yield from unpacked
        else:
            yield from (entry for entry in unpacked if begin <= entry.place < end)


def entry_ranges(begin: int, end: int, level: int) -> Iterator[EntryRange]:
    """The ranges of entries, of at most ``level``, that exactly cover the stored stretches [begin, end), in order."""
    if begin >= end:
        return
    if level == 0:
        yield EntryRange(0, begin * FAN, end * FAN)
        return
    unit = int(FAN ** (level - 1))
    # Above level 1, an entry exists only for complete rows of the level below.
    low = -(-begin // unit)
    high = end // unit
    if low >= high:
        yield from entry_ranges(begin, end, level - 1)
        return
    yield from entry_ranges(begin, low * unit, level - 1)
    yield EntryRange(level, low, high)
    yield from entry_ranges(high * unit, end, level - 1)


def level_for(lines: int, least: int) -> int:
    """The highest level with ``least`` entries or more for this number of lines; 0 if there is none."""
    level = 0
    while lines // (BLOCK_LINES * FAN ** (level + 1)) >= least:
        level += 1
    return level


def _stretch(row: tuple[int, ...]) -> Stretch:
    source_id, attempt, number, generation, offset, end_generation, end_offset, *rest = row
    return Stretch(source_id, attempt, number, (generation, offset), (end_generation, end_offset), *rest)
