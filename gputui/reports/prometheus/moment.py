"""The content of a scrape: a consistent snapshot of the store."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from gputui.store import alerts
from gputui.store.agent import AgentView, read_agent
from gputui.store.alerts import AlertView
from gputui.store.hardware import GpuView, quarantined, read_gpus, read_host
from gputui.store.metrics import queries
from gputui.store.metrics.queries import RankLine
from gputui.store.runs import Run, read_runs
from gputui.store.series import HostSample

HOST_FRESH_SECONDS = 30.0
"""An older sample of the host is outdated."""


class ScrapeMoment(Struct, frozen=True):
    """Everything that is exposed. ``ranks`` and ``incidents`` are by run; ``xids`` count by (GPU UUID, XID)."""

    at: float
    agent: AgentView | None = None
    gpus: tuple[GpuView, ...] = ()
    host: HostSample | None = None
    runs: tuple[Run, ...] = ()
    ranks: Mapping[str, tuple[RankLine, ...]] = msgspec.field(default_factory=dict)
    incidents: Mapping[tuple[str, str], int] = msgspec.field(default_factory=dict)
    xids: Mapping[tuple[str, int], int] = msgspec.field(default_factory=dict)
    quarantined: frozenset[str] = frozenset()
    alerts: tuple[AlertView, ...] = ()
    run_counts: Mapping[str, int] = msgspec.field(default_factory=dict)


def read_moment(connection: sqlite3.Connection, now: float) -> ScrapeMoment:
    """Read a snapshot in one transaction. Runs that are over are only counted by state, so that the number of series is
    bounded. Raises sqlite3.Error."""
    connection.execute("BEGIN")
    try:
        runs = tuple(read_runs(connection, active_only=True))
        incidents = connection.execute(
            "SELECT i.run_id, i.kind, count(*) FROM incidents AS i JOIN runs AS r USING (run_id) "
            "WHERE r.state NOT IN ('succeeded', 'failed', 'stopped') GROUP BY i.run_id, i.kind"
        ).fetchall()
        xids = connection.execute(
            "SELECT uuid, code, count(*) FROM gpu_events WHERE event = 'xid' AND code IS NOT NULL GROUP BY uuid, code"
        ).fetchall()
        host = read_host(connection)
        return ScrapeMoment(
            at=now,
            agent=read_agent(connection),
            gpus=tuple(read_gpus(connection, now)),
            host=host if host is not None and now - host.at <= HOST_FRESH_SECONDS else None,
            runs=runs,
            ranks={run.run_id: tuple(queries.ranks(connection, run.run_id, run.attempt)) for run in runs},
            incidents={(run_id, kind): number for run_id, kind, number in incidents},
            xids={(uuid, code): number for uuid, code, number in xids},
            quarantined=frozenset(quarantined(connection)),
            alerts=tuple(alerts.lasting(connection)),
            run_counts=dict(connection.execute("SELECT state, count(*) FROM runs GROUP BY state").fetchall()),
        )
    finally:
        connection.execute("ROLLBACK")
