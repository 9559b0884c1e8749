"""Statistics of a run's metrics lines: accepted and rejected ones."""

from __future__ import annotations

import math
import sqlite3

from msgspec import Struct

from gputui.core.text import clip
from gputui.store.metrics.queries import latest

_EXAMPLE_CHARACTERS = 60


class Intake(Struct, frozen=True):
    """Numbers of lines of all the run's sources, with reason and beginning of the newest rejected
    one. ``has_printed``: it wrote output, which was searched for patterns; ``no_metrics`` says that
    its newest attempt trains without any line; ``is_over``: no more will come. ``short_of`` has the
    last step and the steps in all of a run that succeeded before half of them."""

    taken: int = 0
    rejected: int = 0
    reason: str | None = None
    example: str | None = None
    has_printed: bool = False
    no_metrics: str | None = None
    is_over: bool = False
    short_of: tuple[int, int] | None = None


def intake(connection: sqlite3.Connection, run_id: str) -> Intake:
    """The statistics of one run. Raises sqlite3.Error."""
    taken, rejected, has_printed = connection.execute(
        "SELECT coalesce(sum(line_count), 0), coalesce(sum(rejected_count), 0), "
        "coalesce(max(format IN ('stdout', 'output') AND byte_offset > 0), 0) FROM metric_sources WHERE run_id = ?",
        (run_id,),
    ).fetchone()
    reason, example = connection.execute(
        "SELECT r.reason, r.excerpt FROM rejected_lines AS r JOIN metric_sources AS s USING (source_id) "
        "WHERE s.run_id = ? ORDER BY source_id DESC, r.generation DESC, r.byte_offset DESC LIMIT 1",
        (run_id,),
    ).fetchone() or (None, None)
    is_over, step = connection.execute(
        "SELECT r.ended_at IS NOT NULL, iif(r.state = 'succeeded', a.last_step, NULL) FROM runs AS r "
        "LEFT JOIN attempts AS a ON a.run_id = r.run_id AND a.number = r.attempt WHERE r.run_id = ?",
        (run_id,),
    ).fetchone() or (False, None)
    total = 0 if step is None else latest(connection, run_id).get("total_steps", 0)
    return Intake(
        taken,
        rejected,
        reason,
        example,
        bool(has_printed),
        no_metrics=None if taken else without_metrics(connection).get(run_id),
        is_over=bool(is_over),
        short_of=(step, int(total)) if step is not None and 2 * step < total < math.inf else None,
    )


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
        count = f"{known.rejected} of {known.taken + known.rejected} metrics lines could not be used"
        if known.reason is None or known.example is None:
            return count
        return f"{count} ({known.reason}): {clip(known.example, _EXAMPLE_CHARACTERS)}"
    if known.no_metrics is not None:
        return f"None yet: {known.no_metrics}; gputui check --log FILE PROFILE tries patterns"
    if known.short_of is not None:
        step, total = known.short_of
        return (
            f"It succeeded at step {step} of {total}: see with gputui check --log FILE PROFILE whether steps are read"
        )
    if known.is_over and known.has_printed and not known.taken:
        return "Nothing that it printed matches the metrics patterns of its profile"
    return None
