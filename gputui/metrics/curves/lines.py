"""The lines of a run for its curves: reduced ones where they are fine enough, else line by line."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal, NamedTuple

import orjson
from msgspec import Struct

from gputui.metrics.curves.axis import AxisMap, AxisTimeline
from gputui.metrics.curves.model import Window
from gputui.store.metrics import envelopes
from gputui.store.metrics.envelopes import FAN, Entry, Stretch
from gputui.store.metrics.queries import FilePosition, named_by_event, rows_between

LINES_IN_FULL = 4096
"""A window with at most this many lines is read line by line: about 10 ms."""

EPOCH = "epoch"

_ALL = AxisMap("step", AxisTimeline(None))

Share = Literal["kept", "redone", "mixed"]


class CurveLine(NamedTuple):
    """A line of rank 0 or without a rank, with a step. ``at`` is UTC unix seconds."""

    attempt: int
    step: int
    at: float | None
    values: Mapping[str, Any]


class Layout(Struct, frozen=True):
    """The stored lines of a run at one moment. ``until`` is the end of the last line of each
    source, ``line_count`` counts the lines of all ranks."""

    until: Mapping[int, FilePosition]
    line_count: int
    stretches: Sequence[Stretch]

    def unreduced(self) -> Iterator[tuple[int, FilePosition, FilePosition]]:
        """(source, begin, end) of the lines after the last stretch of each source."""
        ends = {stretch.source_id: stretch.end for stretch in self.stretches}
        for source_id, until in self.until.items():
            yield source_id, ends.get(source_id, (0, 0)), until


def sources(connection: sqlite3.Connection, run_id: str) -> tuple[dict[int, FilePosition], int]:
    """The end of each source, and the number of lines."""
    rows = connection.execute(
        "SELECT source_id, generation, byte_offset, line_count FROM metric_sources WHERE run_id = ? ORDER BY source_id",
        (run_id,),
    ).fetchall()
    return {row[0]: (row[1], row[2]) for row in rows}, sum(row[3] for row in rows)


def layout(connection: sqlite3.Connection, run_id: str) -> Layout:
    """The current layout of a run's lines."""
    return Layout(*sources(connection, run_id), envelopes.stretches(connection, run_id))


def lines(
    connection: sqlite3.Connection, places: Iterable[tuple[int, FilePosition, FilePosition]]
) -> Iterator[CurveLine]:
    """The lines of some (source, begin, end), in the order in which they were written."""
    new = tuple.__new__
    where = "AND (rank IS NULL OR rank = 0) AND step IS NOT NULL"
    for source_id, begin, end in places:
        rows = rows_between(connection, source_id, begin, end, columns="attempt, step, at, data", where=where)
        for attempt, step, at, data in rows:
            yield new(CurveLine, (attempt, step, at, named_by_event(orjson.loads(data))))


class Part(Struct, frozen=True):
    """Consecutive stretches of one attempt in one source that are read in the same way. ``count``
    is how many stretches the attempt has in this source."""

    share: Share
    stretches: Sequence[Stretch]
    count: int

    @property
    def place(self) -> tuple[int, FilePosition, FilePosition]:
        """(source, begin, end) of its lines."""
        return self.stretches[0].source_id, self.stretches[0].begin, self.stretches[-1].end

    @property
    def line_count(self) -> int:
        return sum(stretch.line_count for stretch in self.stretches)

    def entries(self, connection: sqlite3.Connection, name: str, level: int) -> Iterator[Entry]:
        """The entries of one metric, reduced to at most ``level``."""
        first, last = self.stretches[0], self.stretches[-1]
        for at, begin, end in envelopes.pieces(first.number, last.number + 1, self.count, level):
            yield from envelopes.entries(connection, first.source_id, first.attempt, name, at, begin, end)


def span_of(stretch: Stretch, axis_map: AxisMap) -> Window | None:
    """The ends of a stretch on the axis; None if they have no place there."""
    start = axis_map.place(stretch.attempt, stretch.min_step, stretch.min_at)
    end = axis_map.place(stretch.attempt, stretch.max_step, stretch.max_at)
    return None if start is None or end is None else (start, end)


def parts(found: Sequence[Stretch], axis_map: AxisMap, window: Window | None, cuts: Mapping[int, float]) -> list[Part]:
    """The stretches in a window, or all, as parts. Steps of an attempt from its cut on were done
    again by a later one; a stretch with steps on both sides of the cut is a separate, mixed part.
    """

    def share(stretch: Stretch) -> Share:
        cut = cuts.get(stretch.attempt, math.inf)
        return "kept" if stretch.max_step < cut else "redone" if stretch.min_step >= cut else "mixed"

    # Of several stretches, the last has the highest number.
    counts = {(stretch.source_id, stretch.attempt): stretch.number + 1 for stretch in found}
    if window is not None:
        spans = [(stretch, span_of(stretch, axis_map)) for stretch in found]
        found = [stretch for stretch, span in spans if span and span[0] <= window[1] and span[1] >= window[0]]
    made = []
    for key, group in groupby(
        enumerate(found), lambda item: (item[1].source_id, item[1].attempt, item[1].number - item[0], share(item[1]))
    ):
        made.append(Part(key[3], [stretch for _, stretch in group], counts[key[0], key[1]]))
    return made


def by_level(found: Iterable[Part], level_of: Callable[[Stretch], int | None]) -> Iterator[tuple[Part, int | None]]:
    """The parts, split where the level changes; level None is line by line."""
    for part in found:
        for level, group in groupby(part.stretches, level_of):
            yield Part(part.share, list(group), part.count), level


def epoch_points(
    connection: sqlite3.Connection, found: Sequence[Stretch], wanted: int
) -> Iterator[tuple[int, float, float]]:
    """(attempt, step, epoch) of stretches, finer where the epoch changes."""
    for part in parts(found, _ALL, None, {}):
        key = (part.stretches[0].source_id, part.stretches[0].attempt, EPOCH)
        highest = envelopes.level_for(part.line_count, wanted)
        first, last = part.stretches[0].number, part.stretches[-1].number
        for level, begin, end in envelopes.pieces(first, last + 1, part.count, highest):
            for entry in envelopes.entries(connection, *key, level, begin, end):
                finer: Iterable[Entry] = (entry,)
                if level and entry.low < entry.high:
                    blocks = int(FAN**level)
                    finer = envelopes.entries(connection, *key, 0, entry.place * blocks, (entry.place + 1) * blocks)
                for each in finer:
                    if each.has_finite:
                        yield key[1], float(each.first_step), each.first
                        yield key[1], float(each.last_step), each.last
