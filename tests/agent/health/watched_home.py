"""A home with one watched GPU: samples and lines by hand, alerts as rows."""

from __future__ import annotations

from typing import Any

from gputui.agent.health import watched
from gputui.agent.health.alert_evaluation import AlertEvaluation
from gputui.agent.lifecycle.live_attempt import LiveAttempt
from gputui.agent.lifecycle.run_files import ResolvedRun
from gputui.core.config import Workspace
from gputui.core.redaction import BY_LOOK
from gputui.machine.gpu_model import FastTick, GpuFacts, Inventory
from gputui.recovery.policies import POLICIES
from gputui.runs.executors.process import ExecutorProcess
from gputui.store import alerts
from gputui.store.alerts import AlertView
from gputui.store.metrics.watched import WatchedLine
from gputui.store.series import GpuSample, HostSample
from tests.homes import GIB, SPEC, Home, attempt_of, uuid

GPU = uuid(0)
FACTS = GpuFacts(GPU, 0, "x", memory_total_bytes=80 * GIB, temperature_slowdown_celsius=90.0)


class WatchedHome(Home):
    """A home whose only GPU is `GPU`."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self.living: list[LiveAttempt] = []
        self.start()

    def start(self) -> None:
        """Let another agent take over."""
        self.services = self.context()
        self.recorder = self.services.recorder
        self.recorder.take([Inventory(self.now, "nvml", "580", (FACTS,))])
        self.alert_evaluation = AlertEvaluation(self.services, lambda: self.living)
        self.alert_evaluation.begin()
        for live in self.living:
            self.watch(live)

    def watch(self, live: LiveAttempt) -> None:
        """Watch an attempt, as the monitor does when it begins to."""
        live.watched = watched.begin(self.connection, live.record, self.uptime, self.now)

    def train(self) -> None:
        """Begin a run, ``vit-1``."""
        self.run("vit-1", "running", gpus=(0,), params={"lr": 0.001})
        self.attempt("vit-1", 1, gpus=(0,))
        executor = ExecutorProcess(identity=None, folder=self.workspace.runs, kind=self.services.executors.of(None))
        resolved = ResolvedRun(SPEC, POLICIES["standard"], BY_LOOK)
        self.living.append(LiveAttempt(attempt_of(self.connection, 1, "vit-1"), executor, resolved))
        self.watch(self.living[0])

    def write(self, step: int, **values: float) -> None:
        """Let the living run write a line."""
        (live,) = self.living
        assert live.watched is not None
        line = WatchedLine(1, rank=None, step=step, at=self.now, event=None, values=values, stored_at=self.now)
        live.watched.watch.take([line], self.uptime, self.now)

    def go_on(self, seconds: float, sample: GpuSample | None = None, **host: Any) -> None:
        """Let time pass second for second, with a sample each, or with a driver that says nothing."""
        for _ in range(int(seconds)):
            self.pass_time(1.0)
            if sample is not None:
                self.recorder.take([FastTick(self.now, (sample,))])
            if host:
                self.recorder.take([HostSample(self.now, **host)])
            self.alert_evaluation.poll()

    def lasting(self) -> list[str]:
        return [view.rule for view in alerts.lasting(self.connection)]

    def lasting_and_cleared(self) -> list[AlertView]:
        return [*alerts.lasting(self.connection), *alerts.cleared(self.connection, 100)]

    def events(self) -> list[str]:
        return [message for (message,) in self.rows("SELECT message FROM events ORDER BY event_id")]
