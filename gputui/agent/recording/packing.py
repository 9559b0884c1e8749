"""Samples of hours that have been put together become packs, a little at a time.

A pack replaces its rows in one transaction: an agent that is killed in between leaves either. Samples that come to
packs later, because the clock was set back, are packed together with what is there. Blocks with so few samples that a
pack would take as much room, and values that no pack can hold, stay as rows; so does a block with which something is
wrong, until the next agent.
"""

from __future__ import annotations

import logging
import math
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from gputui.runs.repository import transaction
from gputui.store import packs, samples
from gputui.store.packs import BLOCK_SECONDS, MOST_SAMPLES, Times, time_at
from gputui.store.samples import Row
from gputui.store.series import CONDITION, GPU, HOST, HOST_ID, MILLI, SLOW, Series, known_conditions, pack_columns

log = logging.getLogger(__name__)

# What is wrong with the rows of one block; every other error of the database concerns all.
_OF_ONE_BLOCK = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError)

LEAST_SAMPLES = 8
# Five packs: such a slice takes about 4 ms.
ROWS_AT_ONCE = 5 * MOST_SAMPLES


@dataclass(slots=True)
class Packing:
    """``clock`` gives monotonic seconds, to bound a turn."""

    connection: sqlite3.Connection
    clock: Callable[[], float]
    _looked_at: dict[tuple[str, int], float] = field(default_factory=dict)
    """Up to when each source has been looked at; what was left there stays as rows."""

    def turn(self, until: float, deadline: float) -> bool:
        """Pack what was sampled before ``until``, an edge of blocks (UTC unix seconds), until it is ``deadline``. True
        when nothing is left to do. Raises sqlite3.Error with nothing of the unfinished part changed."""
        for series, gpu_id in self._sources():
            source = (series.rows, gpu_id)
            # Where the clock was set back, what is sampled from here on has not been looked at.
            begin = min(self._looked_at.get(source, -math.inf), until)
            while begin < until:
                if self.clock() >= deadline:
                    return False
                begin = self._slice(series, gpu_id, begin, until)
                self._looked_at[source] = begin
            self._looked_at[source] = begin
        return True

    def _sources(self) -> Iterator[tuple[Series, int]]:
        yield HOST, HOST_ID
        for (gpu_id,) in self.connection.execute("SELECT gpu_id FROM gpus ORDER BY gpu_id").fetchall():
            yield GPU, gpu_id
            yield SLOW, gpu_id

    def _slice(self, series: Series, gpu_id: int, begin: float, until: float) -> float:
        """One slice of one source; returns from where on to look next."""
        where, key = series.key(gpu_id)
        (first,) = self.connection.execute(
            f"SELECT min(at) FROM {series.rows} WHERE {where} AND at >= ? AND at < ?",  # noqa: S608 - fixed names
            (*key, begin, until),
        ).fetchone()
        if first is None:
            return until
        block = float(first // BLOCK_SECONDS * BLOCK_SECONDS)
        try:
            return self._pack(series, gpu_id, first, block)
        except Exception as error:
            # One block that cannot be packed must not end the agent.
            if isinstance(error, sqlite3.Error) and not isinstance(error, _OF_ONE_BLOCK):
                raise
            log.exception(
                "%s of source %d stay rows from %.0f to %.0f", series.rows, gpu_id, block, block + BLOCK_SECONDS
            )
        return block + BLOCK_SECONDS

    def _pack(self, series: Series, gpu_id: int, first: float, block: float) -> float:
        """Pack a slice of the block which begins then, from ``first`` on; returns from where on to look next."""
        where, key = series.key(gpu_id)
        end = block + BLOCK_SECONDS
        columns = _columns(series)
        rows: list[Row] = self.connection.execute(
            f"SELECT {', '.join(('at', *columns))} FROM {series.rows} "  # noqa: S608
            f"WHERE {where} AND at >= ? AND at < ? ORDER BY at LIMIT {ROWS_AT_ONCE}",
            (*key, first, end),
        ).fetchall()
        if len(rows) < LEAST_SAMPLES:
            return end
        next_at = end if len(rows) < ROWS_AT_ONCE else math.nextafter(rows[-1][0], math.inf)
        span = (_millis(first) / MILLI, math.nextafter(rows[-1][0], math.inf))
        is_mixed = self._meets_packs(series, gpu_id, block, span)
        if is_mixed:
            span, next_at = (block, end), end
            rows = samples.between(self.connection, series, gpu_id, columns, *span)
        try:
            made = [_packed(one) for one in _parts(self._numbers(series, rows))]
        except (OverflowError, ValueError):
            return next_at
        with transaction(self.connection):
            if is_mixed:
                self._delete(series.packs, where, key, span)
            self._delete(series.rows, where, key, span if is_mixed else (first, span[1]))
            names = pack_columns(series, list(series.columns))
            head, ids = ("at", ()) if series is HOST else ("gpu_id, at", (gpu_id,))
            self.connection.executemany(
                f"INSERT INTO {series.packs} ({head}, {names}) "  # noqa: S608
                f"VALUES ({', '.join('?' * (len(ids) + len(made[0])))})",
                [(*ids, *values) for values in made],
            )
        return next_at

    def _meets_packs(self, series: Series, gpu_id: int, block: float, span: tuple[float, float]) -> bool:
        """Whether a pack of the block reaches into the span, even with a gap between two of its samples: packs of a
        source do not overlap."""
        begin, end = span
        for count, *rest in samples.pack_rows(self.connection, series, gpu_id, (), block, end).fetchall():
            if time_at(Times(*rest), count, count - 1) / MILLI >= begin:
                return True
        return False

    def _delete(self, table: str, where: str, key: tuple[int, ...], span: tuple[float, float]) -> None:
        self.connection.execute(f"DELETE FROM {table} WHERE {where} AND at >= ? AND at < ?", (*key, *span))  # noqa: S608

    def _numbers(self, series: Series, rows: Sequence[Row]) -> list[list[int | None]]:
        """Times in milliseconds and then the columns of a pack, as whole numbers; of two samples of one millisecond the
        first."""
        first_of = {_millis(row[0]): row for row in reversed(rows)}
        ordered = sorted(first_of)
        values = dict(zip(_columns(series), zip(*(first_of[at][1:] for at in ordered), strict=True), strict=True))
        found: list[list[int | None]] = [list(ordered)]
        for name, is_real in series.columns.items():
            if name == "condition":
                ids = self._condition_ids(set(zip(values[CONDITION[0]], values[CONDITION[1]], strict=True)))
                found.append([ids[pair] for pair in zip(values[CONDITION[0]], values[CONDITION[1]], strict=True)])
            elif is_real:
                found.append([None if value is None else round(value * MILLI) for value in values[name]])
            else:
                found.append(list(values[name]))
        return found

    def _condition_ids(self, pairs: set[tuple[str, str | None]]) -> dict[tuple[str, str | None], int]:
        known = {pair: number for number, pair in known_conditions(self.connection).items()}
        for pair in pairs - known.keys():
            cursor = self.connection.execute("INSERT INTO gpu_conditions (state, throttle_reasons) VALUES (?, ?)", pair)
            assert cursor.lastrowid is not None
            known[pair] = cursor.lastrowid
        return known


def _columns(series: Series) -> list[str]:
    """The columns of the rows that a pack holds."""
    return [name for stored in series.columns for name in (CONDITION if stored == "condition" else (stored,))]


def _millis(at: float) -> int:
    """The millisecond in which a moment lies, of a moment that may be a rounded one of it."""
    return math.floor(round(at * MILLI, 2))


def _parts(columns: Sequence[list[int | None]]) -> Iterator[list[list[int | None]]]:
    """As few parts of about the same length as the samples of a pack allow."""
    count = len(columns[0])
    size = -(-count // -(-count // MOST_SAMPLES))
    for at in range(0, count, size):
        yield [column[at : at + size] for column in columns]


def _packed(columns: Sequence[Sequence[int | None]]) -> list[object]:
    """The values of a pack's row, from its time on."""
    millis = [at for at in columns[0] if at is not None]
    row: list[object] = [millis[0] / MILLI, len(millis), *packs.encode_times(millis)]
    for column in columns[1:]:
        row += packs.encode(column)
    return row
