"""The sources whose steps are those of an attempt: where several count differently, the ones with its loss.

A script may print the samples of an epoch and write its optimizer's steps to TensorBoard, and there the epochs with the
accuracy. Each metric keeps the steps of its lines; what is told of the attempt as a whole, such as what a failure cost,
has one measure.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection

import orjson

from gputui.metrics.batch import Batch
from gputui.store.metrics.roles import metric_roles
from gputui.store.metrics.step_lines import KINDS_OF_MIXED_LINES
from gputui.store.metrics.stored_lines import NOT_METRICS

# Names that only a source with the attempt's steps keeps in its newest values.
_OF_STEPS = ("step", "total_steps")

_WIDEN = """
UPDATE attempts SET
    first_step = min(coalesce(first_step, :first), iif(:is_again, :first, coalesce(first_step, :first))),
    last_step = max(coalesce(last_step, -1), :last),
    first_step_at = coalesce(first_step_at, CASE
        WHEN ended_at NOTNULL THEN NULL WHEN :written_at BETWEEN started_at AND :now THEN :written_at ELSE :now END)
WHERE run_id = :run_id AND number = :attempt
"""
_REPLACE = f"""
UPDATE attempts SET (first_step, last_step) = (
    SELECT min(step), max(step) FROM metrics
    WHERE source_id IN (SELECT value FROM json_each(:sources)) AND attempt = :attempt
    AND step IS NOT NULL AND data ->> '$.event' IS NULL
    AND (:path IS NULL OR data ->> :path IS NOT NULL OR source_id NOT IN (
        SELECT source_id FROM metric_sources WHERE format IN {KINDS_OF_MIXED_LINES})))
WHERE run_id = :run_id AND number = :attempt
"""  # noqa: S608
# Their newest line may be of a test, at a step of its own.
_NEWEST_OF_LOSS = """
UPDATE metric_newest SET data = json_set(data, '$.step', a.last_step) FROM attempts AS a
WHERE source_id = :source_id AND attempt = :attempt AND rank <= 0
AND a.run_id = :run_id AND a.number = :attempt AND a.last_step NOTNULL
"""


def store_steps(connection: sqlite3.Connection, batch: Batch, now: float) -> None:
    """Store the first and last step of a stored batch's attempt, so that no reader scans all its lines.

    Works inside the transaction that stores the batch, once it is known whose its names are. ``now`` is UTC unix
    seconds. Raises sqlite3.Error.
    """
    source_id = batch.source.source_id
    is_corrected = batch.comparison is not None and batch.comparison.take_end()
    if is_corrected:
        _forget_gone_names(connection, source_id, batch.attempt)
    if batch.first_step is None and not is_corrected:
        return
    run_id, kind = connection.execute(
        "SELECT run_id, format FROM metric_sources WHERE source_id = ?", (source_id,)
    ).fetchone()
    newest = _newest_names(connection, run_id, batch.attempt)
    loss = metric_roles(connection, run_id).loss
    with_loss = {number for number, names in newest.items() if loss in names}
    if with_loss and source_id not in with_loss:
        forget_newest(connection, source_id, batch.attempt, _OF_STEPS)
        return
    attempt: dict[str, object] = {"run_id": run_id, "attempt": batch.attempt}
    is_mixed = bool(with_loss) and kind in KINDS_OF_MIXED_LINES
    if is_mixed and loss is not None:
        steps = _steps_with_loss(batch, loss)
    else:
        steps = _all_steps(batch)
    if steps is not None:
        _widen(connection, attempt, batch, steps, now)
    outdated: list[int] = []
    if with_loss:
        outdated = [number for number in newest.keys() - with_loss if "step" in newest[number]]
    for number in outdated:
        forget_newest(connection, number, batch.attempt, _OF_STEPS)
    is_first_loss = is_mixed and loss in batch.new_names
    may_shrink = bool(outdated) or is_corrected or is_first_loss
    if may_shrink:
        path = f'$."{loss}"' if with_loss else None
        sources = orjson.dumps([*(with_loss or newest)]).decode()
        connection.execute(_REPLACE, attempt | {"sources": sources, "path": path})
    if is_mixed:
        connection.execute(_NEWEST_OF_LOSS, attempt | {"source_id": source_id})


def _all_steps(batch: Batch) -> tuple[int, int] | None:
    """The first and the last step of a batch, None without any."""
    if batch.first_step is None or batch.last_step is None:
        return None
    return batch.first_step, batch.last_step


def _steps_with_loss(batch: Batch, loss: str) -> tuple[int, int] | None:
    """The first and the last step of a batch's lines with a loss, None without any."""
    lines = ((row.step, row.data) for row in batch.rows if row.rank in (None, 0))
    steps = [step for step, data in lines if step is not None and loss in orjson.loads(data)]
    if not steps:
        return None
    return steps[0], max(steps)


def _widen(
    connection: sqlite3.Connection, attempt: dict[str, object], batch: Batch, steps: tuple[int, int], now: float
) -> None:
    """Widen the steps of an attempt by those of a batch."""
    first, last = steps
    is_again = batch.state.first_generation < batch.state.generation
    # A line may be read late, after an absence of the agent, and its own clock may be wrong.
    written_at = min((row.at for row in batch.rows if row.step is not None and row.at is not None), default=now)
    values = {"first": first, "last": last, "is_again": is_again, "now": now, "written_at": written_at}
    connection.execute(_WIDEN, attempt | values)


def _forget_gone_names(connection: sqlite3.Connection, source_id: int, attempt: int) -> None:
    """Take the names that no line has any more from the newest values of a source."""
    newest = connection.execute(
        "SELECT data FROM metric_newest WHERE source_id = ? AND attempt = ?", (source_id, attempt)
    )
    names: set[str] = set()
    for (data,) in newest.fetchall():
        names.update(orjson.loads(data))
    gone = [
        name for name in names - NOT_METRICS if '"' not in name and not _has_lines(connection, source_id, attempt, name)
    ]
    forget_newest(connection, source_id, attempt, gone)


def _has_lines(connection: sqlite3.Connection, source_id: int, attempt: int, name: str) -> bool:
    line = connection.execute(
        "SELECT 1 FROM metrics WHERE source_id = ? AND attempt = ? AND data ->> ? NOTNULL LIMIT 1",
        (source_id, attempt, f'$."{name}"'),
    ).fetchone()
    return line is not None


def _newest_names(connection: sqlite3.Connection, run_id: str, attempt: int) -> dict[int, set[str]]:
    """The names of the newest values of each source of an attempt."""
    rows = connection.execute(
        "SELECT source_id, n.data FROM metric_newest AS n JOIN metric_sources AS s USING (source_id) "
        "WHERE s.run_id = ? AND n.attempt = ?",
        (run_id, attempt),
    )
    names: dict[int, set[str]] = {}
    for source_id, data in rows.fetchall():
        names.setdefault(source_id, set()).update(orjson.loads(data))
    return names


def forget_newest(connection: sqlite3.Connection, source_id: int, attempt: int, names: Collection[str]) -> None:
    """Take some names from the newest values of a source. Raises sqlite3.Error."""
    rows = connection.execute(
        "SELECT rank, data FROM metric_newest WHERE source_id = ? AND attempt = ?", (source_id, attempt)
    )
    for rank, data in rows.fetchall():
        values = {name: value for name, value in orjson.loads(data).items() if name not in names}
        connection.execute(
            "UPDATE metric_newest SET data = ? WHERE source_id = ? AND attempt = ? AND rank = ?",
            (orjson.dumps(values).decode(), source_id, attempt, rank),
        )
