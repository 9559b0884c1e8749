"""Reduce stored lines to envelopes for charts, exactly once, in the transaction that stores the
lines. The store alone knows what was reduced: the lines behind the last stretch are not yet, and a
reducer only caches them."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import orjson

from gputui.store.metrics import envelopes
from gputui.store.metrics.envelopes import BLOCK_LINES, FAN, STRETCH_LINES, Entry
from gputui.store.metrics.stored_lines import END, NOT_METRICS, START, LineQuery, as_float, named_by_event, rows_between

MAX_NAMES = 500
"""The metrics that are reduced per stretch; a script that invents a name for each line must not
fill the disk."""

_NUMBERS = frozenset({int, float})
_UNKNOWN = math.nan

# One look-up per name; a scan of all rows of an attempt would take longer the longer it runs.
_ROWS_OF_ALL = """
WITH RECURSIVE names (name) AS (
    SELECT min(name) FROM metric_envelopes WHERE source_id = :source AND attempt = :attempt
    UNION ALL
    SELECT (SELECT min(e.name) FROM metric_envelopes AS e
            WHERE e.source_id = :source AND e.attempt = :attempt AND e.name > names.name)
    FROM names WHERE names.name IS NOT NULL
)
SELECT e.name, e.entries FROM names CROSS JOIN metric_envelopes AS e
ON e.source_id = :source AND e.attempt = :attempt AND e.name = names.name AND e.level = :level AND e.number = :number
"""


class MetricLine(NamedTuple):
    """A line with a step, of rank 0 or without a rank.

    Attributes:
        generation: The generation of the source in which it stands.
        byte_offset: Where it begins in that generation.
        at: UTC unix seconds, None if nobody knows when it was written.
    """

    generation: int
    byte_offset: int
    attempt: int
    step: int
    at: float | None
    values: Mapping[str, Any]


class Reducer:
    """Reduces the lines of one source, inside the caller's transaction."""

    def __init__(self, source_id: int) -> None:
        self._source_id = source_id
        self._lines: list[MetricLine] | None = None

    def forget(self) -> None:
        """Drop the cache after a failed transaction."""
        self._lines = None

    def add(self, connection: sqlite3.Connection, lines: Sequence[MetricLine]) -> None:
        """Reduce lines that were just stored, in order. Raises sqlite3.Error."""
        if self._lines is None:
            self._lines = _stored_lines(connection, self._source_id)
        else:
            self._lines += lines
        while count := _first_stretch_length(self._lines):
            _write(connection, self._source_id, self._lines[:count])
            del self._lines[:count]


def _first_stretch_length(lines: Sequence[MetricLine]) -> int:
    """The number of lines of the first stretch: a full one, or the rest of an attempt that another
    followed; 0 if it is incomplete."""
    if not lines:
        return 0
    attempt = lines[0].attempt
    if lines[-1].attempt == attempt:
        if len(lines) >= STRETCH_LINES:
            return STRETCH_LINES
        return 0
    return min(STRETCH_LINES, sum(line.attempt == attempt for line in lines))


def _stored_lines(connection: sqlite3.Connection, source_id: int) -> list[MetricLine]:
    """The lines behind the last stretch."""
    last = envelopes.last_stretch(connection, source_id)
    begin = START if last is None else last.end
    query = LineQuery(
        "generation, byte_offset, attempt, step, at, data", "(rank IS NULL OR rank = 0) AND step IS NOT NULL"
    )
    rows = rows_between(connection, source_id, begin, END, query)
    return [
        MetricLine(generation, offset, attempt, step=step, at=at, values=named_by_event(orjson.loads(data)))
        for generation, offset, attempt, step, at, data in rows
    ]


def _write(connection: sqlite3.Connection, source_id: int, lines: Sequence[MetricLine]) -> None:
    """Store one stretch."""
    attempt = lines[0].attempt
    before = envelopes.last_stretch(connection, source_id, attempt)
    number = 0 if before is None else before.number + 1
    steps = [line.step for line in lines]
    times = [line.at for line in lines if line.at is not None]
    begin = lines[0]
    end = lines[-1]
    connection.execute(
        "INSERT INTO metric_stretches VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            source_id, begin.generation, begin.byte_offset, end.generation, end.byte_offset + 1, attempt, number,
            len(lines), min(steps), max(steps), min(times, default=None),
            max(times, default=None),
        ),
    )  # fmt: skip
    reduced = reduce_lines(number, lines)
    key = (source_id, attempt)
    connection.executemany(
        "INSERT INTO metric_envelopes (source_id, attempt, name, level, number, entries) VALUES (?, ?, ?, 0, ?, ?)",
        [(*key, name, number, b"".join(map(envelopes.pack, entries))) for name, entries in reduced.items()],
    )
    _append(connection, key, 1, number, {name: envelopes.join(number, entries) for name, entries in reduced.items()})


def _append(
    connection: sqlite3.Connection, key: tuple[int, int], level: int, index: int, joined: Mapping[str, Entry]
) -> None:
    """Append an entry of each metric to a level, and join a full row into the level above."""
    number = index // FAN
    connection.executemany(
        "INSERT INTO metric_envelopes (source_id, attempt, name, level, number, entries) VALUES (?, ?, ?, ?, ?, ?) "
        "ON CONFLICT DO UPDATE SET entries = CAST(entries || excluded.entries AS BLOB)",
        [(*key, name, level, number, envelopes.pack(entry)) for name, entry in joined.items()],
    )
    if (index + 1) % FAN:
        return
    rows = connection.execute(_ROWS_OF_ALL, {"source": key[0], "attempt": key[1], "level": level, "number": number})
    above = {name: envelopes.join(number, envelopes.unpack(number, packed)) for name, packed in rows.fetchall()}
    _append(connection, key, level + 1, number, above)


def _time_of(line: MetricLine) -> float:
    if line.at is None:
        return _UNKNOWN
    return line.at


def reduce_lines(number: int, lines: Sequence[MetricLine]) -> dict[str, list[Entry]]:
    """The entries of each metric in the lines of stretch ``number``."""
    names: dict[str, None] = {}
    for line in lines:
        if not names.keys() >= line.values.keys():
            names |= dict.fromkeys(line.values)
    steps = [line.step for line in lines]
    times = list(map(_time_of, lines))
    maps = [line.values for line in lines]
    by_name = {}
    for name in [name for name in names if name not in NOT_METRICS][:MAX_NAMES]:
        try:
            column = list(map(itemgetter(name), maps))
        except KeyError:
            column = [values.get(name) for values in maps]
        reduce = _dense if _NUMBERS.issuperset(map(type, column)) else _sparse
        entries = reduce(number * FAN, column, steps, times)
        if entries:
            by_name[name] = entries
    return by_name


def _dense(first: int, column: Sequence[Any], steps: Sequence[int], times: Sequence[float]) -> list[Entry]:
    """Entries of a column of finite numbers."""
    entries = []
    for begin in range(0, len(column), BLOCK_LINES):
        values = column[begin : begin + BLOCK_LINES]
        last = begin + len(values) - 1
        entries.append(
            Entry(
                first + begin // BLOCK_LINES,
                points=len(values),
                nan=0,
                positive_infinite=0,
                negative_infinite=0,
                low=min(values),
                high=max(values),
                first=values[0],
                last=values[-1],
                first_step=steps[begin],
                last_step=steps[last],
                first_at=times[begin],
                last_at=times[last],
            )
        )
    return entries


def _sparse(first: int, column: Sequence[Any], steps: Sequence[int], times: Sequence[float]) -> list[Entry]:
    """Entries of a column with missing or non-finite values; none for a block without a number."""
    entries = []
    for begin in range(0, len(column), BLOCK_LINES):
        block = column[begin : begin + BLOCK_LINES]
        numbers = [
            (index, number) for index, value in enumerate(block, begin) if (number := as_float(value)) is not None
        ]
        if numbers:
            entries.append(_sparse_entry(first + begin // BLOCK_LINES, numbers, steps, times))
    return entries


def _sparse_entry(
    number: int, numbers: Sequence[tuple[int, float]], steps: Sequence[int], times: Sequence[float]
) -> Entry:
    """An entry of numbers by their indices, of which at least one is there."""
    finite = [(index, value) for index, value in numbers if math.isfinite(value)]
    values = [value for _, value in finite] or [_UNKNOWN]
    first_index, _ = (finite or numbers)[0]
    last_index, _ = (finite or numbers)[-1]
    positive = sum(value == math.inf for _, value in numbers)
    negative = sum(value == -math.inf for _, value in numbers)
    return Entry(
        number,
        points=len(numbers),
        nan=len(numbers) - len(finite) - positive - negative,
        positive_infinite=positive,
        negative_infinite=negative,
        low=min(values),
        high=max(values),
        first=values[0],
        last=values[-1],
        first_step=steps[first_index],
        last_step=steps[last_index],
        first_at=times[first_index],
        last_at=times[last_index],
    )
