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
from gputui.store.metrics.envelopes import Entry, Stretch
from gputui.store.metrics.stored_lines import START, FilePosition, named_by_event, rows_between

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


class Layout(Struct, frozen=True):
    """The stored lines of a run at one moment. ``ends`` are the ends of the last line of each
    source, ``line_count`` counts the lines of all ranks."""

    ends: Mapping[int, FilePosition]
    line_count: int
    stretches: Sequence[Stretch]

    def unreduced(self) -> Iterator[LineRange]:
        """The lines after the last stretch of each source."""
        ends = {stretch.source_id: stretch.end for stretch in self.stretches}
        for source_id, end in self.ends.items():
            yield LineRange(source_id, ends.get(source_id, START), end)


def sources(connection: sqlite3.Connection, run_id: str) -> tuple[dict[int, FilePosition], int]:
    """The end of each source, and the number of lines."""
    rows = connection.execute(
        "SELECT source_id, generation, byte_offset, line_count FROM metric_sources WHERE run_id = ? ORDER BY source_id",
        (run_id,),
    ).fetchall()
    ends = {source_id: (generation, byte_offset) for source_id, generation, byte_offset, _ in rows}
    return ends, sum(line_count for *_, line_count in rows)


def layout(connection: sqlite3.Connection, run_id: str) -> Layout:
    """The current layout of a run's lines."""
    return Layout(*sources(connection, run_id), envelopes.stretches(connection, run_id))


def lines(connection: sqlite3.Connection, ranges: Iterable[LineRange]) -> Iterator[CurveLine]:
    """The lines of some ranges, in the order in which they were written."""
    where = "AND (rank IS NULL OR rank = 0) AND step IS NOT NULL"
    for source_id, begin, end in ranges:
        rows = rows_between(connection, source_id, begin, end, columns="attempt, step, at, data", where=where)
        for attempt, step, at, data in rows:
            yield CurveLine(attempt, step, at, named_by_event(orjson.loads(data)))


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

    def entry_ranges(self, level: int) -> Iterator[tuple[int, int, int]]:
        """(level, begin, end) of the entries that cover the part: of ``level`` where they lie in it
        as a whole, of lower ones at its ends."""
        return envelopes.pieces(self.stretches[0].number, self.stretches[-1].number + 1, level)

    def entries_between(
        self, connection: sqlite3.Connection, name: str, level: int, begin: int, end: int
    ) -> Iterator[Entry]:
        """The entries of one metric and level in the attempt and source of this part."""
        return envelopes.entries(connection, self.stretches[0].source_id, self.attempt, name, level, begin, end)

    def entries(self, connection: sqlite3.Connection, name: str, level: int) -> Iterator[Entry]:
        """The entries of one metric over the whole part, of at most ``level``."""
        for at_level, begin, end in self.entry_ranges(level):
            yield from self.entries_between(connection, name, at_level, begin, end)


def parts(stretches: Iterable[Stretch], cuts: Mapping[int, float]) -> list[Part]:
    """The stretches as parts. Steps of an attempt from its cut on were done again by a later one; a
    stretch with steps on both sides of the cut is in a part of its own."""
    ordered: list[Part] = []
    for stretch in stretches:
        redone = _redone_of(stretch, cuts.get(stretch.attempt, math.inf))
        if ordered and ordered[-1].redone == redone and _is_next(stretch, ordered[-1].stretches[-1]):
            ordered[-1].stretches.append(stretch)
        else:
            ordered.append(Part(redone, [stretch]))
    return ordered


def _redone_of(stretch: Stretch, cut: float) -> Redone:
    if stretch.max_step < cut:
        return "none"
    if stretch.min_step >= cut:
        return "all"
    return "some"


def _is_next(stretch: Stretch, previous: Stretch) -> bool:
    is_same = stretch.source_id == previous.source_id and stretch.attempt == previous.attempt
    return is_same and stretch.number == previous.number + 1


def by_level(unsplit: Iterable[Part], level_of: Callable[[Stretch], int | None]) -> Iterator[tuple[Part, int | None]]:
    """The parts, split where the level changes; level None is line by line."""
    for part in unsplit:
        for level, group in groupby(part.stretches, level_of):
            yield Part(part.redone, list(group)), level
