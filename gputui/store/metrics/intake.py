"""Statistics of a run's metrics lines: accepted and rejected ones."""

from __future__ import annotations

import math
import sqlite3

from msgspec import Struct

from gputui.store.metrics.queries import latest

# Formats of a script's output, in which a line that matches nothing is not an error.
PRINTED_FORMATS = frozenset({"stdout", "output"})
_EXAMPLE_CHARACTERS = 60


class Intake(Struct, frozen=True):
    """Numbers of lines of all the run's sources, with reason and beginning of a rejected one.
    ``printed_bytes`` is the size of the output that was searched for patterns, None without;
    ``no_metrics`` says that its newest attempt trains without any line; ``is_over``: no more will
    come. ``short_of`` has the last step and the steps in all of a run that succeeded before half of
    them."""

    taken: int = 0
    rejected: int = 0
    reason: str | None = None
    example: str | None = None
    printed_bytes: int | None = None
    no_metrics: str | None = None
    is_over: bool = False
    short_of: tuple[int, int] | None = None


def intake(connection: sqlite3.Connection, run_id: str) -> Intake:
    """The statistics of one run. Raises sqlite3.Error."""
    sources = connection.execute(
        "SELECT source_id, format, byte_offset, line_count, rejected_count FROM metric_sources "
        "WHERE run_id = ? ORDER BY source_id",
        (run_id,),
    ).fetchall()
    stored = sum(lines for *_, lines, _ in sources)
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
    unread = None if stored else without_metrics(connection).get(run_id)
    row = connection.execute(
        "SELECT r.ended_at IS NOT NULL, iif(r.state = 'succeeded', a.last_step, NULL) FROM runs "
        "AS r LEFT JOIN attempts AS a ON a.run_id = r.run_id AND a.number = r.attempt WHERE "
        "r.run_id = ?",
        (run_id,),
    ).fetchone()
    is_over, step = row or (False, None)
    total = 0 if step is None else latest(connection, run_id).get("total_steps", 0)
    short_of = (step, int(total)) if step is not None and 2 * step < total < math.inf else None
    size = sum(printed) if printed else None
    return Intake(stored, rejected, reason, example, size, unread, bool(is_over), short_of)


def without_metrics(connection: sqlite3.Connection) -> dict[str, str]:
    """Runs whose newest attempt trains although none of their metrics was ever read: the
    observation's text by id. Raises sqlite3.Error."""
    rows = connection.execute(
        "SELECT o.run_id, o.text FROM observations AS o "
        "JOIN runs AS r ON r.run_id = o.run_id AND r.attempt = o.attempt "
        "WHERE o.kind = 'no_metrics' AND NOT EXISTS "
        "(SELECT 1 FROM metric_sources AS s WHERE s.run_id = o.run_id AND s.line_count > 0)"
    )
    return dict(rows.fetchall())


def output_read(connection: sqlite3.Connection, run_id: str, attempt: int) -> list[tuple[str, int]]:
    """The output files from which an attempt's metrics are read: pattern of the path, and bytes
    read so far. Raises sqlite3.Error."""
    return connection.execute(
        "SELECT s.path, s.byte_offset FROM metric_sources AS s JOIN metric_boundaries AS b USING "
        "(source_id) WHERE s.run_id = ? AND s.format = 'output' AND b.attempt = ?",
        (run_id, attempt),
    ).fetchall()


def intake_words(known: Intake) -> str | None:
    """A sentence about lines that could not be used; None if all could, or if nothing was written
    yet."""
    if known.rejected:
        total = known.taken + known.rejected
        if known.taken:
            begin = f"{known.rejected} of {total} metrics lines could not be used"
        elif total == 1:
            begin = "The only metrics line so far could not be used"
        else:
            begin = f"None of the {total} metrics lines so far could be used"
        if known.reason is None or known.example is None:
            return begin
        cut = known.example[: _EXAMPLE_CHARACTERS - 1] + "…"
        example = known.example if len(known.example) <= _EXAMPLE_CHARACTERS else cut
        return f"{begin} ({known.reason}): {example}"
    if known.no_metrics is not None:
        return f"None yet: {known.no_metrics}; gputui check --log FILE PROFILE tries patterns"
    if known.short_of is not None:
        step, total = known.short_of
        return (
            f"It succeeded at step {step} of {total}: see with gputui check --log FILE PROFILE whether steps are read"
        )
    if known.is_over and known.printed_bytes and not known.taken:
        return "Nothing that it printed matches the metrics patterns of its profile"
    return None
