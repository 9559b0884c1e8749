"""The values of a few metrics as they arrive, for studies."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import orjson
from msgspec import Struct

from gputui.store.metrics.queries import Cursor, as_float


class ReportedValue(Struct, frozen=True):
    """One metric of one line of rank 0 or without a rank. ``position`` is the value of the metric that measures
    progress, None if that is the step; ``value`` may be NaN or infinite; ``at`` is UTC unix seconds, None if
    unknown."""

    metric: str
    step: int
    position: float | None
    value: float
    attempt: int
    at: float | None


def reported_values(
    connection: sqlite3.Connection, run_id: str, metrics: Sequence[str], by: str, after: Cursor
) -> tuple[list[ReportedValue], dict[int, tuple[int, int]]]:
    """The values of ``metrics`` in lines after a cursor, in order, and the next cursor. Lines without a step, or
    without the metric ``by`` unless it is "step", are skipped. Raises sqlite3.Error."""
    sources = connection.execute(
        "SELECT source_id, generation, byte_offset FROM metric_sources WHERE run_id = ? ORDER BY source_id", (run_id,)
    ).fetchall()
    reported: list[ReportedValue] = []
    any_of = " OR ".join("instr(data, ?)" for _ in metrics)
    for source_id, generation, offset in sources:
        rows = connection.execute(
            "SELECT attempt, step, at, data FROM metrics WHERE source_id = ? "  # noqa: S608 - fixed words
            "AND (generation, byte_offset) >= (?, ?) AND (generation, byte_offset) < (?, ?) "
            f"AND step IS NOT NULL AND coalesce(rank, 0) = 0 AND ({any_of}) ORDER BY generation, byte_offset",
            (source_id, *after.get(source_id, (0, 0)), generation, offset, *(f'"{name}"' for name in metrics)),
        )
        for attempt, step, at, text in rows:
            data = orjson.loads(text)
            position = None if by == "step" else as_float(data.get(by))
            if by != "step" and position is None:
                continue
            for name in metrics:
                if (value := as_float(data.get(name))) is not None:
                    reported.append(ReportedValue(name, step, position, value, attempt, at))
    return reported, {source_id: (generation, offset) for source_id, generation, offset in sources}
