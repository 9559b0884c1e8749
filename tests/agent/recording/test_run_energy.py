"""Energy of attempts, by the counters of their GPUs."""

from __future__ import annotations

import json
import sqlite3

import pytest

from gputui.agent.recording.sample_rollups import add_energy_readings
from gputui.store import placements
from gputui.store.attempts import run_cost
from gputui.store.placements import PlacementView
from gputui.store.runs import get_run
from gputui.store.studies import study_gpu_hours
from tests.homes import NOW as START
from tests.homes import add_attempt, add_gpu, add_run


@pytest.fixture(autouse=True)
def run(connection: sqlite3.Connection) -> None:
    for index in (0, 1):
        add_gpu(connection, f"GPU-{index}")
    add_run(connection)


def attempt(connection: sqlite3.Connection, number: int, began: float, ended: float | None, gpus: int = 2) -> None:
    add_attempt(connection, "a-1", number, began, ended, gpus=json.dumps([f"GPU-{index}" for index in range(gpus)]))


def read(connection: sqlite3.Connection, gpu: int, first: int, last: int, *, base: float = 0.0) -> None:
    """The counter of a GPU that draws 400 W, every five seconds."""
    connection.executemany(
        "INSERT INTO gpu_slow_samples (at, gpu_id, energy_joules) VALUES (?, ?, ?)",
        [(START + t, gpu + 1, base + 400.0 * (t - first)) for t in range(first, last, 5)],
    )


def test_an_attempt_is_charged_for_its_own_time_alone(connection: sqlite3.Connection) -> None:
    attempt(connection, 1, START + 103, START + 3703)
    for gpu in (0, 1):
        read(connection, gpu, 0, 5000)
    add_energy_readings(connection, START + 4000)
    cost = run_cost(connection, "a-1", START + 9000)
    assert cost.energy_joules == pytest.approx(2 * 400.0 * 3600)
    assert (cost.gpu_hours, cost.energy_is_partial, cost.attempts[0].is_final) == (2.0, False, True)
    assert cost.energy_kwh == pytest.approx(0.8)


def test_hours_are_those_of_a_monotonic_clock_where_the_wall_clock_was_set(connection: sqlite3.Connection) -> None:
    attempt(connection, 1, START, START + 7200)
    connection.execute("UPDATE attempts SET exit = ?", ('{"code": 0, "ran_seconds": 1800.0}',))
    assert run_cost(connection, "a-1", START + 9000).gpu_hours == 1.0
    run = get_run(connection, "a-1")
    assert run is not None
    assert run.ended_seconds == 1800.0


def test_it_grows_while_the_attempt_runs_and_no_reading_counts_twice(connection: sqlite3.Connection) -> None:
    attempt(connection, 1, START, ended=None, gpus=1)
    for begin in range(0, 3600, 300):
        read(connection, 0, begin, begin + 300, base=400.0 * begin)
        for _ in range(3):
            add_energy_readings(connection, START + begin + 300)
    cost = run_cost(connection, "a-1", START + 3600)
    assert cost.energy_joules == pytest.approx(400.0 * 3595)
    assert not cost.attempts[0].is_final


def test_the_counter_went_on_while_nobody_read_it(connection: sqlite3.Connection) -> None:
    attempt(connection, 1, START, START + 3600, gpus=1)
    read(connection, 0, 0, 600)
    read(connection, 0, 3000, 4000, base=400.0 * 3000)
    add_energy_readings(connection, START + 5000)
    assert run_cost(connection, "a-1", START).energy_joules == pytest.approx(400.0 * 3600)


def test_a_gpu_without_a_counter_is_unknown_and_said_to_be(connection: sqlite3.Connection) -> None:
    attempt(connection, 1, START, START + 1000)
    attempt(connection, 2, START + 2000, ended=None, gpus=1)
    read(connection, 0, 0, 1200)
    add_energy_readings(connection, START + 1300)
    add_energy_readings(connection, START + 2010)
    cost = run_cost(connection, "a-1", START + 5600)
    assert cost.energy_is_partial
    assert cost.energy_joules == pytest.approx(400.0 * 1000)
    assert cost.attempts[0].is_final
    assert (cost.attempts[1].energy_joules, cost.attempts[1].gpu_hours) == (None, 1.0)


def test_of_a_gpu_that_two_trials_share_each_is_charged_its_part(connection: sqlite3.Connection) -> None:
    """Alone for 1000 s, then together for 1000 s, then the other one alone for 1000 s."""
    connection.execute(
        "INSERT INTO studies (study_id, sequence, name, profile, state, source, spec, created_at) "
        "VALUES ('s', 1, 's', 'p', 'running', '', '{}', ?)", (START,)
    )  # fmt: skip
    add_run(connection, "b-1")
    connection.execute("UPDATE runs SET study_id = 's', spec = '{\"gpus\": {\"share\": 0.5}}'")
    attempt(connection, 1, START, START + 2000, gpus=1)
    connection.execute(
        "INSERT INTO attempts (run_id, number, state, params, gpus, launch, created_at, started_at, ended_at) "
        "SELECT 'b-1', 1, state, params, gpus, launch, created_at + 1000, ?, ? FROM attempts",
        (START + 1000, START + 3000),
    )
    read(connection, 0, -10, 5000)
    add_energy_readings(connection, START + 4000)
    costs = [run_cost(connection, run_id, START + 9000) for run_id in ("a-1", "b-1")]
    assert [cost.energy_joules for cost in costs] == [pytest.approx(400.0 * 1500)] * 2
    assert [cost.gpu_hours for cost in costs] == [pytest.approx(1500 / 3600)] * 2
    assert study_gpu_hours(connection, "s", START + 9000) == pytest.approx(3000 / 3600)


def test_a_job_of_a_target_costs_the_gpus_that_it_asked_for_while_it_ran(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE runs SET target = 'lab', study_id = 's', trial = 0, attempt = 1, ended_at = ?", (START,))
    attempt(connection, 1, START, START + 7200, gpus=0)
    placements.write(connection, "a-1", 1, PlacementView("ended", gpus=4, queued_seconds=3600, ran_seconds=1800))
    cost = run_cost(connection, "a-1", START + 9000)
    assert (cost.gpu_hours, cost.energy_joules, cost.attempts[0].is_final) == (2.0, None, True)
    assert study_gpu_hours(connection, "s", START + 9000) == 2.0
    run = get_run(connection, "a-1")
    assert run is not None
    assert (run.trained_seconds(START + 9000), run.gpu_total) == (1800.0, 4)
