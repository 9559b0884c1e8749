"""Reading metrics: what a screen, the command line or a report asks of the stored lines.

Every function takes a connection that may be read-only. A cursor makes following cheap: only lines stored since it are
looked at.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

# How the numbers that JSON does not know are stored.
NON_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}

NOT_METRICS = frozenset({"step", "time", "rank"})

Cursor = Mapping[int, tuple[int, int]]
"""Per source_id the place (generation, byte_offset) up to which lines were seen."""


class Point(NamedTuple):
    """One value of one metric. ``at`` is unix seconds, None where the line tells no time; ``value`` may be NaN or
    infinite."""

    attempt: int
    rank: int | None
    step: int | None
    at: float | None
    value: float


@dataclass(frozen=True, slots=True)
class RankLine:
    """The newest values that one rank wrote. ``rank`` is None where lines name none."""

    rank: int | None
    step: int | None
    at: float | None
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class MetricEvent:
    """A line with ``event`` in it, such as a checkpoint or the start of an epoch; ``data`` is the whole line."""

    attempt: int
    rank: int | None
    step: int | None
    at: float | None
    event: str
    data: Mapping[str, Any]


# Quoted in a JSON path, such a name would not be the key that is meant.
_NOT_IN_PATHS = frozenset('"\\')


def as_float(value: object) -> float | None:
    """A stored value as a number, or None where it is none (text, a truth value, an object)."""
    if type(value) is float:
        return value
    if type(value) is int:
        return float(value)
    return NON_FINITE.get(value) if type(value) is str else None


def metric_names(connection: sqlite3.Connection, run_id: str) -> list[str]:
    """Every metric that the run ever wrote a number of, in the order of their first appearance."""
    names: dict[str, None] = {}
    for _, _, values in _newest(connection, run_id):
        names |= dict.fromkeys(values)
    return [name for name in names if name not in NOT_METRICS]


def latest(connection: sqlite3.Connection, run_id: str) -> dict[str, float]:
    """The newest value of each metric; of rank 0 where ranks write lines of their own."""
    found: dict[str, float] = {}
    for _, _, values in sorted(_newest(connection, run_id), key=lambda row: (row[0], -row[1])):
        found |= values
    return {name: value for name, value in found.items() if name not in NOT_METRICS}


def ranks(connection: sqlite3.Connection, run_id: str, attempt: int) -> list[RankLine]:
    """What each rank of an attempt wrote last, in the order of the ranks."""
    lines: dict[int, dict[str, float]] = {}
    for number, rank, values in _newest(connection, run_id):
        if number == attempt:
            lines.setdefault(rank, {}).update(values)
    return [
        RankLine(
            rank=None if rank < 0 else rank,
            step=int(values["step"]) if "step" in values else None,
            at=values.get("time"),
            values={name: value for name, value in values.items() if name not in NOT_METRICS},
        )
        for rank, values in sorted(lines.items())
    ]


def series(
    connection: sqlite3.Connection, run_id: str, name: str, after: Cursor | None = None
) -> tuple[list[Point], dict[int, tuple[int, int]]]:
    """The values of one metric in the order they were written, and the cursor to ask with the next time.

    With ``after``, a cursor of an earlier call, only what came since.
    """
    if not name.isprintable() or not name or not _NOT_IN_PATHS.isdisjoint(name):
        return _series_by_lines(connection, run_id, name, after)
    points: list[Point] = []
    new = tuple.__new__
    path = f'$."{name}"'
    cursor = _places(connection, run_id)
    for source_id, until in cursor.items():
        rows = connection.execute(
            f"SELECT attempt, rank, step, at, data ->> ? {_LINES}",
            (path, *_range(source_id, after, until)),
        )
        for row in rows:
            if type(row[4]) is float:
                points.append(new(Point, row))
            elif (value := as_float(row[4])) is not None:
                attempt, rank, step, at, _ = row
                points.append(Point(attempt, rank, step, at, value))
    return points, cursor


def events(connection: sqlite3.Connection, run_id: str) -> list[MetricEvent]:
    """The lines that tell of an event, in the order they were written."""
    found = []
    for source_id, until in _places(connection, run_id).items():
        rows = connection.execute(
            f"SELECT attempt, rank, step, at, data {_LINES_WITH_EVENT}",
            _range(source_id, None, until),
        )
        for attempt, rank, step, at, text in rows:
            data = orjson.loads(text)
            if "event" in data:
                found.append(MetricEvent(attempt, rank, step, at, str(data["event"]), data))
    return found


def points_json(connection: sqlite3.Connection, run_id: str, names: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """The points of some metrics, or of all, as ``{attempt, rank, step, time, name, value}`` in the order they were
    written. ``time`` is unix seconds; a value that is no number in JSON is "NaN", "Infinity" or "-Infinity".
    """
    wanted = tuple(names)
    for source_id, until in _places(connection, run_id).items():
        rows = connection.execute(
            f"SELECT attempt, rank, step, at, data {_LINES}",
            _range(source_id, None, until),
        )
        for attempt, rank, step, at, text in rows:
            data = orjson.loads(text)
            for name in wanted or data:
                value = data.get(name)
                if as_float(value) is not None and name not in NOT_METRICS:
                    yield {"attempt": attempt, "rank": rank, "step": step, "time": at, "name": name, "value": value}


_LINES = (
    "FROM metrics WHERE source_id = ? AND (generation, byte_offset) >= (?, ?) AND (generation, byte_offset) < (?, ?) "
    "ORDER BY generation, byte_offset"
)
_LINES_WITH_EVENT = _LINES.replace(" ORDER", " AND instr(data, '\"event\"') ORDER")


def _places(connection: sqlite3.Connection, run_id: str) -> dict[int, tuple[int, int]]:
    """How far each source was read: lines stored after this look lie beyond, so that none is missed or seen twice."""
    rows = connection.execute(
        "SELECT source_id, generation, byte_offset FROM metric_sources WHERE run_id = ? ORDER BY source_id", (run_id,)
    )
    return {source_id: (generation, byte_offset) for source_id, generation, byte_offset in rows.fetchall()}


def _range(source_id: int, after: Cursor | None, until: tuple[int, int]) -> tuple[int, ...]:
    return (source_id, *((after or {}).get(source_id, (0, 0))), *until)


def _newest(connection: sqlite3.Connection, run_id: str) -> list[tuple[int, int, dict[str, float]]]:
    """(attempt, rank or -1, newest value of each name) in the order of sources, attempts and ranks."""
    rows = connection.execute(
        "SELECT n.attempt, n.rank, n.data FROM metric_newest AS n JOIN metric_sources AS s USING (source_id) "
        "WHERE s.run_id = ? ORDER BY n.source_id, n.attempt, n.rank",
        (run_id,),
    )
    found = []
    for attempt, rank, text in rows.fetchall():
        pairs = ((name, as_float(value)) for name, value in orjson.loads(text).items())
        found.append((attempt, rank, {name: value for name, value in pairs if value is not None}))
    return found


def _series_by_lines(
    connection: sqlite3.Connection, run_id: str, name: str, after: Cursor | None
) -> tuple[list[Point], dict[int, tuple[int, int]]]:
    """The same for a name that no JSON path can hold: every line is decoded."""
    points = []
    cursor = _places(connection, run_id)
    for source_id, until in cursor.items():
        rows = connection.execute(
            f"SELECT attempt, rank, step, at, data {_LINES}",
            _range(source_id, after, until),
        )
        for attempt, rank, step, at, text in rows:
            value = as_float(orjson.loads(text).get(name))
            if value is not None:
                points.append(Point(attempt, rank, step, at, value))
    return points, cursor
