"""What GPUs did while an attempt had them, from samples and from what is left of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gputui.config import Workspace
from gputui.store.rollups import Stay, gpu_counts
from tests.tui.filling import GIB, NOW, Filler, uuid

HOUR = 3600.0
BASE = NOW - NOW % HOUR


@pytest.fixture
def filler(workspace: Workspace) -> Iterator[Filler]:
    made = Filler(workspace)
    made.gpus(2)
    yield made
    made.close()


def test_samples_of_its_own_gpus_while_it_had_them(filler: Filler) -> None:
    for at, percent in ((0, 10), (10, 90.4), (20, 90), (30, 50)):
        filler.sample(0, at=BASE + at, utilization=percent, power=300.0, memory_gib=at)
        filler.sample(1, at=BASE + at, utilization=1)
    filler.sample(0, at=BASE + 15, utilization=None, power=None, memory_gib=None, state="error")
    found = gpu_counts(filler.connection, [Stay(uuid(0), BASE + 10, BASE + 30), Stay("GPU-gone", 0.0, BASE)])
    assert found.utilization_percent == {90.0: 2} and found.power_watts == {300.0: 2}
    assert found.memory_used_bytes_most == 20 * GIB


def test_where_samples_are_gone_minutes_and_hours_count_as_often_as_they_had_samples(filler: Filler) -> None:
    put = (
        "INSERT INTO gpu_{} (gpu_id, at, sample_count, utilization_percent_mean, power_watts_mean, "
        "memory_used_bytes_max) VALUES (1, ?, ?, ?, 400, ?)"
    )
    connection = filler.connection
    connection.execute(put.format("hours"), (BASE - 2 * HOUR, 3600, 20.0, 9 * GIB))
    connection.execute(put.format("hours"), (BASE - HOUR, 3600, 99.0, 70 * GIB))
    connection.execute(put.format("minutes"), (BASE - HOUR, 60, 40.0, 3 * GIB))
    connection.execute(put.format("minutes"), (BASE, 60, 99.0, 70 * GIB))
    connection.execute("DELETE FROM record_bounds")
    connection.execute("INSERT INTO record_bounds (id, raw_since, minutes_since) VALUES (1, ?, ?)", (BASE, BASE - HOUR))
    filler.sample(0, at=BASE + 1, utilization=80, power=None, memory_gib=1)
    found = gpu_counts(connection, [Stay(uuid(0), BASE - 2 * HOUR, BASE + 60)])
    assert found.utilization_percent == {20.0: 3600, 40.0: 60, 80.0: 1}
    assert found.power_watts == {400.0: 3660}
    assert found.memory_used_bytes_most == 9 * GIB


def test_nothing_is_known_of_nothing(filler: Filler) -> None:
    found = gpu_counts(filler.connection, [Stay(uuid(0), BASE, BASE + 60)])
    assert not found.utilization_percent and found.memory_used_bytes_most is None
