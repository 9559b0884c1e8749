"""The state of the machine's GPUs for the launch checks, from the database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from gputui.core.text import clean
from gputui.machine.gpu_model import GpuFacts, unseen_use
from gputui.profiles.gpu_checks import GpuSituation
from gputui.recovery.watch.rules import RULES
from gputui.runs.waiting_runs import WaitingRuns, read_waiting_runs
from gputui.store import alerts
from gputui.store.agent import AgentView, read_agent
from gputui.store.alerts import AlertView
from gputui.store.hardware import GpuView, Quarantined, quarantined, read_gpus
from gputui.store.series import GpuSample, GpuSlowSample


def situation_of(
    agent: AgentView | None,
    gpus: Sequence[GpuView],
    failed: Mapping[str, Quarantined],
    lasting: Iterable[AlertView],
    waiting: WaitingRuns,
) -> GpuSituation | None:
    """The state of the GPUs; None if no agent has read it yet. ``failed`` are those in quarantine,
    ``lasting`` the active alerts."""
    if agent is None or (agent.source is None and agent.gpu_problem is None):
        return None
    facts, samples, slow, in_use = [], {}, {}, {}
    for gpu in gpus:
        facts.append(msgspec.convert({**gpu.facts, "uuid": gpu.uuid, "index": gpu.index, "name": gpu.name}, GpuFacts))
        samples[gpu.uuid] = GpuSample(
            gpu.uuid,
            state="lost" if gpu.state == "lost" else "error" if gpu.state == "error" else "ok",
            memory_used_bytes=gpu.memory_used_bytes,
            memory_total_bytes=gpu.memory_total_bytes,
        )
        slow[gpu.uuid] = msgspec.convert({**gpu.slow, "uuid": gpu.uuid}, GpuSlowSample)
        holder = holder_of(gpu)
        use = unseen_use(gpu.own_used_bytes, gpu.utilization_percent) if holder is None else f"is used by {holder}"
        if use is not None:
            in_use[gpu.uuid] = use
    reasons = {uuid: clean(out.reason) for uuid, out in failed.items()}
    titles = {alert.subject_id: RULES[alert.rule].title for alert in lasting if alert.rule in RULES}
    leases = {gpu.uuid: gpu.run_ids for gpu in gpus}
    situation = GpuSituation(facts, samples, slow, in_use, reasons, titles, leases, waiting)
    return replace(situation, promised=situation.promises()) if waiting.runs else situation


def read_situation(connection: sqlite3.Connection, now: float) -> GpuSituation | None:
    """The state of the GPUs as the agent last saw them (UTC unix seconds); None if no agent has read it yet.
    Raises sqlite3.Error."""
    return situation_of(
        read_agent(connection),
        read_gpus(connection, now),
        quarantined(connection),
        alerts.lasting(connection),
        read_waiting_runs(connection),
    )


def holder_of(gpu: GpuView) -> str | None:
    """The user of a GPU in a few words; None if it is free."""
    if gpu.run_id is not None:
        return ", ".join(clean(run_id) for run_id in gpu.run_ids)
    if gpu.processes:
        process = max(gpu.processes, key=lambda each: each.memory_bytes or 0)
        return f"a process of {clean(process.user)}" if process.user else f"process {process.pid}"
    return None
