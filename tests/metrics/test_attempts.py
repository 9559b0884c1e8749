"""Whose line is it: attempts share one file, and a killed one leaves half a line."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from gputui.metrics.formats import Reading
from gputui.metrics.ingest import MetricsIngest

from .conftest import NOW, RUN, Bench, line


def test_before_an_attempt_nothing_is_read(bench: Bench) -> None:
    bench.steps(1)
    bench.pump()
    assert bench.stored() == []


def test_what_lay_there_before_the_first_attempt_is_not_the_runs(bench: Bench) -> None:
    bench.append(line(1) + line(2) + '{"step": 3')
    bench.begin()
    bench.steps(4)
    bench.pump()
    assert bench.stored() == [(1, 4)]
    assert bench.counts() == (1, 0)


def test_a_rebuilt_run_finds_its_attempts_in_its_file(bench: Bench) -> None:
    bench.steps(0)
    places = []
    for attempt in (1, 2, 3):
        places.append(bench.file.stat().st_size)
        bench.append(line(attempt) + '{"half')
    for attempt, place in enumerate(places, 1):
        bench.ingest.readmit_attempt(RUN, attempt, {str(bench.file): place})
    bench.ingest.finish(RUN)
    assert bench.stored() == [(1, 1), (2, 2), (3, 3)]
    assert [attempt for attempt, _ in bench.rejected()] == [1, 2, 3]


# Each pair of choices once: what is left of a line, is the newline first, is there a new agent, was it read as it came.
@pytest.mark.parametrize(
    ("half", "newline_first", "restarted", "pumped"),
    [
        ("", False, False, False),
        ("", True, True, True),
        ("{", False, False, True),
        ("{", True, True, False),
        ('{"step": 3, "loss": 0.1', False, True, True),
        ('{"step": 3, "loss": 0.1', True, False, False),
        ("\0" * 300, False, True, False),
        ("\0" * 300, True, False, True),
    ],
)
def test_half_a_line_of_a_killed_attempt(
    bench: Bench, half: str, newline_first: bool, restarted: bool, pumped: bool
) -> None:
    bench.begin(1)
    bench.append(line(1) + line(2) + half)
    if pumped:
        bench.pump()
    if restarted:
        bench.restart()
    bench.begin(2)
    bench.append(("\n" if newline_first else "") + line(2) + line(3))
    bench.pump()
    assert bench.stored() == [(1, 1), (1, 2), (2, 2), (2, 3)]
    assert [attempt for attempt, _ in bench.rejected()] == [1] * bool(half)
    assert bench.counts() == (4, int(bool(half)))


@pytest.mark.parametrize("newline_first", [False, True])
def test_a_whole_line_without_its_newline_belongs_to_the_killed_attempt(bench: Bench, newline_first: bool) -> None:
    bench.begin(1)
    bench.append(line(1) + line(2).rstrip())
    bench.begin(2)
    bench.append(("\n" if newline_first else "") + line(3))
    bench.pump()
    assert bench.stored() == [(1, 1), (1, 2), (2, 3)]
    assert bench.rejected() == []


def test_finishing_between_attempts_changes_nothing_of_that(bench: Bench) -> None:
    bench.begin(1)
    bench.append(line(1) + line(2).rstrip())
    bench.ingest.finish(RUN)
    bench.begin(2)
    bench.append("\n" + line(3) + '{"st')
    bench.ingest.finish(RUN)
    bench.begin(3)
    bench.append("\n" + line(4))
    bench.ingest.finish(RUN)
    assert bench.stored() == [(1, 1), (1, 2), (2, 3), (3, 4)]
    assert [attempt for attempt, _ in bench.rejected()] == [2]


def test_an_attempt_that_truncates_the_file(bench: Bench) -> None:
    bench.begin(1)
    bench.steps(1, 2, 3)
    bench.pump()
    bench.begin(2)
    bench.file.write_text(line(10))
    bench.pump()
    assert bench.stored() == [(1, 1), (1, 2), (1, 3), (2, 10)]


def test_a_file_rotated_unread_before_the_next_attempt(bench: Bench) -> None:
    bench.begin(1)
    bench.steps(1)
    bench.pump()
    bench.steps(2)
    bench.file.rename(bench.folder / "old")
    bench.steps(3)
    bench.begin(2)
    bench.steps(4)
    bench.pump()
    assert bench.stored() == [(1, 1), (1, 2), (1, 3), (2, 4)]


def test_an_attempt_that_was_rolled_back_never_began(bench: Bench) -> None:
    bench.begin(1)
    bench.steps(1)
    bench.connection.execute("BEGIN IMMEDIATE")
    bench.ingest.begin_attempt(RUN, 2)
    bench.connection.execute("ROLLBACK")
    bench.steps(2)
    bench.pump()
    assert bench.stored() == [(1, 1), (1, 2)]


def test_many_runs_at_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.begin()
    files = {}
    for number in range(2, 6):
        run_id = f"run-{number}"
        bench.add_run(run_id)
        files[run_id] = tmp_path / f"{run_id}.jsonl"
        bench.ingest.open_source(run_id, str(files[run_id]), "jsonl")
        bench.ingest.begin_attempt(run_id, 1)
    bench.steps(*range(5000))
    for number, file in enumerate(files.values()):
        file.write_text(line(number))
    # The flood of one run does not keep the others waiting.
    reports = [bench.ingest.pump(budget_bytes=100_000, budget_seconds=60.0) for _ in range(2)]
    assert reports[0].more
    assert {progress.run_id for report in reports for progress in report.progress} == {RUN, *files}
    while bench.ingest.pump(budget_bytes=100_000).more:
        pass
    counts = bench.connection.execute(
        "SELECT run_id, count(*) FROM metrics JOIN metric_sources USING (source_id) GROUP BY 1"
    ).fetchall()
    assert dict(counts) == {RUN: 5000} | dict.fromkeys(files, 1)


def test_a_new_agent_finds_the_runs_that_are_not_over(bench: Bench) -> None:
    bench.begin()
    bench.restart()
    bench.steps(1)
    assert bench.pump().lines == 1
    bench.connection.execute("UPDATE runs SET state = 'succeeded', ended_at = 1")
    bench.steps(2)
    bench.restart()
    assert bench.pump().lines == 0
    assert bench.ingest.finish(RUN).lines == 1


def test_the_report_tells_how_far_an_attempt_is(bench: Bench) -> None:
    bench.begin()
    bench.append(line(5, time=NOW - 9) + line(9, time=NOW - 8, rank=0) + line(9, rank=1) + line(7) + "junk\n")
    (progress,) = bench.pump().progress
    assert (progress.run_id, progress.attempt, progress.lines, progress.rejected) == (RUN, 1, 4, 1)
    assert (progress.first_step, progress.first_at, progress.last_step) == (5, NOW - 9, 9)
    assert progress.values == {"loss": 1 / 8}
    bench.append('{"step": 10, "loss": NaN, "note": "x"}\n')
    (progress,) = bench.pump().progress
    assert progress.first_step == progress.last_step == 10
    assert progress.values["loss"] != progress.values["loss"] and set(progress.values) == {"loss"}
    assert bench.pump().progress == []


def test_inside_a_transaction_nothing_is_stored(bench: Bench) -> None:
    bench.begin()
    bench.steps(1)
    bench.connection.execute("BEGIN")
    with pytest.raises(RuntimeError):
        bench.ingest.pump()
    bench.connection.execute("ROLLBACK")
    assert bench.pump().lines == 1


def test_sources_that_cannot_be(connection: sqlite3.Connection) -> None:
    for kind, patterns in [("xml", ()), ("stdout", ()), ("stdout", ("(",)), ("stdout", ("loss (?P<loss>.*)",))]:
        with pytest.raises(ValueError, match=r"."):
            MetricsIngest(connection).open_source(RUN, "/x", kind, Reading(patterns))


def test_a_file_is_read_that_got_the_inode_of_a_removed_one(tmp_path: Path) -> None:
    """As on ext4, for a script that writes a file per epoch and removes the one before."""
    bench = Bench(tmp_path, name="m-epoch*.jsonl")
    bench.begin()
    for epoch in range(4):
        bench.file = tmp_path / f"m-epoch{epoch}.jsonl"
        two_before = tmp_path / f"m-epoch{epoch - 2}.jsonl"
        if two_before.exists():
            inode = two_before.stat().st_ino
            # Renamed and emptied, a file is like a new one with its inode.
            two_before.rename(bench.file)
            bench.file.write_bytes(b"")
            assert bench.file.stat().st_ino == inode
        bench.steps(2 * epoch, 2 * epoch + 1)
        at = 1_700_000_000 + epoch
        os.utime(bench.file, (at, at))
        bench.pump()
    assert [step for _, step in bench.stored()] == list(range(8))
