"""What GPUs did while an attempt had them, from samples and from what is left of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gputui.core.config import Workspace
from gputui.store.gpu_use import GpuCounts, Stay, gpu_counts
from tests.ui.tui.filling import GIB, NOW, Filler, uuid

HOUR = 3600.0
BASE = NOW - NOW % HOUR
PUT = (
    "INSERT INTO gpu_{} (gpu_id, at, sample_count, utilization_percent_mean, power_watts_mean, "
    "memory_used_bytes_max) VALUES (1, ?, ?, ?, 400, ?)"
)


@pytest.fixture
def filler(workspace: Workspace) -> Iterator[Filler]:
    made = Filler(workspace)
    made.gpus(2)
    yield made
    made.close()


def set_bounds(filler: Filler, raw_since: float, minutes_since: float) -> None:
    filler.connection.execute("DELETE FROM record_bounds")
    filler.connection.execute(
        "INSERT INTO record_bounds (id, raw_since, minutes_since) VALUES (1, ?, ?)", (raw_since, minutes_since)
    )


def test_samples_of_its_own_gpus_while_it_had_them(filler: Filler) -> None:
    for at, percent in ((0, 10), (10, 90.4), (20, 90), (30, 50)):
        filler.sample(0, at=BASE + at, utilization=percent, power=300.0, memory_gib=at)
        filler.sample(1, at=BASE + at, utilization=1)
    filler.sample(0, at=BASE + 15, utilization=None, power=None, memory_gib=None, state="error")
    found = gpu_counts(filler.connection, [Stay(uuid(0), BASE + 10, BASE + 30), Stay("GPU-gone", 0.0, BASE)])
    assert found.utilization_percent == {90.0: 2} and found.power_watts == {300.0: 2}
    assert found.memory_used_bytes_most == 20 * GIB
    filler.connection.execute("UPDATE gpus SET facts = json_set(facts, '$.memory_is_unified', 1)")
    unified = gpu_counts(filler.connection, [Stay(uuid(0), BASE + 10, BASE + 30)])
    assert unified.utilization_percent == {90.0: 2} and unified.memory_used_bytes_most is None
    assert gpu_counts(filler.connection, [Stay(uuid(1), BASE + 60, BASE + 90)]) == GpuCounts()


def test_where_samples_are_gone_minutes_and_hours_count_as_often_as_they_had_samples(filler: Filler) -> None:
    connection = filler.connection
    connection.execute(PUT.format("hours"), (BASE - 2 * HOUR, 3600, 20.0, 9 * GIB))
    connection.execute(PUT.format("hours"), (BASE - HOUR, 3600, 99.0, 70 * GIB))
    connection.execute(PUT.format("minutes"), (BASE - HOUR, 60, 40.0, 3 * GIB))
    connection.execute(PUT.format("minutes"), (BASE, 60, 99.0, 70 * GIB))
    set_bounds(filler, BASE, BASE - HOUR)
    filler.sample(0, at=BASE + 1, utilization=80, power=None, memory_gib=1)
    found = gpu_counts(connection, [Stay(uuid(0), BASE - 2 * HOUR, BASE + 60)])
    assert found.utilization_percent == {20.0: 3600, 40.0: 60, 80.0: 1}
    assert found.power_watts == {400.0: 3660}
    assert found.memory_used_bytes_most == 9 * GIB


def test_what_lies_partly_in_a_stay_counts_in_part(filler: Filler) -> None:
    for at, percent in ((BASE - HOUR, 40.0), (BASE, 95.0)):
        filler.connection.execute(PUT.format("hours"), (at, 3600, percent, 70 * GIB))
    set_bounds(filler, BASE + HOUR, BASE + HOUR)
    across = gpu_counts(filler.connection, [Stay(uuid(0), BASE - 120, BASE + 120)])
    assert across.utilization_percent == {40.0: 120, 95.0: 120} and across.memory_used_bytes_most is None
    within = gpu_counts(filler.connection, [Stay(uuid(0), BASE + 300, BASE + 1500)])
    assert within.utilization_percent == {95.0: 1200} and within.power_watts == {400.0: 1200}
    assert within.memory_used_bytes_most is None
    longer = gpu_counts(filler.connection, [Stay(uuid(0), BASE - 1, BASE + HOUR)])
    assert longer.utilization_percent == {40.0: 1, 95.0: 3600} and longer.memory_used_bytes_most == 70 * GIB


def test_a_minute_whose_samples_are_gone_in_part_lies_whole_in_a_stay(filler: Filler) -> None:
    filler.connection.execute(PUT.format("minutes"), (BASE, 60, 40.0, 9 * GIB))
    set_bounds(filler, BASE + 30, BASE - HOUR)
    for at in range(30, 60):
        filler.sample(0, at=BASE + at, utilization=80, power=400.0, memory_gib=1)
    found = gpu_counts(filler.connection, [Stay(uuid(0), BASE - 60, BASE + 60)])
    assert found.utilization_percent == {40.0: 30, 80.0: 30} and found.memory_used_bytes_most == 9 * GIB
