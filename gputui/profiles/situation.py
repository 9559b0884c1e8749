"""The state of the machine's GPUs for the launch checks, from the database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from gputui.profiles.gpu_checks import GpuSituation
from gputui.recovery.watch.rules import titles_by_subject
from gputui.runs.gpu_conditions import condition_of
from gputui.runs.scheduler import WaitingRuns, read_waiting_runs
from gputui.store import alerts
from gputui.store.agent import AgentView, read_agent
from gputui.store.alerts import AlertView
from gputui.store.hardware import GpuView, Quarantined, quarantined, read_gpus


def situation_of(
    agent: AgentView | None,
    gpus: Sequence[GpuView],
    failed: Mapping[str, Quarantined],
    lasting: Iterable[AlertView],
    waiting: WaitingRuns,
) -> GpuSituation | None:
    """The state of the GPUs; None if no agent has read it yet.

    Args:
        failed: Those in quarantine, by UUID.
        lasting: The active alerts.
        waiting: The runs in the queue.
    """
    if agent is None or (agent.source is None and agent.gpu_problem is None):
        return None
    titles = titles_by_subject(lasting)
    quarantines = {uuid: quarantine.words for uuid, quarantine in failed.items()}
    conditions = [condition_of(gpu, quarantines.get(gpu.uuid), titles.get(gpu.uuid)) for gpu in gpus]
    situation = GpuSituation(conditions, waiting)
    if waiting.runs:
        return replace(situation, promised=situation.promises())
    return situation


def read_situation(connection: sqlite3.Connection, now: float) -> GpuSituation | None:
    """The state of the GPUs as the agent last saw them (UTC unix seconds); None if no agent has read it yet.
    Raises sqlite3.Error."""
    return situation_of(
        read_agent(connection),
        read_gpus(connection, now),
        quarantined(connection),
        alerts.lasting(connection),
        read_waiting_runs(connection, now),
    )
