"""Reading metrics: what a screen, the command line or a report asks of the stored lines.

Every function takes a connection that may be read-only. What charts show is read by `gputui.curves`. ``at`` (UTC unix
seconds) asks for a past moment, None for now; the state of then comes from the newest `past.NEWEST_LINES` lines.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Any

import orjson

# How the numbers that JSON does not know are stored.
NON_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}

NOT_METRICS = frozenset({"step", "time", "rank"})

FilePosition = tuple[int, int]
"""Generation and byte offset in a metrics file."""

Cursor = Mapping[int, FilePosition]
"""Per source_id the place (generation, byte_offset) up to which lines were seen."""


@dataclass(frozen=True, slots=True)
class RankLine:
    """The newest values that one rank wrote. ``rank`` is None where lines name none."""

    rank: int | None
    step: int | None
    at: float | None
    values: Mapping[str, float]


def as_float(value: object) -> float | None:
    """A stored value as a number, or None if it is none (text, a truth value, an object)."""
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


def latest(connection: sqlite3.Connection, run_id: str, at: float | None = None) -> dict[str, float]:
    """The newest value of each metric; of rank 0 where ranks write lines of their own."""
    found: dict[str, float] = {}
    for _, _, values in sorted(_newest(connection, run_id, at), key=lambda row: (row[0], -row[1])):
        found |= values
    return {name: value for name, value in found.items() if name not in NOT_METRICS}


def ranks(connection: sqlite3.Connection, run_id: str, attempt: int, at: float | None = None) -> list[RankLine]:
    """What each rank of an attempt wrote last, in the order of the ranks."""
    lines: dict[int, dict[str, float]] = {}
    for number, rank, values in _newest(connection, run_id, at):
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


STEPS_COMPARED = 20
"""Ranks are compared by their means over so many steps: a single step is noise."""


def rank_means(connection: sqlite3.Connection, run_id: str, attempt: int, ranks: int) -> dict[int, dict[str, float]]:
    """The mean of each metric over the newest steps that all of ``ranks`` ranks have written, at most
    `STEPS_COMPARED`; empty if there is none. Raises sqlite3.Error."""
    lines: dict[int, dict[int, dict[str, Any]]] = {}
    for source_id, until in places(connection, run_id).items():
        rows = connection.execute(
            "SELECT attempt, rank, step, data FROM metrics WHERE source_id = ? AND (generation, byte_offset) < (?, ?) "
            "ORDER BY generation DESC, byte_offset DESC LIMIT ?",
            (source_id, *until, (STEPS_COMPARED + 2) * ranks),
        )
        for number, rank, step, text in rows:
            if number == attempt and rank is not None and step is not None:
                lines.setdefault(step, {}).setdefault(rank, {}).update(orjson.loads(text))
    shared = sorted((step for step, of_ranks in lines.items() if len(of_ranks) == ranks), reverse=True)
    values: dict[int, dict[str, list[float]]] = {}
    for step in shared[:STEPS_COMPARED]:
        for rank, data in lines[step].items():
            for name, value in data.items():
                measured = as_float(value)
                if measured is not None and name not in NOT_METRICS:
                    values.setdefault(rank, {}).setdefault(name, []).append(measured)
    return {rank: {name: fmean(found) for name, found in named.items()} for rank, named in values.items()}


_REPORTS_LOOKED_AT = 9
_LINES_LOOKED_AT = 600


def report_seconds(connection: sqlite3.Connection, attempt: int, reached: Mapping[int, FilePosition]) -> float | None:
    """The usual time between two lines of an attempt's first rank with a new step, where its newest source was read as
    far as ``reached``: some scripts write a line every hundred steps. None if it is unknown. Raises sqlite3.Error."""
    newest: list[tuple[float, int]] = []
    for source_id, until in reached.items():
        rows = connection.execute(
            "SELECT at, step FROM (SELECT attempt, rank, step, at FROM metrics WHERE source_id = ? "
            "AND (generation, byte_offset) < (?, ?) ORDER BY generation DESC, byte_offset DESC LIMIT ?) "
            "WHERE attempt = ? AND coalesce(rank, 0) = 0 AND step IS NOT NULL AND at IS NOT NULL",
            (source_id, *until, _LINES_LOOKED_AT, attempt),
        )
        reports: list[tuple[float, int]] = []
        for at, step in rows:
            if reports and step == reports[-1][1]:
                # A step's first line tells when it was done.
                reports.pop()
            if len(reports) == _REPORTS_LOOKED_AT:
                break
            reports.append((at, step))
        newest = max(newest, reports)
    gaps = [later - earlier for (later, _), (earlier, _) in pairwise(newest) if later > earlier]
    return median(gaps) if gaps else None


def ranks_by_metric(connection: sqlite3.Connection, run_id: str) -> dict[str, frozenset[int]]:
    """The ranks that reported each metric in the newest attempt with any; lines that name no rank count as none."""
    newest = _newest(connection, run_id)
    attempt = max((number for number, _, _ in newest), default=0)
    ranks: dict[str, set[int]] = {}
    for number, rank, values in newest:
        if number == attempt and rank >= 0:
            for name in values.keys() - NOT_METRICS:
                ranks.setdefault(name, set()).add(rank)
    return {name: frozenset(found) for name, found in ranks.items()}


def points_json(connection: sqlite3.Connection, run_id: str, names: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """The points of some metrics, or of all, as ``{attempt, rank, step, time, arrived, name, value}`` in the order
    they were written. ``time`` is unix seconds, and where it ``arrived`` when the line was found, for it tells none; a
    value that is no number in JSON is "NaN", "Infinity" or "-Infinity".
    """
    wanted = tuple(names)
    for source_id, until in places(connection, run_id).items():
        rows = connection.execute(
            f"SELECT attempt, rank, step, at, data {_LINES}",
            (source_id, *until),
        )
        for attempt, rank, step, at, text in rows:
            data = orjson.loads(text)
            arrived = at is not None and as_float(data.get("time")) != at
            for name in wanted or data:
                value = data.get(name)
                if as_float(value) is not None and name not in NOT_METRICS:
                    yield {
                        "attempt": attempt,
                        "rank": rank,
                        "step": step,
                        "time": at,
                        "arrived": arrived,
                        "name": name,
                        "value": value,
                    }


_LINES = "FROM metrics WHERE source_id = ? AND (generation, byte_offset) < (?, ?) ORDER BY generation, byte_offset"


def places(connection: sqlite3.Connection, run_id: str) -> dict[int, FilePosition]:
    """How far each source was read: lines stored after this look lie beyond, so that none is missed or seen twice."""
    rows = connection.execute(
        "SELECT source_id, generation, byte_offset FROM metric_sources WHERE run_id = ? ORDER BY source_id", (run_id,)
    )
    return {source_id: (generation, byte_offset) for source_id, generation, byte_offset in rows.fetchall()}


def _newest(
    connection: sqlite3.Connection, run_id: str, at: float | None = None
) -> list[tuple[int, int, dict[str, float]]]:
    """(attempt, rank or -1, newest value of each name) in the order of sources, attempts and ranks."""
    if at is not None:
        from gputui.store.metrics import past

        return past.newest_values(connection, run_id, at)
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


@dataclass(frozen=True, slots=True)
class StoredLine:
    """One line as a run wrote it. ``at`` is unix seconds; ``data`` is the whole line, NaN and infinities as words."""

    attempt: int
    rank: int | None
    step: int | None
    at: float | None
    data: Mapping[str, Any]

    def numbers(self) -> dict[str, float]:
        """Its metrics, NaN and infinities as such."""
        pairs = ((name, as_float(value)) for name, value in self.data.items() if name not in NOT_METRICS)
        return {name: value for name, value in pairs if value is not None}


def lines(connection: sqlite3.Connection, run_id: str) -> Iterator[StoredLine]:
    """Every line of a run in the order they were written, a few at a time."""
    for source_id, until in places(connection, run_id).items():
        rows = connection.execute(f"SELECT attempt, rank, step, at, data {_LINES}", (source_id, *until))
        for attempt, rank, step, at, text in rows:
            yield StoredLine(attempt, rank, step, at, orjson.loads(text))
