"""The store as it was at a past moment, asked of a database filled by hand."""

from __future__ import annotations

import itertools
import sqlite3

import pytest

from gputui.runs.gpu_conditions import condition_of
from gputui.store.attempts import read_attempts
from gputui.store.hardware import read_gpus
from gputui.store.metrics import past, queries
from gputui.store.rows import insert, update
from gputui.store.run_history import read_decisions, read_incidents
from gputui.store.runs import RunLookupError, find_run, holders, read_runs
from gputui.ui.tui.data.run_rows import in_order
from tests.homes import GIB, NOW, Home, add_line, add_source, uuid


def recovered(home: Home) -> None:
    """A run of two attempts with an incident between them."""
    home.gpus(2)
    home.run("a-1", "succeeded", gpus=(), attempt=2, started_ago=900.0, ended_ago=100.0,
               params={"lr": 2}, launched={"lr": 1})  # fmt: skip
    home.attempt("a-1", 1, "failed", gpus=(0, 1), started_ago=900.0, ended_ago=500.0, code=1, last_step=70,
                   params={"lr": 1})  # fmt: skip
    home.incident("a-1", 1, "cuda_oom", "out of memory", seconds_ago=500.0, params={"lr": 2}, reason="smaller")
    home.attempt("a-1", 2, "succeeded", gpus=(1,), started_ago=400.0, ended_ago=100.0, code=0, resumed_step=60,
                   last_step=90, params={"lr": 2})  # fmt: skip
    for ago, origin, target, cause in (
        (902, None, "queued", "launched"), (900, "queued", "starting", "attempt 1"), (890, "starting", "running", ""),
        (500, "running", "recovering", "out of memory"), (495, "recovering", "queued", "again"),
        (400, "queued", "starting", "attempt 2"), (390, "starting", "running", ""),
        (100, "running", "succeeded", "all ranks ended with 0"),
    ):  # fmt: skip
        home.transition("a-1", origin, target, cause, ago)


def lines(home: Home, count: int, *, attempt: int = 1, begin: float = NOW - 1000, ranks: int = 1) -> None:
    home.metrics(
        "a-1",
        attempt,
        [
            {"step": step, "time": begin + step, "rank": rank, "loss": 10.0 - step / 100, "pad": "x" * (step % 50)}
            for step in range(count)
            for rank in range(ranks)
        ],
    )


# --- hardware


def test_a_gpu_is_as_its_newest_sample_of_then_says(home: Home, reader: sqlite3.Connection) -> None:
    home.agent()
    home.gpus(2)
    for ago, utilization in ((100, 10.0), (99, 11.0), (98, 12.0), (1, 90.0)):
        throttle = ("power cap",) if ago == 99 else None
        home.sample(0, at=NOW - ago, utilization=utilization, throttle=throttle)
    [gpu] = read_gpus(reader, NOW, NOW - 98.5)
    assert (gpu.uuid, gpu.utilization_percent, gpu.state, gpu.age_seconds) == (uuid(0), 11.0, "ok", 0.5)
    assert gpu.throttle_reasons == ("power cap",)
    assert gpu.at == NOW - 99
    assert read_gpus(reader, NOW, NOW - 101) == []
    assert [gpu.index for gpu in read_gpus(reader, NOW, NOW)] == [0, 1]


def test_staleness_follows_the_interval_of_then(home: Home, reader: sqlite3.Connection) -> None:
    home.agent()  # samples every second by now
    home.gpus(1)
    for ago in (1000, 940, 880, 820):
        home.sample(0, at=NOW - ago)
    assert read_gpus(reader, NOW, NOW - 700)[0].state == "ok"
    assert read_gpus(reader, NOW, NOW - 630)[0].state == "stale"
    for ago in (500, 499, 498):
        home.sample(0, at=NOW - ago)
    assert read_gpus(reader, NOW, NOW - 480)[0].state == "stale"


def test_slow_values_processes_and_reports_are_those_of_then(home: Home, reader: sqlite3.Connection) -> None:
    home.agent()
    home.gpus(1)
    home.sample(0, at=NOW - 60)
    insert = "INSERT INTO gpu_slow_samples (at, gpu_id, ecc_uncorrected, row_remap_pending) VALUES (?, 1, ?, ?)"
    home.connection.executemany(insert, [(NOW - 90, 0, 0), (NOW - 50, 3, 1)])
    sets = "INSERT INTO gpu_process_sets (at, gpu_id, processes) VALUES (?, 1, ?)"
    mine = '[{"pid": 7, "user": "me", "memory_bytes": 5, "run_id": "a-1", "rank": 3}]'
    home.connection.executemany(sets, [(NOW - 90, "[]"), (NOW - 55, mine), (NOW - 20, None)])
    home.xid(0, 13, "x", seconds_ago=52)
    [before] = read_gpus(reader, NOW, NOW - 58)
    assert (before.slow.ecc_uncorrected, before.processes, before.event_code) == (0, (), None)
    [then] = read_gpus(reader, NOW, NOW - 45, {uuid(0): [("a-1", "a"), ("b-1", "b")]})
    assert (then.slow.ecc_uncorrected, then.slow.row_remap_pending, then.event_code) == (3, True, 13)
    condition = condition_of(then)
    assert condition.slow is not None
    assert condition.slow.row_remap_pending is True
    assert then.processes is not None
    assert then.processes[0].pid == 7
    assert (then.run_id, then.run_name, then.rank) == ("a-1", "a", 3)
    assert then.run_ids == ("a-1", "b-1")
    [later] = read_gpus(reader, NOW, NOW)
    assert later.processes is None
    assert later.run_id is None
    assert later.memory_total_bytes == 80 * GIB


def test_a_lost_gpu_was_there_before_and_is_back_after(home: Home, reader: sqlite3.Connection) -> None:
    home.gpus(1)
    for ago in range(100, 0, -1):
        home.sample(0, at=NOW - ago)
    for ago, event in ((80, "lost"), (40, "returned")):
        insert(home.connection, "gpu_events", at=NOW - ago, uuid=uuid(0), event=event)
    states = [read_gpus(reader, NOW, NOW - ago)[0].state for ago in (90, 80, 60, 40, 10)]
    assert states == ["ok", "lost", "lost", "ok", "ok"]


# --- runs


def test_a_run_is_as_it_was(home: Home, reader: sqlite3.Connection) -> None:
    recovered(home)
    for ago, state, attempt, gpus, holds in [
        (901, "queued", 0, (), False),
        (895, "starting", 1, (0, 1), True),
        (600, "running", 1, (0, 1), True),
        (498, "recovering", 1, (0, 1), True),
        (450, "queued", 1, (0, 1), True),  # it keeps its GPUs while it waits to go on
        (395, "starting", 2, (1,), True),
        (200, "running", 2, (1,), True),
        (50, "succeeded", 2, (1,), False),
    ]:
        [run] = read_runs(reader, NOW - ago)
        assert (run.state, run.attempt, run.holds_gpus) == (state, attempt, holds)
        assert run.gpus == tuple(uuid(index) for index in gpus)
        run_ids_by_gpu = holders([run])
        expected = {uuid(index): [("a-1", "a-1")] for index in gpus} if holds else {}
        assert run_ids_by_gpu == expected
        assert find_run(reader, "a-1", NOW - ago) == run


def test_a_run_without_gpus_held_none_then(home: Home, reader: sqlite3.Connection) -> None:
    home.run("a-1", started_ago=900.0)
    home.attempt("a-1", 1, started_ago=900.0)
    home.transition("a-1", "queued", "starting", "attempt 1", 900)
    home.transition("a-1", "starting", "running", "", 890)
    assert [read_runs(reader, NOW - ago)[0].holds_gpus for ago in (895, 600)] == [False, False]


def test_the_step_then_is_that_of_any_attempt_unless_one_lived(home: Home, reader: sqlite3.Connection) -> None:
    home.run("a-1", "failed", attempt=2, started_ago=900.0, ended_ago=100.0)
    home.transition("a-1", "queued", "running", "", 900)
    home.attempt("a-1", 1, "failed", started_ago=900.0, ended_ago=500.0, last_step=70)
    home.attempt("a-1", 2, "failed", started_ago=400.0, ended_ago=100.0)
    home.transition("a-1", "running", "failed", "", 100)
    assert [read_runs(reader, at)[0].last_step for at in (None, NOW - 50, NOW - 300)] == [70, 70, None]


def test_what_came_later_is_not_known_then(home: Home, reader: sqlite3.Connection) -> None:
    recovered(home)
    assert read_runs(reader, NOW - 903) == []
    with pytest.raises(RunLookupError):
        find_run(reader, "a-1", NOW - 903)
    during = read_runs(reader, NOW - 600)[0]
    assert (during.ended_at, during.reason, during.last_step, during.params) == (None, None, None, {"lr": 1})
    between = read_runs(reader, NOW - 498)[0]
    assert (between.reason, between.last_step, between.params) == ("out of memory", 70, {"lr": 2})
    over = read_runs(reader, NOW - 50)[0]
    assert over == find_run(reader, "a-1")
    first, *rest = read_attempts(reader, "a-1", NOW - 600)
    assert rest == []
    assert (first.state, first.ended_at, first.exit_code, first.last_step) == (
        "running",
        None,
        None,
        None,
    )
    assert read_incidents(reader, "a-1", NOW - 600) == read_decisions(reader, "a-1", NOW - 600) == []
    assert len(read_incidents(reader, "a-1", NOW - 450)) == len(read_decisions(reader, "a-1", NOW - 450)) == 1


def test_a_run_without_moves_is_told_by_its_row(home: Home, reader: sqlite3.Connection) -> None:
    home.run("b-1", "failed", started_ago=900.0, ended_ago=100.0, reason="why")
    states = [read_runs(reader, NOW - ago)[0].state for ago in (901, 500, 50)]
    assert states == ["queued", "running", "failed"]


def test_the_newest_of_those_that_were_over_are_kept(home: Home, reader: sqlite3.Connection) -> None:
    for number, (target, ago) in enumerate(
        [("succeeded", 30), ("failed", 20), ("running", 40), ("queued", 50), ("queued", 45), ("running", 35)]
    ):
        home.run(f"r-{number}", "running", started_ago=100.0)
        home.transition(f"r-{number}", "queued", target, "", ago)
    run_ids = [run.run_id for run in read_runs(reader, NOW)]
    assert run_ids == ["r-5", "r-4", "r-3", "r-2", "r-1", "r-0"]
    assert [run.run_id for run in read_runs(reader, NOW, limit=1)] == run_ids[:5]
    assert [run.run_id for run in in_order(read_runs(reader, NOW))] == ["r-5", "r-2", "r-3", "r-4", "r-1", "r-0"]


# --- metrics


def test_the_place_that_was_reached_is_found(home: Home, reader: sqlite3.Connection) -> None:
    home.run("a-1")
    lines(home, 500, ranks=2)
    for at_step in [0, 1, 2, 117, 498, 499]:
        reached = past.positions_at(reader, "a-1", NOW - 1000 + at_step + 0.5)
        newest = past.newest(reader, reached)
        assert [(line.rank, line.step) for line in newest[:2]] == [(1, at_step), (0, at_step)]
        rows = queries.ranks(reader, "a-1", 1, NOW - 1000 + at_step + 0.5)
        assert [(rank.rank, rank.step, rank.data) for rank in rows] == [
            (0, at_step, {"loss": 10.0 - at_step / 100}),
            (1, at_step, {"loss": 10.0 - at_step / 100}),
        ]


def test_a_line_without_a_time_lies_where_its_neighbours_do(home: Home, reader: sqlite3.Connection) -> None:
    home.run("a-1")
    rows: list[dict[str, object]] = [{"step": step, "time": NOW - 100 + step, "loss": 1.0} for step in range(50)]
    rows.insert(10, {"step": 9, "val/loss": 5.0})
    home.metrics("a-1", 1, rows)
    assert queries.latest(reader, "a-1", NOW - 90.5) == {"loss": 1.0, "val/loss": 5.0}
    assert queries.latest(reader, "a-1", NOW - 91.5) == {"loss": 1.0}


def test_of_two_sources_the_same_one_counts_as_does_now(home: Home, reader: sqlite3.Connection) -> None:
    home.run("a-1")
    home.metrics("a-1", 1, [{"step": 1, "time": NOW - 100, "loss": 9.0, "lr": 0.1}])
    source = add_source(home.connection, "a-1")
    for step in range(50):
        add_line(home.connection, step, NOW - 90 + step, {"step": step, "loss": 1.0}, source=source)
    update(home.connection, "metric_sources", {"source_id": source}, byte_offset=500)
    assert queries.latest(reader, "a-1", NOW - 10) == {"loss": 1.0, "lr": 0.1}


def test_a_curve_is_sampled_evenly_up_to_the_moment(home: Home, reader: sqlite3.Connection) -> None:
    home.run("a-1")
    lines(home, 800)
    reached = past.positions_at(reader, "a-1", NOW - 1000 + 400)
    steps = [step for step, _ in past.sampled(reader, reached, "loss", 10)]
    assert len(steps) == 10
    assert steps[-1] == 400
    assert steps == sorted(steps)
    assert all(30 <= later - earlier <= 50 for earlier, later in itertools.pairwise(steps))


def test_generations_of_a_file_that_was_begun_again(home: Home, reader: sqlite3.Connection) -> None:
    home.run("a-1")
    lines(home, 100)
    home.connection.execute("UPDATE metric_sources SET generation = 1, byte_offset = 500")
    for number in range(10):
        add_line(
            home.connection, number, NOW - 500 + number, {"loss": 7.0}, attempt=2, rank=0, offset=number * 50,
            generation=1,
        )  # fmt: skip
    [(generation, _)] = past.positions_at(reader, "a-1", NOW - 950).values()
    assert generation == 0
    [place] = past.positions_at(reader, "a-1", NOW - 495.5).values()
    assert place == (1, 250)
    assert past.newest(reader, {1: place})[0].attempt == 2


def test_a_curve_is_sampled_over_all_generations_of_its_file(home: Home, reader: sqlite3.Connection) -> None:
    home.run("a-1")
    lines(home, 100)
    size = reader.execute("SELECT max(byte_offset) + 1 FROM metrics WHERE generation = 0").fetchone()[0]
    home.connection.execute("UPDATE metric_sources SET generation = 1, byte_offset = ?", (size,))
    home.connection.executemany(
        "INSERT INTO metrics (source_id, generation, byte_offset, attempt, rank, step, at, data) "
        "SELECT source_id, 1, byte_offset, attempt, rank, step + 100, at + 100, data "
        "FROM metrics WHERE source_id = ? AND generation = 0",
        reader.execute("SELECT source_id FROM metric_sources").fetchall(),
    )
    reached = past.positions_at(reader, "a-1", NOW)
    steps = [step for step, _ in past.sampled(reader, reached, "loss", 10)]
    assert len(steps) == 10
    assert steps == sorted(steps)
    assert steps[0] < 30
    assert steps[-1] >= 195


def test_the_pace_is_that_of_the_source_with_the_newest_lines(home: Home, reader: sqlite3.Connection) -> None:
    home.run("a-1")
    # One counts epochs once in 100 s, the other steps twice a second.
    for path, begin, count, seconds in (("eval.jsonl", NOW - 300, 3, 100.0), ("metrics.jsonl", NOW - 100, 200, 0.5)):
        source = add_source(home.connection, "a-1", path)
        for number in range(count):
            add_line(home.connection, number, begin + number * seconds, {"loss": 1.0}, source=source, rank=0)
        update(home.connection, "metric_sources", {"source_id": source}, byte_offset=1000)
    assert past.pace(reader, "a-1", 1, NOW, 60.0) == pytest.approx(2.0)
