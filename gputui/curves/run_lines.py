"""A run's lines as its curves need them: reduced where that is fine enough, line by line where it is not."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, NamedTuple

import orjson

from gputui.curves.axis import AxisMap, AxisTimeline, Reach
from gputui.store.metrics import envelopes
from gputui.store.metrics.envelopes import FAN, Entry, Stretch
from gputui.store.metrics.queries import FilePosition

LINES_IN_FULL = 4096
"""A window of at most so many lines is read line by line: about 10 ms."""

_ALL = AxisMap("step", AxisTimeline(None))

Share = Literal["kept", "redone", "mixed"]


class CurveLine(NamedTuple):
    """A line of rank 0 or of none, with a step. ``at`` is UTC unix seconds."""

    attempt: int
    step: int
    at: float | None
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Layout:
    """What is stored of a run's lines at one moment: ``until`` is the place behind the last line of each source,
    ``line_count`` counts the lines of all ranks."""

    until: Mapping[int, FilePosition]
    line_count: int
    stretches: Sequence[Stretch]

    def unreduced(self) -> Iterator[tuple[int, FilePosition, FilePosition]]:
        """(source, begin, end) of the lines behind the last stretch of each source."""
        ends = {stretch.source_id: stretch.end for stretch in self.stretches}
        for source_id, until in self.until.items():
            yield source_id, ends.get(source_id, (0, 0)), until


def sources(connection: sqlite3.Connection, run_id: str) -> tuple[dict[int, FilePosition], int]:
    """How far each source was read, and how many lines there are."""
    rows = connection.execute(
        "SELECT source_id, generation, byte_offset, line_count FROM metric_sources WHERE run_id = ? ORDER BY source_id",
        (run_id,),
    ).fetchall()
    return {row[0]: (row[1], row[2]) for row in rows}, sum(row[3] for row in rows)


def layout(connection: sqlite3.Connection, run_id: str) -> Layout:
    """Where a run's lines are now."""
    until, line_count = sources(connection, run_id)
    return Layout(until, line_count, envelopes.stretches(connection, run_id))


def lines(
    connection: sqlite3.Connection, source_id: int, begin: FilePosition, end: FilePosition
) -> Iterator[CurveLine]:
    """The lines from one place to before another, in the order they were written."""
    rows = connection.execute(
        "SELECT attempt, step, at, data FROM metrics WHERE source_id = ? AND (generation, byte_offset) >= (?, ?) "
        "AND (generation, byte_offset) < (?, ?) AND (rank IS NULL OR rank = 0) AND step IS NOT NULL "
        "ORDER BY generation, byte_offset",
        (source_id, *begin, *end),
    )
    new = tuple.__new__
    loads = orjson.loads
    for attempt, step, at, data in rows:
        yield new(CurveLine, (attempt, step, at, loads(data)))


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive stretches of one attempt in one source that are read alike."""

    share: Share
    stretches: Sequence[Stretch]
    count: int
    """How many stretches the attempt has in this source."""

    @property
    def place(self) -> tuple[int, FilePosition, FilePosition]:
        """(source, begin, end) of its lines."""
        return self.stretches[0].source_id, self.stretches[0].begin, self.stretches[-1].end

    @property
    def line_count(self) -> int:
        return sum(stretch.line_count for stretch in self.stretches)

    def entries(self, connection: sqlite3.Connection, name: str, level: int) -> Iterator[Entry]:
        """What one metric did in it, reduced to at most ``level``."""
        first, last = self.stretches[0], self.stretches[-1]
        for at, begin, end in envelopes.pieces(first.number, last.number + 1, self.count, level):
            yield from envelopes.entries(connection, first.source_id, first.attempt, name, at, begin, end)


def parts(
    found: Sequence[Stretch], axis_map: AxisMap, window: tuple[float, float] | None, cuts: Mapping[int, float]
) -> list[Part]:
    """The stretches that lie in a window, or all. Steps of an attempt from its cut on were done again by a later one: a
    stretch with steps on both sides of it is mixed, and is a part of its own."""
    counts: dict[tuple[int, int], int] = {}
    for stretch in found:
        counts[stretch.source_id, stretch.attempt] = stretch.number + 1
    reaches: dict[int, Reach] = {}
    chosen = []
    for stretch in found:
        if window is not None:
            attempt = stretch.attempt
            if attempt not in reaches:
                reaches[attempt] = axis_map.reach(attempt, window)
            if not reaches[attempt].touches(stretch.min_step, stretch.max_step, stretch.min_at, stretch.max_at):
                continue
        chosen.append(stretch)
    made = []
    for key, group in groupby(
        enumerate(chosen),
        lambda item: (item[1].source_id, item[1].attempt, item[1].number - item[0], _share(item[1], cuts)),
    ):
        own = [stretch for _, stretch in group]
        made.append(Part(key[3], own, counts[key[0], key[1]]))
    return made


def by_level(found: Iterable[Part], level_of: Callable[[Stretch], int | None]) -> Iterator[tuple[Part, int | None]]:
    """The same parts, cut where they are to be read at another level; None is line by line."""
    for part in found:
        for level, group in groupby(part.stretches, level_of):
            yield Part(part.share, list(group), part.count), level


def _share(stretch: Stretch, cuts: Mapping[int, float]) -> Share:
    cut = cuts.get(stretch.attempt, math.inf)
    if stretch.max_step < cut:
        return "kept"
    return "redone" if stretch.min_step >= cut else "mixed"


def epoch_points(
    connection: sqlite3.Connection, found: Sequence[Stretch], name: str, wanted: int
) -> Iterator[tuple[int, float, float]]:
    """(attempt, step, epoch) of stretches, more closely where the epoch changes."""
    for part in parts(found, _ALL, None, {}):
        first, last = part.stretches[0], part.stretches[-1]
        key = (first.source_id, first.attempt, name)
        highest = envelopes.level_for(part.line_count, wanted)
        for level, begin, end in envelopes.pieces(first.number, last.number + 1, part.count, highest):
            for entry in envelopes.entries(connection, *key, level, begin, end):
                finer: Iterable[Entry] = (entry,)
                if level and entry.low < entry.high:
                    blocks = int(FAN**level)
                    finer = envelopes.entries(connection, *key, 0, entry.place * blocks, (entry.place + 1) * blocks)
                for each in finer:
                    if each.has_finite:
                        yield first.attempt, float(each.first_step), each.first
                        yield first.attempt, float(each.last_step), each.last
