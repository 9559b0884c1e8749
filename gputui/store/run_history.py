"""The append-only history of runs: incidents, decisions and state transitions, up to a time ``at``
(UTC unix seconds; None is now). All raise sqlite3.Error."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from msgspec import Struct

from gputui.store.rows import insert, records

Json = Any


def met_incident(connection: sqlite3.Connection, run_id: str, kind: str) -> bool:
    """Return whether a run ever had an incident of this kind."""
    row = connection.execute("SELECT 1 FROM incidents WHERE run_id = ? AND kind = ? LIMIT 1", (run_id, kind))
    return row.fetchone() is not None


class HistoryRow(Struct, frozen=True):
    """A row of a table to which rows are only appended; its first field is its id."""

    table: ClassVar[str]


Row = TypeVar("Row", bound=HistoryRow)


class IncidentView(HistoryRow, frozen=True):
    """An incident with its evidence.

    Attributes:
        at: The attempt's end, UTC unix seconds.
        rank: None if it is of no single rank.
        step: None if it is of no single step.
        evidence: What was read, with its sources.
        witnesses: The sources of the lines that agree.
    """

    table = "incidents"

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


class DecisionView(HistoryRow, frozen=True):
    """The decision about an incident.

    Attributes:
        rung: The step of the policy's ladder.
        verdict: ``retry`` or ``stop``.
        params: The changed parameters.
        resume_from: The checkpoint of the next attempt, None without one.
    """

    table = "decisions"

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


class TransitionView(HistoryRow, frozen=True):
    """One state transition of a run.

    Attributes:
        at: UTC unix seconds.
        from_state: None for a run that was just launched.
        cause: A sentence.
        actor: The person, or ``agent``.
    """

    table = "transitions"

    transition_id: int
    run_id: str
    at: float
    from_state: str | None
    to_state: str
    cause: str
    actor: str


class NewIncident(Struct, frozen=True):
    """An incident and its decision, to be stored, with the fields of `IncidentView` and `DecisionView`.

    Attributes:
        at: The attempt's end, UTC unix seconds.
        decided_at: When the decision was made, UTC unix seconds.
        fingerprint: What this failure has in common with its repetitions.
        changed: The changed parameters.
    """

    run_id: str
    attempt: int
    at: float
    kind: str
    rank: int | None
    step: int | None
    summary: str
    fingerprint: str
    evidence: Sequence[Json]
    witnesses: Sequence[Json]
    decided_at: float
    rung: int
    verdict: str
    actions: Sequence[Json]
    changed: Mapping[str, Json]
    resume_from: str | None
    delay_seconds: float
    reason: str


def put_incident(connection: sqlite3.Connection, new: NewIncident) -> None:
    """Insert an incident and its decision, in the caller's transaction."""
    incident_id = insert(
        connection,
        "incidents",
        run_id=new.run_id,
        attempt=new.attempt,
        at=new.at,
        kind=new.kind,
        rank=new.rank,
        step=new.step,
        summary=new.summary,
        fingerprint=new.fingerprint,
        evidence=json.dumps(new.evidence),
        witnesses=json.dumps(new.witnesses),
    )
    insert(
        connection,
        "decisions",
        run_id=new.run_id,
        attempt=new.attempt,
        incident_id=incident_id,
        at=new.decided_at,
        rung=new.rung,
        verdict=new.verdict,
        actions=json.dumps(new.actions),
        params=json.dumps(new.changed),
        resume_from=new.resume_from,
        delay_seconds=new.delay_seconds,
        reason=new.reason,
    )


def read_incidents(
    connection: sqlite3.Connection, run_id: str | None = None, at: float | None = None, *, limit: int | None = None,
    after_id: int = 0,
) -> list[IncidentView]:  # fmt: skip
    """Incidents with an id above ``after_id``, oldest first; of more than ``limit``, the newest."""
    return appended(connection, IncidentView, run_id, at=at, limit=limit, after_id=after_id)


def read_decisions(
    connection: sqlite3.Connection, run_id: str | None = None, at: float | None = None, *, limit: int | None = None,
    after_id: int = 0,
) -> list[DecisionView]:  # fmt: skip
    """Decisions, selected like `read_incidents`."""
    return appended(connection, DecisionView, run_id, at=at, limit=limit, after_id=after_id)


def read_transitions(
    connection: sqlite3.Connection, run_id: str | None = None, at: float | None = None, *, limit: int | None = None
) -> list[TransitionView]:
    """State transitions, selected like `read_incidents`."""
    return appended(connection, TransitionView, run_id, at, limit)


def transitions_after(connection: sqlite3.Connection, transition_id: int) -> list[TransitionView]:
    """The transitions of all runs that were stored after this one, in order."""
    query = "SELECT * FROM transitions WHERE transition_id > ? ORDER BY transition_id"
    return records(connection, TransitionView, query, transition_id)


def state_before_start(connection: sqlite3.Connection, start: TransitionView) -> str | None:
    """The state that a run had before it was queued and started by the transition ``start``."""
    row = connection.execute(
        "SELECT to_state FROM transitions WHERE run_id = ? AND transition_id < ? "
        "AND to_state NOT IN ('queued', 'starting') ORDER BY transition_id DESC LIMIT 1",
        (start.run_id, start.transition_id),
    ).fetchone()
    return None if row is None else str(row[0])


def appended(
    connection: sqlite3.Connection, kind: type[Row], run_id: str | None, at: float | None, limit: int | None,
    after_id: int = 0,
) -> list[Row]:  # fmt: skip
    """The rows of a kind, selected like `read_incidents`."""
    key = kind.__struct_fields__[0]
    conditions = [f"{key} > ?"]
    values: list[object] = [after_id]
    for condition, value in (("run_id = ?", run_id), ("at <= ?", at)):
        if value is not None:
            conditions.append(condition)
            values.append(value)
    order = key
    if at is not None:
        order = f"at DESC, {key}"
    most = -1
    if limit is not None:
        most = limit
    newest_first = records(
        connection,
        kind,
        f"SELECT * FROM {kind.table} WHERE {' AND '.join(conditions)} "  # noqa: S608 - names only
        f"ORDER BY {order} DESC LIMIT ?",
        *values,
        most,
    )
    return newest_first[::-1]
