"""The record over months: put together, deleted by age and by size, whatever the clock does."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from gputui.agent.recording.history_retention import HistoryRetention
from gputui.agent.recording.recorder import Recorder
from gputui.core.config import Workspace
from gputui.machine.gpu_model import FastTick, GpuFacts, GpuSample, GpuSlowSample, Inventory, SlowTick
from gputui.store.database import room
from gputui.store.retention import Retention
from gputui.store.series import HostSample
from tests.stores import open_store

START = 1_790_035_200.0
"""A full hour."""
HOUR, DAY = 3600.0, 86400.0


@dataclass
class Machine:
    """A recorder and what tidies behind it, at a clock that the test sets."""

    workspace: Workspace
    gpus: int = 1
    step: float = 1.0
    now: float = START
    boot: float = 1000.0
    connection: sqlite3.Connection = field(init=False)

    def __post_init__(self) -> None:
        self.workspace.create()
        self.connection = open_store(self.workspace.database)
        self.begin()

    def begin(self) -> None:
        """An agent starts."""
        self.recorder = Recorder(self.connection, self.workspace.runs, lambda: self.now)
        self.keeping = HistoryRetention(
            self.connection,
            self.workspace.record,
            self.recorder,
            lambda: self.now,
            self.step,
            clock=lambda: 0.0,
            boot=lambda: self.boot,
        )
        facts = tuple(GpuFacts(f"GPU-{i}", i, "H200") for i in range(self.gpus))
        self.recorder.take([Inventory(self.now, "simulated", None, facts)])

    def sample(self, utilization: float = 50.0, power: float = 300.0, joules: float | None = None) -> None:
        """One tick of everything now."""
        fast = tuple(
            GpuSample(f"GPU-{i}", utilization_percent=utilization, power_watts=power + i, temperature_celsius=60.0)
            for i in range(self.gpus)
        )
        slow = tuple(
            GpuSlowSample(f"GPU-{i}", energy_joules=joules, memory_temperature_celsius=70.0 + i)
            for i in range(self.gpus)
        )
        self.recorder.take([FastTick(self.now, fast), SlowTick(self.now, slow), HostSample(self.now, cpu_percent=10.0)])

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.boot += seconds

    def record(self, seconds: float, utilization: float = 50.0, joules_per_second: float = 300.0) -> None:
        """Sample for so long, and tidy once a minute of it."""
        end = self.now + seconds
        tidy_at = self.now
        while self.now < end:
            self.sample(utilization, joules=joules_per_second * (self.boot - 1000.0))
            self.pass_time(self.step)
            if self.now >= tidy_at:
                tidy_at = self.now + 60.0
                self.tidy()

    def tidy(self) -> None:
        assert self.recorder.flush()
        self.keeping.turn(math.inf)

    def rows(self, query: str, *values: object) -> list[tuple[object, ...]]:
        return self.connection.execute(query, values).fetchall()


@pytest.fixture
def machine(workspace: Workspace) -> Iterator[Machine]:
    made = Machine(workspace)
    yield made
    made.connection.close()


MINUTES = (
    "SELECT at, sample_count, utilization_percent_mean, utilization_percent_min, utilization_percent_max, "
    "utilization_percent_p95, energy_joules FROM gpu_minutes ORDER BY at"
)


def test_a_minute_says_what_its_samples_said(machine: Machine) -> None:
    for second in range(60):
        machine.sample(utilization=float(second), joules=300.0 * second)
        machine.pass_time(1.0)
    machine.record(20.0)
    machine.tidy()
    ((at, count, mean, low, high, p95, energy),) = machine.rows(MINUTES)
    assert (at, count, mean, low, high, p95) == (START, 60, 29.5, 0.0, 59.0, 56.0)
    assert energy == pytest.approx(300.0 * 60, rel=0.02)


def test_an_agent_that_is_killed_at_any_moment_counts_nothing_twice(machine: Machine) -> None:
    for _ in range(4):
        machine.record(31.0)
        machine.tidy()
        machine.begin()
    machine.record(3600.0)
    machine.tidy()
    counted = machine.rows("SELECT sum(sample_count) FROM gpu_minutes")
    (until,) = machine.rows("SELECT until FROM rollup_marks WHERE span_seconds = 60 AND gpu_id = 1")[0]
    assert counted == machine.rows("SELECT count(*) FROM gpu_samples WHERE at < ?", until)
    assert machine.rows("SELECT at, sample_count FROM gpu_hours") == [(START, 3600)]


def test_the_oldest_samples_go_when_the_record_is_too_large(machine: Machine) -> None:
    machine.step = 5.0
    machine.begin()
    machine.record(6 * HOUR)
    machine.tidy()
    used = room(machine.connection).used_bytes
    machine.keeping.pruning.turn(Retention(size_bytes=used - (20 << 10)), machine.now, 1.0, is_clock_trusted=False)
    (oldest, newest) = machine.rows("SELECT min(at), max(at) FROM gpu_samples")[0]
    assert room(machine.connection).used_bytes <= used - (20 << 10)
    assert START < oldest < newest == machine.now - 5.0  # type: ignore[operator]
    assert machine.rows("SELECT count(*) FROM gpu_hours") == [(5,)]
    assert machine.rows("SELECT raw_since FROM record_bounds") == [(oldest,)]


def test_on_a_full_disk_recording_stops_and_begins_again(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine.record(3 * HOUR)
    machine.tidy()
    (pages,) = machine.rows("PRAGMA page_count")[0]
    machine.rows(f"PRAGMA max_page_count = {pages}")
    stopped_at = machine.now
    while machine.recorder.flush():
        machine.sample()
        machine.pass_time(1.0)
    for _ in range(100):
        machine.sample()
        assert not machine.recorder.flush()
        machine.pass_time(1.0)
        machine.keeping.turn(0.0)
    told = [record.getMessage() for record in caplog.records if "recording stopped" in record.getMessage()]
    assert len(told) == 1 and "disk is full" in told[0]

    # The limit that the user sets lets the oldest samples go, and that makes room.
    limit = room(machine.connection).used_bytes - (300 << 10)
    machine.keeping.retention = Retention(size_bytes=limit)
    machine.keeping.turn(math.inf)
    assert machine.recorder.flush()
    machine.tidy()
    assert machine.rows("SELECT count(*) FROM gpu_samples WHERE at >= ?", stopped_at) == [
        (int(machine.now - stopped_at),)
    ]
    assert machine.rows("SELECT min(at) > ? FROM gpu_samples", START) == [(1,)]
