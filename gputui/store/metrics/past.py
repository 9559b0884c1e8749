"""Metrics as of a past time.

A run's lines are stored in time order, so the position reached at a time lies in the last stretch
that began before it. A source whose lines carry no times has no known past. Times are UTC unix
seconds.
"""

from __future__ import annotations

import sqlite3

import orjson

from gputui.store.metrics.queries import (
    START,
    FilePosition,
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


def positions_at(connection: sqlite3.Connection, run_id: str, at: float) -> dict[int, FilePosition]:
    """The position that each source of a run had reached at a time. Raises sqlite3.Error."""
    positions = {
        source_id: _position_at(connection, source_id, end, at)
        for source_id, end in end_positions(connection, run_id).items()
    }
    return {source_id: position for source_id, position in positions.items() if position is not None}


def newest(connection: sqlite3.Connection, source_id: int, position: FilePosition) -> list[StoredLine]:
    """The last lines of a source with their numbers, newest first."""
    rows = rows_between(connection, source_id, START, position, is_newest_first=True, limit=NEWEST_LINES)
    return [_line(row) for row in rows]


def newest_values(connection: sqlite3.Connection, run_id: str, at: float) -> list[tuple[int, int, dict[str, float]]]:
    """(attempt, rank or -1, newest value of each name) from the lines before a time and the first
    lines of the newest attempt, in the order of sources, attempts and ranks. Raises sqlite3.Error.
    """
    reached = positions_at(connection, run_id, at)
    lines_of = {source_id: newest(connection, source_id, position) for source_id, position in reached.items()}
    newest_attempt = max((line.attempt for lines in lines_of.values() for line in lines), default=0)
    rows: list[tuple[int, int, dict[str, float]]] = []
    for source_id, position in reached.items():
        lines = [*lines_of[source_id], *reversed(_first(connection, source_id, position, newest_attempt))]
        values_by_rank: dict[tuple[int, int], dict[str, float]] = {}
        for line in lines:
            values = values_by_rank.setdefault((line.attempt, -1 if line.rank is None else line.rank), {})
            for name, value in line.data.items():
                values.setdefault(name, value)
        rows += [(attempt, rank, values) for (attempt, rank), values in sorted(values_by_rank.items())]
    return rows


def _first(connection: sqlite3.Connection, source_id: int, end: FilePosition, attempt: int) -> list[StoredLine]:
    """The first lines of an attempt in a source, before ``end``, oldest first."""
    begin = connection.execute(
        "SELECT generation, byte_offset FROM metric_boundaries WHERE source_id = ? AND attempt = ? "
        "ORDER BY generation, byte_offset LIMIT 1",
        (source_id, attempt),
    ).fetchone()
    rows = rows_between(connection, source_id, begin or START, end, limit=FIRST_LINES)
    return [_line(row) for row in rows if row[0] == attempt]


def _line(row: tuple[int, int | None, int | None, float | None, str]) -> StoredLine:
    """A line with its numbers alone."""
    attempt, rank, step, at, text = row
    return StoredLine(attempt, rank, step, at, numbers(named_by_event(orjson.loads(text))))


def _position_at(connection: sqlite3.Connection, source_id: int, end: FilePosition, at: float) -> FilePosition | None:
    """Where the lines written after a time begin; None if the lines carry no times."""
    begin = connection.execute(
        "SELECT generation, byte_offset FROM metric_stretches WHERE source_id = ? AND min_at <= ? "
        "ORDER BY generation DESC, byte_offset DESC LIMIT 1",
        (source_id, at),
    ).fetchone()
    later: FilePosition | None = rows_between(
        connection, source_id, begin or START, end, at,
        columns="generation, byte_offset", where="AND at > ?", limit=1,
    ).fetchone()  # fmt: skip
    if later is not None or begin is not None:
        return later or end
    timed = connection.execute("SELECT 1 FROM metrics WHERE source_id = ? AND at IS NOT NULL LIMIT 1", (source_id,))
    return None if timed.fetchone() is None else end
