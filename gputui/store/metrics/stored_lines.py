"""The stored form of metrics: lines in the order in which they were read, by source, and their numbers."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

# The stored form of a null that stands for NaN.
NULL_NAN = "NaN (null)"
# The stored form of the numbers that JSON lacks.
NON_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf"), NULL_NAN: float("nan")}

NOT_METRICS = frozenset({"step", "time", "rank"})

FilePosition = tuple[int, int]
"""Generation and byte offset in a metrics file."""

Cursor = Mapping[int, FilePosition]
"""The position up to which lines were read, by source_id."""


START: FilePosition = (0, 0)
END: FilePosition = (1 << 62, 1 << 62)
"""Before and behind all lines."""

OF_EVENTS = frozenset({"seconds", "blocked_seconds", "bytes"})
_EVENT_CHARACTERS = 80  # of an event as a prefix: names of metrics stay short enough for a legend

NO_RANK = -1
"""The rank of lines that name none, where a table needs a number."""


class LineQuery(NamedTuple):
    """Which lines are read, and what of them.

    Attributes:
        where: An SQL condition; ``values`` are those of its question marks.
        limit: The most lines, -1 for all.
    """

    columns: str = "attempt, rank, step, at, data"
    where: str = "TRUE"
    values: Sequence[Any] = ()
    is_newest_first: bool = False
    limit: int = -1


ALL_LINES = LineQuery()


def rows_between(
    connection: sqlite3.Connection,
    source_id: int,
    begin: FilePosition,
    end: FilePosition,
    query: LineQuery = ALL_LINES,
) -> sqlite3.Cursor:
    """Query the lines of a source from one position up to another. Raises sqlite3.Error."""
    order = "ASC"
    if query.is_newest_first:
        order = "DESC"
    return connection.execute(
        f"SELECT {query.columns} FROM metrics WHERE source_id = ? "  # noqa: S608
        "AND (generation, byte_offset) >= (?, ?) AND (generation, byte_offset) < (?, ?) "
        f"AND {query.where} ORDER BY generation {order}, byte_offset {order} LIMIT ?",
        (source_id, *begin, *end, *query.values, query.limit),
    )


def as_float(value: object) -> float | None:
    """A stored value as a number; None for text, booleans and objects."""
    if type(value) is float:
        return value
    if type(value) is int:
        return float(value)
    if type(value) is str:
        return NON_FINITE.get(value)
    return None


def numbers(values: Mapping[str, object]) -> dict[str, float]:
    """The numbers among stored values, with NaN and infinities as floats."""
    pairs = ((name, as_float(value)) for name, value in values.items())
    return {name: value for name, value in pairs if value is not None}


def is_of_events(name: str) -> bool:
    """Return whether a name is that of a value of events, such as ``checkpoint/seconds``."""
    return name.rpartition("/")[2] in OF_EVENTS


def named_by_event(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The values of a line. Those that mean something else with each event have its name:
    ``checkpoint/seconds``."""
    event = values.get("event")
    if type(event) is not str or OF_EVENTS.isdisjoint(values):
        return values
    prefix = event[:_EVENT_CHARACTERS]
    by_name = {}
    for name, value in values.items():
        if name in OF_EVENTS:
            name = f"{prefix}/{name}"
        by_name[name] = value
    return by_name


def end_positions(connection: sqlite3.Connection, run_id: str) -> dict[int, FilePosition]:
    """The position up to which each source is stored. Lines stored later lie beyond it, so that
    reading on from here misses none and reads none twice."""
    rows = connection.execute(
        "SELECT source_id, generation, byte_offset FROM metric_sources WHERE run_id = ? ORDER BY source_id", (run_id,)
    )
    return {source_id: (generation, byte_offset) for source_id, generation, byte_offset in rows.fetchall()}


class NewestValues(NamedTuple):
    """The newest value of each metric that a rank of an attempt wrote to one source.

    Attributes:
        rank: `NO_RANK` for lines without a rank.
    """

    attempt: int
    rank: int
    values: dict[str, float]


class StoredLine(Struct, frozen=True):
    """One line of a run. ``at`` is unix seconds; ``data`` is the whole line, with NaN and
    infinities as strings."""

    attempt: int
    rank: int | None
    step: int | None
    at: float | None
    data: Mapping[str, Any]

    def numbers(self) -> dict[str, float]:
        """Its metrics, with NaN and infinities as floats."""
        return {name: value for name, value in numbers(self.data).items() if name not in NOT_METRICS}
