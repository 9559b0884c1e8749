"""Memory peaks of attempts and studies, and the samples of GPUs while runs had them."""

from __future__ import annotations

import json

import pytest

from gputui.store.gpu_use import GpuCounts, Stay, gpu_counts, past_peaks, study_peaks
from tests.homes import GIB, NOW, Home, uuid

HOUR = 3600.0
BASE = NOW - NOW % HOUR
INSERT_MEANS = (
    "INSERT INTO gpu_{} (gpu_id, at, sample_count, utilization_percent_mean, power_watts_mean, "
    "memory_used_bytes_max) VALUES (1, ?, ?, ?, 400, ?)"
)


def trial(home: Home, run_id: str, study: str, state: str = "running", gpus: tuple[int, ...] = (0,)) -> None:
    home.run(run_id, state)
    ended_ago = None if state == "running" else 5.0
    home.attempt(run_id, 1, state, gpus=gpus, ended_ago=ended_ago)
    home.connection.execute("UPDATE runs SET study_id = ? WHERE run_id = ?", (study, run_id))


def list_processes(home: Home, seconds_ago: float, gpu: int, **bytes_of: int) -> None:
    """Record the driver's list of a GPU's processes, by their runs."""
    processes = [
        {"pid": 1, "run_id": run_id.replace("_", "-"), "memory_bytes": size} for run_id, size in bytes_of.items()
    ]
    home.connection.execute(
        "INSERT INTO gpu_process_sets (at, gpu_id, processes) VALUES (?, ?, ?)",
        (NOW - seconds_ago, gpu + 1, json.dumps(processes)),
    )


def peaks(home: Home, study: str = "s") -> list[int]:
    return list(study_peaks(home.connection, study).values())


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


# --- peaks


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
    peaks_of_gpt = past_peaks(home.connection, "gpt")
    assert [(peak.attempt, peak.peak_bytes, peak.ran_out, peak.gpu_count) for peak in peaks_of_gpt] == [
        (2, 1001, False, 2), (1, None, True, 2),
    ]  # fmt: skip
    assert peaks_of_gpt[0].params == {"batch_size": 48}


def test_the_peak_of_a_study_is_that_of_the_largest_trial_by_whoever_says_more(home: Home) -> None:
    home.gpus(2)
    trial(home, "a-1", "s")
    assert peaks(home) == [], "it has reported nothing yet"
    list_processes(home, 50, 0, a_1=GIB)
    assert peaks(home) == [], "what it holds before its first step is no peak"
    home.metrics("a-1", 1, [{"step": 1, "rank": rank, "gpu_mem_peak": 3 * GIB} for rank in range(2)])
    assert peaks(home) == [6 * GIB], "both ranks are on the one GPU"
    list_processes(home, 40, 0, a_1=8 * GIB, other_1=40 * GIB)
    trial(home, "b-1", "s", "succeeded")
    list_processes(home, 30, 0, b_1=9 * GIB, a_1=2 * GIB)
    assert peaks(home) == [8 * GIB], "one that made no step was not measured"
    home.connection.execute("UPDATE attempts SET last_step = 3 WHERE run_id = 'b-1'")
    assert peaks(home) == [9 * GIB]
    assert peaks(home, "t") == []


# --- samples


def test_samples_of_its_own_gpus_while_it_had_them(gpus: Home) -> None:
    for at, percent in ((0, 10), (10, 90.4), (20, 90), (30, 50)):
        gpus.sample(0, at=BASE + at, utilization=percent, power=300.0, memory_gib=at)
        gpus.sample(1, at=BASE + at, utilization=1)
    gpus.sample(0, at=BASE + 15, utilization=None, power=None, memory_gib=None, state="error")
    counts = gpu_counts(gpus.connection, [Stay(uuid(0), BASE + 10, BASE + 30), Stay("GPU-gone", 0.0, BASE)])
    assert counts.utilization_percent == {90.0: 2}
    assert counts.power_watts == {300.0: 2}
    assert counts.memory_used_bytes_most == 20 * GIB
    gpus.connection.execute("UPDATE gpus SET facts = json_set(facts, '$.memory_is_unified', 1)")
    unified = gpu_counts(gpus.connection, [Stay(uuid(0), BASE + 10, BASE + 30)])
    assert unified.utilization_percent == {90.0: 2}
    assert unified.memory_used_bytes_most is None
    assert gpu_counts(gpus.connection, [Stay(uuid(1), BASE + 60, BASE + 90)]) == GpuCounts()


def test_where_samples_are_gone_minutes_and_hours_count_as_often_as_they_had_samples(gpus: Home) -> None:
    connection = gpus.connection
    connection.execute(INSERT_MEANS.format("hours"), (BASE - 2 * HOUR, 3600, 20.0, 9 * GIB))
    connection.execute(INSERT_MEANS.format("hours"), (BASE - HOUR, 3600, 99.0, 70 * GIB))
    connection.execute(INSERT_MEANS.format("minutes"), (BASE - HOUR, 60, 40.0, 3 * GIB))
    connection.execute(INSERT_MEANS.format("minutes"), (BASE, 60, 99.0, 70 * GIB))
    set_bounds(gpus, BASE, BASE - HOUR)
    gpus.sample(0, at=BASE + 1, utilization=80, power=None, memory_gib=1)
    counts = gpu_counts(connection, [Stay(uuid(0), BASE - 2 * HOUR, BASE + 60)])
    assert counts.utilization_percent == {20.0: 3600, 40.0: 60, 80.0: 1}
    assert counts.power_watts == {400.0: 3660}
    assert counts.memory_used_bytes_most == 9 * GIB


def test_what_lies_partly_in_a_stay_counts_in_part(gpus: Home) -> None:
    for at, percent in ((BASE - HOUR, 40.0), (BASE, 95.0)):
        gpus.connection.execute(INSERT_MEANS.format("hours"), (at, 3600, percent, 70 * GIB))
    set_bounds(gpus, BASE + HOUR, BASE + HOUR)
    across = gpu_counts(gpus.connection, [Stay(uuid(0), BASE - 120, BASE + 120)])
    assert across.utilization_percent == {40.0: 120, 95.0: 120}
    assert across.memory_used_bytes_most is None
    within = gpu_counts(gpus.connection, [Stay(uuid(0), BASE + 300, BASE + 1500)])
    assert within.utilization_percent == {95.0: 1200}
    assert within.power_watts == {400.0: 1200}
    assert within.memory_used_bytes_most is None
    longer = gpu_counts(gpus.connection, [Stay(uuid(0), BASE - 1, BASE + HOUR)])
    assert longer.utilization_percent == {40.0: 1, 95.0: 3600}
    assert longer.memory_used_bytes_most == 70 * GIB


def test_a_minute_whose_samples_are_gone_in_part_lies_whole_in_a_stay(gpus: Home) -> None:
    gpus.connection.execute(INSERT_MEANS.format("minutes"), (BASE, 60, 40.0, 9 * GIB))
    set_bounds(gpus, BASE + 30, BASE - HOUR)
    for at in range(30, 60):
        gpus.sample(0, at=BASE + at, utilization=80, power=400.0, memory_gib=1)
    counts = gpu_counts(gpus.connection, [Stay(uuid(0), BASE - 60, BASE + 60)])
    assert counts.utilization_percent == {40.0: 30, 80.0: 30}
    assert counts.memory_used_bytes_most == 9 * GIB
