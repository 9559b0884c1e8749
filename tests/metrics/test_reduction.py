"""Lines reduced to envelopes: what they tell is what the lines tell, and no line is counted twice or never."""

from __future__ import annotations

import math
import random
import sqlite3
from pathlib import Path
from typing import Any

from gputui.store.metrics import envelopes
from gputui.store.metrics.envelopes import BLOCK_LINES, FAN, STRETCH_LINES, Entry, EntryRange, StoredMetric

from .conftest import RUN, MetricsHome, line

TABLES = ("metric_stretches", "metric_envelopes")


def reduced(connection: sqlite3.Connection) -> dict[str, list[Any]]:
    """All that was reduced, without the numbers of rows."""
    columns = {"metric_envelopes": "source_id, attempt, name, level, number, entries"}
    return {
        table: sorted(connection.execute(f"SELECT {columns.get(table, '*')} FROM {table}").fetchall())
        for table in TABLES
    }


def entries(home: MetricsHome, name: str, level: int = 0, attempt: int = 1) -> list[Entry]:
    metric = StoredMetric(1, attempt, name)
    return list(envelopes.read_entries(home.connection, metric, EntryRange(level, 0, 1 << 40)))


def new_folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_blocks_tell_what_the_lines_tell(home: MetricsHome) -> None:
    home.begin()
    values = [math.sin(step) * step for step in range(STRETCH_LINES)]
    home.append("".join(line(step, wave=value, time=1.6e9 + step) for step, value in enumerate(values)))
    home.pump()
    blocks = entries(home, "wave")
    assert [entry.place for entry in blocks] == list(range(FAN))
    block = values[BLOCK_LINES : 2 * BLOCK_LINES]
    assert blocks[1] == Entry(
        1,
        BLOCK_LINES,
        0,
        positive_infinite=0,
        negative_infinite=0,
        low=min(block),
        high=max(block),
        first=block[0],
        last=block[-1],
        first_step=32,
        last_step=63,
        first_at=1.6e9 + 32,
        last_at=1.6e9 + 63,
    )
    (whole,) = entries(home, "wave", level=1)
    assert whole == envelopes.join(0, blocks)
    assert (whole.points, whole.low, whole.high) == (STRETCH_LINES, min(values), max(values))


def test_what_is_no_number_is_counted_apart(home: MetricsHome) -> None:
    home.begin()
    odd: dict[int, Any] = {3: math.nan, 40: math.inf, 41: -math.inf, 42: "text", 43: True, 44: None}
    home.append("".join(line(step, odd=odd.get(step, step)) for step in range(STRETCH_LINES)))
    home.pump()
    first, second = entries(home, "odd")[:2]
    assert (first.points, first.nan, first.low, first.high) == (32, 1, 0, 31)
    assert (second.points, second.nan, second.positive_infinite, second.negative_infinite) == (30, 1, 1, 1)


def test_other_ranks_are_left_out(home: MetricsHome) -> None:
    home.begin()
    home.append("".join(line(step, rank=rank) for step in range(STRETCH_LINES) for rank in range(3)))
    home.pump()
    assert sum(entry.points for entry in entries(home, "loss")) == STRETCH_LINES
    (stretch,) = envelopes.stretches(home.connection, RUN)
    assert (stretch.line_count, stretch.min_step, stretch.max_step) == (STRETCH_LINES, 0, STRETCH_LINES - 1)


def test_an_attempt_that_another_follows_is_reduced_to_its_end(home: MetricsHome) -> None:
    home.begin(1)
    home.steps(*range(700))
    home.pump()
    home.begin(2)
    home.steps(*range(600, 1300))
    home.pump()
    counts = [
        (stretch.attempt, stretch.number, stretch.line_count) for stretch in envelopes.stretches(home.connection, RUN)
    ]
    assert counts == [(1, 0, 512), (1, 1, 188), (2, 0, 512)]
    assert sum(entry.points for entry in entries(home, "loss", level=1)) == 700


def test_higher_levels_hold_whole_rows(home: MetricsHome) -> None:
    home.begin()
    count = 16 * STRETCH_LINES * 2 + 3 * STRETCH_LINES
    home.append("".join(f'{{"step": {step}, "loss": {step % 977}}}\n' for step in range(count)))
    home.pump()
    stretches = len(envelopes.stretches(home.connection, RUN))
    assert stretches == 35
    assert [entry.points for entry in entries(home, "loss", level=2)] == [16 * STRETCH_LINES] * 2
    for begin, end in ((0, 35), (1, 34), (15, 17), (3, 3), (33, 35)):
        for level in range(4):
            parts = [
                entry
                for entry_range in envelopes.entry_ranges(begin, end, level)
                for entry in envelopes.read_entries(home.connection, StoredMetric(1, 1, "loss"), entry_range)
            ]
            assert sum(entry.points for entry in parts) == (end - begin) * STRETCH_LINES
            steps = [step for entry in parts for step in entry[9:11]]
            assert steps == sorted(steps)
            if parts:
                assert (steps[0], steps[-1]) == (begin * STRETCH_LINES, end * STRETCH_LINES - 1)


def test_agents_that_die_reduce_nothing_twice(tmp_path: Path) -> None:
    chance = random.Random(5)
    texts = [line(step, noise=chance.random()) for step in range(3000)]
    calm = MetricsHome(new_folder(tmp_path / "calm"))
    hasty = MetricsHome(new_folder(tmp_path / "hasty"))
    for home in (calm, hasty):
        home.begin()
    calm.append("".join(texts))
    calm.pump()
    while texts:
        count = chance.choice((1, 7, 200, 700))
        hasty.append("".join(texts[:count]))
        del texts[:count]
        if chance.random() < 0.3:
            hasty.restart()
        hasty.pump()
    assert reduced(calm.connection) == reduced(hasty.connection)


def test_a_store_that_fails_in_between(home: MetricsHome, tmp_path: Path) -> None:
    second_home = MetricsHome(new_folder(tmp_path / "other"))
    for metrics_home in (home, second_home):
        metrics_home.begin()
        metrics_home.steps(*range(6000))
    second_home.pump()
    pages = home.connection.execute("PRAGMA page_count").fetchone()[0]
    failures = 0
    for more in range(0, 500, 7):
        home.connection.execute(f"PRAGMA max_page_count = {pages + more}")
        try:
            home.pump()
        except sqlite3.OperationalError:
            failures += 1
    assert failures > 5
    assert home.counts()[0] == 6000
    assert reduced(home.connection) == reduced(second_home.connection)
