"""The record over months: rolled up, deleted by age and by size, whatever the clock does; and what else is done beside
the loop."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from gputui.agent.janitor import LONG_LOG_BYTES, MOVED_AT_BYTES, Janitor, Tidying, bound_log
from gputui.agent.recording.recorder import Recorder
from gputui.core.config import Workspace
from gputui.machine.gpu_model import FastTick, GpuFacts, Inventory, SlowTick
from gputui.store.agent import Retention
from gputui.store.database import pragma, used_space
from gputui.store.rows import insert
from gputui.store.series import GpuSample, GpuSlowSample, HostSample
from tests.conftest import wait_until
from tests.homes import Home, add_many_lines, add_run, add_source

START = 1_790_035_200.0
"""A full hour."""
HOUR = 3600.0
DAY = 86400.0

LINES = 5000

MINUTES = (
    "SELECT at, sample_count, utilization_percent_mean, utilization_percent_min, utilization_percent_max, "
    "utilization_percent_p95, energy_joules FROM gpu_minutes ORDER BY at"
)


class RecordedHome(Home):
    """A home with a recorder and what tidies behind it."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace, START)
        self.step = 1.0
        self.began_at = self.uptime
        self.begin()

    def begin(self) -> None:
        """Start an agent."""
        self.recorder = Recorder(self.connection, self.workspace.runs, lambda: self.now)
        self.janitor = Janitor(Tidying(self.workspace, self.recorder, self.step, lambda: self.now, lambda: self.uptime))
        self.recorder.take([Inventory(self.now, "simulated", None, (GpuFacts("GPU-0", 0, "H200"),))])

    def tick(self, utilization: float = 50.0, joules: float | None = None) -> None:
        """Take one sample of everything now."""
        fast = GpuSample("GPU-0", utilization_percent=utilization, power_watts=300.0, temperature_celsius=60.0)
        slow = GpuSlowSample("GPU-0", energy_joules=joules, memory_temperature_celsius=70.0)
        ticks = [FastTick(self.now, (fast,)), SlowTick(self.now, (slow,)), HostSample(self.now, cpu_percent=10.0)]
        self.recorder.take(ticks)

    def record(self, seconds: float) -> None:
        """Sample for so long, and tidy once a minute of it."""
        end = self.now + seconds
        tidy_at = self.now
        while self.now < end:
            self.tick(joules=300.0 * (self.uptime - self.began_at))
            self.pass_time(self.step)
            if self.now >= tidy_at:
                tidy_at = self.now + 60.0
                self.tidy()

    def tidy(self) -> None:
        assert self.recorder.flush()
        self.work()

    def work(self) -> None:
        self.janitor.tidying._due.clear()
        while self.janitor.tidying.work():
            pass


@pytest.fixture
def home(workspace: Workspace) -> Iterator[RecordedHome]:
    with closing(RecordedHome(workspace)) as home:
        yield home


def add_alert(connection: sqlite3.Connection, subject: str, raised: float, cleared: float | None) -> None:
    cleared_at = None if cleared is None else cleared * DAY
    insert(
        connection, "alerts", rule="gpu_hot", severity="warning", subject_kind="gpu", subject_id=subject,
        subject_name="GPU 0", raised_at=raised * DAY, cleared_at=cleared_at, unit="",
        sentence="s", remedy="r",
    )  # fmt: skip


def remaining(connection: sqlite3.Connection, column: str, table: str) -> list[str]:
    return [row[0] for row in connection.execute(f"SELECT {column} FROM {table} ORDER BY 1")]


def log_bytes(home: RecordedHome) -> int:
    return home.workspace.database.with_name(home.workspace.database.name + "-wal").stat().st_size


def write(home: RecordedHome, megabytes: int) -> None:
    for _ in range(megabytes):
        home.connection.execute("INSERT INTO big (x) VALUES (zeroblob(?))", (1 << 20,))


def test_a_minute_says_what_its_samples_said(home: RecordedHome) -> None:
    for second in range(60):
        home.tick(utilization=float(second), joules=300.0 * second)
        home.pass_time(1.0)
    home.record(20.0)
    home.tidy()
    ((at, count, mean, low, high, p95, energy),) = home.rows(MINUTES)
    assert (at, count, mean, low, high, p95) == (START, 60, 29.5, 0.0, 59.0, 56.0)
    assert energy == pytest.approx(300.0 * 60, rel=0.02)


def test_an_agent_that_is_killed_at_any_moment_counts_nothing_twice(home: RecordedHome) -> None:
    for _ in range(4):
        home.record(31.0)
        home.tidy()
        home.begin()
    home.record(3600.0)
    home.tidy()
    counted = home.rows("SELECT sum(sample_count) FROM gpu_minutes")
    (mark,) = home.rows("SELECT until FROM rollup_marks WHERE span_seconds = 60 AND gpu_id = 1")[0]
    raw = home.rows("SELECT count(*) FROM gpu_samples WHERE at < ?", mark)
    hours = home.rows("SELECT at, sample_count FROM gpu_hours")
    assert counted == raw
    assert hours == [(START, 3600)]


def test_the_oldest_samples_go_when_the_record_is_too_large(home: RecordedHome) -> None:
    home.step = 5.0
    home.begin()
    home.record(6 * HOUR)
    home.tidy()
    used = used_space(home.connection)[1]
    home.janitor.tidying.retention = Retention(size_bytes=used - (20 << 10))
    home.work()
    (oldest, newest) = home.rows("SELECT min(at), max(at) FROM gpu_samples")[0]
    assert used_space(home.connection)[1] <= used - (20 << 10)
    assert START < oldest < newest == home.now - 5.0  # type: ignore[operator]
    assert home.rows("SELECT count(*) FROM gpu_hours") == [(5,)]
    assert home.rows("SELECT raw_since FROM record_bounds") == [(oldest,)]


def test_on_a_full_disk_recording_stops_and_begins_again(home: RecordedHome, caplog: pytest.LogCaptureFixture) -> None:
    home.record(3 * HOUR)
    home.tidy()
    (pages,) = home.rows("PRAGMA page_count")[0]
    for connection in (home.connection, home.janitor.tidying.connection):
        connection.execute(f"PRAGMA max_page_count = {pages}")
    stopped_at = home.now
    while home.recorder.flush():
        home.tick()
        home.pass_time(1.0)
    for _ in range(100):
        home.tick()
        assert not home.recorder.flush()
        home.pass_time(1.0)
        with suppress(sqlite3.OperationalError):
            home.work()
    messages = [record.getMessage() for record in caplog.records if "recording stopped" in record.getMessage()]
    assert len(messages) == 1
    assert "disk is full" in messages[0]

    # The limit that the user sets lets the oldest samples go, and that makes room.
    limit = used_space(home.connection)[1] - (300 << 10)
    home.janitor.tidying.retention = Retention(size_bytes=limit)
    home.work()
    assert home.recorder.flush()
    home.tidy()
    rows = home.rows("SELECT min(at) > ?, sum(at >= ?) FROM gpu_samples", START, stopped_at)
    assert rows == [(1, int(home.now - stopped_at))]


# --- beside the loop


def test_what_is_over_and_old_goes(home: RecordedHome) -> None:
    connection = home.connection
    add_run(connection, "there-1")
    add_alert(connection, "old", 10, 11)
    add_alert(connection, "old but ended lately", 10, 399)
    add_alert(connection, "lasts", 10, cleared=None)
    add_alert(connection, "new", 390, 391)
    connection.execute(
        "INSERT INTO notices (at, recipient, label, message, due_at, sent_at) VALUES (0, 'a', 'sent', '{}', 0, 1), "
        "(0, 'a', 'unsent', '{}', 0, NULL)"
    )
    for day, run_id, message in ((10, None, "old"), (10, "gone-1", "gone"), (10, "there-1", "run"), (399, None, "new")):
        at = day * DAY
        insert(connection, "events", at=at, severity="info", run_id=run_id, message=message)
        insert(connection, "commands", created_at=at, verb=message, actor="anna", state="done", answered_at=at)
        insert(connection, "gpu_events", at=at, uuid="GPU-0", event=message)
    home.janitor.tidying.retention = Retention(events_seconds=None)
    home.janitor.tidying.expire(400 * DAY)
    assert len(remaining(connection, "subject_id", "alerts")) == 4, "kept for ever"
    home.janitor.tidying.retention = Retention(events_seconds=365 * DAY)
    home.janitor.tidying.expire(400 * DAY)
    assert remaining(connection, "subject_id", "alerts") == ["lasts", "new", "old but ended lately"]
    assert remaining(connection, "label", "notices") == ["unsent"]
    assert remaining(connection, "message", "events") == ["new", "run"]
    assert remaining(connection, "verb", "commands") == remaining(connection, "event", "gpu_events") == ["new"]


def test_lines_of_removed_runs_go_in_small_transactions(home: RecordedHome) -> None:
    connection = home.connection
    for run_id, lines in (("gone-1", LINES), ("there-1", 500)):
        add_run(connection, run_id)
        source = add_source(connection, run_id)
        add_many_lines(connection, source, lines)
        connection.execute(
            "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?) "
            "INSERT INTO metric_envelopes (source_id, attempt, name, level, number, entries) "
            "SELECT ?, 1, 'loss', 0, i, zeroblob(1000) FROM n",
            (lines // 200, source),
        )
    connection.execute("DELETE FROM runs WHERE run_id = 'gone-1'")
    counted = []
    while home.janitor.tidying.work():
        counted += [count for (count,) in home.rows("SELECT count(*) FROM metrics")]
        assert home.janitor.tidying.has_lines
    assert max(before - after for before, after in zip([LINES + 500, *counted], counted, strict=False)) == 1000
    for table, left_over in (("metrics", 500), ("metric_envelopes", 2), ("metric_sources", 1)):
        assert home.rows(f"SELECT count(*) FROM {table}") == [(left_over,)]
    assert not home.janitor.tidying.has_lines
    assert home.rows("PRAGMA foreign_key_check") == []


def test_the_log_is_moved_beside_the_loop_and_becomes_short_again(home: RecordedHome) -> None:
    bound_log(home.connection)
    home.connection.execute("CREATE TABLE big (x BLOB)")
    write(home, 13)
    # The commits themselves did not checkpoint the log.
    assert log_bytes(home) >= LONG_LOG_BYTES
    home.janitor.start()
    try:
        home.janitor.call()
        # The first commit after a checkpoint starts the log anew and truncates it.
        wait_until(lambda: write(home, 1) or log_bytes(home) < MOVED_AT_BYTES)
    finally:
        home.janitor.stop()


def test_under_the_lock_nothing_waits_for_the_disk_or_another_program(home: RecordedHome) -> None:
    bound_log(home.connection)
    read = {name: pragma(home.janitor.tidying.connection, name) for name in ("synchronous", "wal_autocheckpoint")}
    assert read == {"synchronous": 1, "wal_autocheckpoint": 0}
    home.connection.execute("BEGIN IMMEDIATE")
    home.now += 500 * DAY
    began = time.monotonic()
    with pytest.raises(sqlite3.OperationalError):
        home.janitor.tidying.expire(home.now)
    assert time.monotonic() - began < 2.0
    home.connection.execute("ROLLBACK")


def test_the_thread_waits_for_the_turn_of_the_loop(home: RecordedHome) -> None:
    home.record(200.0)
    assert home.recorder.flush()
    (before,) = home.rows("SELECT count(*) FROM gpu_minutes")
    home.tick()
    home.pass_time(200.0)
    home.tick()
    assert home.recorder.flush()
    with home.janitor.tidying.writing:
        home.janitor.start()
        home.janitor.call()
        wait_until(lambda: not home.janitor._is_called.is_set())
        assert home.rows("SELECT count(*) FROM gpu_minutes") == [before]
    wait_until(lambda: home.rows("SELECT count(*) FROM gpu_minutes") > [before])
    home.janitor.stop()
