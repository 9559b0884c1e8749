"""The agent's alerts: from samples and lines to rows, across agents, with a silent driver, told within bounds."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.agent.context import AgentContext
from gputui.agent.health import feed
from gputui.agent.health.alerting import Alerting
from gputui.agent.lifecycle.active_run import LiveAttempt
from gputui.core.config import Workspace, locate
from gputui.machine.gpu_model import FastTick, GpuEvent, GpuFacts, GpuProcess, Inventory, ProcessTick
from gputui.runs.executors.process import ExecutorProcess
from gputui.store import alerts
from gputui.store.alerts import AlertView
from gputui.store.metrics.watched import WatchedLine
from gputui.store.series import GpuSample, HostSample
from tests.agent.conftest import attempt_of
from tests.stores import open_store
from tests.tables import table
from tests.texts import mentions
from tests.ui.tui.filling import GIB, Filler

NOW = 1_795_230_764.0
FACTS = GpuFacts("GPU-a", 0, "x", memory_total_bytes=80 * GIB, temperature_slowdown_celsius=90.0)
COOL = GpuSample("GPU-a", utilization_percent=90.0, memory_used_bytes=10 * GIB, temperature_celsius=60.0,
                 throttle_reasons=(), power_watts=500.0)  # fmt: skip
HOT = replace(COOL, temperature_celsius=88.0)
IDLE = replace(COOL, utilization_percent=20.0, memory_used_bytes=60 * GIB)
PARKED = replace(COOL, utilization_percent=0.0, memory_used_bytes=22 * GIB)


class Bench:
    """A store, a recorder fed by hand, and a clock that only moves when told."""

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
        self.alerting = Alerting(self.context, lambda: self.living)
        self.alerting.begin()
        for live in self.living:
            self.watch(live)

    def watch(self, live: LiveAttempt) -> None:
        """As the monitor does when it begins to watch an attempt."""
        stored = self.alerting.stored_course(live.record.run_id)
        live.watched = feed.begin(self.connection, live.record, self.now, self.wall(), stored)

    def write(self, step: int | None, event: str | None = None, **values: float) -> None:
        """A line of the living run."""
        (live,) = self.living
        assert live.watched is not None
        line = WatchedLine(1, None, step, self.wall(), event, values, self.wall())
        live.watched.watch.take([line], self.now, self.wall())

    @property
    def messages(self) -> list[dict[str, Any]]:
        """What is owed to the command."""
        rows = self.connection.execute("SELECT message FROM notices WHERE way = 'command' ORDER BY notice_id")
        return [json.loads(row[0]) for row in rows]

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
            self.alerting.turn()

    def lasting(self) -> list[str]:
        return [one.rule for one in alerts.lasting(self.connection)]

    def all(self) -> list[AlertView]:
        return [*alerts.lasting(self.connection), *alerts.cleared(self.connection, 100)]

    def events(self) -> list[str]:
        return [row[0] for row in self.connection.execute("SELECT message FROM events ORDER BY event_id")]

    def configure(self, text: str) -> None:
        self.workspace.alerts.write_text(text)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def train(bench: Bench) -> Filler:
    """Begin a run; what fills the store."""
    made = Filler(bench.workspace, now=NOW)
    made.gpus(1)
    made.run("vit-1", "running", gpus=(0,), params={"lr": 0.001})
    made.attempt("vit-1", 1, gpus=(0,))
    made.connection.execute("UPDATE attempts SET gpus = '[\"GPU-a\"]'")
    executor = ExecutorProcess(None, bench.workspace.runs, bench.context.executors.of(None))
    bench.living.append(LiveAttempt(attempt_of(bench.connection, 1, "vit-1"), executor))
    bench.watch(bench.living[0])
    return made


@pytest.fixture
def filler(bench: Bench) -> Filler:
    return train(bench)


def test_an_alert_is_a_row_and_an_event_and_ends(bench: Bench) -> None:
    bench.pass_time(40, HOT)
    found = alerts.lasting(bench.connection)[0]
    subject = found.rule, found.severity, found.subject_id, found.subject_name
    assert subject == ("gpu_hot", "warning", "GPU-a", "GPU 0")
    assert (found.value, found.threshold, found.unit) == (88.0, 85.0, "°C")
    assert mentions(found.sentence, "GPU 0", "88 °C", "85 °C")
    assert NOW + 1030 <= found.raised_at <= NOW + 1033
    bench.pass_time(70, COOL)
    after = bench.all()[0]
    assert after.cleared_at is not None and after.cleared_because == "back to normal"
    said = bench.events()
    assert said[0] == found.sentence and "resolved after" in said[1]


def test_the_next_agent_goes_on(bench: Bench) -> None:
    bench.pass_time(20, HOT)
    bench.alerting.save()
    bench.start()
    bench.pass_time(15, HOT)
    assert bench.lasting() == ["gpu_hot"]
    bench.start()
    bench.pass_time(100, HOT)
    bench.pass_time(100)
    assert len(bench.all()) == 1
    bench.start()
    bench.pass_time(70, COOL)
    assert bench.lasting() == [] and len(bench.all()) == 1


@table("text", ["", "{", "null", "[]", '{"engine": 5}'])
def test_a_stored_state_that_is_unreadable_is_dropped(tmp_path: Path, text: str) -> None:
    bench = Bench(tmp_path)
    alerts.put_engine_state(bench.connection, text, bench.wall())
    bench.start()
    bench.pass_time(40, HOT)
    assert bench.lasting() == ["gpu_hot"]


def test_a_gpu_that_the_machine_no_longer_has(bench: Bench) -> None:
    bench.pass_time(40, HOT)
    bench.recorder.take([Inventory(bench.wall(), "nvml", "580", ())])
    bench.pass_time(1)
    assert bench.lasting() == []


def test_the_machine_changes_a_threshold(bench: Bench) -> None:
    bench.configure("gpu_hot: {above_celsius: 50, margin_celsius: 0, for: 5 s, severity: error}\n")
    bench.pass_time(8, COOL)
    assert [(one.rule, one.severity, one.threshold) for one in bench.all()] == [("gpu_hot", "error", 50.0)]
    bench.configure("gpu_hot: {above: 1}\n")
    bench.pass_time(8, COOL)
    assert bench.lasting() == ["gpu_hot"] and "stay as they were" in bench.events()[-1]
    bench.configure("gpu_hot: off\n")
    bench.pass_time(8, COOL)
    assert bench.lasting() == [] and bench.all()[0].cleared_because == "the rule is off"


def test_messages_are_bounded_in_number(bench: Bench) -> None:
    bench.configure("notify: {command: [mail-me], severity: error}\ngpu_hot: {for: 0, clear_after: 0, cooldown: 0}\n")
    bench.pass_time(10, HOT)
    assert bench.messages == [], "a warning is not severe enough"
    bench.configure("notify: {command: [mail-me]}\ngpu_hot: {for: 0, clear_after: 0, cooldown: 0}\n")
    bench.pass_time(10, COOL)
    for _ in range(20):
        bench.pass_time(1, HOT)
        bench.pass_time(2, COOL)
    assert len(bench.messages) == 12
    first = bench.messages[0]
    assert (first["kind"], first["rule"]) == ("alert", "gpu_hot")
    assert first["text"].startswith(("GPU 0", "over: GPU 0"))
    bench.pass_time(400, COOL)
    bench.pass_time(1, HOT)
    assert re.search(r"and \d+ more", bench.messages[-1]["text"])


def test_a_silenced_rule_is_stored_and_not_told(bench: Bench) -> None:
    bench.configure("notify: {command: [mail-me]}\n")
    alerts.silence(bench.connection, "gpu_hot", "gpu", "*", until=bench.wall() + 1000, actor="me")
    bench.pass_time(40, HOT)
    assert bench.lasting() == ["gpu_hot"] and bench.messages == [] and bench.events() == []
    assert bench.all()[0].silenced_by == "me"


def test_an_xid_is_told_once_and_memory_by_who_holds_it(bench: Bench) -> None:
    process = GpuProcess(77, 22 * GIB, user="alice", command="python sweep.py")
    bench.recorder.take([GpuEvent(bench.wall(), "GPU-a", "xid", 79, None)])
    bench.recorder.take([ProcessTick(bench.wall(), {"GPU-a": (process,)})])
    bench.pass_time(1803, PARKED)
    assert [one.rule for one in bench.all()] == ["xid_hardware", "gpu_parked"]
    assert "alice · python sweep.py" in bench.all()[1].sentence


# --- runs


def test_a_gpu_that_a_run_claims_and_does_not_use(bench: Bench, filler: Filler) -> None:
    bench.pass_time(500, IDLE)
    assert bench.lasting() == ["gpu_underused"] and bench.all()[0].run_id == "vit-1"
    bench.living.clear()
    bench.pass_time(2, IDLE)
    assert bench.all()[0].cleared_because == "no longer applies"


def test_nccl_errors_come_from_incidents(bench: Bench, filler: Filler) -> None:
    bench.pass_time(2, COOL)
    filler.incident("vit-1", 1, "nccl_timeout", "rank 1 waited in vain for the other ranks")
    bench.living.clear()
    bench.pass_time(2, COOL)
    assert bench.lasting() == ["nccl_errors"]
    assert mentions(bench.all()[0].sentence, "vit-1: ", "rank 1")
    bench.pass_time(905, COOL)
    assert bench.lasting() == []


Values = Callable[[int], dict[str, float]]


@table("values, found", [
    (lambda step: {"loss": max(2.0, 5.0 - step / 500)}, ["no_improvement"]),
    (lambda step: {"loss": max(1e-3, 5.0 - step / 100), "epoch": step / 20}, []),
    (lambda step: {"step_time": 0.3 if step < 1000 else 0.9}, ["slow_steps"]),
])  # fmt: skip
def test_lines_become_alerts_also_across_agents(tmp_path: Path, values: Values, found: list[str]) -> None:
    bench = Bench(tmp_path)
    train(bench)
    for step in range(0, 3500, 10):
        bench.write(step, **values(step))
        bench.pass_time(6, COOL)
        if step in (1500, 2400):
            bench.alerting.save()
            bench.start()
    assert bench.lasting() == found


def test_a_profile_changes_its_own_rules(bench: Bench, filler: Filler) -> None:
    own = {"gradient_norm": {"above": 100}, "lr_off_schedule": {"schedule": "constant"}}
    filler.connection.execute("UPDATE runs SET spec = json_set(spec, '$.alerts', json(?))", (json.dumps(own),))
    for step in range(100):
        bench.write(step, grad_norm=50.0, lr=0.002)
        bench.pass_time(1, COOL)
    assert bench.lasting() == ["lr_off_schedule"]
    assert "2e-3" in bench.all()[0].sentence and "1e-3" in bench.all()[0].sentence
