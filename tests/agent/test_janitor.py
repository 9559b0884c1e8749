"""The record over months: rolled up, deleted by age and by size, whatever the clock does; and what else is done beside
the loop."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from gputui.agent.janitor import LONG_LOG_BYTES, MOVED_AT_BYTES, Janitor, bound_log
from gputui.agent.recording.recorder import Recorder
from gputui.core.config import Workspace
from gputui.machine.gpu_model import FastTick, GpuFacts, Inventory, SlowTick
from gputui.store.agent import Retention
from gputui.store.database import pragma, room
from gputui.store.series import GpuSample, GpuSlowSample, HostSample
from tests.conftest import wait_until
from tests.homes import add_run, open_store

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
        self.janitor = Janitor(self.workspace, self.recorder, self.step, lambda: self.now, lambda: self.boot)
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
        self.work()

    def work(self) -> None:
        self.janitor._due.clear()
        while self.janitor.work():
            pass

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
    raw = machine.rows("SELECT count(*) FROM gpu_samples WHERE at < ?", until)
    hours = machine.rows("SELECT at, sample_count FROM gpu_hours")
    assert counted == raw and hours == [(START, 3600)]


def test_the_oldest_samples_go_when_the_record_is_too_large(machine: Machine) -> None:
    machine.step = 5.0
    machine.begin()
    machine.record(6 * HOUR)
    machine.tidy()
    used = room(machine.connection).used_bytes
    machine.janitor.retention = Retention(size_bytes=used - (20 << 10))
    machine.work()
    (oldest, newest) = machine.rows("SELECT min(at), max(at) FROM gpu_samples")[0]
    assert room(machine.connection).used_bytes <= used - (20 << 10)
    assert START < oldest < newest == machine.now - 5.0  # type: ignore[operator]
    assert machine.rows("SELECT count(*) FROM gpu_hours") == [(5,)]
    assert machine.rows("SELECT raw_since FROM record_bounds") == [(oldest,)]


def test_on_a_full_disk_recording_stops_and_begins_again(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine.record(3 * HOUR)
    machine.tidy()
    (pages,) = machine.rows("PRAGMA page_count")[0]
    for connection in (machine.connection, machine.janitor.connection):
        connection.execute(f"PRAGMA max_page_count = {pages}")
    stopped_at = machine.now
    while machine.recorder.flush():
        machine.sample()
        machine.pass_time(1.0)
    for _ in range(100):
        machine.sample()
        assert not machine.recorder.flush()
        machine.pass_time(1.0)
        with suppress(sqlite3.OperationalError):
            machine.work()
    told = [record.getMessage() for record in caplog.records if "recording stopped" in record.getMessage()]
    assert len(told) == 1 and "disk is full" in told[0]

    # The limit that the user sets lets the oldest samples go, and that makes room.
    limit = room(machine.connection).used_bytes - (300 << 10)
    machine.janitor.retention = Retention(size_bytes=limit)
    machine.work()
    assert machine.recorder.flush()
    machine.tidy()
    kept = machine.rows("SELECT min(at) > ?, sum(at >= ?) FROM gpu_samples", START, stopped_at)
    assert kept == [(1, int(machine.now - stopped_at))]


# --- beside the loop


def add_alert(connection: sqlite3.Connection, subject: str, raised: float, cleared: float | None) -> None:
    connection.execute(
        "INSERT INTO alerts (rule, severity, subject_kind, subject_id, subject_name, raised_at, cleared_at, unit, "
        "sentence, remedy) VALUES ('gpu_hot', 'warning', 'gpu', ?, 'GPU 0', ?, ?, '', 's', 'r')",
        (subject, raised * DAY, None if cleared is None else cleared * DAY),
    )


def left(connection: sqlite3.Connection, column: str, table: str) -> list[str]:
    return [row[0] for row in connection.execute(f"SELECT {column} FROM {table} ORDER BY 1")]


def test_what_is_over_and_old_goes(machine: Machine) -> None:
    connection = machine.connection
    add_run(connection, "there-1")
    add_alert(connection, "old", 10, 11)
    add_alert(connection, "old but ended lately", 10, 399)
    add_alert(connection, "lasts", 10, None)
    add_alert(connection, "new", 390, 391)
    connection.execute(
        "INSERT INTO notices (at, recipient, label, message, due_at, sent_at) VALUES (0, 'a', 'sent', '{}', 0, 1), "
        "(0, 'a', 'unsent', '{}', 0, NULL)"
    )
    for day, run_id, message in ((10, None, "old"), (10, "gone-1", "gone"), (10, "there-1", "run"), (399, None, "new")):
        connection.execute(
            "INSERT INTO events (at, severity, run_id, message) VALUES (?, 'info', ?, ?)", (day * DAY, run_id, message)
        )
        connection.execute(
            "INSERT INTO commands (created_at, verb, actor, state, answered_at) VALUES (?, ?, 'anna', 'done', ?)",
            (day * DAY, message, day * DAY),
        )
        connection.execute("INSERT INTO gpu_events (at, uuid, event) VALUES (?, 'GPU-0', ?)", (day * DAY, message))
    machine.janitor.retention = Retention(events_seconds=None)
    machine.janitor.expire(400 * DAY)
    assert len(left(connection, "subject_id", "alerts")) == 4, "kept for ever"
    machine.janitor.retention = Retention(events_seconds=365 * DAY)
    machine.janitor.expire(400 * DAY)
    assert left(connection, "subject_id", "alerts") == ["lasts", "new", "old but ended lately"]
    assert left(connection, "label", "notices") == ["unsent"]
    assert left(connection, "message", "events") == ["new", "run"]
    assert left(connection, "verb", "commands") == left(connection, "event", "gpu_events") == ["new"]


LINES = 5000


def test_lines_of_removed_runs_go_in_small_transactions(machine: Machine) -> None:
    connection = machine.connection
    for run_id, lines in (("gone-1", LINES), ("there-1", 500)):
        add_run(connection, run_id)
        source = connection.execute(
            "INSERT INTO metric_sources (run_id, path, format) VALUES (?, 'x', 'jsonl')", (run_id,)
        ).lastrowid
        numbers = "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?) "
        connection.execute(
            f"INSERT INTO metrics {numbers} SELECT ?, 0, i * 200, 1, NULL, i, i, '{{}}' FROM n", (lines, source)
        )
        connection.execute(
            "INSERT INTO metric_envelopes (source_id, attempt, name, level, number, entries) "
            f"{numbers} SELECT ?, 1, 'loss', 0, i, zeroblob(1000) FROM n",
            (lines // 200, source),
        )
    connection.execute("DELETE FROM runs WHERE run_id = 'gone-1'")
    counted = []
    while machine.janitor.work():
        counted += [count for (count,) in machine.rows("SELECT count(*) FROM metrics")]
        assert machine.janitor.has_lines
    assert max(before - after for before, after in zip([LINES + 500, *counted], counted, strict=False)) == 1000
    for table, left_over in (("metrics", 500), ("metric_envelopes", 2), ("metric_sources", 1)):
        assert machine.rows(f"SELECT count(*) FROM {table}") == [(left_over,)]
    assert not machine.janitor.has_lines and machine.rows("PRAGMA foreign_key_check") == []


def log_bytes(machine: Machine) -> int:
    return machine.workspace.database.with_name(machine.workspace.database.name + "-wal").stat().st_size


def write(machine: Machine, megabytes: int) -> None:
    for _ in range(megabytes):
        machine.connection.execute("INSERT INTO big VALUES (zeroblob(?))", (1 << 20,))


def test_the_log_is_moved_beside_the_loop_and_becomes_short_again(machine: Machine) -> None:
    bound_log(machine.connection)
    machine.connection.execute("CREATE TABLE big (x BLOB)")
    write(machine, 13)
    # No commit has moved it by itself.
    assert log_bytes(machine) >= LONG_LOG_BYTES
    machine.janitor.start()
    try:
        machine.janitor.call()
        # A commit restarts a log that was moved, and truncates it.
        wait_until(lambda: write(machine, 1) or log_bytes(machine) < MOVED_AT_BYTES)
    finally:
        machine.janitor.stop()


def test_under_the_lock_nothing_waits_for_the_disk_or_another_program(machine: Machine) -> None:
    bound_log(machine.connection)
    read = {name: pragma(machine.janitor.connection, name) for name in ("synchronous", "wal_autocheckpoint")}
    assert read == {"synchronous": 1, "wal_autocheckpoint": 0}
    machine.connection.execute("BEGIN IMMEDIATE")
    machine.now += 500 * DAY
    began = time.monotonic()
    with pytest.raises(sqlite3.OperationalError):
        machine.janitor.expire(machine.now)
    assert time.monotonic() - began < 2.0
    machine.connection.execute("ROLLBACK")


def test_the_thread_waits_for_the_turn_of_the_loop(machine: Machine) -> None:
    machine.record(200.0)
    assert machine.recorder.flush()
    (before,) = machine.rows("SELECT count(*) FROM gpu_minutes")
    machine.sample()
    machine.pass_time(200.0)
    machine.sample()
    assert machine.recorder.flush()
    with machine.janitor.writing:
        machine.janitor.start()
        machine.janitor.call()
        wait_until(lambda: not machine.janitor._is_called.is_set())
        assert machine.rows("SELECT count(*) FROM gpu_minutes") == [before]
    wait_until(lambda: machine.rows("SELECT count(*) FROM gpu_minutes") > [before])
    machine.janitor.stop()
