"""Store a batch of lines together with its read position."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

import orjson

from gputui.metrics.batch import Batch, SourceState
from gputui.metrics.reduction import Reducer
from gputui.store.metrics.queries import NOT_METRICS

# A broken script may write a million broken lines. All are counted, but only the first are stored.
MAX_REJECTED = 1000
MAX_NEWEST_NAMES = 500

_ADVANCE = (
    "UPDATE metric_sources SET inode = ?, generation = ?, byte_offset = ?, skipping = ?, "
    "fingerprint = ?, first_generation = ?, line_count = line_count + ?, "
    "rejected_count = rejected_count + ? "
    "WHERE source_id = ? AND generation = ? AND byte_offset = ?"
)

# Stored with the lines, so that no reader scans all lines of an attempt and a killed agent loses
# nothing.
_NOTE_STEPS = (
    "UPDATE attempts SET first_step = coalesce(first_step, ?), "
    "last_step = max(coalesce(last_step, -1), ?), "
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
    """Store the batch that was read after ``before``, its steps, and complete stretches for charts,
    inside the caller's transaction. Returns False without a change if the source has another
    position: another process stored these lines, or the run is gone.

    Call `forget` of ``reducer``, which belongs to the source, if the transaction fails. Without a
    reducer, lines that are not reduced yet are read from the store.

    Raises sqlite3.Error; the caller must roll back.
    """
    after = batch.state
    counts = len(batch.rows), len(batch.rejected)
    key = source_id, before.generation, before.byte_offset
    position = after.inode, after.generation, after.byte_offset, after.skipping, after.fingerprint
    values = (*position, after.first_generation, *counts, *key)
    if connection.execute(_ADVANCE, values).rowcount != 1:
        return False
    reducer = reducer or Reducer(source_id)
    connection.executemany("INSERT OR IGNORE INTO metrics VALUES (?, ?, ?, ?, ?, ?, ?, ?)", batch.rows)
    if before.generation < after.generation and not after.byte_offset:
        _forget_rejected(connection, source_id, after.first_generation)
    if batch.replaced:
        _replace(connection, source_id, batch)
        reducer.restart(connection, batch.attempt)
    else:
        reducer.take(connection, batch.to_reduce)
    if batch.rejected:
        _store_rejected(connection, source_id, batch, now)
    if batch.steps.last is not None:
        steps = batch.steps.first, batch.steps.last
        connection.execute(_NOTE_STEPS, (*steps, now, source_id, batch.attempt))
    for rank, newest in batch.newest.items():
        _update_newest(connection, source_id, batch.attempt, -1 if rank is None else rank, newest)
    return True


def _replace(connection: sqlite3.Connection, source_id: int, batch: Batch) -> None:
    """Drop values that the batch's lines changed from the lines that had them before."""
    emptied = [(source_id, *place) for place, values in batch.replaced.items() if values.keys() <= NOT_METRICS]
    kept = [
        (orjson.dumps(values).decode(), source_id, *place)
        for place, values in batch.replaced.items()
        if not values.keys() <= NOT_METRICS
    ]
    where = "WHERE source_id = ? AND generation = ? AND byte_offset = ?"
    connection.executemany(f"DELETE FROM metrics {where}", emptied)  # noqa: S608
    connection.executemany(f"UPDATE metrics SET data = ? {where}", kept)  # noqa: S608
    connection.execute(
        "UPDATE metric_sources SET line_count = line_count - ? WHERE source_id = ?", (len(emptied), source_id)
    )


def _forget_rejected(connection: sqlite3.Connection, source_id: int, first: int) -> None:
    """Forget the rejected lines of a file that is read again from its start."""
    forgotten = connection.execute(
        "DELETE FROM rejected_lines WHERE source_id = ? AND generation >= ?", (source_id, first)
    )
    connection.execute(
        "UPDATE metric_sources SET rejected_count = rejected_count - ? WHERE source_id = ?",
        (forgotten.rowcount, source_id),
    )


def _store_rejected(connection: sqlite3.Connection, source_id: int, batch: Batch, now: float) -> None:
    (stored,) = connection.execute("SELECT count(*) FROM rejected_lines WHERE source_id = ?", (source_id,)).fetchone()
    connection.executemany(
        "INSERT OR IGNORE INTO rejected_lines (source_id, generation, byte_offset, attempt, at, "
        "reason, excerpt) VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(source_id, *line[:3], now, *line[3:]) for line in batch.rejected[: max(0, MAX_REJECTED - stored)]],
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
