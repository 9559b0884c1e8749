"""Queries for watching active runs: the lines since a cursor, and the observations."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from msgspec import Struct
from msgspec.structs import asdict

from gputui.store.metrics.roles import metric_roles
from gputui.store.metrics.stored_lines import (
    NOT_METRICS,
    NULL_NAN,
    START,
    Cursor,
    FilePosition,
    LineQuery,
    as_float,
    end_positions,
    numbers,
    rows_between,
)
from gputui.store.rows import insert, records

WATCHED = frozenset({
    "grad_norm", "step_time", "comm_time", "data_time", "epoch", "lr", "lr_expected",
    "lr_scheduled", "total_steps", "samples", "skipped_samples", "cache_hit_rate",
})  # fmt: skip


# They tell where an event is, and measure nothing.
_PLACE_NAMES = NOT_METRICS | {"epoch"}


class WatchedLine(Struct, frozen=True):
    """The WATCHED metrics of one line, and those of `MetricRoles.names`; values may be NaN or infinite.

    Attributes:
        at: the script's time (UTC unix seconds).
        stored_at: that, or the time at which the line was read, which says nothing of its pace.
        announces: it is an event without a number, which tells what begins; one with numbers
            reports what is over.
        has_null_loss: its loss was null, which stands for NaN.
    """

    attempt: int
    rank: int | None
    step: int | None
    at: float | None
    event: str | None
    values: Mapping[str, float]
    stored_at: float | None = None
    announces: bool = False
    has_null_loss: bool = False


class ObservationRow(Struct, frozen=True):
    """One row of ``observations``.

    Attributes:
        kind: What was seen, for programs.
        text: What was seen, for people.
        at: UTC unix seconds.
        rank: None if it is of no single rank.
        step: None if it is of no single step.
        ends: The attempt is ended for it.
    """

    kind: str
    at: float
    text: str
    rank: int | None
    step: int | None
    ends: bool


def newest_lines(
    connection: sqlite3.Connection, run_id: str, after: Cursor, limit: int
) -> tuple[list[WatchedLine], dict[int, FilePosition]]:
    """At most the newest ``limit`` lines of each source since a cursor, oldest first, and the next
    cursor."""
    reached = end_positions(connection, run_id)
    roles = metric_roles(connection, run_id)
    names = {name: name for name in WATCHED} | dict(roles.names)
    query = LineQuery(is_newest_first=True, limit=limit)
    lines: list[WatchedLine] = []
    sources = 0
    all_read_since = -math.inf
    for source_id, end in reached.items():
        since = after.get(source_id, START)
        if since == end:
            continue
        rows = rows_between(connection, source_id, since, end, query).fetchall()
        sources += bool(rows)
        if len(rows) == limit:
            # The lines before were not read.
            _, _, _, oldest_at, _ = rows[-1]
            if oldest_at is not None:
                all_read_since = max(all_read_since, oldest_at)
        lines += [_watched_line(row, names, roles.loss) for row in reversed(rows)]
    times = [line.at for line in lines if line.at is not None]
    if sources > 1 and len(times) == len(lines):
        lines = [line for line in lines if line.at is not None and line.at >= all_read_since]
        lines.sort(key=lambda line: line.at or 0.0)
    return lines, reached


def _watched_line(row: Sequence[Any], names: Mapping[str, str], loss: str | None) -> WatchedLine:
    """A row of the columns of `LineQuery` as a line; ``names`` are those in the store by the watched ones."""
    attempt, rank, step, at, text = row
    data = orjson.loads(text)
    stored = ((watched_name, as_float(data.get(name))) for watched_name, name in names.items())
    event = data.get("event")
    if event is None and step is None:
        event = data.get("phase")
    if event is not None:
        event = str(event)
    stated_at = at
    if data.get("time") is None:
        stated_at = None
    return WatchedLine(
        attempt,
        rank,
        step,
        at=stated_at,
        event=event,
        values={name: value for name, value in stored if value is not None},
        stored_at=at,
        announces=event is not None and not numbers(data).keys() - _PLACE_NAMES,
        has_null_loss=data.get(loss) == NULL_NAN,
    )


def observations(connection: sqlite3.Connection, run_id: str, attempt: int) -> list[ObservationRow]:
    """The observations of an attempt, oldest first."""
    query = "SELECT * FROM observations WHERE run_id = ? AND attempt = ? ORDER BY observation_id"
    return records(connection, ObservationRow, query, run_id, attempt)


def put_observation(connection: sqlite3.Connection, run_id: str, attempt: int, row: ObservationRow) -> None:
    """Insert an observation; of each kind, the first one of an attempt stays."""
    insert(connection, "observations", "IGNORE", run_id=run_id, attempt=attempt, **asdict(row))


def ended_for_hang(connection: sqlite3.Connection, run_id: str, attempt: int) -> bool:
    """Return whether an earlier attempt was ended because it seemed to hang."""
    query = "SELECT 1 FROM observations WHERE run_id = ? AND attempt < ? AND kind = 'hang' AND ends LIMIT 1"
    return connection.execute(query, (run_id, attempt)).fetchone() is not None


def earlier_starts(connection: sqlite3.Connection, run_id: str, attempt: int) -> list[float]:
    """The seconds from start to first step of each earlier attempt."""
    query = (
        "SELECT first_step_at - started_at FROM attempts WHERE run_id = ? AND number < ? "
        "AND first_step_at >= started_at"
    )
    return [float(row[0]) for row in connection.execute(query, (run_id, attempt))]
