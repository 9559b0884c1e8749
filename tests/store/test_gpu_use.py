"""Energy and memory of GPUs, while they were held and while they were idle."""

from __future__ import annotations

import json

import pytest

from gputui.store.attempts import (
    FellowStay,
    alone_seconds,
    consumed_joules,
    energy_between,
    own_seconds,
    read_attempts,
    run_cost,
)
from gputui.store.gpu_use import GpuCounts, Stay, gpu_counts, past_peaks, study_peaks
from gputui.store.hardware import GpuView, Idleness, idleness, present_since, read_gpus
from gputui.ui.tui.data.machine import IdleReader
from tests.homes import GIB, NOW, Home, uuid


def test_consumed() -> None:
    for earlier, later, expected in [
        ((0.0, 1000.0), (5.0, 2500.0), 1500.0),
        ((0.0, 1000.0), (5.0, 1000.0), 0.0),
        ((0.0, 9_000_000.0), (5.0, 40.0), 40.0),  # the driver was loaded anew
    ]:
        assert consumed_joules(earlier, later) == pytest.approx(expected)


def test_parts_of_a_stretch_add_up_to_it() -> None:
    readings = [(t * 5.0, 300.0 * t * 5.0 + t * t) for t in range(100)]
    whole = energy_between(readings, 12.0, 400.0, 60.0)
    parts = [energy_between(readings, a, b, 60.0) for a, b in ((12.0, 77.7), (77.7, 300.0), (300.0, 400.0))]
    assert whole == pytest.approx(sum(part or 0 for part in parts))


def test_a_gap_tells_nothing_of_what_lay_in_it() -> None:
    readings = [(0.0, 0.0), (5.0, 1000.0), (605.0, 90_000.0), (610.0, 91_000.0)]
    assert energy_between(readings, 0.0, 700.0, 60.0) == 2000.0
    assert energy_between(readings, 100.0, 200.0, 60.0) is None
    assert energy_between([(0.0, 5.0)], 0.0, 10.0, 60.0) is None


def test_time_that_several_share_is_divided_among_them() -> None:
    for others, own, alone in [
        ([], 12.0, 12.0),
        ([(0.0, 100.0)], 6.0, 0.0),
        ([(4.0, 10.0)], 9.0, 6.0),
        ([(-5.0, 3.0), (9.0, None)], 9.0, 6.0),
        ([(0.0, 6.0), (3.0, 9.0)], 1.5 + 1.0 + 1.5 + 3.0, 3.0),
        ([(12.0, 20.0), (-3.0, 0.0)], 12.0, 12.0),
    ]:
        stays = [FellowStay("b-1", begin, end) for begin, end in others]
        assert own_seconds(0.0, 12.0, stays) == pytest.approx(own)
        assert alone_seconds(0.0, 12.0, stays) == pytest.approx(alone)


def test_time_is_divided_by_what_each_asked_for(home: Home) -> None:
    home.gpus(1)
    for run_id, share in (("a-1", 0.25), ("b-1", 0.75), ("c-1", 1.0)):
        home.run(run_id, "failed", attempt=2, gpus=(0,), started_ago=7200.0, ended_ago=0.0)
        home.connection.execute(
            "UPDATE runs SET spec = json_set(spec, '$.gpus.share', ?) WHERE run_id = ?", (share, run_id)
        )
    home.attempt("a-1", 1, "failed", gpus=(0,), started_ago=7200.0, ended_ago=3600.0)
    home.attempt("a-1", 2, "failed", gpus=(0,), started_ago=3600.0, ended_ago=0.0)
    home.attempt("b-1", 1, "failed", gpus=(0,), started_ago=3600.0, ended_ago=0.0)
    hours = {run_id: run_cost(home.connection, run_id, NOW).gpu_hours for run_id in ("a-1", "b-1")}
    assert hours == pytest.approx({"a-1": 1.25, "b-1": 0.75})
    alone, beside = read_attempts(home.connection, "a-1")
    assert alone.gpu_seconds(NOW - 7200, NOW - 3600) == pytest.approx(3600)
    assert beside.gpu_seconds(NOW - 3600, NOW - 1800) == pytest.approx(450)
    assert [(stay.run_id, stay.weight) for stay in beside.fellows] == [("b-1", 3.0)]


def test_the_largest_peak_of_each_attempt_and_where_memory_ran_out(home: Home) -> None:
    home.run("gpt-1", "succeeded", name="gpt", attempt=2)
    home.attempt("gpt-1", 1, "failed", gpus=(0, 1), params={"batch_size": 64})
    home.attempt("gpt-1", 2, "succeeded", gpus=(0, 1), params={"batch_size": 48})
    home.incident("gpt-1", 1, "cuda_oom", "out of memory")
    home.metrics("gpt-1", 2, [{"step": 1, "rank": rank, "gpu_mem_peak": 1000 + rank} for rank in range(2)])
    home.run("gpt-2", name="gpt")
    home.attempt("gpt-2", 1, gpus=())
    home.metrics("gpt-2", 1, [{"step": 1, "gpu_mem_peak": 5}])
    home.run("vit-1", name="vit")
    home.attempt("vit-1", 1, gpus=(2,))
    home.metrics("vit-1", 1, [{"step": 1, "gpu_mem_peak": 7}])
    found = past_peaks(home.connection, "gpt")
    assert [(peak.attempt, peak.peak_bytes, peak.ran_out, peak.gpu_count) for peak in found] == [
        (2, 1001, False, 2), (1, None, True, 2),
    ]  # fmt: skip
    assert found[0].params == {"batch_size": 48}


def trial(home: Home, run_id: str, study: str, state: str = "running", gpus: tuple[int, ...] = (0,)) -> None:
    home.run(run_id, state)
    home.attempt(run_id, 1, state, gpus=gpus, ended_ago=None if state == "running" else 5.0)
    home.connection.execute("UPDATE runs SET study_id = ? WHERE run_id = ?", (study, run_id))


def listed(home: Home, seconds_ago: float, gpu: int, **held: int) -> None:
    """The driver's list of a GPU's processes, by their runs."""
    processes = [{"pid": 1, "run_id": run_id.replace("_", "-"), "memory_bytes": size} for run_id, size in held.items()]
    home.connection.execute(
        "INSERT INTO gpu_process_sets (at, gpu_id, processes) VALUES (?, ?, ?)",
        (NOW - seconds_ago, gpu + 1, json.dumps(processes)),
    )


def peaks(home: Home, study: str = "s") -> list[int]:
    return list(study_peaks(home.connection, study).values())


def test_the_peak_of_a_study_is_that_of_the_largest_trial_by_whoever_says_more(home: Home) -> None:
    home.gpus(2)
    trial(home, "a-1", "s")
    assert peaks(home) == [], "it has reported nothing yet"
    listed(home, 50, 0, a_1=GIB)
    assert peaks(home) == [], "what it holds before its first step is no peak"
    home.metrics("a-1", 1, [{"step": 1, "rank": rank, "gpu_mem_peak": 3 * GIB} for rank in range(2)])
    assert peaks(home) == [6 * GIB], "both ranks are on the one GPU"
    listed(home, 40, 0, a_1=8 * GIB, other_1=40 * GIB)
    trial(home, "b-1", "s", "succeeded")
    listed(home, 30, 0, b_1=9 * GIB, a_1=2 * GIB)
    assert peaks(home) == [8 * GIB], "one that made no step was not measured"
    home.connection.execute("UPDATE attempts SET last_step = 3 WHERE run_id = 'b-1'")
    assert peaks(home) == [9 * GIB]
    assert peaks(home, "t") == []


HOUR = 3600.0
BASE = NOW - NOW % HOUR
PUT = (
    "INSERT INTO gpu_{} (gpu_id, at, sample_count, utilization_percent_mean, power_watts_mean, "
    "memory_used_bytes_max) VALUES (1, ?, ?, ?, 400, ?)"
)


@pytest.fixture
def gpus(home: Home) -> Home:
    """Two GPUs."""
    home.gpus(2)
    return home


def set_bounds(gpus: Home, raw_since: float, minutes_since: float) -> None:
    gpus.connection.execute("DELETE FROM record_bounds")
    gpus.connection.execute(
        "INSERT INTO record_bounds (id, raw_since, minutes_since) VALUES (1, ?, ?)", (raw_since, minutes_since)
    )


def test_samples_of_its_own_gpus_while_it_had_them(gpus: Home) -> None:
    for at, percent in ((0, 10), (10, 90.4), (20, 90), (30, 50)):
        gpus.sample(0, at=BASE + at, utilization=percent, power=300.0, memory_gib=at)
        gpus.sample(1, at=BASE + at, utilization=1)
    gpus.sample(0, at=BASE + 15, utilization=None, power=None, memory_gib=None, state="error")
    found = gpu_counts(gpus.connection, [Stay(uuid(0), BASE + 10, BASE + 30), Stay("GPU-gone", 0.0, BASE)])
    assert found.utilization_percent == {90.0: 2} and found.power_watts == {300.0: 2}
    assert found.memory_used_bytes_most == 20 * GIB
    gpus.connection.execute("UPDATE gpus SET facts = json_set(facts, '$.memory_is_unified', 1)")
    unified = gpu_counts(gpus.connection, [Stay(uuid(0), BASE + 10, BASE + 30)])
    assert unified.utilization_percent == {90.0: 2} and unified.memory_used_bytes_most is None
    assert gpu_counts(gpus.connection, [Stay(uuid(1), BASE + 60, BASE + 90)]) == GpuCounts()


def test_where_samples_are_gone_minutes_and_hours_count_as_often_as_they_had_samples(gpus: Home) -> None:
    connection = gpus.connection
    connection.execute(PUT.format("hours"), (BASE - 2 * HOUR, 3600, 20.0, 9 * GIB))
    connection.execute(PUT.format("hours"), (BASE - HOUR, 3600, 99.0, 70 * GIB))
    connection.execute(PUT.format("minutes"), (BASE - HOUR, 60, 40.0, 3 * GIB))
    connection.execute(PUT.format("minutes"), (BASE, 60, 99.0, 70 * GIB))
    set_bounds(gpus, BASE, BASE - HOUR)
    gpus.sample(0, at=BASE + 1, utilization=80, power=None, memory_gib=1)
    found = gpu_counts(connection, [Stay(uuid(0), BASE - 2 * HOUR, BASE + 60)])
    assert found.utilization_percent == {20.0: 3600, 40.0: 60, 80.0: 1}
    assert found.power_watts == {400.0: 3660}
    assert found.memory_used_bytes_most == 9 * GIB


def test_what_lies_partly_in_a_stay_counts_in_part(gpus: Home) -> None:
    for at, percent in ((BASE - HOUR, 40.0), (BASE, 95.0)):
        gpus.connection.execute(PUT.format("hours"), (at, 3600, percent, 70 * GIB))
    set_bounds(gpus, BASE + HOUR, BASE + HOUR)
    across = gpu_counts(gpus.connection, [Stay(uuid(0), BASE - 120, BASE + 120)])
    assert across.utilization_percent == {40.0: 120, 95.0: 120} and across.memory_used_bytes_most is None
    within = gpu_counts(gpus.connection, [Stay(uuid(0), BASE + 300, BASE + 1500)])
    assert within.utilization_percent == {95.0: 1200} and within.power_watts == {400.0: 1200}
    assert within.memory_used_bytes_most is None
    longer = gpu_counts(gpus.connection, [Stay(uuid(0), BASE - 1, BASE + HOUR)])
    assert longer.utilization_percent == {40.0: 1, 95.0: 3600} and longer.memory_used_bytes_most == 70 * GIB


def test_a_minute_whose_samples_are_gone_in_part_lies_whole_in_a_stay(gpus: Home) -> None:
    gpus.connection.execute(PUT.format("minutes"), (BASE, 60, 40.0, 9 * GIB))
    set_bounds(gpus, BASE + 30, BASE - HOUR)
    for at in range(30, 60):
        gpus.sample(0, at=BASE + at, utilization=80, power=400.0, memory_gib=1)
    found = gpu_counts(gpus.connection, [Stay(uuid(0), BASE - 60, BASE + 60)])
    assert found.utilization_percent == {40.0: 30, 80.0: 30} and found.memory_used_bytes_most == 9 * GIB


def sampled(gpus: Home, index: int, *values: tuple[float, float]) -> None:
    """Samples (seconds ago, utilisation)."""
    for ago, used in values:
        gpus.sample(index, at=NOW - ago, utilization=used, memory_gib=22.0)


def held(gpus: Home, index: int, ago: float, *pids: int) -> None:
    processes = [{"pid": pid, "user": "alice", "command": "python", "memory_bytes": GIB, "kind": "C"} for pid in pids]
    gpus.connection.execute(
        "INSERT INTO gpu_process_sets (at, gpu_id, processes) SELECT ?, gpu_id, ? FROM gpus WHERE uuid = ?",
        (NOW - ago, json.dumps(processes), uuid(index)),
    )
    gpus.processes(index, *processes)


def views(gpus: Home) -> list[GpuView]:
    return read_gpus(gpus.connection, NOW)


def test_since_the_first_sample_behind_the_last_busy_one(gpus: Home) -> None:
    sampled(gpus, 0, (5000.0, 0.0), (4000.0, 30.0), (3990.0, 0.0), (2000.0, 0.0), (1.0, 0.0))
    connection = gpus.connection
    assert idleness(connection, uuid(0), 0.0, NOW) == Idleness(NOW - 3990.0, was_busy=True)
    assert idleness(connection, uuid(0), NOW - 3000.0, NOW) == Idleness(NOW - 2000.0, was_busy=False)
    sampled(gpus, 0, (0.0, 12.0))
    assert idleness(connection, uuid(0), 0.0, NOW) == Idleness(None, was_busy=True)
    assert idleness(connection, "GPU-none", 0.0, NOW) == Idleness(None, was_busy=False)


def test_a_process_is_there_since_the_list_has_it_without_a_break(gpus: Home) -> None:
    for ago, pids in ((900.0, (7, 8)), (800.0, (8,)), (600.0, (7, 8)), (300.0, (7, 8, 9))):
        held(gpus, 0, ago, *pids)
    assert present_since(gpus.connection, uuid(0)) == {7: NOW - 600, 8: NOW - 900, 9: NOW - 300}
    assert present_since(gpus.connection, uuid(1)) == {}


def test_what_holds_memory_of_an_idle_gpu_and_since_when(gpus: Home) -> None:
    held(gpus, 0, 9000.0, 7)
    held(gpus, 0, 600.0, 7, 8)
    sampled(gpus, 0, (4000.0, 30.0), (3990.0, 0.0), (1.0, 0.0))
    held(gpus, 1, 9000.0, 9)
    sampled(gpus, 1, (3990.0, 0.0), (1.0, 40.0))
    reader = IdleReader()
    told = {(uuid(0), 7): NOW - 3990.0, (uuid(0), 8): NOW - 600.0}
    assert reader.read(gpus.connection, views(gpus), NOW) == told
    sampled(gpus, 0, (0.0, 0.0))
    assert reader.read(gpus.connection, views(gpus), NOW) == told  # nothing ran since the last look
    sampled(gpus, 0, (-1.0, 9.0), (-2.0, 0.0))
    assert reader.read(gpus.connection, views(gpus), NOW + 2)[uuid(0), 7] == NOW + 2
