"""The agent's knowledge of a living attempt, at first and as lines arrive."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from gputui.agent.health.watched import begin
from gputui.recovery.watch.silence import silence
from gputui.store.attempts import Attempt
from gputui.store.metrics.watched import WatchedLine, newest_lines
from tests.homes import add_line, add_run, add_source

NOW = 1_000_000.0
RECORD = Attempt("r", 2, "running", params={}, gpus=(), launch={}, created_at=NOW - 500, started_at=NOW - 500)


@pytest.fixture(autouse=True)
def run(connection: sqlite3.Connection) -> None:
    add_run(connection, "r")
    add_source(connection, "r")


def write(connection: sqlite3.Connection, attempt: int, *lines: dict[str, Any]) -> None:
    for line in lines:
        add_line(connection, line.get("step"), line.get("time"), line, attempt=attempt, rank=line.get("rank"))
    connection.execute("UPDATE metric_sources SET byte_offset = byte_offset + ?", (len(lines),))


def test_a_successor_knows_how_long_the_silence_has_lasted(connection: sqlite3.Connection) -> None:
    write(connection, 1, *({"step": step, "time": NOW - 9000 + step * 40.0} for step in range(20)))
    write(connection, 2, {"step": 20, "time": NOW - 100.0})
    watched = begin(connection, RECORD, clock=5.0, wall=NOW)
    assert watched.watch.progress_at == watched.watch.lines_at == 5.0 - 100.0
    assert watched.watch.progress.pace.longest_gap == 40.0
    assert silence(watched.watch.progress, 100.0, 10.0).allowed_seconds == 120.0
    for attempt, clock, progress_at in ((1, 50.0, -95.0), (2, 60.0, 60.0)):
        watched.watch.take([WatchedLine(attempt, rank=None, step=99, at=NOW, event=None, values={})], clock)
        assert watched.watch.progress_at == progress_at, "lines of other attempts are no progress"


def test_a_nan_that_a_predecessor_did_not_live_to_tell_is_told(connection: sqlite3.Connection) -> None:
    write(connection, 2, *({"step": step, "loss": "NaN"} for step in range(9)))
    watched = begin(connection, RECORD, clock=5.0, wall=NOW)
    assert [(command.kind, command.since) for command in watched.pending] == [("nan_loss", 0)]


def test_an_event_announces_what_begins_unless_it_has_numbers(connection: sqlite3.Connection) -> None:
    write(connection, 2, {"step": 1, "event": "saved", "seconds": 2.0}, {"step": 1, "event": "upload", "epoch": 3})
    lines, _ = newest_lines(connection, "r", {}, 100)
    assert [(line.event, line.announces) for line in lines] == [("saved", False), ("upload", True)]


def test_only_what_is_new_is_looked_at(connection: sqlite3.Connection) -> None:
    write(connection, 2, {"step": 1, "loss": 1.0}, {"step": 1, "event": "checkpoint"})
    lines, cursor = newest_lines(connection, "r", {}, 100)
    contents = [(line.step, line.event, dict(line.values)) for line in lines]
    assert contents == [(1, None, {"loss": 1.0}), (1, "checkpoint", {})]
    assert [line.announces for line in lines] == [False, True]
    assert newest_lines(connection, "r", cursor, 100) == ([], cursor)
    write(connection, 2, {"step": 2, "loss": 2.0}, {"step": 3, "loss": 3.0}, {"step": 4, "loss": "Infinity"})
    lines, _ = newest_lines(connection, "r", cursor, 2)
    assert [(line.step, line.values["loss"]) for line in lines] == [(3, 3.0), (4, float("inf"))]
