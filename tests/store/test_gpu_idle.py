"""Since when a GPU has computed nothing, and who has been on it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.core.config import locate
from gputui.store.hardware import GpuView, Idleness, idleness, present_since, read_gpus
from gputui.ui.tui.data.machine import IdleReader
from tests.ui.tui.filling import GIB, NOW, Filler, uuid


@pytest.fixture
def filler(tmp_path: Path) -> Iterator[Filler]:
    workspace = locate(tmp_path / "home")
    workspace.create()
    made = Filler(workspace)
    made.gpus(2)
    yield made
    made.close()


def sampled(filler: Filler, index: int, *values: tuple[float, float]) -> None:
    """Samples (seconds ago, utilisation)."""
    for ago, used in values:
        filler.sample(index, at=NOW - ago, utilization=used, memory_gib=22.0)


def held(filler: Filler, index: int, ago: float, *pids: int) -> None:
    processes = [{"pid": pid, "user": "alice", "command": "python", "memory_bytes": GIB, "kind": "C"} for pid in pids]
    filler.connection.execute(
        "INSERT INTO gpu_process_sets (at, gpu_id, processes) SELECT ?, gpu_id, ? FROM gpus WHERE uuid = ?",
        (NOW - ago, json.dumps(processes), uuid(index)),
    )
    filler.processes(index, *processes)


def views(filler: Filler) -> list[GpuView]:
    return read_gpus(filler.connection, NOW)


def test_since_the_first_sample_behind_the_last_busy_one(filler: Filler) -> None:
    sampled(filler, 0, (5000.0, 0.0), (4000.0, 30.0), (3990.0, 0.0), (2000.0, 0.0), (1.0, 0.0))
    connection = filler.connection
    assert idleness(connection, uuid(0), 0.0, NOW) == Idleness(NOW - 3990.0, was_busy=True)
    assert idleness(connection, uuid(0), NOW - 3000.0, NOW) == Idleness(NOW - 2000.0, was_busy=False)
    sampled(filler, 0, (0.0, 12.0))
    assert idleness(connection, uuid(0), 0.0, NOW) == Idleness(None, was_busy=True)
    assert idleness(connection, "GPU-none", 0.0, NOW) == Idleness(None, was_busy=False)


def test_a_process_is_there_since_the_list_has_it_without_a_break(filler: Filler) -> None:
    for ago, pids in ((900.0, (7, 8)), (800.0, (8,)), (600.0, (7, 8)), (300.0, (7, 8, 9))):
        held(filler, 0, ago, *pids)
    assert present_since(filler.connection, uuid(0)) == {7: NOW - 600, 8: NOW - 900, 9: NOW - 300}
    assert present_since(filler.connection, uuid(1)) == {}


def test_what_holds_memory_of_an_idle_gpu_and_since_when(filler: Filler) -> None:
    held(filler, 0, 9000.0, 7)
    held(filler, 0, 600.0, 7, 8)
    sampled(filler, 0, (4000.0, 30.0), (3990.0, 0.0), (1.0, 0.0))
    held(filler, 1, 9000.0, 9)
    sampled(filler, 1, (3990.0, 0.0), (1.0, 40.0))
    reader = IdleReader()
    told = {(uuid(0), 7): NOW - 3990.0, (uuid(0), 8): NOW - 600.0}
    assert reader.read(filler.connection, views(filler), NOW) == told
    sampled(filler, 0, (0.0, 0.0))
    assert reader.read(filler.connection, views(filler), NOW) == told  # nothing ran since the last look
    sampled(filler, 0, (-1.0, 9.0), (-2.0, 0.0))
    assert reader.read(filler.connection, views(filler), NOW + 2)[uuid(0), 7] == NOW + 2
