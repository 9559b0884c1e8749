"""What is read of an attempt's GPUs from the history."""

from __future__ import annotations

import sqlite3

from gputui.agent.health.gpu_faults import sightings
from gputui.recovery.hardware import Sighting


def test_events_and_counters_tell_only_what_came_meanwhile(connection: sqlite3.Connection) -> None:
    for number, uuid in enumerate(("GPU-a", "GPU-b"), 1):
        connection.execute(
            "INSERT INTO gpus (gpu_id, uuid, position, name, first_seen_at, last_seen_at) VALUES (?, ?, ?, 'x', 0, 0)",
            (number, uuid, number),
        )
    slow = [(10, 1, 7, False), (20, 1, 7, False), (30, 1, None, None), (40, 1, 9, True), (50, 1, 9, True),
            (10, 2, 3, True), (20, 2, 0, True)]  # fmt: skip
    connection.executemany(
        "INSERT INTO gpu_slow_samples (at, gpu_id, ecc_uncorrected, row_remap_failed) VALUES (?, ?, ?, ?)", slow
    )
    rows = [(5, "GPU-a", "xid", 31), (15, "GPU-a", "xid", 79), (16, "GPU-b", "lost", None), (17, "GPU-c", "xid", 79)]
    connection.executemany("INSERT INTO gpu_events (at, uuid, event, code) VALUES (?, ?, ?, ?)", rows)
    events = [Sighting(15, "GPU-a", "xid", 79), Sighting(16, "GPU-b", "lost")]
    assert sightings(connection, ["GPU-a", "GPU-b"], 10, 20) == events
    assert sightings(connection, ["GPU-a", "GPU-b"], 10, 100) == [
        *events, Sighting(40, "GPU-a", "ecc", 2), Sighting(40, "GPU-a", "remap"),
    ]  # fmt: skip
    assert sightings(connection, ["GPU-a"], 45, 100) == []
