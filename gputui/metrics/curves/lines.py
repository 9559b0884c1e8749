"""The lines of a run for its curves: reduced ones where they are fine enough, else line by line.

A stretch is some hundred lines of one attempt in one source that were reduced together. An entry is
the summary of one metric over a few lines of a stretch at level 0, over more at each higher level
(see `gputui.store.metrics.envelopes`). A part is a number of consecutive stretches that a chart
reads in the same way: as entries up to one level, or line by line.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal, NamedTuple

import orjson
from msgspec import Struct

from gputui.store.metrics import envelopes
from gputui.store.metrics.envelopes import Entry, EntryRange, StoredMetric, Stretch
from gputui.store.metrics.stored_lines import START, FilePosition, LineQuery, named_by_event, rows_between

EPOCH = "epoch"

Redone = Literal["none", "some", "all"]
"""Which steps of some lines a later attempt did again."""


class CurveLine(NamedTuple):
    """A line of rank 0 or without a rank, with a step. ``at`` is UTC unix seconds."""

    attempt: int
    step: int
    at: float | None
    values: Mapping[str, Any]


class LineRange(NamedTuple):
    """The lines of a source from one position up to another."""

    source_id: int
    begin: FilePosition
    end: FilePosition


class StoredLines(Struct, frozen=True):
    """The stored lines of a run at one moment.

    Attributes:
        ends: the end of the last line of each source.
        line_count: the number of lines of all ranks.
        stretches: those that are reduced, in the order of writing.
    """

    ends: Mapping[int, FilePosition]
    line_count: int
    stretches: Sequence[Stretch]

    def unreduced(self) -> Iterator[LineRange]:
        """The lines after the last stretch of each source."""
        ends = {stretch.source_id: stretch.end for stretch in self.stretches}
        for source_id, end in self.ends.items():
            yield LineRange(source_id, ends.get(source_id, START), end)


class RunEnds(NamedTuple):
    """How far a run has written.

    Attributes:
        positions: the end of the last line of each source.
        line_count: the number of lines of all ranks.
    """

    positions: Mapping[int, FilePosition]
    line_count: int


def read_ends(connection: sqlite3.Connection, run_id: str) -> RunEnds:
    """Read how far a run has written. Raises sqlite3.Error."""
    rows = connection.execute(
        "SELECT source_id, generation, byte_offset, line_count FROM metric_sources WHERE run_id = ? ORDER BY source_id",
        (run_id,),
    ).fetchall()
    positions = {source_id: (generation, byte_offset) for source_id, generation, byte_offset, _ in rows}
    return RunEnds(positions, sum(line_count for *_, line_count in rows))


def read_stored_lines(connection: sqlite3.Connection, run_id: str) -> StoredLines:
    """Read the extent of a run's lines. Raises sqlite3.Error."""
    return StoredLines(*read_ends(connection, run_id), envelopes.stretches(connection, run_id))


def read_lines(connection: sqlite3.Connection, ranges: Iterable[LineRange]) -> Iterator[CurveLine]:
    """Read the lines of some ranges in the order in which they were written. Raises sqlite3.Error."""
    query = LineQuery("attempt, step, at, data", "(rank IS NULL OR rank = 0) AND step IS NOT NULL")
    for source_id, begin, end in ranges:
        rows = rows_between(connection, source_id, begin, end, query)
        for attempt, step, at, data in rows:
            yield CurveLine(attempt, step, at, named_by_event(orjson.loads(data)))


def ranges_between(since: Mapping[int, FilePosition], ends: Mapping[int, FilePosition]) -> list[LineRange]:
    """The lines of each source from one position to another."""
    return [LineRange(source_id, since[source_id], end) for source_id, end in ends.items() if since[source_id] != end]


class Part(Struct, frozen=True):
    """Consecutive stretches of one attempt in one source that are read in the same way."""

    redone: Redone
    stretches: list[Stretch]

    @property
    def attempt(self) -> int:
        return self.stretches[0].attempt

    @property
    def line_range(self) -> LineRange:
        return LineRange(self.stretches[0].source_id, self.stretches[0].begin, self.stretches[-1].end)

    @property
    def line_count(self) -> int:
        return sum(stretch.line_count for stretch in self.stretches)

    def entry_ranges(self, level: int) -> Iterator[EntryRange]:
        """The ranges of entries that cover the part: of ``level`` where they lie in it as a whole, of lower ones at
        its ends."""
        return envelopes.entry_ranges(self.stretches[0].number, self.stretches[-1].number + 1, level)

    def entries_in(self, connection: sqlite3.Connection, name: str, entry_range: EntryRange) -> Iterator[Entry]:
        """The entries of one metric in a range of this part's attempt and source. Raises sqlite3.Error."""
        metric = StoredMetric(self.stretches[0].source_id, self.attempt, name)
        return envelopes.read_entries(connection, metric, entry_range)

    def entries(self, connection: sqlite3.Connection, name: str, level: int) -> Iterator[Entry]:
        """The entries of one metric over the whole part, of at most ``level``. Raises sqlite3.Error."""
        for entry_range in self.entry_ranges(level):
            yield from self.entries_in(connection, name, entry_range)


def split_in_parts(stretches: Iterable[Stretch], cuts: Mapping[int, float]) -> list[Part]:
    """Split the stretches of a run in parts.

    Args:
        stretches: in the order of writing.
        cuts: by attempt, the first step that a later attempt did again. A stretch with steps on both sides of it is in
            a part of its own.
    """
    parts: list[Part] = []
    for stretch in stretches:
        redone = _redone_of(stretch, cuts.get(stretch.attempt, math.inf))
        if parts and parts[-1].redone == redone and _is_next(stretch, parts[-1].stretches[-1]):
            parts[-1].stretches.append(stretch)
        else:
            parts.append(Part(redone, [stretch]))
    return parts


def _redone_of(stretch: Stretch, cut: float) -> Redone:
    if stretch.max_step < cut:
        return "none"
    if stretch.min_step >= cut:
        return "all"
    return "some"


def _is_next(stretch: Stretch, previous: Stretch) -> bool:
    is_same = stretch.source_id == previous.source_id and stretch.attempt == previous.attempt
    return is_same and stretch.number == previous.number + 1


def split_by_level(
    parts: Iterable[Part], level_of: Callable[[Stretch], int | None]
) -> Iterator[tuple[Part, int | None]]:
    """Split parts where the level changes that ``level_of`` gives; level None is line by line."""
    for part in parts:
        for level, group in groupby(part.stretches, level_of):
            yield Part(part.redone, list(group)), level
