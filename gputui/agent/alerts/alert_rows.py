"""Row and event of an alert that is raised or cleared. All functions work inside the caller's transaction."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping

from msgspec import Struct

from gputui.core import units
from gputui.recovery.alerts.engine import AlertChange
from gputui.recovery.alerts.resolved_rules import ResolvedRule
from gputui.recovery.alerts.rules import RULES
from gputui.recovery.alerts.sentences import sentence
from gputui.store import alerts
from gputui.store.alerts import AlertView
from gputui.store.events import add_event

Silences = Mapping[tuple[str, str, str], tuple[float, str]]
"""(rule, kind of subject, subject) → (end in UTC unix seconds, actor)."""


class AlertTransition(Struct, frozen=True):
    """A change of an alert, with its resolved rule, the name of its subject, its run if any, and the time (UTC unix
    seconds)."""

    change: AlertChange
    rule: ResolvedRule
    subject: str
    run_id: str | None
    at: float


def write_raised(connection: sqlite3.Connection, transition: AlertTransition, silences: Silences) -> AlertView:
    """Insert the alert's row, and its event unless it is silenced or reported by other means."""
    key, rule, reading = transition.change.key, transition.rule, transition.change.reading
    silenced = silences.get(key) or silences.get((key.rule, key.subject, alerts.ANY_SUBJECT))
    text = sentence(rule.rule, reading, transition.subject)
    alert_id = alerts.raise_alert(
        connection,
        {
            "rule": key.rule,
            "severity": rule.severity,
            "subject_kind": key.subject,
            "subject_id": key.subject_id,
            "subject_name": transition.subject,
            "run_id": transition.run_id,
            "raised_at": transition.at,
            "silenced_until": silenced[0] if silenced else None,
            "silenced_by": silenced[1] if silenced else None,
            "value": _finite(reading.value),
            "threshold": _finite(reading.limit),
            "unit": rule.rule.unit,
            "sentence": text,
            "remedy": rule.rule.remedy,
        },
    )
    if silenced is None and not rule.rule.is_reported:
        add_event(
            connection,
            "alert_raised",
            text,
            now=transition.at,
            key=key.rule,
            severity=rule.severity,
            subject="alert",
            run_id=transition.run_id,
        )
    view = alerts.one(connection, alert_id)
    assert view is not None
    return view


def write_cleared(connection: sqlite3.Connection, transition: AlertTransition, alert_id: int) -> AlertView | None:
    """Write the end of an alert; None if its row was deleted with its run."""
    alerts.clear_alert(connection, alert_id, now=transition.at, why=transition.change.why)
    view = alerts.one(connection, alert_id)
    if view is not None and not view.is_silenced(transition.at) and not transition.rule.rule.is_reported:
        lasted = units.duration(max(0.0, transition.at - view.raised_at))
        add_event(
            connection,
            "alert_cleared",
            f"{RULES[view.rule].title} ({view.subject_name}): resolved after {lasted}, {transition.change.why}",
            now=transition.at,
            key=view.rule,
            subject="alert",
            run_id=view.run_id,
        )
    return view


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
