"""Whose line is it: attempts share one file, and a killed one leaves half a line."""

from __future__ import annotations

import itertools
import os
import sqlite3
from pathlib import Path

import pytest

from gputui.metrics import files
from gputui.metrics.batch import BATCH_LINES
from gputui.metrics.files import FollowedFile
from gputui.metrics.formats import Reading
from gputui.metrics.ingest import MetricsIngest
from gputui.redaction import BY_LOOK, Redactor

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
        bench.ingest.readmit_attempt(RUN, attempt, place)
    bench.ingest.finish(RUN)
    assert bench.stored() == [(1, 1), (2, 2), (3, 3)]
    assert [attempt for attempt, _ in bench.rejected()] == [1, 2, 3]


def test_a_rebuilt_run_whose_file_was_rotated(bench: Bench) -> None:
    bench.steps(1)
    bench.ingest.readmit_attempt(RUN, 1, 0)
    bench.ingest.readmit_attempt(RUN, 2, 1_000_000)
    bench.pump()
    assert bench.stored() == [(2, 1)]


def test_a_rebuilt_run_whose_file_is_gone(bench: Bench) -> None:
    bench.ingest.readmit_attempt(RUN, 1, 500)
    bench.steps(1)
    bench.pump()
    assert bench.stored() == [(1, 1)]


def test_a_file_rewritten_unread_before_the_next_attempt(bench: Bench) -> None:
    bench.begin(1)
    bench.steps(1, 2)
    bench.pump()
    bench.file.write_text("".join(line(step) for step in range(10, 20)))
    bench.begin(2)
    bench.steps(20)
    bench.pump()
    assert bench.stored() == [(1, 1), (1, 2), *((1, step) for step in range(10, 20)), (2, 20)]


@pytest.mark.parametrize("pumped", [False, True], ids=["read later", "read as it came"])
@pytest.mark.parametrize("restarted", [False, True], ids=["same agent", "new agent"])
@pytest.mark.parametrize("newline_first", [False, True], ids=["glued", "newline first"])
@pytest.mark.parametrize("half", ["", "{", '{"step": 3, "loss": 0.1', "\0" * 300], ids=["none", "one", "json", "zeros"])
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


def test_attempts_that_wrote_nothing(bench: Bench) -> None:
    for attempt in (1, 2, 3):
        bench.begin(attempt)
    bench.steps(1)
    bench.pump()
    assert bench.stored() == [(3, 1)]


def test_an_over_long_half_line_ends_at_the_next_attempt(bench: Bench) -> None:
    bench.begin(1)
    bench.append('{"step": 1, "x": "' + "a" * (3 << 20))
    bench.pump()
    bench.restart()
    bench.begin(2)
    bench.steps(7)
    bench.pump()
    assert bench.stored() == [(2, 7)]
    assert bench.counts() == (1, 1)


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


def test_a_file_moved_away_before_the_next_attempt(bench: Bench) -> None:
    bench.begin(1)
    bench.steps(1)
    bench.pump()
    bench.steps(2)
    bench.file.rename(bench.folder / "old")
    bench.begin(2)
    bench.steps(3)
    bench.pump()
    assert bench.stored() == [(1, 1), (1, 2), (2, 3)]


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


def test_a_run_that_was_removed(bench: Bench) -> None:
    bench.begin()
    bench.steps(1)
    bench.pump()
    bench.connection.execute("DELETE FROM runs")
    bench.ingest.forget(RUN)
    bench.steps(2)
    assert bench.pump().lines == 0
    # Its line is deleted by whoever removed it.
    assert bench.stored() == [(1, 1)]
    assert bench.connection.execute("SELECT run_id FROM metric_sources").fetchall() == [(None,)]


def test_two_ingests_of_one_store_double_nothing(bench: Bench) -> None:
    bench.begin()
    other = MetricsIngest(bench.connection)
    for step in range(50):
        bench.steps(step)
        (bench.ingest if step % 3 else other).pump()
    bench.pump()
    other.pump()
    assert [step for _, step in bench.stored()] == list(range(50))
    assert bench.counts() == (50, 0)


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


@pytest.mark.parametrize(
    ("kind", "patterns"), [("xml", ()), ("stdout", ()), ("stdout", ("(",)), ("stdout", ("loss (?P<loss>.*)",))]
)
def test_sources_that_cannot_be(connection: sqlite3.Connection, kind: str, patterns: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"."):
        MetricsIngest(connection).open_source(RUN, "/x", kind, Reading(patterns))


def test_a_turn_ends_with_its_time_and_a_flood_starves_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path)
    bench.begin()
    others = [f"run-{number}" for number in range(2, 62)]
    for run_id in others:
        bench.add_run(run_id)
        bench.ingest.open_source(run_id, str(tmp_path / f"{run_id}.jsonl"), "jsonl")
        bench.ingest.begin_attempt(run_id, 1)
        (tmp_path / f"{run_id}.jsonl").write_text(line(1))
    bench.steps(*range(50_000))
    # Each look at the clock takes a millisecond.
    ticks = itertools.count(0, 0.001)
    monkeypatch.setattr("gputui.metrics.ingest.time.monotonic", lambda: next(ticks))
    served: set[str] = set()
    for _ in range(5):
        report = bench.ingest.pump(budget_seconds=0.02)
        assert report.more
        assert report.lines <= 20 * BATCH_LINES
        assert len(report.progress) <= 20
        served |= {progress.run_id for progress in report.progress}
    assert served == {RUN, *others}


def test_queued_and_ended_runs_are_not_looked_at(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.begin()
    for number in range(2, 52):
        bench.add_run(f"run-{number}")
        state = "queued" if number % 2 else "succeeded"
        bench.connection.execute("UPDATE runs SET state = ? WHERE run_id = ?", (state, f"run-{number}"))
        bench.ingest.open_source(f"run-{number}", str(bench.folder / f"run-{number}.jsonl"), "jsonl")
    bench.restart()
    looked_at = []
    real = FollowedFile.status
    monkeypatch.setattr(FollowedFile, "status", lambda self, **_: (looked_at.append(self.path), real(self))[1])
    bench.pump()
    assert set(looked_at) == {str(bench.file)}


def test_a_folder_of_thousands_of_files_is_seldom_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a search takes 10 ms of the processor it is made once a second at most, but the file is read on."""
    bench = Bench(tmp_path, name="logs*/metrics.jsonl")
    (tmp_path / "logs1").mkdir()
    bench.begin()
    bench.file = tmp_path / "logs1/metrics.jsonl"
    ticks = itertools.count(0, 0.01)
    monkeypatch.setattr("gputui.metrics.files.SEARCH_SECONDS", 10.0)
    monkeypatch.setattr("gputui.metrics.files.time.thread_time", lambda: next(ticks))
    searches = []
    real = files.find
    monkeypatch.setattr(files, "find", lambda *a: (searches.append(a), real(*a))[1])
    monkeypatch.setattr("gputui.metrics.files.time.monotonic", lambda: 5.0)
    bench.steps(0)
    bench.pump()
    searches.clear()
    for step in range(1, 4):
        bench.steps(step)
        bench.pump()
    assert searches == []
    monkeypatch.setattr("gputui.metrics.files.time.monotonic", lambda: 6.1)
    bench.steps(4)
    bench.pump()
    assert len(searches) == 1
    assert [step for _, step in bench.stored()] == [0, 1, 2, 3, 4]


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


def test_files_are_opened_one_by_one_within_what_a_turn_may_take(tmp_path: Path) -> None:
    """An agent that adopts many runs at once must not make the readers of all of them in one turn."""
    bench = Bench(tmp_path)
    bench.begin()
    opened: list[str] = []

    def redactor_of(run_id: str) -> Redactor:
        opened.append(run_id)
        return BY_LOOK

    ingest = MetricsIngest(bench.connection, redactor_of=redactor_of)
    assert ingest.pump(budget_seconds=0.0).more and not opened
    bench.steps(1)
    ingest.pump()
    assert opened == [RUN] and bench.stored() == [(1, 1)]
    ingest.close()
