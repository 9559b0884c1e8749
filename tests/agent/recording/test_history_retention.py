"""The record over months: put together, deleted by age and by size, whatever the clock does."""

from __future__ import annotations

import math
import random
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from gputui.agent.recording.history_retention import HistoryRetention
from gputui.agent.recording.recorder import Recorder
from gputui.config import Workspace
from gputui.gpu.model import FastTick, GpuFacts, GpuSample, GpuSlowSample, Inventory, SlowTick
from gputui.store import samples, timeline
from gputui.store.database import room
from gputui.store.events import read_events
from gputui.store.hardware import gpu_history, host_history, memory_temperature_history, read_gpus, read_host
from gputui.store.retention import Retention
from gputui.store.sample_spans import gpu_spans
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


def test_what_nobody_knew_stays_unknown(machine: Machine) -> None:
    machine.recorder.take([FastTick(machine.now, (GpuSample("GPU-0", state="error"),)), HostSample(machine.now)])
    machine.pass_time(120.0)
    machine.tidy()
    assert machine.rows(MINUTES) == [(START, 0, None, None, None, None, None)]
    assert machine.rows("SELECT cpu_percent_mean, sample_count FROM host_minutes") == [(None, 1)]


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


def test_spans_are_not_put_together_before_their_samples_are_stored(machine: Machine) -> None:
    machine.connection.execute("PRAGMA busy_timeout = 1")
    other = sqlite3.connect(machine.workspace.database, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    machine.sample()
    machine.pass_time(300.0)
    assert not machine.recorder.flush()
    machine.keeping.turn(math.inf)
    other.execute("ROLLBACK")
    other.close()
    machine.tidy()
    assert [row[:2] for row in machine.rows(MINUTES)] == [(START, 1)]


def test_a_clock_that_is_set_back_adds_to_the_minutes_that_were_done(machine: Machine) -> None:
    machine.record(600.0)
    machine.now -= 299.5
    machine.record(180.0)
    machine.tidy()
    counts = [row[1] for row in machine.rows(MINUTES)]
    assert counts[:5] == [60] * 5
    raw = machine.rows("SELECT count(*) FROM gpu_samples WHERE at >= ? AND at < ?", START + 300, START + 420)
    assert raw == [(240,)]
    assert raw == machine.rows("SELECT sum(sample_count) FROM gpu_minutes WHERE at IN (?, ?)", START + 300, START + 360)


def test_the_newest_sample_is_not_one_of_a_clock_that_was_wrong(machine: Machine) -> None:
    machine.now += 40 * DAY
    machine.record(5.0, utilization=99.0)
    machine.now -= 40 * DAY
    machine.record(5.0, utilization=7.0)
    machine.tidy()
    assert [gpu.utilization_percent for gpu in read_gpus(machine.connection, machine.now)] == [7.0]


def test_a_clock_that_jumps_ahead_deletes_nothing_at_once(machine: Machine) -> None:
    machine.record(2 * HOUR)
    machine.now += 300 * DAY
    machine.record(1800.0)
    machine.tidy()
    before = machine.rows("SELECT count(*) FROM gpu_samples WHERE at < ?", START + DAY)
    assert before == [(7200,)]
    machine.record(1900.0)
    machine.tidy()
    assert machine.rows("SELECT count(*) FROM gpu_samples WHERE at < ?", START + DAY) == [(0,)]


def test_a_machine_that_slept_leaves_a_gap_and_no_ramp(machine: Machine) -> None:
    machine.record(600.0)
    machine.pass_time(5 * HOUR)
    machine.record(600.0)
    machine.tidy()
    spans = [row[0] for row in machine.rows(MINUTES)]
    assert not [at for at in spans if START + 600 <= at < START + 600 + 5 * HOUR]  # type: ignore[operator]
    energies = [row[6] for row in machine.rows(MINUTES)]
    assert all(energy is not None and energy <= 300.0 * 60 * 1.01 for energy in energies)  # type: ignore[operator]
    gap = timeline.gap_at(machine.connection, START + 2 * HOUR)
    assert gap is not None and gap.end == START + 600 + 5 * HOUR
    assert machine.keeping.trust.check(machine.now, machine.boot) is True


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


def test_settings_that_are_wrong_change_nothing_and_are_told(machine: Machine) -> None:
    machine.workspace.record.write_text("raw: 3d\n")
    machine.tidy()
    assert machine.keeping.retention.raw_seconds == 3 * DAY
    machine.workspace.record.write_text("raw: 4d\nminute: 1d\n")
    machine.tidy()
    assert machine.keeping.retention.raw_seconds == 3 * DAY
    (event,) = read_events(machine.connection)
    assert event.kind == "retention_unusable" and "record.yaml:2: minute: " in event.message


@pytest.fixture
def year(workspace: Workspace) -> Iterator[Machine]:
    """Eight GPUs for a year, sampled every eight hours, and every fifth day once a minute for a while; what tidies
    behind them has its turn once a day."""
    made = Machine(workspace, gpus=8, step=28800.0)
    made.connection.execute("PRAGMA synchronous = OFF")
    for day in range(365):
        for ticks, seconds in ((1, 28800.0), (1, 28800.0), (1, 28800.0) if day % 5 else (10, 2880.0)):
            for tick in range(ticks):
                made.sample(utilization=float(day % 100), joules=600.0 * (made.boot - 1000.0))
                made.pass_time(seconds if ticks == 1 else 60.0 if tick < ticks - 1 else 28800.0 - 60.0 * tick)
        made.tidy()
    made.pass_time(20 * HOUR)
    made.tidy()
    yield made
    made.connection.close()


TICKS = 3 * 365 + 9 * 73


@pytest.mark.long
def test_a_year(year: Machine) -> None:
    end = START + 365 * DAY
    (oldest_raw,) = year.rows("SELECT min(at) FROM gpu_samples")[0]
    (oldest_minute,) = year.rows("SELECT min(at) FROM gpu_minutes")[0]
    assert oldest_raw == pytest.approx(year.now - 2 * DAY, abs=12 * HOUR)
    assert oldest_minute == pytest.approx(year.now - 90 * DAY, abs=24 * HOUR)
    assert year.rows("SELECT count(*), sum(sample_count) FROM gpu_hours") == [(8 * 3 * 365, 8 * TICKS)]
    assert year.rows("SELECT count(*), sum(sample_count) FROM gpu_days") == [(8 * 365, 8 * TICKS)]
    (joules,) = year.rows("SELECT sum(energy_joules) FROM gpu_days WHERE gpu_id = 1")[0]
    assert joules == pytest.approx(600.0 * 3 * HOUR * 365, rel=1e-3)
    # What the screen asks goes on from the samples to what is left of them.
    history = gpu_history(year.connection, end - 100 * DAY, end, 100, "GPU-0")["GPU-0"]
    assert None not in history.utilization_percent
    of_host = host_history(year.connection, end - 100 * DAY, end, 100)
    assert of_host.cpu_percent == (10.0,) * 100
    warmth = memory_temperature_history(year.connection, "GPU-3", end - 300 * DAY, end, 100)
    assert warmth == pytest.approx([73.0] * 100)
    then = read_gpus(year.connection, year.now, START + 30 * DAY + 8 * HOUR + 60.0)
    assert [gpu.utilization_percent for gpu in then] == [30.0] * 8
    assert timeline.gap_at(year.connection, START + 200 * DAY + 60.0) is None
    number = int((START + 50 * DAY) // (10 * DAY))
    (span,) = gpu_spans(year.connection, "GPU-1", ["power_watts"], 10 * DAY, number, number, DAY)
    assert span.values[0][1:] == (301.0, 301.0, 301.0)
    host = read_host(year.connection, START + 30 * DAY + 8 * HOUR + 60.0)
    assert host is not None and (host.cpu_percent, host.load_1m) == (10.0, None)

    # A year of eight GPUs is answered from days, of which there are 3 000, and not from 70 000 hours.
    worked: list[int] = []
    asked: list[str] = []
    year.connection.set_progress_handler(lambda: worked.append(1) and None, 1000)  # type: ignore[func-returns-value]
    year.connection.set_trace_callback(asked.append)
    found = gpu_history(year.connection, START, end, 365)
    year.connection.set_progress_handler(None, 0)
    year.connection.set_trace_callback(None)
    assert sum("gpu_days" in query for query in asked) == 8 and not any("gpu_hours" in query for query in asked)
    assert len(worked) < 150 * len(found) * 365 / 1000
    assert len(found) == 8
    assert [round(value or 0) for value in found["GPU-3"].utilization_percent] == [day % 100 for day in range(365)]


def test_hours_are_put_together_in_slices(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    between = samples.between

    def counted(*args: Any) -> Any:
        nonlocal read
        rows = between(*args)
        read += [len(rows)] if len(args) > 6 else []
        return rows

    monkeypatch.setattr(samples, "between", counted)
    monkeypatch.setattr("gputui.agent.recording.sample_rollups.ROWS_AT_ONCE", 250)
    noise = random.Random(3)
    values = []
    for second in range(3700):
        values.append(round(noise.uniform(0, 700), 3))
        machine.sample(utilization=float(second % 100), power=values[-1], joules=300.0 * second)
        machine.pass_time(1.0)
        assert second % 300 or machine.recorder.flush()
    machine.tidy()
    hour = sorted(values[:3600])
    assert 200 < max(read) <= 250
    assert machine.rows(
        "SELECT sample_count, power_watts_mean, power_watts_min, power_watts_max, power_watts_p95 FROM gpu_hours"
    ) == [(3600, pytest.approx(sum(hour) / 3600, abs=0.005), hour[0], hour[-1], hour[math.ceil(0.95 * 3600) - 1])]
    assert machine.rows("SELECT count(*), min(sample_count), max(sample_count) FROM gpu_minutes") == [(61, 60, 60)]
    assert machine.rows("SELECT sample_count FROM host_hours") == [(3600,)]


def test_an_hour_that_is_half_put_together_when_the_clock_is_set_back_counts_every_sample(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gputui.agent.recording.sample_rollups.ROWS_AT_ONCE", 1000)
    ticking = iter(range(100_000))
    for second in range(3661):
        machine.sample()
        machine.pass_time(1.0)
        assert second % 300 or machine.recorder.flush()
    assert machine.recorder.flush()
    keeping = machine.keeping.rollups
    keeping.turn(machine.now - 100.0, 1.0)
    keeping.clock = lambda: float(next(ticking))
    while machine.rows("SELECT count(*) FROM host_hours") == [(0,)]:
        keeping.turn(machine.now, next(ticking) + 2.0)
    keeping.turn(machine.now, next(ticking) + 2.0)
    assert machine.rows("SELECT count(*) FROM gpu_hours") == [(0,)] and keeping.is_behind
    machine.now -= 1800.5
    for second in range(1900):
        machine.sample()
        machine.pass_time(1.0)
        assert second % 300 or machine.recorder.flush()
    machine.tidy()
    while keeping.is_behind:
        keeping.turn(machine.now, next(ticking) + 2.0)
    assert machine.rows("SELECT sample_count FROM gpu_hours WHERE at = ?", START) == machine.rows(
        "SELECT count(*) FROM gpu_samples WHERE at >= ? AND at < ?", START, START + HOUR
    )


def test_a_turn_ends_when_its_time_is_over_and_the_next_goes_on(workspace: Workspace) -> None:
    machine = Machine(workspace, gpus=4)
    ticking = iter(range(10_000))
    machine.keeping.rollups.clock = lambda: next(ticking) * 0.004
    machine.sample()
    machine.pass_time(2 * HOUR)
    assert machine.recorder.flush()
    turns = 0
    while machine.keeping.rollups.is_behind:
        machine.keeping.rollups.turn(machine.now, deadline=next(ticking) * 0.004 + 0.02)
        turns += 1
    assert turns >= 3
    assert machine.rows("SELECT (SELECT count(*) FROM gpu_minutes), (SELECT count(*) FROM gpu_hours)") == [(4, 4)]
    machine.connection.close()


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
