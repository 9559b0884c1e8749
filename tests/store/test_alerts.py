"""Alerts as rows: what lasts, what lasted then, silences, and what goes with a run that is removed."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from gputui.core.config import Workspace
from gputui.store import alerts
from tests.homes import open_store

BASE: dict[str, Any] = {
    "rule": "gpu_hot", "severity": "warning", "subject_kind": "gpu", "subject_id": "GPU-a", "subject_name": "GPU 0",
    "run_id": None, "raised_at": 100.0, "unit": "°C", "value": 88.0, "threshold": 85.0, "sentence": "GPU 0 is hot",
    "remedy": "cool it",
}  # fmt: skip


@pytest.fixture
def store(workspace: Workspace) -> sqlite3.Connection:
    return open_store(workspace.database)


def test_what_lasts_is_there_once(store: sqlite3.Connection) -> None:
    alerts.raise_alert(store, BASE)
    with pytest.raises(sqlite3.IntegrityError):
        alerts.raise_alert(store, {**BASE, "raised_at": 101.0})
    alerts.raise_alert(store, {**BASE, "subject_id": "GPU-b", "severity": "error"})
    assert [alert.severity for alert in alerts.lasting(store)] == ["error", "warning"]


def test_what_lasted_at_a_moment(store: sqlite3.Connection) -> None:
    number = alerts.raise_alert(store, BASE)
    alerts.clear_alert(store, number, now=200.0, why="it is well again")
    assert alerts.lasting(store) == []
    assert [len(alerts.lasting(store, at)) for at in (99.0, 100.0, 150.0, 200.0, 201.0)] == [0, 1, 1, 1, 0]
    assert [len(alerts.cleared(store, 10, at)) for at in (150.0, 200.0)] == [0, 1]


def test_acknowledging_keeps_who_was_first(store: sqlite3.Connection) -> None:
    number = alerts.raise_alert(store, BASE)
    alerts.acknowledge(store, number, now=110.0, actor="me")
    alerts.acknowledge(store, number, now=120.0, actor="you")
    alert = alerts.one(store, number)
    assert alert is not None
    assert (alert.acknowledged_by, alert.acknowledged_at) == ("me", 110.0)
    assert not alert.is_news(130.0)


def test_silences(store: sqlite3.Connection) -> None:
    alerts.raise_alert(store, BASE)
    alerts.raise_alert(store, {**BASE, "subject_id": "GPU-b"})
    assert alerts.silence(store, "gpu_hot", "gpu", "GPU-a", ends_at=200.0, actor="me") == 1
    assert [alert.is_silenced(150.0) for alert in alerts.lasting(store)] == [False, True]
    assert alerts.silence(store, "gpu_hot", "gpu", alerts.ANY_SUBJECT, ends_at=300.0, actor="me") == 2
    assert set(alerts.silences(store, 150.0)) == {("gpu_hot", "gpu", "GPU-a"), ("gpu_hot", "gpu", "*")}
    assert set(alerts.silences(store, 250.0)) == {("gpu_hot", "gpu", "*")}
    alerts.forget_old_silences(store, 301.0)
    assert store.execute("SELECT count(*) FROM alert_silences").fetchone()[0] == 0


def test_a_run_that_is_removed_takes_its_alerts_along(store: sqlite3.Connection) -> None:
    run_alert = {
        "subject_kind": "run",
        "subject_id": "r-1",
        "subject_name": "r-1",
        "run_id": "r-1",
        "rule": "slow_steps",
    }
    alerts.raise_alert(store, {**BASE, **run_alert})
    number = alerts.raise_alert(store, {**BASE, "run_id": "r-1"})
    alerts.forget_run(store, "r-1")
    assert [(alert.alert_id, alert.run_id) for alert in alerts.lasting(store)] == [(number, None)]
