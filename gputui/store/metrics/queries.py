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
from typing import Any, NamedTuple

import orjson
from msgspec import Struct

from gputui.store.metrics.stored_lines import (
    NO_RANK,
    NOT_METRICS,
    START,
    Cursor,
    FilePosition,
    LineQuery,
    NewestValues,
    StoredLine,
    as_float,
    end_positions,
    named_by_event,
    numbers,
    rows_between,
)

STEPS_COMPARED = 20
"""Ranks are compared by their means over this many steps: a single step is noise."""

_STEPS_UNFINISHED = 2
"""Newest steps that some ranks may not have written yet, beyond those that are compared."""

_REPORTS_COMPARED = 9
"""New steps whose distances are compared: a median of eight is not moved by a validation or a checkpoint."""

_REPORT_LINES = 600
"""Lines looked at for these steps: enough where each of 64 ranks writes every step."""


def metric_names(connection: sqlite3.Connection, run_id: str) -> list[str]:
    """Every metric of which the run wrote a number, in the order of first appearance."""
    names: dict[str, None] = {}
    for newest in _newest(connection, run_id):
        names |= dict.fromkeys(newest.values)
    return [name for name in names if name not in NOT_METRICS]


def latest(connection: sqlite3.Connection, run_id: str, at: float | None = None) -> dict[str, float]:
    """The newest value of each metric; that of rank 0 if several ranks write it."""
    values: dict[str, float] = {}
    for newest in sorted(_newest(connection, run_id, at), key=lambda newest: (newest.attempt, -newest.rank)):
        values |= newest.values
    return {name: value for name, value in values.items() if name not in NOT_METRICS}


def ranks(connection: sqlite3.Connection, run_id: str, attempt: int, at: float | None = None) -> list[StoredLine]:
    """The newest values of each rank of an attempt as one line, in rank order; its rank is None if its lines name
    none."""
    values_by_rank: dict[int, dict[str, float]] = {}
    for newest in _newest(connection, run_id, at):
        if newest.attempt == attempt:
            values_by_rank.setdefault(newest.rank, {}).update(newest.values)
    rank_lines = []
    for number, values in sorted(values_by_rank.items()):
        rank = None if number == NO_RANK else number
        step = int(values["step"]) if "step" in values else None
        metrics = {name: value for name, value in values.items() if name not in NOT_METRICS}
        rank_lines.append(StoredLine(attempt, rank, step, at=values.get("time"), data=metrics))
    return rank_lines


def rank_means(
    connection: sqlite3.Connection, run_id: str, attempt: int, rank_count: int
) -> dict[int, dict[str, float]]:
    """The mean of each metric over the newest steps that all of ``rank_count`` ranks have written, at
    most `STEPS_COMPARED`; empty if there is none. Raises sqlite3.Error."""
    values_by_step = _values_by_step(connection, run_id, attempt, (STEPS_COMPARED + _STEPS_UNFINISHED) * rank_count)
    complete_steps = [step for step, by_rank in values_by_step.items() if len(by_rank) == rank_count]
    values: dict[int, dict[str, list[float]]] = {}
    for step in sorted(complete_steps, reverse=True)[:STEPS_COMPARED]:
        for rank, data in values_by_step[step].items():
            for name, value in numbers(data).items():
                if name not in NOT_METRICS:
                    values.setdefault(rank, {}).setdefault(name, []).append(value)
    return {rank: {name: fmean(series) for name, series in by_name.items()} for rank, by_name in values.items()}


def _values_by_step(
    connection: sqlite3.Connection, run_id: str, attempt: int, limit: int
) -> dict[int, dict[int, dict[str, Any]]]:
    """The values by step and rank in the last lines of each source, at most ``limit`` of each."""
    values: dict[int, dict[int, dict[str, Any]]] = {}
    for source_id, end in end_positions(connection, run_id).items():
        rows = rows_between(connection, source_id, START, end, LineQuery(is_newest_first=True, limit=limit))
        for number, rank, step, _, text in rows:
            if number == attempt and rank is not None and step is not None:
                values.setdefault(step, {}).setdefault(rank, {}).update(orjson.loads(text))
    return values


class StepReport(NamedTuple):
    """The first line of a step. ``at`` is UTC unix seconds."""

    at: float
    step: float


def report_seconds(connection: sqlite3.Connection, attempt: int, reached: Mapping[int, FilePosition]) -> float | None:
    """The median seconds between two new steps in the lines of an attempt's first rank, of the
    newest source, up to ``reached``: some scripts write a line every hundred steps. None if
    unknown. Raises sqlite3.Error."""
    reports: list[StepReport] = []
    for source_id, end in reached.items():
        reports = max(reports, _newest_reports(connection, attempt, source_id, end))
    gaps = [later.at - earlier.at for later, earlier in pairwise(reports) if later.at > earlier.at]
    if gaps:
        return median(gaps)
    return None


def _newest_reports(
    connection: sqlite3.Connection, attempt: int, source_id: int, end: FilePosition
) -> list[StepReport]:
    """The newest steps of an attempt's first rank in a source, newest first."""
    query = LineQuery("attempt, rank, step, at", is_newest_first=True, limit=_REPORT_LINES)
    rows = rows_between(connection, source_id, START, end, query)
    reports: list[StepReport] = []
    for number, rank, step, at in rows:
        if number != attempt or rank or step is None or at is None:
            continue
        if reports and step == reports[-1].step:
            # A step was done at the time of its first line.
            reports.pop()
        if len(reports) == _REPORTS_COMPARED:
            break
        reports.append(StepReport(at, step))
    return reports


def ranks_by_metric(connection: sqlite3.Connection, run_id: str) -> dict[str, frozenset[int]]:
    """The ranks that reported each metric in the newest attempt with metrics, lines without a rank
    left out."""
    reported = _newest(connection, run_id)
    attempt = max((newest.attempt for newest in reported), default=0)
    ranks_by_name: dict[str, set[int]] = {}
    for newest in reported:
        if newest.attempt == attempt and newest.rank != NO_RANK:
            for name in newest.values.keys() - NOT_METRICS:
                ranks_by_name.setdefault(name, set()).add(newest.rank)
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


def _newest(connection: sqlite3.Connection, run_id: str, at: float | None = None) -> list[NewestValues]:
    """The newest values in the order of sources, attempts and ranks."""
    if at is not None:
        from gputui.store.metrics import past

        return past.newest_values(connection, run_id, at)
    rows = connection.execute(
        "SELECT n.attempt, n.rank, n.data FROM metric_newest AS n JOIN metric_sources AS s USING "
        "(source_id) WHERE s.run_id = ? ORDER BY n.source_id, n.attempt, n.rank",
        (run_id,),
    )
    return [NewestValues(attempt, rank, numbers(orjson.loads(text))) for attempt, rank, text in rows.fetchall()]


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
    any_of = " OR ".join("instr(data, ?)" for _ in metrics)
    query = LineQuery(
        where=f"step IS NOT NULL AND coalesce(rank, 0) = 0 AND ({any_of})",
        values=[f'"{name}"' for name in stored_names.values()],
    )
    reported: list[ReportedValue] = []
    for source_id, end in reached.items():
        rows = rows_between(connection, source_id, after.get(source_id, START), end, query)
        for attempt, _, step, at, text in rows:
            data = orjson.loads(text)
            position = None
            if by != "step":
                position = as_float(data.get(by))
                if position is None:
                    continue
            for name, stored_name in stored_names.items():
                value = as_float(data.get(stored_name))
                if value is not None:
                    reported.append(ReportedValue(name, step, position, value=value, attempt=attempt, at=at))
    return reported, reached
