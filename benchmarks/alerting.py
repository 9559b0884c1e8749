"""The agent's cost of one evaluation of all alert rules, with nothing wrong: it happens once a
second.

python -m benchmarks.alerting [LOOKS]
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.alone import alone
from benchmarks.percentiles import percentile
from gputui.agent.context import AgentContext
from gputui.agent.health.alert_evaluation import AlertEvaluation
from gputui.agent.health.watched import begin
from gputui.agent.lifecycle.live_attempt import LiveAttempt
from gputui.agent.lifecycle.run_files import ResolvedRun
from gputui.core.config import Workspace, locate
from gputui.core.redaction import BY_LOOK
from gputui.machine.gpu_model import FastTick, GpuFacts, Inventory
from gputui.recovery.policies import POLICIES
from gputui.runs import repository
from gputui.runs.command import Launch
from gputui.runs.executors.process import ExecutorProcess
from gputui.runs.spec import RunSpec
from gputui.store.attempts import Attempt, get_attempt
from gputui.store.database import open_writer
from gputui.store.metrics.watched import WatchedLine
from gputui.store.run_states import RunState
from gputui.store.series import GpuSample, HostSample

SPEC = RunSpec("bench", "python", ("x.py",), "/", python="/p")

GIB = 2**30
RUN = "bench-1"


def measure(looks: float = 600) -> dict[str, Any]:
    """CPU of one look in milliseconds and in percent of a core, for 1, 8 and 16 GPUs with a run that trains on all."""
    return {f"{count}_gpus": _measure(count, int(looks)) for count in (1, 8, 16)}


def _measure(gpus: int, looks: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        workspace = locate(Path(folder) / "home", {})
        workspace.create()
        connection = open_writer(workspace.database)
        try:
            return _look(workspace, connection, gpus, looks)
        finally:
            connection.close()


def _look(workspace: Workspace, connection: sqlite3.Connection, gpus: int, looks: int) -> dict[str, float]:
    facts = tuple(GpuFacts(f"GPU-{number}", number, "x", memory_total_bytes=80 * GIB) for number in range(gpus))
    began = time.time()
    at = 0.0
    context = AgentContext.of(connection, workspace, wake=lambda: None, now=lambda: began + at, monotonic=lambda: at)
    recorder = context.recorder
    recorder.take([Inventory(began, "nvml", driver_version=None, gpus=facts)])
    record = _train(connection, [gpu.uuid for gpu in facts], began)
    watched = begin(connection, record, at, began)
    executor = ExecutorProcess(identity=None, folder=workspace.runs, kind=context.executors.of(None))
    resolved = ResolvedRun(SPEC, POLICIES["standard"], BY_LOOK)
    live = LiveAttempt(record, executor, resolved, watched=watched)
    alerting = AlertEvaluation(context, lambda: [live])
    alerting.begin()
    spent: list[float] = []
    for step in range(looks):
        at += 1.0
        tick = FastTick(began + at, tuple(_healthy(gpu.uuid) for gpu in facts))
        host = HostSample(began + at, memory_used_bytes=50 * GIB, memory_total_bytes=100 * GIB)
        recorder.take([tick, host])
        values = {"loss": 5.0 - step / looks, "step_time": 0.3, "data_time": 0.01, "grad_norm": 1.0, "lr": 1e-3}
        line = WatchedLine(1, rank=None, step=step, at=began + at, event=None, values=values, stored_at=began + at)
        watched.watch.take([line], at, began + at)
        before = time.process_time()
        alerting.poll()
        spent.append(time.process_time() - before)
    raised = connection.execute("SELECT count(*) FROM alerts").fetchone()[0]
    assert raised == 0, "a healthy machine raises nothing"
    mean = sum(spent) / len(spent)
    return {"mean_ms": mean * 1e3, "p99_ms": percentile(spent, 99) * 1e3, "cpu_percent": mean * 100}


def _healthy(uuid: str) -> GpuSample:
    return GpuSample(
        uuid,
        utilization_percent=95.0,
        memory_used_bytes=40 * GIB,
        temperature_celsius=60.0,
        power_watts=500.0,
        throttle_reasons=("power cap",),
    )


def _train(connection: sqlite3.Connection, uuids: list[str], now: float) -> Attempt:
    with repository.transaction(connection):
        repository.insert_run(
            connection,
            repository.NewRun(run_id=RUN, sequence=1, name="bench", spec=SPEC, params={}),
            now=now,
            actor="benchmark",
        )
        launch = json.dumps(Launch(("x",), {}, "/", 1.0).to_json())
        connection.execute(
            "INSERT INTO attempts (run_id, number, state, params, gpus, launch, created_at) "
            "VALUES (?, 1, 'running', '{}', ?, ?, ?)",
            (RUN, json.dumps(uuids), launch, now),
        )
        connection.execute("UPDATE runs SET state = ?, attempt = 1", (RunState.RUNNING,))
    record = get_attempt(connection, RUN, 1)
    assert record is not None
    return record


if __name__ == "__main__":
    alone(measure)
