"""Queries of the stored metrics, for screens, the command line and reports.

The connection may be read-only. Charts are read by `gputui.metrics.curves`. ``at`` (UTC unix
seconds) asks for a past time, whose values come from the newest `past.NEWEST_LINES` lines before
it; None for now.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Any

import orjson
from msgspec import Struct

from gputui.store.metrics.stored_lines import (
    NOT_METRICS,
    START,
    Cursor,
    FilePosition,
    LineQuery,
    StoredLine,
    as_float,
    end_positions,
    named_by_event,
    numbers,
    rows_between,
)


def metric_names(connection: sqlite3.Connection, run_id: str) -> list[str]:
    """Every metric of which the run wrote a number, in the order of first appearance."""
    names: dict[str, None] = {}
    for _, _, values in _newest(connection, run_id):
        names |= dict.fromkeys(values)
    return [name for name in names if name not in NOT_METRICS]


def latest(connection: sqlite3.Connection, run_id: str, at: float | None = None) -> dict[str, float]:
    """The newest value of each metric; that of rank 0 if several ranks write it."""
    newest: dict[str, float] = {}
    for _, _, values in sorted(_newest(connection, run_id, at), key=lambda row: (row[0], -row[1])):
        newest |= values
    return {name: value for name, value in newest.items() if name not in NOT_METRICS}


def ranks(connection: sqlite3.Connection, run_id: str, attempt: int, at: float | None = None) -> list[StoredLine]:
    """The newest values of each rank of an attempt as one line, in rank order; its rank is None if its lines name
    none."""
    by_rank: dict[int, dict[str, float]] = {}
    for number, rank_number, values in _newest(connection, run_id, at):
        if number == attempt:
            by_rank.setdefault(rank_number, {}).update(values)
    rank_lines = []
    for number, values in sorted(by_rank.items()):
        rank = None
        if number >= 0:
            rank = number
        step = None
        if "step" in values:
            step = int(values["step"])
        metrics = {name: value for name, value in values.items() if name not in NOT_METRICS}
        rank_lines.append(StoredLine(attempt, rank, step, values.get("time"), metrics))
    return rank_lines


STEPS_COMPARED = 20
"""Ranks are compared by their means over this many steps: a single step is noise."""


def rank_means(
    connection: sqlite3.Connection, run_id: str, attempt: int, rank_count: int
) -> dict[int, dict[str, float]]:
    """The mean of each metric over the newest steps that all of ``rank_count`` ranks have written, at
    most `STEPS_COMPARED`; empty if there is none. Raises sqlite3.Error."""
    lines_by_step: dict[int, dict[int, dict[str, Any]]] = {}
    for source_id, end in end_positions(connection, run_id).items():
        most = (STEPS_COMPARED + 2) * rank_count
        rows = rows_between(connection, source_id, START, end, LineQuery(is_newest_first=True, limit=most))
        for number, rank, step, _, text in rows:
            if number == attempt and rank is not None and step is not None:
                lines_by_step.setdefault(step, {}).setdefault(rank, {}).update(orjson.loads(text))
    shared = sorted((step for step, of_ranks in lines_by_step.items() if len(of_ranks) == rank_count), reverse=True)
    values: dict[int, dict[str, list[float]]] = {}
    for step in shared[:STEPS_COMPARED]:
        for rank, data in lines_by_step[step].items():
            for name, value in data.items():
                measured = as_float(value)
                if measured is not None and name not in NOT_METRICS:
                    values.setdefault(rank, {}).setdefault(name, []).append(measured)
    return {
        rank: {name: fmean(measurements) for name, measurements in by_name.items()} for rank, by_name in values.items()
    }


_MOST_REPORTS = 9
_MOST_REPORT_LINES = 600


def report_seconds(connection: sqlite3.Connection, attempt: int, reached: Mapping[int, FilePosition]) -> float | None:
    """The median seconds between two new steps in the lines of an attempt's first rank, of the
    newest source, up to ``reached``: some scripts write a line every hundred steps. None if
    unknown. Raises sqlite3.Error."""
    newest: list[tuple[float, int]] = []
    for source_id, end in reached.items():
        query = LineQuery("attempt, rank, step, at", is_newest_first=True, limit=_MOST_REPORT_LINES)
        rows = rows_between(connection, source_id, START, end, query)
        reports: list[tuple[float, int]] = []
        for number, rank, step, at in rows:
            if number != attempt or rank or step is None or at is None:
                continue
            if reports and step == reports[-1][1]:
                # A step was done at the time of its first line.
                reports.pop()
            if len(reports) == _MOST_REPORTS:
                break
            reports.append((at, step))
        newest = max(newest, reports)
    gaps = [later - earlier for (later, _), (earlier, _) in pairwise(newest) if later > earlier]
    if gaps:
        return median(gaps)
    return None


def ranks_by_metric(connection: sqlite3.Connection, run_id: str) -> dict[str, frozenset[int]]:
    """The ranks that reported each metric in the newest attempt with metrics, lines without a rank
    left out."""
    newest = _newest(connection, run_id)
    attempt = max((number for number, _, _ in newest), default=0)
    ranks_by_name: dict[str, set[int]] = {}
    for number, rank, values in newest:
        if number == attempt and rank >= 0:
            for name in values.keys() - NOT_METRICS:
                ranks_by_name.setdefault(name, set()).add(rank)
    return {name: frozenset(metric_ranks) for name, metric_ranks in ranks_by_name.items()}


def points_json(connection: sqlite3.Connection, run_id: str, names: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """The points of some metrics, or of all, as ``{attempt, rank, step, time, arrived, name,
    value}`` in the order they were written. ``arrived``: the time (unix seconds) is when the line
    was read. A number that JSON lacks is a string."""
    for line in lines(connection, run_id):
        data = named_by_event(line.data)
        arrived = line.at is not None and as_float(line.data.get("time")) != line.at
        for name in names or data:
            value = data.get(name)
            if as_float(value) is not None and name not in NOT_METRICS:
                yield {
                    "attempt": line.attempt,
                    "rank": line.rank,
                    "step": line.step,
                    "time": line.at,
                    "arrived": arrived,
                    "name": name,
                    "value": value,
                }


def _newest(
    connection: sqlite3.Connection, run_id: str, at: float | None = None
) -> list[tuple[int, int, dict[str, float]]]:
    """(attempt, rank or -1, newest value of each name) in the order of sources, attempts and ranks."""
    if at is not None:
        from gputui.store.metrics import past

        return past.newest_values(connection, run_id, at)
    rows = connection.execute(
        "SELECT n.attempt, n.rank, n.data FROM metric_newest AS n JOIN metric_sources AS s USING "
        "(source_id) WHERE s.run_id = ? ORDER BY n.source_id, n.attempt, n.rank",
        (run_id,),
    )
    return [(attempt, rank, numbers(orjson.loads(text))) for attempt, rank, text in rows.fetchall()]


def lines(connection: sqlite3.Connection, run_id: str) -> Iterator[StoredLine]:
    """Every line of a run in the order written, fetched a few at a time."""
    for source_id, end in end_positions(connection, run_id).items():
        for attempt, rank, step, at, text in rows_between(connection, source_id, START, end):
            yield StoredLine(attempt, rank, step, at, orjson.loads(text))


class ReportedValue(Struct, frozen=True):
    """One metric of one line of rank 0 or without a rank.

    Attributes:
        position: The value of the metric that measures progress, None if that is the step.
        value: May be NaN or infinite.
        at: UTC unix seconds, None if unknown.
    """

    metric: str
    step: int
    position: float | None
    value: float
    attempt: int
    at: float | None


def reported_values(
    connection: sqlite3.Connection, run_id: str, metrics: Sequence[str], by: str, after: Cursor
) -> tuple[list[ReportedValue], dict[int, tuple[int, int]]]:
    """The values of metrics in lines after a cursor, in order, and the next cursor.

    Args:
        metrics: Their names; `LOSS` and `VALIDATION_LOSS` stand for the run's losses, whatever it calls them.
        by: The metric that measures progress, or "step". Lines without it or without a step are skipped.

    Raises:
        sqlite3.Error: The store cannot be read.
    """
    from gputui.store.metrics.roles import metric_roles

    roles = metric_roles(connection, run_id).names
    stored_names = {name: roles.get(name, name) for name in metrics}
    reached = end_positions(connection, run_id)
    reported: list[ReportedValue] = []
    any_of = " OR ".join("instr(data, ?)" for _ in metrics)
    query = LineQuery(
        where=f"step IS NOT NULL AND coalesce(rank, 0) = 0 AND ({any_of})",
        values=[f'"{name}"' for name in stored_names.values()],
    )
    for source_id, end in reached.items():
        rows = rows_between(connection, source_id, after.get(source_id, START), end, query)
        for attempt, _, step, at, text in rows:
            data = orjson.loads(text)
            position = None
            if by != "step" and (position := as_float(data.get(by))) is None:
                continue
            for name, stored_name in stored_names.items():
                if (value := as_float(data.get(stored_name))) is not None:
                    reported.append(ReportedValue(name, step, position, value=value, attempt=attempt, at=at))
    return reported, reached
