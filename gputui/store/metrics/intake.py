"""What became of a run's metrics lines: how many count, and what is wrong with those that do not."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

# Formats in which a line that matches nothing is no fault of anybody: what a script prints.
PRINTED_FORMATS = frozenset({"stdout", "output"})


@dataclass(frozen=True, slots=True)
class Intake:
    """Lines of all the run's sources. ``reason`` and ``example`` are those of one that was set aside, None if none
    was. ``printed_bytes`` is how much of what it prints was searched for its patterns, None if none are.
    ``no_metrics`` says how its newest attempt trains without any line, None if that was not seen; ``is_over``:
    nothing more will come."""

    taken: int = 0
    rejected: int = 0
    reason: str | None = None
    example: str | None = None
    printed_bytes: int | None = None
    no_metrics: str | None = None
    is_over: bool = False


def intake(connection: sqlite3.Connection, run_id: str) -> Intake:
    """What is known of the lines of one run. Raises sqlite3.Error."""
    sources = connection.execute(
        "SELECT source_id, format, byte_offset, line_count, rejected_count FROM metric_sources WHERE run_id = ? "
        "ORDER BY source_id",
        (run_id,),
    ).fetchall()
    taken = sum(lines for *_, lines, _ in sources)
    rejected = sum(aside for *_, aside in sources)
    printed = [offset for _, format_name, offset, *_ in sources if format_name in PRINTED_FORMATS]
    reason = example = None
    faulty = [source_id for source_id, *_, aside in sources if aside]
    if faulty:
        row = connection.execute(
            "SELECT reason, excerpt FROM rejected_lines WHERE source_id = ? "
            "ORDER BY generation DESC, byte_offset DESC LIMIT 1",
            (faulty[-1],),
        ).fetchone()
        reason, example = row if row is not None else (None, None)
    unread = None if taken else without_metrics(connection).get(run_id)
    over = connection.execute("SELECT ended_at IS NOT NULL FROM runs WHERE run_id = ?", (run_id,)).fetchone()
    is_over = over is not None and bool(over[0])
    return Intake(taken, rejected, reason, example, sum(printed) if printed else None, unread, is_over)


def without_metrics(connection: sqlite3.Connection) -> dict[str, str]:
    """The runs whose newest attempt was seen training although none of their metrics was ever read, by id, each with
    what was seen. Raises sqlite3.Error."""
    rows = connection.execute(
        "SELECT o.run_id, o.text FROM observations AS o "
        "JOIN runs AS r ON r.run_id = o.run_id AND r.attempt = o.attempt "
        "WHERE o.kind = 'no_metrics' AND NOT EXISTS "
        "(SELECT 1 FROM metric_sources AS s WHERE s.run_id = o.run_id AND s.line_count > 0)"
    )
    return dict(rows.fetchall())


def output_read(connection: sqlite3.Connection, run_id: str, attempt: int) -> list[tuple[str, int]]:
    """The outputs from which an attempt's metrics are read, each as a pattern of its path and how many bytes of it
    were searched and stored. Raises sqlite3.Error."""
    return connection.execute(
        "SELECT s.path, s.byte_offset FROM metric_sources AS s JOIN metric_boundaries AS b USING (source_id) "
        "WHERE s.run_id = ? AND s.format = 'output' AND b.attempt = ?",
        (run_id, attempt),
    ).fetchall()
