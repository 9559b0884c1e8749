"""Metrics as far as they had come at a past moment.

A run's lines lie in its files in the order of time, so the place that was reached is found by halving: some thirty
looks, however many lines there are. Lines that tell no time cannot be placed; of a source of such lines nothing is
known at a past moment. Times are UTC unix seconds.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import orjson

from gputui.store.metrics.queries import FilePosition, as_float

NEWEST_LINES = 400
"""So many lines before the moment tell the newest values; a name that is written less often counts as unknown."""

FIRST_LINES = 8
"""The start of an attempt has values that are written once, such as the number of steps."""

# Below this many bytes lines are read one by one.
_NEAR_BYTES = 4096
_LOOK_LINES = 64


class PastLine(NamedTuple):
    """One line: what it says of metrics. ``rank`` is None if it names none."""

    attempt: int
    rank: int | None
    step: int | None
    at: float | None
    values: Mapping[str, float]


def places(connection: sqlite3.Connection, run_id: str, at: float) -> dict[int, FilePosition]:
    """How far each source of a run had come at a moment. Raises sqlite3.Error."""
    sources = connection.execute(
        "SELECT source_id, generation, byte_offset FROM metric_sources WHERE run_id = ? ORDER BY source_id", (run_id,)
    ).fetchall()
    found = {}
    for source_id, generation, byte_offset in sources:
        place = _place(connection, source_id, (generation, byte_offset), at)
        if place is not None:
            found[source_id] = place
    return found


def newest(
    connection: sqlite3.Connection, reached: Mapping[int, FilePosition], limit: int = NEWEST_LINES
) -> list[PastLine]:
    """The last lines of each source, the newest first."""
    lines: list[PastLine] = []
    for source_id, place in reached.items():
        rows = connection.execute(
            "SELECT attempt, rank, step, at, data FROM metrics WHERE source_id = ? "
            "AND (generation, byte_offset) < (?, ?) ORDER BY generation DESC, byte_offset DESC LIMIT ?",
            (source_id, *place, limit),
        )
        lines += [_line(row) for row in rows.fetchall()]
    return lines


def newest_values(connection: sqlite3.Connection, run_id: str, at: float) -> list[tuple[int, int, dict[str, float]]]:
    """(attempt, rank or -1, newest value of each name) of the lines before a moment and of those that the newest
    attempt began with: source by source, as they are of now, each in the order of attempts and ranks. Raises
    sqlite3.Error."""
    reached = places(connection, run_id, at)
    lines_of = {source_id: newest(connection, {source_id: place}) for source_id, place in reached.items()}
    newest_attempt = max((line.attempt for lines in lines_of.values() for line in lines), default=0)
    rows: list[tuple[int, int, dict[str, float]]] = []
    for source_id, place in reached.items():
        lines = [*lines_of[source_id], *reversed(_first(connection, {source_id: place}, newest_attempt))]
        found: dict[tuple[int, int], dict[str, float]] = {}
        for line in lines:
            values = found.setdefault((line.attempt, -1 if line.rank is None else line.rank), {})
            for name, value in line.values.items():
                values.setdefault(name, value)
        rows += [(attempt, rank, values) for (attempt, rank), values in sorted(found.items())]
    return rows


def _first(connection: sqlite3.Connection, reached: Mapping[int, FilePosition], attempt: int) -> list[PastLine]:
    """The first lines of an attempt, as far as they had been written, oldest first."""
    lines: list[PastLine] = []
    for source_id, place in reached.items():
        begin = connection.execute(
            "SELECT generation, byte_offset FROM metric_boundaries WHERE source_id = ? AND attempt = ? "
            "ORDER BY generation, byte_offset LIMIT 1",
            (source_id, attempt),
        ).fetchone()
        rows = connection.execute(
            "SELECT attempt, rank, step, at, data FROM metrics WHERE source_id = ? "
            "AND (generation, byte_offset) >= (?, ?) AND (generation, byte_offset) < (?, ?) "
            "ORDER BY generation, byte_offset LIMIT ?",
            (source_id, *(begin or (0, 0)), *place, FIRST_LINES),
        )
        lines += [_line(row) for row in rows.fetchall() if row[0] == attempt]
    return lines


def sampled(
    connection: sqlite3.Connection, reached: Mapping[int, FilePosition], name: str, count: int
) -> list[tuple[int, float]]:
    """About ``count`` (step, value) of a metric of the first rank, evenly over what had been written, oldest first."""
    found: list[tuple[int, float]] = []
    for source_id, (newest_generation, byte_offset) in reached.items():
        sizes = [_size(connection, source_id, generation) for generation in range(newest_generation)]
        ends = list(accumulate([*sizes, byte_offset]))
        for number in range(1, count + 1):
            edge = ends[-1] * number // count - 1
            generation = min(bisect_right(ends, edge), newest_generation)
            begin = ends[generation - 1] if generation else 0
            for line in _around(connection, source_id, generation, edge - begin):
                if line.rank in (None, 0) and line.step is not None and name in line.values:
                    found.append((line.step, line.values[name]))
                    break
    return list(dict.fromkeys(found))


def pace(connection: sqlite3.Connection, run_id: str, attempt: int, at: float, window_seconds: float) -> float | None:
    """Steps per second of an attempt over the last so many seconds before a moment, by the source whose lines are the
    newest: sources may count different steps."""
    by_source = {
        source_id: _steps(newest(connection, {source_id: place}), attempt)
        for source_id, place in places(connection, run_id, at).items()
    }
    source_id = max(
        (known for known in by_source if by_source[known]), key=lambda known: by_source[known][0], default=-1
    )
    if source_id < 0:
        return None
    end = by_source[source_id][0]
    place = places(connection, run_id, end[0] - window_seconds).get(source_id)
    earlier = [] if place is None else _steps(newest(connection, {source_id: place}, _LOOK_LINES), attempt)
    start = earlier[0] if earlier else by_source[source_id][-1]
    if start[0] >= end[0] or start[1] >= end[1]:
        return None
    return (end[1] - start[1]) / (end[0] - start[0])


def _steps(lines: Sequence[PastLine], attempt: int) -> list[tuple[float, int]]:
    """When which steps of an attempt were done, in the order of the lines."""
    return [
        (line.at, line.step)
        for line in lines
        if line.attempt == attempt and line.rank in (None, 0) and line.step is not None and line.at is not None
    ]


def _around(connection: sqlite3.Connection, source_id: int, generation: int, edge: int) -> Iterator[PastLine]:
    """Some lines that begin at or before a place, the nearest first."""
    rows = connection.execute(
        "SELECT attempt, rank, step, at, data FROM metrics WHERE source_id = ? AND generation = ? AND byte_offset <= ? "
        "ORDER BY byte_offset DESC LIMIT ?",
        (source_id, generation, edge, _LOOK_LINES),
    )
    for row in rows:
        yield _line(row)


def _line(row: tuple[int, int | None, int | None, float | None, str]) -> PastLine:
    attempt, rank, step, at, data = row
    pairs = ((name, as_float(value)) for name, value in orjson.loads(data).items())
    return PastLine(attempt, rank, step, at, {name: value for name, value in pairs if value is not None})


# --- finding the place


def _place(connection: sqlite3.Connection, source_id: int, end: FilePosition, at: float) -> FilePosition | None:
    """Where the lines written after a moment begin; None if the lines tell no time."""
    for generation in range(end[0], -1, -1):
        start = _timed(connection, source_id, generation, 0)
        if start is None:
            continue
        if start[1] > at:
            if generation == 0:
                return (0, 0)
            continue
        limit = end[1] if generation == end[0] else _size(connection, source_id, generation)
        return generation, _halve(connection, source_id, generation, start[0], limit, at)
    return None


def _halve(connection: sqlite3.Connection, source_id: int, generation: int, low: int, high: int, at: float) -> int:
    """``low`` is the offset of a line written by then, ``high`` is beyond all of them or at one that was not."""
    while high - low > _NEAR_BYTES:
        middle = (low + high) // 2
        found = _timed(connection, source_id, generation, middle)
        if found is None or found[1] > at or found[0] >= high:
            high = middle
        else:
            low = found[0]
    rows = connection.execute(
        "SELECT byte_offset, at FROM metrics WHERE source_id = ? AND generation = ? AND byte_offset >= ? "
        "ORDER BY byte_offset",
        (source_id, generation, low),
    )
    for byte_offset, written_at in rows:
        if written_at is not None and written_at > at:
            return int(byte_offset)
        high = byte_offset + 1
    return high


def _timed(connection: sqlite3.Connection, source_id: int, generation: int, offset: int) -> tuple[int, float] | None:
    """The first line from a place on that tells a time, among a few."""
    rows = connection.execute(
        "SELECT byte_offset, at FROM metrics WHERE source_id = ? AND generation = ? AND byte_offset >= ? "
        "ORDER BY byte_offset LIMIT ?",
        (source_id, generation, offset, _LOOK_LINES),
    )
    return next(((byte_offset, at) for byte_offset, at in rows if at is not None), None)


def _size(connection: sqlite3.Connection, source_id: int, generation: int) -> int:
    row = connection.execute(
        "SELECT max(byte_offset) FROM metrics WHERE source_id = ? AND generation = ?", (source_id, generation)
    ).fetchone()
    return 0 if row[0] is None else int(row[0]) + 1
