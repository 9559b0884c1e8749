"""Samples as they were taken, wherever they are: the newest hour one by one, older ones in packs.

Times are UTC unix seconds. Every function raises sqlite3.Error.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

from gputui.store import packs
from gputui.store.moment import one_moment
from gputui.store.series import CONDITION, HOST_ID, MILLI, Series, known_conditions, pack_columns, stored_names

Row = tuple[Any, ...]


class Piece(NamedTuple):
    """A part of one pack: times, and the values of each column asked for."""

    times: list[float]
    columns: list[list[Any]]

    def rows(self) -> Iterator[Row]:
        return zip(self.times, *self.columns, strict=True)


def between(
    connection: sqlite3.Connection, series: Series, gpu_id: int, columns: Sequence[str], begin: float, end: float
) -> list[Row]:
    """(at, value of each column) of the samples in [begin, end), in the order of their times."""
    where, key = series.key(gpu_id)
    # Between two moments samples may be packed: then they would be read twice.
    with one_moment(connection):
        found: list[Row] = connection.execute(
            f"SELECT {', '.join(('at', *columns))} FROM {series.rows} WHERE {where} AND at >= ? AND at < ? ORDER BY at",  # noqa: S608
            (*key, begin, end),
        ).fetchall()
        parts = pieces(connection, series, gpu_id, columns, begin, end)
        packed = list(chain.from_iterable(one.rows() for one in parts))
    if not packed:
        return found
    # Packs are older, but for samples that came after the clock had been set back.
    return sorted((*packed, *found), key=itemgetter(0)) if found and found[0][0] < packed[-1][0] else packed + found


def some(
    connection: sqlite3.Connection,
    series: Series,
    gpu_id: int,
    columns: Sequence[str],
    begin: float,
    end: float,
    limit: int,
) -> tuple[list[Row], float]:
    """About the first ``limit`` of `between`, and up to which time they are all there are."""
    where, key = series.key(gpu_id)
    with one_moment(connection):
        found: list[Row] = connection.execute(
            f"SELECT {', '.join(('at', *columns))} FROM {series.rows} "  # noqa: S608
            f"WHERE {where} AND at >= ? AND at < ? ORDER BY at LIMIT {limit}",
            (*key, begin, end),
        ).fetchall()
        until = end if len(found) < limit else found[-1][0]
        packed: list[Row] = []
        for piece in pieces(connection, series, gpu_id, columns, begin, until):
            packed += piece.rows()
            if len(packed) >= limit:
                until = min(until, packed[-1][0])
                break
    if until < end:
        found, packed = ([row for row in some if row[0] < until] for some in (found, packed))
    return sorted((*packed, *found), key=itemgetter(0)) if packed else found, until


def pieces(
    connection: sqlite3.Connection, series: Series, gpu_id: int, columns: Sequence[str], begin: float, end: float
) -> Iterator[Piece]:
    """What packs hold of [begin, end), in the order of time."""
    names = stored_names(columns)
    conditions: Mapping[int, tuple[str, str | None]] | None = None
    for row in pack_rows(connection, series, gpu_id, names, begin, end):
        if conditions is None:
            conditions = known_conditions(connection) if "condition" in names else {}
        found = part(series, columns, row, begin, end, conditions)
        if found.times:
            yield found


def pack_rows(
    connection: sqlite3.Connection, series: Series, gpu_id: int, names: Sequence[str], begin: float, end: float
) -> sqlite3.Cursor:
    """`pack_columns` of the packs that reach into [begin, end), in the order of time."""
    where, key = series.key(gpu_id)
    return connection.execute(
        f"SELECT {pack_columns(series, names)} FROM {series.packs} WHERE {where} "  # noqa: S608
        f"AND at >= coalesce((SELECT max(at) FROM {series.packs} WHERE {where} AND at <= ?), ?) AND at < ? ORDER BY at",
        (*key, *key, begin, begin, end),
    )


def newest(
    connection: sqlite3.Connection,
    series: Series,
    gpu_id: int,
    columns: Sequence[str],
    at: float,
    *,
    including: bool = True,
) -> Row | None:
    """(at, value of each column) of the last sample up to a moment, or before it."""
    where, key = series.key(gpu_id)
    row: Row | None = connection.execute(
        f"SELECT {', '.join(('at', *columns))} FROM {series.rows} "  # noqa: S608
        f"WHERE {where} AND at {'<=' if including else '<'} ? ORDER BY at DESC LIMIT 1",
        (*key, at),
    ).fetchone()
    after = None if row is None else float(row[0])
    packed = newest_packed(connection, series, gpu_id, columns, at, after=after, including=including)
    return row if packed is None else packed


def newest_packed(
    connection: sqlite3.Connection,
    series: Series,
    gpu_id: int,
    columns: Sequence[str],
    at: float,
    *,
    after: float | None = None,
    including: bool = True,
) -> Row | None:
    """The same of samples in packs alone; None as well where it was taken at ``after`` or before."""
    where, key = series.key(gpu_id)
    names = stored_names(columns)
    pack = connection.execute(
        f"SELECT {pack_columns(series, names)} FROM {series.packs} "  # noqa: S608
        f"WHERE {where} AND at {'<=' if including else '<'} ? ORDER BY at DESC LIMIT 1",
        (*key, at),
    ).fetchone()
    if pack is None:
        return None
    count, times = pack[0], packs.Times(*pack[1:5])

    def seconds(number: int) -> float:
        return packs.time_at(times, count, number) / MILLI

    place = (bisect_right if including else bisect_left)(range(count), at, key=seconds) - 1
    if after is not None and seconds(place) <= after:
        return None
    conditions = known_conditions(connection) if "condition" in names else {}
    return next(_cut(series, columns, pack, place, place + 1, conditions).rows())


def around(connection: sqlite3.Connection, series: Series, gpu_id: int, at: float) -> tuple[float | None, float | None]:
    """When the last sample up to a moment and the first one after it were taken."""
    _, key = series.key(gpu_id)
    row = connection.execute(_around(series), (*key, at, *key, at, *key, at, *key, *key, at)).fetchone()
    before, after, next_pack, count, *rest = row
    if count is not None:
        times = packs.Times(*rest)
        place = bisect_right(range(count), at, key=lambda number: packs.time_at(times, count, number) / MILLI)
        last = packs.time_at(times, count, place - 1) / MILLI
        before = last if before is None else max(before, last)
        if place < count:
            next_pack = packs.time_at(times, count, place) / MILLI
    if next_pack is not None:
        after = next_pack if after is None else min(after, next_pack)
    return before, after


@cache
def _around(series: Series) -> str:
    where, _ = series.key(HOST_ID)
    return (
        f"SELECT (SELECT max(at) FROM {series.rows} WHERE {where} AND at <= ?), "  # noqa: S608
        f"(SELECT min(at) FROM {series.rows} WHERE {where} AND at > ?), "
        f"(SELECT min(at) FROM {series.packs} WHERE {where} AND at > ?), {pack_columns(series, ())} "
        f"FROM (SELECT 1) LEFT JOIN {series.packs} "
        f"ON {where} AND at = (SELECT max(at) FROM {series.packs} WHERE {where} AND at <= ?)"
    )


def times_up_to(connection: sqlite3.Connection, series: Series, gpu_id: int, at: float, limit: int) -> list[float]:
    """When the last samples up to a moment were taken, newest first."""
    where, key = series.key(gpu_id)
    with one_moment(connection):
        found = [
            row[0]
            for row in connection.execute(
                f"SELECT at FROM {series.rows} WHERE {where} AND at <= ? ORDER BY at DESC LIMIT {limit}",  # noqa: S608
                (*key, at),
            )
        ]
        for count, *rest in connection.execute(
            f"SELECT {pack_columns(series, ())} FROM {series.packs} WHERE {where} AND at <= ? ORDER BY at DESC LIMIT 2",  # noqa: S608
            (*key, at),
        ):
            times = packs.Times(*rest)
            end = bisect_right(range(count), at, key=lambda number: packs.time_at(times, count, number) / MILLI)
            found += [each / MILLI for each in packs.decode_times(times, count, max(0, end - limit), end)]
    return sorted(found, reverse=True)[:limit]


def part(
    series: Series, columns: Sequence[str], pack: Row, begin: float, end: float, conditions: Mapping[int, Any]
) -> Piece:
    """What a pack holds of [begin, end); ``pack`` has `pack_columns`, and ``conditions`` are `known_conditions`."""
    count, times = pack[0], packs.Times(*pack[1:5])
    places = range(count)

    def seconds(number: int) -> float:
        return packs.time_at(times, count, number) / MILLI

    first = 0 if seconds(0) >= begin else bisect_left(places, begin, key=seconds)
    last = count if seconds(count - 1) < end else bisect_left(places, end, key=seconds)
    return _cut(series, columns, pack, first, max(first, last), conditions)


def _cut(
    series: Series, columns: Sequence[str], pack: Row, first: int, last: int, conditions: Mapping[int, Any]
) -> Piece:
    """The samples of a pack from number ``first`` up to before ``last``."""
    count, times = pack[0], packs.Times(*pack[1:5])
    stored = stored_names(columns)
    known: dict[str, list[Any]] = {}
    for place, name in enumerate(stored):
        values = packs.decode(packs.Column(*pack[5 + 3 * place : 8 + 3 * place]), count, first, last)
        if name == "condition":
            both = [conditions[value] for value in values if value is not None]
            for place_in_pair, own in enumerate(CONDITION):
                known[own] = [pair[place_in_pair] for pair in both]
        elif series.columns[name]:
            known[name] = [None if value is None else value / MILLI for value in values]
        else:
            known[name] = values
    return Piece(
        [at / MILLI for at in packs.decode_times(times, count, first, last)], [known[name] for name in columns]
    )
