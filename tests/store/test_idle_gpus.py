"""Since when a GPU is idle, and which processes hold its memory meanwhile."""

from __future__ import annotations

import json

import pytest

from gputui.store.hardware import GpuView, Idleness, idleness, present_since, read_gpus
from gputui.ui.tui.data.machine import IdleReader
from tests.homes import GIB, NOW, Home, uuid


@pytest.fixture
def gpus(home: Home) -> Home:
    """Two GPUs."""
    home.gpus(2)
    return home


def record_samples(gpus: Home, index: int, *values: tuple[float, float]) -> None:
    """Record samples (seconds ago, utilisation)."""
    for ago, used in values:
        gpus.sample(index, at=NOW - ago, utilization=used, memory_gib=22.0)


def list_processes(gpus: Home, index: int, ago: float, *pids: int) -> None:
    """Record that the driver listed these processes so many seconds ago, and lists them still."""
    processes = [{"pid": pid, "user": "alice", "command": "python", "memory_bytes": GIB, "kind": "C"} for pid in pids]
    gpus.connection.execute(
        "INSERT INTO gpu_process_sets (at, gpu_id, processes) SELECT ?, gpu_id, ? FROM gpus WHERE uuid = ?",
        (NOW - ago, json.dumps(processes), uuid(index)),
    )
    gpus.processes(index, *processes)


def views(gpus: Home) -> list[GpuView]:
    return read_gpus(gpus.connection, NOW)


def test_since_the_first_sample_behind_the_last_busy_one(gpus: Home) -> None:
    record_samples(gpus, 0, (5000.0, 0.0), (4000.0, 30.0), (3990.0, 0.0), (2000.0, 0.0), (1.0, 0.0))
    connection = gpus.connection
    assert idleness(connection, uuid(0), 0.0, NOW) == Idleness(NOW - 3990.0, was_busy=True)
    assert idleness(connection, uuid(0), NOW - 3000.0, NOW) == Idleness(NOW - 2000.0, was_busy=False)
    record_samples(gpus, 0, (0.0, 12.0))
    assert idleness(connection, uuid(0), 0.0, NOW) == Idleness(None, was_busy=True)
    assert idleness(connection, "GPU-none", 0.0, NOW) == Idleness(None, was_busy=False)


def test_a_process_is_there_since_the_list_has_it_without_a_break(gpus: Home) -> None:
    for ago, pids in ((900.0, (7, 8)), (800.0, (8,)), (600.0, (7, 8)), (300.0, (7, 8, 9))):
        list_processes(gpus, 0, ago, *pids)
    assert present_since(gpus.connection, uuid(0)) == {7: NOW - 600, 8: NOW - 900, 9: NOW - 300}
    assert present_since(gpus.connection, uuid(1)) == {}


def test_what_holds_memory_of_an_idle_gpu_and_since_when(gpus: Home) -> None:
    list_processes(gpus, 0, 9000.0, 7)
    list_processes(gpus, 0, 600.0, 7, 8)
    record_samples(gpus, 0, (4000.0, 30.0), (3990.0, 0.0), (1.0, 0.0))
    list_processes(gpus, 1, 9000.0, 9)
    record_samples(gpus, 1, (3990.0, 0.0), (1.0, 40.0))
    reader = IdleReader()
    idle_since = {(uuid(0), 7): NOW - 3990.0, (uuid(0), 8): NOW - 600.0}
    assert reader.read(gpus.connection, views(gpus), NOW) == idle_since
    record_samples(gpus, 0, (0.0, 0.0))
    assert reader.read(gpus.connection, views(gpus), NOW) == idle_since  # nothing ran since the last look
    record_samples(gpus, 0, (-1.0, 9.0), (-2.0, 0.0))
    assert reader.read(gpus.connection, views(gpus), NOW + 2)[uuid(0), 7] == NOW + 2
