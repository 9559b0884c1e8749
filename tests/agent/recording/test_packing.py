"""Samples become packs, and nobody who reads them can tell."""

from __future__ import annotations

import math
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from gputui.agent.health.gpu_faults import sightings
from gputui.agent.recording.packing import Packing
from gputui.agent.recording.recorder import Recorder
from gputui.config import Workspace
from gputui.gpu.model import FastTick, GpuFacts, GpuSample, GpuSlowSample, Inventory, SlowTick
from gputui.host.model import HostSample
from gputui.store import (
    gpu_queries,
    gpu_stays,
    gpu_window,
    hardware_spans,
    past_hardware,
    queries,
    rollups,
    samples,
    timeline,
)
from gputui.store.database import migrations, open_reader, open_writer
from gputui.store.series import GPU, HOST, HOST_ID, SLOW

START = 1_790_035_200.0
END = START + 3600.0
VIEWS = {"gpu_samples": "gpu_id, at", "gpu_slow_samples": "gpu_id, at", "host_samples": "at"}


@pytest.fixture
def connection(workspace: Workspace) -> Iterator[sqlite3.Connection]:
    made = open_writer(workspace.database)
    record(made, workspace)
    yield made
    made.close()


def record(connection: sqlite3.Connection, workspace: Workspace) -> None:
    """An hour of two GPUs with everything that can happen: unknown values, errors, reasons that come and go, a gap, a
    counter that begins anew, and more than fits into one digit."""
    noise = random.Random(11)
    recorder = Recorder(connection, workspace.runs, lambda: START)
    recorder.take([Inventory(START, "simulated", None, tuple(GpuFacts(f"GPU-{i}", i, "H200") for i in range(2)))])
    for second in range(3600):
        if 1300 <= second < 1800 or (second > 3000 and second % 20):
            continue
        at = START + second + noise.random() * 0.01
        fast = tuple(
            GpuSample(
                f"GPU-{i}",
                state="error" if noise.random() < 0.02 else "ok",
                utilization_percent=None if noise.random() < 0.05 else float(noise.randrange(101)),
                memory_used_bytes=noise.randrange(40 << 10) * (2 << 20),
                memory_total_bytes=141 << 30,
                temperature_celsius=60.0 + i,
                power_watts=round(noise.uniform(50, 1200), 3),
                sm_clock_mhz=noise.randrange(1800, 1981, 15),
                throttle_reasons=noise.choice([(), ("power cap",), None, ("hardware thermal", "power cap")]),
            )
            for i in range(2)
        )
        recorder.take(
            [
                FastTick(at, fast),
                HostSample(at, cpu_percent=noise.uniform(0, 100), memory_used_bytes=noise.randrange(1 << 28) * 4096),
            ]
        )
        if second % 5 == 0:
            slow = tuple(
                GpuSlowSample(
                    f"GPU-{i}",
                    memory_temperature_celsius=float(noise.randrange(60, 90)),
                    pcie_received_bytes_per_second=noise.randrange(10**6) * 1024.0,
                    ecc_uncorrected=second // 700,
                    row_remap_failed=second > 2000,
                    energy_joules=round(600.123 * (second if second < 2500 else second - 2500), 3),
                )
                for i in range(2)
            )
            recorder.take([SlowTick(at, slow)])
        if second % 100 == 0:
            assert recorder.flush()
    assert recorder.flush()


def pack(connection: sqlite3.Connection, until: float = END) -> None:
    assert Packing(connection, lambda: 0.0).turn(until, 1.0)


def counts(connection: sqlite3.Connection, what: str) -> list[int]:
    tables = (f"gpu_sample_{what}", f"gpu_slow_sample_{what}", f"host_sample_{what}")
    return [connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables]


def rows(connection: sqlite3.Connection) -> dict[str, list[tuple[object, ...]]]:
    """All samples as the views tell them, without where they lie."""
    return {
        view: [row[:-1] for row in connection.execute(f"SELECT * FROM {view} ORDER BY {order}")]
        for view, order in VIEWS.items()
    }


PLACES = [START + second for second in (-5, 0, 0.5, 7, 599.9, 600, 1299.5, 1500, 1801, 2999, 3011.5, 3599.99, 9000)]
READERS: dict[str, Callable[[sqlite3.Connection], Any]] = {
    "the newest": lambda c: queries.gpus(c, END),
    "the newest of the host": lambda c: queries.host(c),
    "gpu history": lambda c: [queries.gpu_history(c, START - 7, END, n) for n in (1, 60, 700)],
    "host history": lambda c: [queries.host_history(c, START + 3, END - 3, n) for n in (1, 60, 700)],
    "memory temperature": lambda c: gpu_queries.memory_temperature_history(c, "GPU-1", START, END, 120),
    "past moments": lambda c: [past_hardware.gpus(c, at, {}) for at in PLACES],
    "past hosts": lambda c: [queries.host(c, at) for at in PLACES],
    "spans": lambda c: [
        list(hardware_spans.gpu_spans(c, "GPU-0", columns, seconds, *span_numbers(seconds), looked_at))
        for seconds, looked_at in ((4.0, 4.0), (64.0, 64.0), (64.0, 5.0), (4096.0, 4096.0))
        for columns in (["power_watts"], ["utilization_percent", "memory_used_bytes", "sm_clock_mhz"])
    ],
    "spans of the host": lambda c: list(
        hardware_spans.host_spans(c, ["cpu_percent", "memory_used_bytes"], 32.0, *span_numbers(32.0), 32.0)
    ),
    "the ends": lambda c: (
        hardware_spans.newest_gpu_sample(c, "GPU-1"),
        hardware_spans.newest_host_sample(c),
        rollups.first_sample(c),
    ),
    "stretches": lambda c: timeline.recorded(c, START - 100, END + 100),
    "gaps": lambda c: [timeline.gap_at(c, at) for at in PLACES],
    "a window": lambda c: gpu_window.samples_between(c, ["GPU-0", "GPU-1", "GPU-9"], START + 590, START + 700, 150),
    "counted values": lambda c: gpu_stays.gpu_counts(c, [gpu_stays.Stay("GPU-0", START + 100, END - 400)]),
    "trouble": lambda c: sightings(c, ["GPU-0", "GPU-1"], START + 10, END - 10),
    "some": lambda c: [
        samples.some(c, GPU, 1, ("state", "throttle_reasons", "power_watts"), START + 33, END, limit)[0]
        for limit in (10_000,)
    ],
}


def span_numbers(seconds: float) -> tuple[int, int]:
    return int(START // seconds), int(END // seconds)


def plain(value: Any) -> Any:
    """Nested tuples, with the last digits of means left out."""
    if is_dataclass(value) and not isinstance(value, type):
        return tuple(plain(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return tuple(plain(one) for one in value)
    return float(f"{value:.12g}") if isinstance(value, float) and abs(value) < 1e9 else value


def test_nobody_can_tell_whether_samples_are_packed(connection: sqlite3.Connection) -> None:
    asked = {name: plain(reader(connection)) for name, reader in READERS.items()}
    before, size = rows(connection), counts(connection, "rows")
    # Half of it first: then some are packed and some are not.
    for until, packed in ((START + 1800.0, 1), (END, 0)):
        pack(connection, until)
        assert rows(connection) == before
        for name, reader in READERS.items():
            assert plain(reader(connection)) == asked[name], name
        assert all((left > 0) == bool(packed) for left in counts(connection, "rows"))
    assert all(
        number * 40 <= rows_before for number, rows_before in zip(counts(connection, "packs"), size, strict=True)
    )
    (memory,) = connection.execute("SELECT DISTINCT memory_total_bytes FROM gpu_samples").fetchall()
    assert memory == (141 << 30,)


def test_a_part_of_the_view_is_found_by_the_time_of_its_packs(connection: sqlite3.Connection) -> None:
    query = "SELECT at, power_watts FROM gpu_samples WHERE gpu_id = 1 AND at >= ? AND at < ?"
    begin, end = START + 700, START + 720
    found = connection.execute(query, (begin, end)).fetchall()
    pack(connection)
    assert connection.execute(
        f"{query} AND pack_at > ? AND pack_at < ?", (begin, end, begin - 600, end)
    ).fetchall() == (found)
    plan = connection.execute(
        f"EXPLAIN QUERY PLAN {query} AND pack_at > ? AND pack_at < ?", (begin, end, begin - 600, end)
    ).fetchall()
    assert any(row[3].startswith("SEARCH k ") and "(gpu_id=? AND at>? AND at<?)" in row[3] for row in plan)


def test_packing_goes_on_where_it_was_stopped_and_needs_a_turn_for_each_slice(connection: sqlite3.Connection) -> None:
    before, ticking = rows(connection), iter(range(10_000))
    turns = 1
    packing = Packing(connection, lambda: float(next(ticking)))
    while not packing.turn(END, next(ticking) + 1.5):
        turns += 1
        if turns % 5 == 0:
            packing = Packing(connection, lambda: float(next(ticking)))
    assert turns > 20 and rows(connection) == before and counts(connection, "rows") == [0, 0, 0]


def test_what_fails_in_between_changes_nothing(connection: sqlite3.Connection) -> None:
    def fail() -> None:
        raise OSError

    before = rows(connection)
    connection.create_function("fail", 0, fail)
    connection.execute(
        "CREATE TEMP TRIGGER broken BEFORE INSERT ON gpu_sample_packs WHEN new.gpu_id = 2 AND new.at > 1790035700 "
        "BEGIN SELECT fail(); END"
    )
    packing = Packing(connection, lambda: 0.0)
    with pytest.raises(sqlite3.OperationalError):
        packing.turn(END, 1.0)
    assert rows(connection) == before and not connection.in_transaction
    connection.execute("DROP TRIGGER broken")
    assert packing.turn(END, 1.0)
    assert rows(connection) == before and counts(connection, "rows") == [0, 0, 0]


def test_a_block_that_cannot_be_packed_stays_and_the_others_do_not_wait_for_it(
    connection: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    before = rows(connection)
    connection.execute(
        "CREATE TRIGGER broken BEFORE INSERT ON gpu_sample_packs WHEN new.gpu_id = 2 "
        f"AND new.at BETWEEN {START + 600} AND {START + 1200} BEGIN SELECT RAISE(ABORT, 'not this one'); END"
    )
    packing = Packing(connection, lambda: 0.0)
    assert packing.turn(END, 1.0) and packing.turn(END, 1.0)
    assert [record.exc_text is not None and "not this one" in record.exc_text for record in caplog.records] == [True]
    left = connection.execute("SELECT gpu_id, count(*), min(at), max(at) FROM gpu_sample_rows").fetchone()
    assert left[:2] == (2, 600) and START + 600 <= left[2] < left[3] < START + 1200
    assert rows(connection) == before and counts(connection, "rows") == [600, 0, 0]
    connection.execute("DROP TRIGGER broken")
    pack(connection)
    assert rows(connection) == before and counts(connection, "rows") == [0, 0, 0]


@pytest.mark.parametrize(
    ("column", "garbage"), [("energy_joules", 1e16), ("nvlink_sent_bytes_per_second", 3e14), ("energy_joules", 9e999)]
)
def test_counters_of_garbage_stay_as_they_are(connection: sqlite3.Connection, column: str, garbage: float) -> None:
    connection.execute(
        f"UPDATE gpu_slow_sample_rows SET {column} = CASE CAST(at AS INTEGER) % 2 WHEN 0 THEN 0.0 ELSE ? END "
        "WHERE gpu_id = 1 AND at < ?",
        (garbage, START + 600),
    )
    before = rows(connection)
    pack(connection)
    assert rows(connection) == before and counts(connection, "rows") == [0, 120, 0]
    (last,) = connection.execute("SELECT max(at) FROM gpu_slow_sample_rows WHERE gpu_id = 1").fetchone()
    assert last < START + 600


def test_samples_that_come_into_a_gap_inside_a_pack_hide_nothing(connection: sqlite3.Connection) -> None:
    pack(connection)
    (inside,) = connection.execute(
        "SELECT count(*) FROM gpu_sample_packs WHERE gpu_id = 1 AND at < ? AND at > ?", (START + 3021, START + 3000)
    ).fetchone()
    connection.executemany(
        "INSERT INTO gpu_sample_rows (at, gpu_id, state, power_watts) VALUES (?, 1, 'ok', 1.0)",
        [(START + 3022 + number,) for number in range(12)],
    )
    before = rows(connection)
    asked = {name: plain(reader(connection)) for name, reader in READERS.items()}
    pack(connection)
    assert inside == 1 and counts(connection, "rows") == [0, 0, 0] and rows(connection) == before
    assert {name: plain(reader(connection)) for name, reader in READERS.items()} == asked
    later = samples.between(connection, GPU, 1, ("power_watts",), START + 3035, START + 3200)
    assert [row[0] for row in later] == [
        row[0]
        for row in before["gpu_samples"]
        if row[1] == 1 and START + 3035 <= row[0] < START + 3200  # type: ignore[operator]
    ] and later


READ_AS_ROWS_AND_PACKS = ("gpu history", "host history", "memory temperature", "spans", "spans of the host",
                          "a window", "counted values", "past moments")  # fmt: skip


def test_samples_that_are_packed_while_they_are_read_are_read_once(
    connection: sqlite3.Connection, workspace: Workspace
) -> None:
    for table in ("gpu_sample", "gpu_slow_sample", "host_sample"):
        connection.execute(f"CREATE TEMP TABLE {table}_saved AS SELECT * FROM {table}_rows")
    with closing(open_reader(workspace.database)) as reading:
        for name in READ_AS_ROWS_AND_PACKS:
            reader = READERS[name]
            expected = plain(reader(reading))

            def between_rows_and_packs(sql: str) -> None:
                if "_sample_packs" in sql:
                    reading.set_trace_callback(None)
                    pack(connection)

            reading.set_trace_callback(between_rows_and_packs)
            found = plain(reader(reading))
            assert counts(connection, "rows") == [0, 0, 0], "it was packed while it was read"
            assert found == expected, name
            assert not reading.in_transaction
            for table in ("gpu_sample", "gpu_slow_sample", "host_sample"):
                connection.execute(f"DELETE FROM {table}_packs")
                connection.execute(f"INSERT INTO {table}_rows SELECT * FROM {table}_saved")


def test_samples_that_come_later_join_the_packs_of_their_time(
    connection: sqlite3.Connection, workspace: Workspace
) -> None:
    packing = Packing(connection, lambda: 0.0)
    assert packing.turn(END, 1.0)
    newcomers = [START + 100.033 + number * 0.7 for number in range(300)]
    connection.executemany(
        "INSERT INTO gpu_sample_rows (at, gpu_id, state, power_watts) VALUES (?, 1, 'ok', 1.0)",
        [(round(at, 3),) for at in newcomers],
    )
    connection.execute("INSERT INTO gpu_sample_rows (at, gpu_id, state) SELECT at, gpu_id, 'lost' FROM gpu_samples "
                       "WHERE gpu_id = 2 AND at < ?", (START + 20.0,))  # fmt: skip
    before = rows(connection)
    times = [row[0] for row in before["gpu_samples"] if row[1] == 1]
    # The clock was set back by an hour, and the hour is over again.
    assert packing.turn(END - 3600.0, 1.0) and packing.turn(END, 1.0)
    after = rows(connection)
    assert [row[0] for row in after["gpu_samples"] if row[1] == 1] == times
    assert [row for row in after["gpu_samples"] if row[1] == 1] == [row for row in before["gpu_samples"] if row[1] == 1]
    # Of two samples of the same moment that is kept which came first.
    second = [row for row in after["gpu_samples"] if row[1] == 2 and row[0] < START + 20]  # type: ignore[operator]
    assert len(second) == 20 and all(row[2] != "lost" for row in second)
    assert counts(connection, "rows") == [0, 0, 0]
    spans = connection.execute("SELECT gpu_id, at, sample_count FROM gpu_sample_packs ORDER BY gpu_id, at").fetchall()
    assert all(count <= 128 for _, _, count in spans)


def test_few_latecomers_wait_as_rows_until_there_are_more(connection: sqlite3.Connection) -> None:
    packing = Packing(connection, lambda: 0.0)
    assert packing.turn(END, 1.0)
    taken = len(rows(connection)["gpu_samples"])
    for begin, number, left in ((100.033, 5, 5), (200.033, 40, 0)):
        connection.executemany(
            "INSERT INTO gpu_sample_rows (at, gpu_id, state) VALUES (?, 1, 'ok')",
            [(round(START + begin + 2 * place, 3),) for place in range(number)],
        )
        taken += number
        assert packing.turn(END - 3600.0, 1.0) and packing.turn(END, 1.0)
        found = [(row[1], row[0]) for row in rows(connection)["gpu_samples"]]
        assert len(found) == len(set(found)) == taken
        assert counts(connection, "rows")[0] == left


def test_few_samples_and_what_no_pack_can_hold_stay_as_they_are(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM gpu_sample_rows WHERE gpu_id = 1 AND at < ? AND at > ?", (START + 600, START + 5))
    connection.execute("UPDATE gpu_sample_rows SET power_watts = 9e999 WHERE gpu_id = 2 AND at < ?", (START + 3,))
    before = rows(connection)
    pack(connection)
    assert rows(connection) == before
    left = connection.execute("SELECT gpu_id, count(*), max(at) FROM gpu_sample_rows GROUP BY gpu_id").fetchall()
    assert [(gpu_id, at < START + 610) for gpu_id, _, at in left] == [(1, True), (2, True)] and left[0][1] <= 6


def test_the_newest_sample_of_a_gpu_that_answers_no_more_is_found_in_its_pack(connection: sqlite3.Connection) -> None:
    (newest,) = connection.execute("SELECT max(at) FROM gpu_samples WHERE gpu_id = 1").fetchone()
    pack(connection)
    assert [gpu.at for gpu in queries.gpus(connection, END + 3000)] == [newest, newest]
    found = samples.newest(connection, GPU, 1, ("state",), math.inf)
    assert found is not None and found[0] == newest
    assert samples.newest(connection, SLOW, 1, (), START - 1) is None
    assert samples.around(connection, HOST, HOST_ID, END + 50)[1] is None


def test_a_row_of_days_ago_does_not_stand_before_a_newer_pack(connection: sqlite3.Connection) -> None:
    (newest,) = connection.execute("SELECT max(at) FROM gpu_samples WHERE gpu_id = 1").fetchone()
    connection.execute("INSERT INTO gpu_sample_rows (at, gpu_id, state) VALUES (?, 1, 'error')", (START - 3 * 86_400,))
    pack(connection)
    assert connection.execute("SELECT count(*) FROM gpu_sample_rows").fetchone() == (1,)
    for now in (END, END + 3000, END + 80_000):
        assert [gpu.at for gpu in queries.gpus(connection, now)] == [newest, newest]
    connection.execute("INSERT INTO gpu_sample_rows (at, gpu_id, state) VALUES (?, 1, 'ok')", (END + 7,))
    assert [gpu.at for gpu in queries.gpus(connection, END + 8)] == [END + 7, newest]
    assert [gpu.at for gpu in queries.gpus(connection, END + 9000)] == [END + 7, newest]


def test_a_database_of_the_version_before_is_packed_too(workspace: Workspace) -> None:
    """Its times and values may have more digits than a pack keeps."""
    old = sqlite3.connect(workspace.database, isolation_level=None)
    old.execute("PRAGMA synchronous = OFF")
    for number, script in migrations():
        if number <= 15:
            old.executescript(f"BEGIN;\n{script}\nPRAGMA user_version = {number};\nCOMMIT;")
    old.execute("BEGIN")
    old.execute(
        "INSERT INTO gpus (gpu_id, uuid, position, name, first_seen_at, last_seen_at) VALUES (1, 'G', 0, '', 0, 0)"
    )
    noise = random.Random(2)
    taken = [(START + second + noise.random(), noise.uniform(100, 700)) for second in range(0, 1200, 2)]
    old.executemany("INSERT INTO gpu_samples (at, gpu_id, state, power_watts) VALUES (?, 1, 'ok', ?)", taken)
    old.executemany(
        "INSERT INTO gpu_hours (gpu_id, at, sample_count, power_watts_mean, memory_used_bytes_mean, energy_joules) "
        "VALUES (1, ?, ?, ?, ?, 5.0)",
        [(START, 100, 300.0, 7), (START + 3600, 300, 500.0, None), (START + 86_400, 10, None, 9)],
    )
    old.execute("COMMIT")
    old.close()
    connection = open_writer(workspace.database)
    pack(connection)
    found = connection.execute("SELECT at, power_watts FROM gpu_samples ORDER BY at").fetchall()
    assert counts(connection, "rows")[0] == 0 and len(found) == len(taken)
    for (at, power), (was_at, was_power) in zip(found, taken, strict=True):
        assert abs(at - was_at) <= 0.00101 and abs(power - was_power) <= 0.0005001
    days = connection.execute(
        "SELECT at, sample_count, power_watts_mean, memory_used_bytes_mean, energy_joules FROM gpu_days"
    ).fetchall()
    assert days == [(START, 400, 450.0, 7, 10.0), (START + 86_400, 10, None, 9, 5.0)]
    connection.close()
