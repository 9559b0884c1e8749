"""The record's extent, its gaps, what happened along it, and moving between."""

from __future__ import annotations

import sqlite3

import pytest

from gputui.store import timeline
from tests.homes import NOW, Home


def record_samples(home: Home, first_ago: int, last_ago: int, every: int = 1) -> None:
    for ago in range(first_ago, last_ago - 1, -every):
        home.host(NOW - ago)


def test_an_empty_store_has_no_record(reader: sqlite3.Connection) -> None:
    record = timeline.timeline(reader, NOW - 100, NOW)
    assert (record.began_at, record.recorded, record.ticks) == (None, (), ())
    assert timeline.gap_at(reader, NOW) == (None, None)
    assert timeline.resolve(reader, NOW - 50, -1, -1, NOW) == NOW - 50


def test_gaps_are_found_whatever_the_interval(home: Home, reader: sqlite3.Connection) -> None:
    record_samples(home, 3000, 2000, every=60)  # a slow recorder
    record_samples(home, 1000, 500)
    record_samples(home, 300, 0)
    gap_at = timeline.gap_at
    assert gap_at(reader, NOW - 3500) == (None, NOW - 3000)
    assert gap_at(reader, NOW - 2500) is None
    assert gap_at(reader, NOW - 1500) == (NOW - 2040, NOW - 1000)
    assert gap_at(reader, NOW - 700.5) is None
    assert gap_at(reader, NOW - 400) == (NOW - 500, NOW - 300)
    assert gap_at(reader, NOW) is None
    assert gap_at(reader, NOW + 8) is None
    assert gap_at(reader, NOW + 60) == (NOW, None)


def test_recorded_stretches_to_about_a_piece(home: Home, reader: sqlite3.Connection) -> None:
    record_samples(home, 1000, 500)
    record_samples(home, 300, 0)
    spans = timeline.recorded(reader, NOW - 1200, NOW, pieces=60)
    assert len(spans) == 2
    (first_start, first_end), (second_start, second_end) = spans
    assert (first_start, second_start) == (NOW - 1000, NOW - 300)
    assert first_end == NOW - 500
    assert second_end >= NOW - 20
    # Pieces narrower than the distance of samples do not tear a stretch apart.
    assert len(timeline.recorded(reader, NOW - 300, NOW, pieces=2000)) == 1


def test_what_happened_along_it(home: Home, reader: sqlite3.Connection) -> None:
    home.run("a-1")
    home.incident("a-1", 1, "cuda_oom", "out of memory", seconds_ago=50)
    home.event("told", seconds_ago=40, severity="warning")
    home.event("before", seconds_ago=500)
    home.metrics(
        "a-1",
        1,
        [
            {"step": 5, "time": NOW - 30, "loss": 1.0},
            {"step": 5, "time": NOW - 29, "event": "checkpoint"},
            {"step": 6, "time": NOW - 28, "event": "start"},
        ],
    )
    ticks = timeline.ticks(reader, NOW - 100, NOW)
    assert [(NOW - tick.at, tick.kind, tick.severity) for tick in ticks] == [
        (50, "incident", "error"), (40, "event", "warning"), (29, "checkpoint", "info"),
    ]  # fmt: skip
    assert ticks[2].text == "checkpoint at step 5"


def test_ticks_are_stepped_through_burst_by_burst(home: Home, reader: sqlite3.Connection) -> None:
    record_samples(home, 1000, 0, every=5)
    for ago in (900.0, 899.6, 899.2, 400.0, 100.0):
        home.event("x", seconds_ago=ago)

    def after(at: float, ticks: int) -> float:
        return NOW - timeline.resolve(reader, NOW - at, ticks, 0, NOW)

    assert after(0, -1) == pytest.approx(100.0)
    assert after(0, -2) == pytest.approx(400.0)
    assert after(0, -3) == pytest.approx(899.2)
    assert after(899.2, -1) == pytest.approx(899.2)  # there is none before
    assert after(950, 1) == pytest.approx(899.2)  # the end of the burst: all of it is seen
    assert after(899.2, 1) == pytest.approx(400.0)
    assert after(950, 3) == pytest.approx(100.0)
    assert after(100.0, 1) == pytest.approx(100.0)


def test_a_step_into_a_gap_goes_to_its_end_and_a_typed_time_stays(home: Home, reader: sqlite3.Connection) -> None:
    record_samples(home, 1000, 500)
    record_samples(home, 300, 100)

    def resolved(ago: float, direction: int) -> float:
        return NOW - timeline.resolve(reader, NOW - ago, 0, direction, NOW)

    assert [resolved(400, direction) for direction in (-1, 0, 1)] == [500, 400, 300]
    assert [resolved(2000, direction) for direction in (-1, 0, 1)] == [1000, 1000, 1000]
    assert [resolved(50, direction) for direction in (-1, 1)] == [100, 0]
    assert timeline.resolve(reader, NOW + 50, 0, 0, NOW) == NOW


def test_what_the_queries_need_is_indexed(reader: sqlite3.Connection) -> None:
    def plan(sql: str) -> str:
        return " ".join(row[3] for row in reader.execute(f"EXPLAIN QUERY PLAN {sql}"))

    for sql in (
        "SELECT max(at) FROM events WHERE at < 5",
        "SELECT min(at) FROM incidents WHERE at > 5",
        "SELECT at FROM gpu_events WHERE at <= 5 ORDER BY at DESC LIMIT 64",
        "SELECT * FROM host_samples WHERE at <= 5 ORDER BY at DESC LIMIT 1",
        "SELECT * FROM gpu_samples WHERE gpu_id = 1 AND at <= 5 ORDER BY at DESC LIMIT 1",
    ):
        assert "SEARCH" in plan(sql), sql
        assert "SCAN" not in plan(sql), sql


def test_alerts_are_ticks_to_move_between(home: Home, reader: sqlite3.Connection) -> None:
    record_samples(home, 600, 0, every=5)
    home.alert("disk", "The disk is full", seconds_ago=400)
    home.alert("gpu_hot", "GPU 3 is hot", seconds_ago=200, cleared_ago=100)
    ticks = timeline.ticks(reader, NOW - 600, NOW)
    assert [(tick.kind, tick.severity, tick.at) for tick in ticks] == [
        ("alert", "error", NOW - 400),
        ("alert", "warning", NOW - 200),
    ]
    assert timeline.resolve(reader, NOW, -1, 0, NOW) == NOW - 200
    assert timeline.resolve(reader, NOW, -2, 0, NOW) == NOW - 400
