"""From the store to what the screen shows of alerts."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

from gputui.store import alerts
from gputui.store.alerts import AlertView
from gputui.tui.data.snapshot import AlertsState

OVER_KEPT = 200


def read_alerts(connection: sqlite3.Connection, with_history: bool, at: float | None = None) -> AlertsState:
    """The alerts now, or as they stood at a past moment. Raises sqlite3.Error."""
    last = alerts.lasting(connection, at)
    over = alerts.cleared(connection, OVER_KEPT, at) if with_history else []
    if at is None:
        return AlertsState(tuple(last), tuple(over))
    return AlertsState(tuple(_as_at(one, at) for one in last), tuple(over))


def _as_at(alert: AlertView, at: float) -> AlertView:
    """An alert as it stood at a moment in which it lasted."""
    seen = alert.acknowledged_at is not None and alert.acknowledged_at <= at
    return replace(
        alert,
        cleared_at=None,
        cleared_because=None,
        acknowledged_at=alert.acknowledged_at if seen else None,
        acknowledged_by=alert.acknowledged_by if seen else None,
    )
