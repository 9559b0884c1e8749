"""Statistics of a run's metrics lines: accepted and rejected ones."""

from __future__ import annotations

import math
import sqlite3

from msgspec import Struct

from gputui.core.text import clip
from gputui.store.metrics.queries import latest

_EXAMPLE_CHARACTERS = 60  # beside the reason on one line of a terminal


class Intake(Struct, frozen=True):
    """What became of the metrics lines of a run.

    Attributes:
        accepted: How many lines of all its sources were accepted.
        rejected: How many lines of all its sources were rejected.
        reason: Why the newest rejected line was rejected.
        example: The beginning of the newest rejected line.
        has_printed: It wrote output, which was searched for metrics.
        learns: The output is searched without the patterns of a profile.
        no_metrics: Says that its newest attempt trains without any line; None if it has some.
        has_succeeded: It printed all that it prints, while what fails early may not have come to its metrics.
        short_of: The `short_of` of its newest attempt, if that ended so.
    """

    accepted: int = 0
    rejected: int = 0
    reason: str | None = None
    example: str | None = None
    has_printed: bool = False
    learns: bool = False
    no_metrics: str | None = None
    has_succeeded: bool = False
    short_of: tuple[int, int] | None = None


def intake(connection: sqlite3.Connection, run_id: str) -> Intake:
    """The statistics of one run. Raises sqlite3.Error."""
    accepted, rejected, has_printed = connection.execute(
        "SELECT coalesce(sum(line_count), 0), coalesce(sum(rejected_count), 0), "
        "coalesce(max(format IN ('stdout', 'output') AND byte_offset > 0), 0) "
        "FROM metric_sources WHERE run_id = ?",
        (run_id,),
    ).fetchone()
    reason, example = connection.execute(
        "SELECT r.reason, r.excerpt FROM rejected_lines AS r JOIN metric_sources AS s USING (source_id) "
        "WHERE s.run_id = ? ORDER BY source_id DESC, r.generation DESC, r.byte_offset DESC LIMIT 1",
        (run_id,),
    ).fetchone() or (None, None)
    has_succeeded, step, total = connection.execute(
        "SELECT r.state = 'succeeded', a.exit ->> '$.short_of[0]', a.exit ->> '$.short_of[1]' FROM runs AS r "
        "LEFT JOIN attempts AS a ON a.run_id = r.run_id AND a.number = r.attempt WHERE r.run_id = ?",
        (run_id,),
    ).fetchone() or (False, None, None)
    problem = None
    if not accepted:
        problem = without_metrics(connection).get(run_id)
    shortfall = None
    if step is not None and total is not None:
        shortfall = (int(step), int(total))
    return Intake(
        accepted,
        rejected,
        reason,
        example=example,
        has_printed=bool(has_printed),
        learns=_learns(connection, run_id),
        no_metrics=problem,
        has_succeeded=bool(has_succeeded),
        short_of=shortfall,
    )


def short_of(connection: sqlite3.Connection, run_id: str, attempt: int) -> tuple[int, int] | None:
    """The last step of an attempt and the steps in all, if it ended far below them.

    It did if that was before half of them, or with a ``stop`` event; not with an ``end`` event, or if they are unknown.
    Of
    steps that are learned from what it prints the event alone tells: a bar may show the last ones late or not at all.
    Raises sqlite3.Error.
    """
    total = latest(connection, run_id).get("total_steps", math.nan)
    (step,) = connection.execute(
        "SELECT last_step FROM attempts WHERE run_id = ? AND number = ?", (run_id, attempt)
    ).fetchone()
    if step is None or not step < total < math.inf:
        return None
    (event,) = connection.execute(
        "SELECT m.data ->> '$.event' FROM metrics AS m JOIN metric_sources AS s USING (source_id) "
        "WHERE s.run_id = ? AND m.attempt = ? AND coalesce(m.rank, 0) = 0 "
        "ORDER BY m.source_id, m.generation DESC, m.byte_offset DESC LIMIT 1",
        (run_id, attempt),
    ).fetchone() or (None,)
    is_short = event == "stop"
    if event not in ("stop", "end") and not _learns(connection, run_id):
        is_short = 2 * step < total
    if is_short:
        return (step, int(total))
    return None


def _learns(connection: sqlite3.Connection, run_id: str) -> bool:
    """Return whether a run's output is searched without the patterns of a profile."""
    query = (
        "SELECT 1 FROM metric_sources WHERE run_id = ? AND format = 'stdout' "
        "AND json_array_length(reading, '$.patterns') = 0"
    )
    return connection.execute(query, (run_id,)).fetchone() is not None


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


def intake_words(statistics: Intake) -> str | None:
    """A sentence about lines that could not be used; None if all could, or if nothing was written
    yet."""
    if statistics.rejected:
        count = f"{statistics.rejected} of {statistics.accepted + statistics.rejected} metrics lines could not be used"
        if statistics.reason is None or statistics.example is None:
            return count
        return f"{count} ({statistics.reason}): {clip(statistics.example, _EXAMPLE_CHARACTERS)}"
    if statistics.no_metrics is not None:
        way = "gputui check --log FILE PROFILE tries patterns"
        if statistics.learns:
            way = "metrics: in a profile can name them"
        return f"{statistics.no_metrics[:1].upper()}{statistics.no_metrics[1:]}; {way}"
    if statistics.short_of is not None:
        step, total = statistics.short_of
        how = "see with gputui check --log FILE PROFILE whether its steps are read, or let it write an end event"
        return f"It ended at step {step} of {total}: if that is complete, {how}"
    if statistics.has_succeeded and statistics.learns and not statistics.accepted:
        unsure = "Nothing that it printed or wrote is surely metrics: one line of a form is not enough"
        return f"{unsure}; metrics: in a profile can name them"
    if statistics.has_succeeded and statistics.has_printed and not statistics.accepted:
        return "Nothing that it printed matches the metrics patterns of its profile"
    return None
