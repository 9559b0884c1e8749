"""The sources whose steps are those of an attempt: where several count differently, the ones with its loss.

A script may print the samples of an epoch and write its optimizer's steps to TensorBoard, and there the epochs with the
accuracy. Each metric keeps the steps of its lines; what is told of the attempt as a whole, such as what a failure cost,
has one measure.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable
from typing import NamedTuple

import orjson

from gputui.store.metrics.roles import metric_roles
from gputui.store.metrics.step_times import KINDS_OF_MIXED_LINES

# In the newest values of a source: those that only a source with the attempt's steps has.
_OF_STEPS = ("step", "total_steps")

_NOTE = """
UPDATE attempts SET
    first_step = min(coalesce(first_step, :first), iif(:is_again, :first, coalesce(first_step, :first))),
    last_step = max(coalesce(last_step, -1), :last),
    first_step_at = coalesce(first_step_at, CASE WHEN ended_at IS NULL THEN :now END)
WHERE run_id = :run_id AND number = :attempt
"""
_REPLACE = """
UPDATE attempts SET (first_step, last_step) = (
    SELECT min(step), max(step) FROM metrics
    WHERE source_id IN (SELECT value FROM json_each(:sources)) AND attempt = :attempt
    AND step IS NOT NULL AND data ->> '$.event' IS NULL
    AND (:path IS NULL OR data ->> :path IS NOT NULL OR source_id NOT IN (
        SELECT source_id FROM metric_sources WHERE format IN ('tensorboard', 'output'))))
WHERE run_id = :run_id AND number = :attempt
"""


class NewSteps(NamedTuple):
    """The first and last step of lines that a source has just stored of an attempt, at a time (UTC unix seconds); None
    without such a line. ``is_again``: they may be older than what was stored; ``is_corrected``: stored ones changed.
    ``new_names`` are those that the source had not before."""

    source_id: int
    attempt: int
    first: int | None
    last: int | None
    now: float
    is_again: bool = False
    is_corrected: bool = False
    new_names: Collection[str] = ()


def note_steps(connection: sqlite3.Connection, new: NewSteps, lines: Iterable[tuple[int | None, str]]) -> None:
    """Store an attempt's first and last step, with the lines, so that no reader scans all lines of an attempt.
    ``lines`` are the new ones, each with its step and text. Works inside the caller's transaction, after the newest
    values and the roles were stored. Raises sqlite3.Error."""
    run_id, kind = connection.execute(
        "SELECT run_id, format FROM metric_sources WHERE source_id = ?", (new.source_id,)
    ).fetchone()
    newest = _newest_names(connection, run_id, new.attempt)
    loss = metric_roles(connection, run_id).loss
    with_loss = {source_id for source_id, names in newest.items() if loss in names}
    if with_loss and new.source_id not in with_loss:
        forget_newest(connection, new.source_id, new.attempt, _OF_STEPS)
        return
    if with_loss and kind in KINDS_OF_MIXED_LINES:
        steps = [step for step, data in lines if step is not None and loss in orjson.loads(data)]
        new = new._replace(first=next(iter(steps), None), last=max(steps, default=None))
    if new.first is not None:
        first_and_last = {"first": new.first, "last": new.last, "is_again": new.is_again, "now": new.now}
        connection.execute(_NOTE, first_and_last | {"run_id": run_id, "attempt": new.attempt})
    strangers = [source_id for source_id in newest.keys() - with_loss if "step" in newest[source_id]]
    if with_loss:
        for source_id in strangers:
            forget_newest(connection, source_id, new.attempt, _OF_STEPS)
    is_first_loss = kind in KINDS_OF_MIXED_LINES and loss in new.new_names
    if (with_loss and (strangers or is_first_loss)) or new.is_corrected:
        place = {"attempt": new.attempt, "run_id": run_id, "path": f'$."{loss}"' if with_loss else None}
        sources = orjson.dumps([*(with_loss or newest)]).decode()
        connection.execute(_REPLACE, {"sources": sources} | place)


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
