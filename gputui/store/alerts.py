"""Alerts, acknowledgements and silences as rows, written by the agent in the caller's
transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gputui.store.events import Severity
from gputui.store.rows import insert, records

ANY_SUBJECT = "*"
"""A silence of a rule for every subject."""

_SEVEREST_FIRST = "CASE severity WHEN 'error' THEN 0 WHEN 'warning' THEN 1 ELSE 2 END"


class AlertView(Struct, frozen=True):
    """One alert. Times are UTC unix seconds.

    Attributes:
        rule: The name of the rule that raised it.
        subject_kind: The kind of what it is about: ``run``, ``gpu`` or ``host``.
        subject_id: The id of the run, the UUID of the GPU.
        subject_name: The subject for people.
        run_id: The run that it concerns, None if there is none.
        cleared_at: None while it lasts.
        cleared_because: None while it lasts.
        acknowledged_at: None until a person acknowledges it.
        silenced_until: None unless a person has silenced it.
        value: The measured value in ``unit``; None if there is none or it is not finite.
        threshold: The limit of ``value`` in ``unit``, None if the rule has none.
        sentence: What is wrong.
        remedy: What helps.
    """

    alert_id: int
    rule: str
    severity: Severity
    subject_kind: str
    subject_id: str
    subject_name: str
    run_id: str | None
    raised_at: float
    cleared_at: float | None
    cleared_because: str | None
    acknowledged_at: float | None
    acknowledged_by: str | None
    silenced_until: float | None
    silenced_by: str | None
    value: float | None
    threshold: float | None
    unit: str
    sentence: str
    remedy: str

    @property
    def lasts(self) -> bool:
        return self.cleared_at is None

    def is_silenced(self, now: float) -> bool:
        return self.silenced_until is not None and self.silenced_until > now

    def is_news(self, now: float) -> bool:
        """Return whether it needs attention: it is active, neither acknowledged nor silenced."""
        return self.lasts and self.acknowledged_at is None and not self.is_silenced(now)


def _read(connection: sqlite3.Connection, condition: str, *values: object) -> list[AlertView]:
    return records(connection, AlertView, f"SELECT * FROM alerts WHERE {condition}", *values)  # noqa: S608 - fixed texts


def lasting(connection: sqlite3.Connection, at: float | None = None) -> list[AlertView]:
    """The alerts that are active now, or as they were then: the severest first, then the newest."""
    order = f"ORDER BY {_SEVEREST_FIRST}, raised_at DESC, alert_id DESC"
    if at is None:
        return _read(connection, f"cleared_at IS NULL {order}")
    then = _read(connection, f"raised_at <= ?1 AND coalesce(cleared_at, ?1) >= ?1 {order}", at)
    return [_as_at(alert, at) for alert in then]


def _as_at(alert: AlertView, at: float) -> AlertView:
    """An alert as it was at a moment while it was active."""
    active = replace(alert, cleared_at=None, cleared_because=None)
    if alert.acknowledged_at is not None and alert.acknowledged_at > at:
        return replace(active, acknowledged_at=None, acknowledged_by=None)
    return active


def cleared(connection: sqlite3.Connection, limit: int, before: float | None = None) -> list[AlertView]:
    """The newest alerts that were cleared (until ``before``, if given), those raised last first."""
    where = "cleared_at NOTNULL AND (?1 IS NULL OR cleared_at <= ?1) ORDER BY raised_at DESC, alert_id DESC LIMIT ?2"
    return _read(connection, where, before, limit)


def of_run(connection: sqlite3.Connection, run_id: str) -> list[AlertView]:
    """All alerts about a run, oldest first."""
    return _read(connection, "run_id = ? ORDER BY raised_at, alert_id", run_id)


def raised_after(connection: sqlite3.Connection, alert_id: int) -> list[AlertView]:
    """The alerts that were raised after one, oldest first."""
    return _read(connection, "alert_id > ? ORDER BY alert_id", alert_id)


def one(connection: sqlite3.Connection, alert_id: int) -> AlertView | None:
    """The alert with this id, or None."""
    return next(iter(_read(connection, "alert_id = ?", alert_id)), None)


def silences(connection: sqlite3.Connection, now: float) -> dict[tuple[str, str, str], tuple[float, str]]:
    """Active silences: (rule, kind of subject, subject) → (end, actor)."""
    rows = connection.execute(
        "SELECT rule, subject_kind, subject_id, until, actor FROM alert_silences WHERE until > ?", (now,)
    )
    return {(rule, kind, subject): (end, actor) for rule, kind, subject, end, actor in rows}


# --- writes, by the agent alone


def raise_alert(connection: sqlite3.Connection, values: Mapping[str, Any]) -> int:
    """Insert an alert from columns, silenced if its rule is; return its id."""
    alert_id = insert(connection, "alerts", **values)
    connection.execute(
        "UPDATE alerts SET (silenced_until, silenced_by) = (SELECT until, actor FROM alert_silences AS s "
        "WHERE s.rule = alerts.rule AND s.subject_kind = alerts.subject_kind AND s.until > alerts.raised_at "
        "AND s.subject_id IN (alerts.subject_id, '*') ORDER BY s.subject_id = '*' LIMIT 1) WHERE alert_id = ?",
        (alert_id,),
    )
    return alert_id


def clear_alert(connection: sqlite3.Connection, alert_id: int, *, now: float, why: str) -> None:
    connection.execute(
        "UPDATE alerts SET cleared_at = max(?, raised_at), cleared_because = ? WHERE alert_id = ?", (now, why, alert_id)
    )


def acknowledge(connection: sqlite3.Connection, alert_id: int, *, now: float, actor: str) -> None:
    connection.execute(
        "UPDATE alerts SET acknowledged_at = ?, acknowledged_by = ? WHERE alert_id = ? AND acknowledged_at IS NULL",
        (now, actor, alert_id),
    )


def silence(
    connection: sqlite3.Connection, rule: str, subject_kind: str, subject_id: str, *, ends_at: float, actor: str
) -> int:
    """Silence a rule for a subject, or for ANY_SUBJECT, until a time.

    Args:
        ends_at: UTC unix seconds; a time in the past ends a silence.

    Returns:
        The number of active alerts that it concerns.
    """
    subject = {"subject_kind": subject_kind, "subject_id": subject_id}
    insert(connection, "alert_silences", "REPLACE", rule=rule, until=ends_at, actor=actor, **subject)
    cursor = connection.execute(
        "UPDATE alerts SET silenced_until = ?, silenced_by = ? WHERE cleared_at IS NULL AND rule = ? "
        "AND subject_kind = ? AND (? = '*' OR subject_id = ?)",
        (ends_at, actor, rule, subject_kind, subject_id, subject_id),
    )
    return cursor.rowcount


def forget_run(connection: sqlite3.Connection, run_id: str) -> None:
    """Delete a removed run's alerts, and its references in alerts of GPUs."""
    connection.execute("DELETE FROM alerts WHERE subject_kind = 'run' AND subject_id = ?", (run_id,))
    connection.execute("UPDATE alerts SET run_id = NULL WHERE run_id = ?", (run_id,))


def forget_old_silences(connection: sqlite3.Connection, now: float) -> None:
    connection.execute("DELETE FROM alert_silences WHERE until <= ?", (now,))
