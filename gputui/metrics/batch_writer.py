"""Store a batch of lines together with its read position."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from gputui.metrics.batch import Batch, SourceState
from gputui.metrics.marks import clear_list, list_marks, packed, store_marks
from gputui.metrics.reduction import Reducer

# A broken script may write a million broken lines. All are counted, but only the first are stored.
MAX_REJECTED = 1000
MAX_NEWEST_NAMES = 500

_ADVANCE = (
    "UPDATE metric_sources SET inode = ?, generation = ?, byte_offset = ?, skipping = ?, fingerprint = ?, "
    "mark_count = ?, is_rewritten = ?, line_count = line_count + ?, rejected_count = rejected_count + ? "
    "WHERE source_id = ? AND generation = ? AND byte_offset = ? AND skipping = ?"
)

# Stored with the lines, so that no reader scans all lines of an attempt and a killed agent loses nothing.
_NOTE_STEPS = (
    "UPDATE attempts SET first_step = coalesce(first_step, ?), last_step = max(coalesce(last_step, -1), ?), "
    "first_step_at = coalesce(first_step_at, CASE WHEN ended_at IS NULL THEN ? END) "
    "WHERE run_id = (SELECT run_id FROM metric_sources WHERE source_id = ?) AND number = ?"
)


def store_batch(
    connection: sqlite3.Connection,
    source_id: int,
    before: SourceState,
    batch: Batch,
    now: float,
    reducer: Reducer | None = None,
) -> bool:
    """Store the batch that was read after ``before``, its steps, and complete stretches for charts, inside the caller's
    transaction. Returns False without a change if the source has another position: another process stored these lines,
    or the run is gone.

    Call `forget` of ``reducer``, which belongs to the source, if the transaction fails. Without a reducer, lines that
    are not reduced yet are read from the store.

    Raises sqlite3.Error; the caller must roll back.
    """
    after = batch.state
    moved = connection.execute(
        _ADVANCE,
        (
            after.inode,
            after.generation,
            after.byte_offset,
            after.skipping,
            after.fingerprint,
            after.mark_count,
            after.is_rewritten,
            len(batch.rows),
            len(batch.rejected),
            source_id,
            before.generation,
            before.byte_offset,
            before.skipping,
        ),
    )
    if moved.rowcount != 1:
        return False
    connection.executemany("INSERT OR IGNORE INTO metrics VALUES (?, ?, ?, ?, ?, ?, ?, ?)", batch.rows)
    if after.mark_count is not None and (batch.marks or after.mark_count < (before.mark_count or 0)):
        store_marks(connection, source_id, after.mark_count - len(batch.marks), packed(batch.marks))
    if batch.clears_list:
        clear_list(connection, source_id)
    if batch.listed:
        list_marks(connection, source_id, packed(batch.listed))
    if batch.rejected:
        _store_rejected(connection, source_id, batch, now)
    if batch.long_line is not None:
        offset, length = batch.long_line
        connection.execute(
            "UPDATE rejected_lines SET length_bytes = ? WHERE source_id = ? AND generation = ? AND byte_offset = ?",
            (length, source_id, before.generation, offset),
        )
    if batch.steps.last is not None:
        connection.execute(_NOTE_STEPS, (batch.steps.first, batch.steps.last, now, source_id, batch.attempt))
    for rank, values in batch.newest.items():
        _update_newest(connection, source_id, batch.attempt, -1 if rank is None else rank, values)
    (reducer or Reducer(source_id)).take(connection, batch.to_reduce)
    return True


def _store_rejected(connection: sqlite3.Connection, source_id: int, batch: Batch, now: float) -> None:
    stored = connection.execute("SELECT count(*) FROM rejected_lines WHERE source_id = ?", (source_id,)).fetchone()[0]
    connection.executemany(
        "INSERT OR IGNORE INTO rejected_lines (source_id, generation, byte_offset, attempt, at, length_bytes, reason, "
        "excerpt) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (source_id, r.generation, r.byte_offset, r.attempt, now, r.length_bytes, r.reason, r.excerpt)
            for r in batch.rejected[: max(0, MAX_REJECTED - stored)]
        ],
    )


def _update_newest(
    connection: sqlite3.Connection, source_id: int, attempt: int, rank: int, values: dict[str, Any]
) -> None:
    key = (source_id, attempt, rank)
    row = connection.execute(
        "SELECT data FROM metric_newest WHERE source_id = ? AND attempt = ? AND rank = ?", key
    ).fetchone()
    newest: dict[str, Any] = {} if row is None else json.loads(row[0])
    for name, value in values.items():
        if name in newest or len(newest) < MAX_NEWEST_NAMES:
            newest[name] = value
    connection.execute(
        "INSERT OR REPLACE INTO metric_newest (source_id, attempt, rank, data) VALUES (?, ?, ?, ?)",
        (*key, json.dumps(newest, allow_nan=False)),
    )
