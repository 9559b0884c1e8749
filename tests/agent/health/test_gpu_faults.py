"""What is read of an attempt's GPUs from the history."""

from __future__ import annotations

import sqlite3

import pytest

from gputui.agent.health.gpu_faults import sightings
from gputui.recovery.hardware import Sighting


@pytest.fixture
def store(connection: sqlite3.Connection) -> sqlite3.Connection:
    for number, uuid in enumerate(("GPU-a", "GPU-b")):
        connection.execute(
            "INSERT INTO gpus (gpu_id, uuid, position, name, first_seen_at, last_seen_at) VALUES (?, ?, ?, 'x', 0, 0)",
            (number + 1, uuid, number),
        )
    return connection


def slow(store: sqlite3.Connection, gpu: int, at: float, errors: int | None, failed: bool | None = None) -> None:
    store.execute(
        "INSERT INTO gpu_slow_samples (at, gpu_id, ecc_uncorrected, row_remap_failed) VALUES (?, ?, ?, ?)",
        (at, gpu, errors, failed),
    )


def test_counters_tell_only_what_grew_meanwhile(store: sqlite3.Connection) -> None:
    for at, errors, failed in ((10, 7, False), (20, 7, False), (30, None, None), (40, 9, True), (50, 9, True)):
        slow(store, 1, at, errors, failed)
    slow(store, 2, 10, 3, True)
    slow(store, 2, 20, 0, True)  # the driver was loaded anew
    assert sightings(store, ["GPU-a", "GPU-b"], 0, 100) == [
        Sighting(40, "GPU-a", "ecc", 2),
        Sighting(40, "GPU-a", "remap"),
    ]
    assert sightings(store, ["GPU-a"], 45, 100) == []


def test_events_of_these_gpus_in_this_time(store: sqlite3.Connection) -> None:
    rows = [(5, "GPU-a", "xid", 31), (15, "GPU-a", "xid", 79), (16, "GPU-b", "lost", None), (17, "GPU-c", "xid", 79)]
    store.executemany("INSERT INTO gpu_events (at, uuid, event, code) VALUES (?, ?, ?, ?)", rows)
    assert sightings(store, ["GPU-a", "GPU-b"], 10, 20) == [
        Sighting(15, "GPU-a", "xid", 79),
        Sighting(16, "GPU-b", "lost"),
    ]
