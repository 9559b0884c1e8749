"""Metrics as of a past time.

A run's lines are stored in time order, so the position reached at a time lies in the last stretch
that began before it. A source whose lines carry no times has no known past. Times are UTC unix
seconds.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import orjson

from gputui.store.metrics.stored_lines import (
    NO_RANK,
    START,
    FilePosition,
    LineQuery,
    NewestValues,
    StoredLine,
    end_positions,
    named_by_event,
    numbers,
    rows_between,
)

NEWEST_LINES = 400
"""The newest values are taken from this many lines; a metric written less often counts as unknown.
"""

FIRST_LINES = 8
"""Lines read at the start of an attempt, where values that are written once are, such as the number
of steps."""

_PROBE_LINES = 64
"""Lines looked at for one of the first rank, and for one with a metric: enough for the ranks of eight nodes."""


def positions_at(connection: sqlite3.Connection, run_id: str, at: float) -> dict[int, FilePosition]:
    """The position that each source of a run had reached at a time. Raises sqlite3.Error."""
    positions = {
        source_id: _position_at(connection, source_id, end, at)
        for source_id, end in end_positions(connection, run_id).items()
    }
    return {source_id: position for source_id, position in positions.items() if position is not None}


def newest(
    connection: sqlite3.Connection, reached: Mapping[int, FilePosition], limit: int = NEWEST_LINES
) -> list[StoredLine]:
    """The last lines of each source with their numbers, newest first."""
    lines: list[StoredLine] = []
    for source_id, position in reached.items():
        rows = rows_between(connection, source_id, START, position, LineQuery(is_newest_first=True, limit=limit))
        lines += map(_line, rows)
    return lines


def newest_values(connection: sqlite3.Connection, run_id: str, at: float) -> list[NewestValues]:
    """The newest values in the lines before a time and in the first lines of the newest attempt, in the order of
    sources, attempts and ranks. Raises sqlite3.Error."""
    reached = positions_at(connection, run_id, at)
    last_lines = {source_id: newest(connection, {source_id: position}) for source_id, position in reached.items()}
    newest_attempt = max((line.attempt for lines in last_lines.values() for line in lines), default=0)
    newest_of_ranks: list[NewestValues] = []
    for source_id, position in reached.items():
        first_lines = _first(connection, source_id, position, newest_attempt)
        newest_of_ranks += _by_rank([*last_lines[source_id], *reversed(first_lines)])
    return newest_of_ranks


def _by_rank(newest_first: Iterable[StoredLine]) -> list[NewestValues]:
    """The newest values of each attempt and rank."""
    values_by_rank: dict[tuple[int, int], dict[str, float]] = {}
    for line in newest_first:
        rank = NO_RANK if line.rank is None else line.rank
        values = values_by_rank.setdefault((line.attempt, rank), {})
        for name, value in line.data.items():
            values.setdefault(name, value)
    return [NewestValues(attempt, rank, values) for (attempt, rank), values in sorted(values_by_rank.items())]


def _first(connection: sqlite3.Connection, source_id: int, end: FilePosition, attempt: int) -> list[StoredLine]:
    """The first lines of an attempt in a source, before ``end``, oldest first."""
    begin = connection.execute(
        "SELECT generation, byte_offset FROM metric_boundaries WHERE source_id = ? AND attempt = ? "
        "ORDER BY generation, byte_offset LIMIT 1",
        (source_id, attempt),
    ).fetchone()
    rows = rows_between(connection, source_id, begin or START, end, LineQuery(limit=FIRST_LINES))
    return [line for line in map(_line, rows) if line.attempt == attempt]


def sampled(
    connection: sqlite3.Connection, reached: Mapping[int, FilePosition], name: str, count: int
) -> list[tuple[int, float]]:
    """About ``count`` (step, value) of a metric of the first rank, evenly spaced over the lines
    read, oldest first."""
    points: list[tuple[int, float]] = []
    for source_id, end in reached.items():
        for place in _even_places(connection, source_id, end, count):
            point = _point_before(connection, source_id, place, name)
            if point is not None:
                points.append(point)
    return list(dict.fromkeys(points))


def _even_places(
    connection: sqlite3.Connection, source_id: int, end: FilePosition, count: int
) -> Iterator[FilePosition]:
    """``count`` positions in a source, evenly spaced over the bytes of its generations up to ``end``."""
    newest_generation, byte_offset = end
    sizes = [_size(connection, source_id, generation) for generation in range(newest_generation)]
    ends = list(accumulate([*sizes, byte_offset]))  # of the generations, as if they followed each other in one file
    begins = [0, *ends]
    for number in range(1, count + 1):
        last_byte = ends[-1] * number // count - 1
        generation = min(bisect_right(ends, last_byte), newest_generation)
        yield generation, last_byte - begins[generation] + 1


def _point_before(
    connection: sqlite3.Connection, source_id: int, place: FilePosition, name: str
) -> tuple[int, float] | None:
    """The step and value of a metric in the last line of the first rank before a position, in its generation."""
    generation, _ = place
    newest_first = LineQuery(is_newest_first=True, limit=_PROBE_LINES)
    rows = rows_between(connection, source_id, (generation, 0), place, newest_first)
    for line in map(_line, rows):
        is_of_first_rank = line.rank in (None, 0)
        if is_of_first_rank and line.step is not None and name in line.data:
            return line.step, line.data[name]
    return None


def pace(connection: sqlite3.Connection, run_id: str, attempt: int, at: float, window_seconds: float) -> float | None:
    """Steps per second of an attempt over the ``window_seconds`` before a time. Sources may count
    different steps: the one with the newest line counts."""
    steps_by_source = {
        source_id: _steps(newest(connection, {source_id: position}), attempt)
        for source_id, position in positions_at(connection, run_id, at).items()
    }
    with_steps = [source_id for source_id, steps in steps_by_source.items() if steps]
    if not with_steps:
        return None
    # Steps are in the order of `newest`: the newest first.
    source_id = max(with_steps, key=lambda source: steps_by_source[source][0])
    end, *_ = steps_by_source[source_id]
    *_, start = steps_by_source[source_id]
    position = positions_at(connection, run_id, end.at - window_seconds).get(source_id)
    if position is not None:
        before_window = _steps(newest(connection, {source_id: position}, _PROBE_LINES), attempt)
        start = next(iter(before_window), start)
    if start.at >= end.at or start.step >= end.step:
        return None
    return (end.step - start.step) / (end.at - start.at)


class _TimedStep(NamedTuple):
    at: float
    step: int


def _steps(lines: Sequence[StoredLine], attempt: int) -> list[_TimedStep]:
    """The steps of an attempt's lines, in their order."""
    return [
        _TimedStep(line.at, line.step)
        for line in lines
        if line.attempt == attempt and line.rank in (None, 0) and line.step is not None and line.at is not None
    ]


def _line(row: Sequence[Any]) -> StoredLine:
    """A row of the columns of `LineQuery` as a line with its numbers alone."""
    attempt, rank, step, at, text = row
    return StoredLine(attempt, rank, step, at, numbers(named_by_event(orjson.loads(text))))


def _position_at(connection: sqlite3.Connection, source_id: int, end: FilePosition, at: float) -> FilePosition | None:
    """The position of the first line written after a time; None if the lines carry no times."""
    begin = connection.execute(
        "SELECT generation, byte_offset FROM metric_stretches WHERE source_id = ? AND min_at <= ? "
        "ORDER BY generation DESC, byte_offset DESC LIMIT 1",
        (source_id, at),
    ).fetchone()
    first_later = LineQuery("generation, byte_offset", "at > ?", [at], limit=1)
    later: FilePosition | None = rows_between(connection, source_id, begin or START, end, first_later).fetchone()
    if later is not None or begin is not None:
        return later or end
    timed = connection.execute("SELECT 1 FROM metrics WHERE source_id = ? AND at IS NOT NULL LIMIT 1", (source_id,))
    if timed.fetchone() is None:
        return None
    return end


def _size(connection: sqlite3.Connection, source_id: int, generation: int) -> int:
    """The bytes of a generation, up to its last line: as much as tells where its lines lie."""
    (last_line,) = connection.execute(
        "SELECT max(byte_offset) FROM metrics WHERE source_id = ? AND generation = ?", (source_id, generation)
    ).fetchone()
    if last_line is None:
        return 0
    return int(last_line) + 1
