"""A store, a recorder fed by hand, and a clock that only moves when told."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from gputui.agent.context import AgentContext
from gputui.agent.health import watched
from gputui.agent.health.alert_evaluation import AlertEvaluation
from gputui.agent.lifecycle.live_attempt import LiveAttempt
from gputui.agent.lifecycle.run_files import ResolvedRun
from gputui.core.config import Workspace, locate
from gputui.core.redaction import BY_LOOK
from gputui.machine.gpu_model import FastTick, GpuFacts, Inventory
from gputui.recovery.policies import POLICIES
from gputui.runs.executors.process import ExecutorProcess
from gputui.store import alerts
from gputui.store.alerts import AlertView
from gputui.store.metrics.watched import WatchedLine
from gputui.store.series import GpuSample, HostSample
from tests.homes import GIB, SPEC, Home, attempt_of, open_store

NOW = 1_795_230_764.0
FACTS = GpuFacts("GPU-a", 0, "x", memory_total_bytes=80 * GIB, temperature_slowdown_celsius=90.0)


class Bench:
    """The agent's part of a machine with one GPU."""

    def __init__(self, folder: Path) -> None:
        self.workspace: Workspace = locate(folder / "home", {})
        self.workspace.create()
        self.connection: sqlite3.Connection = open_store(self.workspace.database)
        self.now = 1000.0
        self.living: list[LiveAttempt] = []
        self.start()

    def start(self) -> None:
        """Another agent takes over."""
        self.context = AgentContext.of(
            self.connection, self.workspace, wake=lambda: None, now=self.wall, monotonic=lambda: self.now
        )
        self.recorder = self.context.recorder
        self.recorder.take([Inventory(self.wall(), "nvml", "580", (FACTS,))])
        self.alert_evaluation = AlertEvaluation(self.context, lambda: self.living)
        self.alert_evaluation.begin()
        for live in self.living:
            self.watch(live)

    def watch(self, live: LiveAttempt) -> None:
        """As the monitor does when it begins to watch an attempt."""
        live.watched = watched.begin(self.connection, live.record, self.now, self.wall())

    def write(self, step: int | None, event: str | None = None, **values: float) -> None:
        """A line of the living run."""
        (live,) = self.living
        assert live.watched is not None
        line = WatchedLine(1, None, step, self.wall(), event, values, self.wall())
        live.watched.watch.take([line], self.now, self.wall())

    def wall(self) -> float:
        return NOW + self.now

    def pass_time(self, seconds: float, sample: GpuSample | None = None, **host: Any) -> None:
        """Second for second, with a sample each, or with a driver that says nothing."""
        for _ in range(int(seconds)):
            self.now += 1.0
            if sample is not None:
                self.recorder.take([FastTick(self.wall(), (sample,))])
            if host:
                self.recorder.take([HostSample(self.wall(), **host)])
            self.alert_evaluation.turn()

    def lasting(self) -> list[str]:
        return [one.rule for one in alerts.lasting(self.connection)]

    def all(self) -> list[AlertView]:
        return [*alerts.lasting(self.connection), *alerts.cleared(self.connection, 100)]

    def events(self) -> list[str]:
        return [row[0] for row in self.connection.execute("SELECT message FROM events ORDER BY event_id")]


def train(bench: Bench) -> Home:
    """Begin a run; what fills the store."""
    made = Home(bench.workspace, now=NOW)
    made.gpus(1)
    made.run("vit-1", "running", gpus=(0,), params={"lr": 0.001})
    made.attempt("vit-1", 1, gpus=(0,))
    made.connection.execute("UPDATE attempts SET gpus = '[\"GPU-a\"]'")
    executor = ExecutorProcess(None, bench.workspace.runs, bench.context.executors.of(None))
    resolved = ResolvedRun(SPEC, POLICIES["standard"], BY_LOOK)
    bench.living.append(LiveAttempt(attempt_of(bench.connection, 1, "vit-1"), executor, resolved))
    bench.watch(bench.living[0])
    return made
