"""Metrics reduced for charts as they lie in the store: how an entry is packed, and reading them.

Lines are taken in blocks of BLOCK_LINES; an entry of level 0 holds what one metric did in a block. Each level above
puts FAN entries of the one below into one, so that a chart reads about as many entries as it has bins, however long the
run is. STRETCH_LINES lines, one row of level 0, are reduced together; fewer where an attempt ends.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

BLOCK_LINES = 32
FAN = 16
STRETCH_LINES = BLOCK_LINES * FAN

ENTRY = struct.Struct("<4I4d2q2d")
"""An entry as it is stored: points · FAN + its number in its row, NaNs, infinities, negative infinities, then the other
fields of `Entry`. Little-endian."""


class Entry(NamedTuple):
    """What one metric did in one or more blocks.

    ``place`` counts the entries of a level from the attempt's begin. ``low`` to ``last`` are of finite values, and so
    are the steps and times of the first and last of them; with none they are NaN, and the steps and times those of what
    else was there. Times are UTC unix seconds, NaN where unknown.
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
        """Whether any value was finite."""
        return self.low == self.low


class Stretch(NamedTuple):
    """Where some lines of one attempt lie, and what they reach over. ``begin`` and ``end`` are places."""

    source_id: int
    attempt: int
    number: int
    begin: tuple[int, int]
    end: tuple[int, int]
    line_count: int
    min_step: int
    max_step: int
    min_at: float | None
    max_at: float | None


def pack(entry: Entry) -> bytes:
    """One entry as it is stored."""
    return ENTRY.pack(entry[1] * FAN + entry[0] % FAN, *entry[2:])


def unpack(number: int, entries: bytes) -> list[Entry]:
    """The entries of a row."""
    first = number * FAN
    make = tuple.__new__
    return [make(Entry, (first + (word % FAN), word // FAN, *rest)) for word, *rest in ENTRY.iter_unpack(entries)]


def join(place: int, entries: Sequence[Entry]) -> Entry:
    """Entries that follow each other as one."""
    finite = [entry for entry in entries if entry.low == entry.low] or entries
    first, last = finite[0], finite[-1]
    return Entry(
        place,
        sum(entry.points for entry in entries),
        sum(entry.nan for entry in entries),
        sum(entry.positive_infinite for entry in entries),
        sum(entry.negative_infinite for entry in entries),
        min(entry.low for entry in finite),
        max(entry.high for entry in finite),
        first.first,
        last.last,
        first.first_step,
        last.last_step,
        first.first_at,
        last.last_at,
    )


_STRETCH = (
    "SELECT source_id, attempt, number, generation, byte_offset, end_generation, end_offset, line_count, "
    "min_step, max_step, min_at, max_at FROM metric_stretches"
)


def unreduced_bytes(connection: sqlite3.Connection, run_id: str) -> int:
    """How much of a run's files, in bytes, only their lines tell: what came since the last stretch, and all that an
    older gputui stored until it is reduced. Raises sqlite3.Error."""
    sources = connection.execute(
        "SELECT source_id, generation, byte_offset FROM metric_sources WHERE run_id = ?", (run_id,)
    ).fetchall()
    total = 0
    for source_id, generation, offset in sources:
        last = last_stretch(connection, source_id)
        total += offset - (last.end[1] if last is not None and last.end[0] == generation else 0)
    return total


_OF_RUN = (
    "WHERE source_id IN (SELECT source_id FROM metric_sources WHERE run_id = ?) "
    "ORDER BY source_id, generation, byte_offset"
)
_LAST = "WHERE source_id = ?1 AND (?2 IS NULL OR attempt = ?2) ORDER BY generation DESC, byte_offset DESC LIMIT 1"


def stretches(connection: sqlite3.Connection, run_id: str) -> list[Stretch]:
    """All stretches of a run in the order they were written."""
    rows = connection.execute(f"{_STRETCH} {_OF_RUN}", (run_id,))
    return [_stretch(row) for row in rows.fetchall()]


def last_stretch(connection: sqlite3.Connection, source_id: int, attempt: int | None = None) -> Stretch | None:
    """The newest stretch of a source, or of one attempt in it; None before the first."""
    row = connection.execute(f"{_STRETCH} {_LAST}", (source_id, attempt)).fetchone()
    return None if row is None else _stretch(row)


def entries(
    connection: sqlite3.Connection, source_id: int, attempt: int, name: str, level: int, begin: int, end: int
) -> Iterator[Entry]:
    """The entries of one metric at one level with a place from ``begin`` to below ``end``, in order."""
    rows = connection.execute(
        "SELECT number, entries FROM metric_envelopes WHERE source_id = ? AND attempt = ? AND name = ? AND level = ? "
        "AND number BETWEEN ? AND ? ORDER BY number",
        (source_id, attempt, name, level, begin // FAN, (end - 1) // FAN),
    )
    for number, packed in rows:
        found = unpack(number, packed)
        if number * FAN >= begin and (number + 1) * FAN <= end:
            yield from found
        else:
            yield from (entry for entry in found if begin <= entry.place < end)


def pieces(begin: int, end: int, count: int, level: int) -> Iterator[tuple[int, int, int]]:
    """How the stretches from ``begin`` to below ``end``, of ``count`` that there are, are covered exactly by entries of
    at most ``level``: (level, first place, place behind the last), in order."""
    if begin >= end:
        return
    if level == 0:
        yield 0, begin * FAN, end * FAN
        return
    unit = int(FAN ** (level - 1))
    # Of a level above the first only whole rows of the one below have an entry.
    low, high = -(-begin // unit), min(end, count) // unit
    if low >= high:
        yield from pieces(begin, end, count, level - 1)
        return
    yield from pieces(begin, low * unit, count, level - 1)
    yield level, low, high
    yield from pieces(high * unit, end, count, level - 1)


def level_for(lines: int, wanted: int) -> int:
    """The highest level at which so many lines make at least ``wanted`` entries; 0 if none does."""
    level = 0
    while lines // (BLOCK_LINES * FAN ** (level + 1)) >= wanted:
        level += 1
    return level


def _stretch(row: tuple[int, ...]) -> Stretch:
    source_id, attempt, number, generation, offset, end_generation, end_offset, *rest = row
    return Stretch(source_id, attempt, number, (generation, offset), (end_generation, end_offset), *rest)
