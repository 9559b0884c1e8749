"""The append-only history of runs: incidents, decisions and state transitions.

Every reader takes ``at``, UTC unix seconds, and leaves out later rows; None is now. Every function raises
sqlite3.Error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from gputui.store import json_columns

if TYPE_CHECKING:
    import sqlite3

Json = Any


def met_incident(connection: sqlite3.Connection, run_id: str, kind: str) -> bool:
    """Whether a run ever had an incident of this kind."""
    row = connection.execute("SELECT 1 FROM incidents WHERE run_id = ? AND kind = ? LIMIT 1", (run_id, kind))
    return row.fetchone() is not None


class IncidentView(Struct, frozen=True):
    """Why an attempt ended, with its evidence. ``witnesses`` are the sources of the evidence's lines
    (`recovery.classify.Witness`); older rows have fewer."""

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


class DecisionView(Struct, frozen=True):
    """The decision about an incident. ``params`` are the changed parameters."""

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


class TransitionView(Struct, frozen=True):
    """One state transition of a run."""

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
    """Incidents with an id above ``after_id``, oldest first; of more than ``limit``, the newest."""
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
    """Decisions, selected like `read_incidents`."""
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
    """State transitions, selected like `read_incidents`."""
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
    """Rows of an append-only table, oldest first, selected like `read_incidents`. Names must be constants."""
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
