"""Reading for those who watch living runs: the newest lines since the last look, and what was observed."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from gputui.store.metrics.queries import Cursor, as_float

WATCHED = ("loss", "grad_norm", "step_time", "comm_time")
_PATHS = ", ".join(f"'$.{name}'" for name in (*WATCHED, "event", "phase", "time"))


@dataclass(frozen=True, slots=True)
class WatchedLine:
    """What one line says of WATCHED metrics. ``at`` is unix seconds; values may be NaN or infinite."""

    attempt: int
    rank: int | None
    step: int | None
    at: float | None
    event: str | None
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ObservationRow:
    """One row of ``observations``."""

    kind: str
    at: float
    text: str
    rank: int | None
    step: int | None
    ends: bool


def newest_lines(
    connection: sqlite3.Connection, run_id: str, after: Cursor, limit: int
) -> tuple[list[WatchedLine], dict[int, tuple[int, int]]]:
    """At most the newest ``limit`` lines of each source since a cursor, oldest first, and the next cursor."""
    places = {
        source_id: (generation, offset)
        for source_id, generation, offset in connection.execute(
            "SELECT source_id, generation, byte_offset FROM metric_sources WHERE run_id = ? ORDER BY source_id",
            (run_id,),
        ).fetchall()
    }
    found: list[WatchedLine] = []
    sources, all_read_since = 0, -math.inf
    for source_id, until in places.items():
        since = after.get(source_id, (0, 0))
        if since == until:
            continue
        rows = connection.execute(
            f"SELECT attempt, rank, step, at, json_extract(data, {_PATHS}) FROM metrics WHERE source_id = ? "  # noqa: S608
            "AND (generation, byte_offset) >= (?, ?) AND (generation, byte_offset) < (?, ?) "
            "ORDER BY generation DESC, byte_offset DESC LIMIT ?",
            (source_id, *since, *until, limit),
        ).fetchall()
        sources += bool(rows)
        if len(rows) == limit and rows[-1][3] is not None:
            # Its older lines were not read.
            all_read_since = max(all_read_since, rows[-1][3])
        for attempt, rank, step, at, text in reversed(rows):
            *numbers, event, phase, time = orjson.loads(text)
            pairs = ((name, as_float(value)) for name, value in zip(WATCHED, numbers, strict=True))
            marked = event if event is not None else phase if step is None else None
            found.append(
                WatchedLine(
                    attempt,
                    rank,
                    step,
                    # When a line arrived tells nothing of its pace: output comes in blocks.
                    None if time is None else at,
                    None if marked is None else str(marked),
                    {name: value for name, value in pairs if value is not None},
                )
            )
    times = [line.at for line in found if line.at is not None]
    if sources > 1 and len(times) == len(found):
        found = [line for line in found if line.at is not None and line.at >= all_read_since]
        found.sort(key=lambda line: line.at or 0.0)
    return found, places


def observations(connection: sqlite3.Connection, run_id: str, attempt: int) -> list[ObservationRow]:
    """What was observed in an attempt, in the order of time."""
    rows = connection.execute(
        "SELECT kind, at, text, rank, step, ends FROM observations WHERE run_id = ? AND attempt = ? "
        "ORDER BY observation_id",
        (run_id, attempt),
    )
    return [
        ObservationRow(kind, at, text, rank, step, bool(ends)) for kind, at, text, rank, step, ends in rows.fetchall()
    ]


def ended_for_hang(connection: sqlite3.Connection, run_id: str, attempt: int) -> bool:
    """Whether an attempt before this one was ended because it seemed to hang."""
    row = connection.execute(
        "SELECT 1 FROM observations WHERE run_id = ? AND attempt < ? AND kind = 'hang' AND ends LIMIT 1",
        (run_id, attempt),
    ).fetchone()
    return row is not None


def earlier_starts(connection: sqlite3.Connection, run_id: str, attempt: int) -> list[float]:
    """How long each attempt before this one took from its start to its first step, in seconds."""
    rows = connection.execute(
        "SELECT first_step_at - started_at FROM attempts WHERE run_id = ? AND number < ? "
        "AND first_step_at >= started_at",
        (run_id, attempt),
    )
    return [float(row[0]) for row in rows.fetchall()]
