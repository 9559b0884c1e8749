"""What only grows with a run: its incidents, decisions and moves from state to state.

Every reader takes ``at``, UTC unix seconds: what came later is left out; None is now. Every function raises
sqlite3.Error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gputui.store import json_columns

if TYPE_CHECKING:
    import sqlite3

Json = Any


def met_incident(connection: sqlite3.Connection, run_id: str, kind: str) -> bool:
    """Whether a run ever met an incident of a kind."""
    row = connection.execute("SELECT 1 FROM incidents WHERE run_id = ? AND kind = ? LIMIT 1", (run_id, kind))
    return row.fetchone() is not None


@dataclass(frozen=True, slots=True)
class IncidentView:
    """Why an attempt ended, with its evidence. ``witnesses``, of which there may be fewer, say whose each line of it
    is (`recovery.classify.Witness`)."""

    incident_id: int
    run_id: str
    attempt: int
    at: float
    kind: str
    rank: int | None
    step: int | None
    summary: str
    evidence: tuple[Json, ...]
    witnesses: tuple[Json, ...] = ()


@dataclass(frozen=True, slots=True)
class DecisionView:
    """What recovery decided about an incident. ``params`` are the parameters that it changed."""

    decision_id: int
    incident_id: int
    run_id: str
    attempt: int
    at: float
    rung: int
    verdict: str
    actions: tuple[Json, ...]
    params: Mapping[str, Json]
    resume_from: str | None
    delay_seconds: float
    reason: str
    outcome: str | None


@dataclass(frozen=True, slots=True)
class TransitionView:
    """One move of a run from state to state."""

    transition_id: int
    run_id: str
    at: float
    from_state: str | None
    to_state: str
    cause: str
    actor: str


def read_incidents(
    connection: sqlite3.Connection,
    run_id: str | None = None,
    at: float | None = None,
    *,
    limit: int | None = None,
    after_id: int = 0,
) -> list[IncidentView]:
    """Incidents with an id above ``after_id``, oldest first; ``limit`` keeps the newest so many."""
    columns = "incident_id, run_id, attempt, at, kind, rank, step, summary, evidence, witnesses"
    rows = newest_rows(connection, "incidents", "incident_id", columns, run_id, at, limit, after_id)
    return [IncidentView(*row[:8], *(tuple(json_columns.items(text)) for text in row[8:10])) for row in rows]


def read_decisions(
    connection: sqlite3.Connection,
    run_id: str | None = None,
    at: float | None = None,
    *,
    limit: int | None = None,
    after_id: int = 0,
) -> list[DecisionView]:
    """What recovery decided, in the same manner."""
    columns = (
        "decision_id, incident_id, run_id, attempt, at, rung, verdict, actions, params, resume_from, "
        "delay_seconds, reason, outcome"
    )
    rows = newest_rows(connection, "decisions", "decision_id", columns, run_id, at, limit, after_id)
    return [
        DecisionView(*[*row[:7], tuple(json_columns.items(row[7])), json_columns.mapping(row[8]), *row[9:]])
        for row in rows
    ]


def read_transitions(
    connection: sqlite3.Connection,
    run_id: str | None = None,
    at: float | None = None,
    *,
    limit: int | None = None,
    after_id: int = 0,
) -> list[TransitionView]:
    """Moves of runs from state to state, in the same manner."""
    columns = "transition_id, run_id, at, from_state, to_state, cause, actor"
    rows = newest_rows(connection, "transitions", "transition_id", columns, run_id, at, limit, after_id)
    return [TransitionView(*row) for row in rows]


def newest_rows(
    connection: sqlite3.Connection,
    table: str,
    key: str,
    columns: str,
    run_id: str | None,
    at: float | None,
    limit: int | None,
    after_id: int,
) -> list[Any]:
    """Rows of a table that only grows, oldest first, in the manner of `read_incidents`. Names are the program's own."""
    where, arguments = f"{key} > ?", [after_id]
    for condition, value in (("run_id = ?", run_id), ("at <= ?", at)):
        if value is not None:
            where += f" AND {condition}"
            arguments.append(value)  # type: ignore[arg-type]
    order = key if at is None else f"at DESC, {key}"
    rows = connection.execute(
        f"SELECT {columns} FROM {table} WHERE {where} ORDER BY {order} DESC LIMIT ?",  # noqa: S608
        (*arguments, -1 if limit is None else limit),
    ).fetchall()
    rows.reverse()
    return rows
