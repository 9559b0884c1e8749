"""Finding and following files that are rotated, truncated, deleted or damaged, and whose line each line is: attempts
share one file, and a killed one leaves half a line. Each line once, and nothing glued."""

from __future__ import annotations

import glob
import os
import shutil
import sqlite3
import time
from pathlib import Path

import pytest

from gputui.metrics.files import find, may_overlap
from gputui.metrics.formats import Reading
from gputui.metrics.ingest import MetricsIngest
from tests.tables import table

from .conftest import NOW, RUN, Bench, line


class Script:
    """Does things to a file that is followed by a new agent after every look, the harder case: all is in the store."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.file = bench.file

    def look(self) -> list[str]:
        notes = self.bench.notes()
        self.bench.restart()
        return notes

    def steps(self) -> list[int]:
        return [step for _, step in self.bench.stored()]

    def rename(self, name: str) -> None:
        self.file.rename(self.bench.folder / name)


@pytest.fixture
def script(bench: Bench) -> Script:
    bench.begin()
    return Script(bench)


@table(
    ("pieces", "steps", "reasons"),
    [
        ([b"", line(1), line(2)], [1, 2], []),
        ([line(1)[:7], line(1)[7:]], [1], []),
        ([line(1).replace("\n", "\r\n") + "\r\n" + line(2)], [1, 2], []),
        ([line(1).encode() + bytes(range(256)).replace(b"\n", b"") * 40 + b"\n\xff\n\n\0\1\n", line(2)], [1, 2], 3),
        ([line(1), b'{"step": 2, "x": "' + b"a" * (3 << 20), b"a" * (7 << 20) + b'"}', "\n" + line(3)], [1, 3], 1),
        ([line(1) + line(2).rstrip()], [1, 2], []),
        ([line(1) + '{"step": 2, "loss": 0.1'], [1], ["cut off: not JSON: Expecting ',' delimiter"]),
    ],
)
def test_lines_as_they_arrive(tmp_path: Path, pieces: list[str | bytes], steps: list[int], reasons: object) -> None:
    bench = Bench(tmp_path)
    bench.begin()
    script = Script(bench)
    for piece in pieces:
        bench.append(piece)
        script.look()
    bench.ingest.finish(RUN)
    assert script.steps() == steps
    found = [reason for _, reason in bench.rejected()]
    assert (len(found) if isinstance(reasons, int) else found) == reasons
    assert bench.counts() == (len(steps), len(found))
    excerpts = bench.connection.execute("SELECT excerpt FROM rejected_lines").fetchall()
    assert all(text.isprintable() and len(text) <= 200 for (text,) in excerpts)
    report = bench.ingest.finish(RUN)
    assert (report.lines, report.rejected, report.more) == (0, 0, False)
    bench.connection.close()


# --- rotation and truncation ------------------------------------------------------------------------------------------


def test_rotation_by_rename(script: Script) -> None:
    """The new file is no copy of the old one; a last line may lack its newline, and late writes follow a rename."""
    with script.file.open("ab", 0) as old:
        old.write(line(1).encode())
        script.look()
        script.rename("metrics.jsonl.1")
        old.write(line(2).encode())
        script.look()
        old.write(line(3).rstrip().encode())
    script.bench.append(line(2) + line(4) + '{"step": 5, "lo')
    script.look()
    script.rename("older")
    script.bench.steps(6)
    script.look()
    assert script.steps() == [1, 2, 3, 2, 4, 6]
    assert [reason.partition(":")[0] for _, reason in script.bench.rejected()] == ["cut off"]


def test_several_rotations_while_nobody_looks(script: Script) -> None:
    """The unread files are found by their names and times, oldest first; a copy under another name is none of them."""
    script.bench.steps(1)
    script.look()
    script.bench.steps(2)
    for number in (3, 4, 5):
        for old in (2, 1):
            if (numbered := script.bench.folder / f"metrics.jsonl.{old}").exists():
                numbered.rename(script.bench.folder / f"metrics.jsonl.{old + 1}")
        script.rename("metrics.jsonl.1")
        script.bench.steps(number)
        os.utime(script.file, ns=(0, time.time_ns() + number * 10**9))
    shutil.copy(script.file, script.bench.folder / "metrics.jsonl.bak")
    script.rename("metrics.jsonl.0")
    script.file.touch()
    script.look()
    script.look()
    assert script.steps() == [1, 2, 3, 4, 5]


def test_a_deleted_file_is_read_to_its_end_where_it_is_still_open(bench: Bench) -> None:
    """Not let go of before it is known that the store has moved on."""
    bench.begin()
    bench.steps(1)
    bench.pump()
    bench.steps(2)
    bench.file.unlink()
    bench.steps(3)
    bench.connection.execute("PRAGMA query_only = ON")
    for _ in range(3):
        with pytest.raises(sqlite3.OperationalError):
            # On a busy machine the time of one round may be over before anything was read.
            bench.ingest.pump(budget_seconds=60.0)
    bench.connection.execute("PRAGMA query_only = OFF")
    bench.pump()
    assert [step for _, step in bench.stored()] == [1, 2, 3]


@table(
    ("copied", "new"),
    [(False, [4]), (True, range(4, 40)), (False, range(100, 110))],
)
def test_truncation_and_growth_past_the_old_offset(tmp_path: Path, copied: bool, new: list[int]) -> None:
    bench = Bench(tmp_path)
    bench.begin()
    script = Script(bench)
    bench.steps(1, 2, 3)
    script.look()
    if copied:
        shutil.copy(bench.file, tmp_path / "copy")
    os.truncate(bench.file, 0)
    if not copied:
        script.look()
    bench.steps(*new)
    script.look()
    assert script.steps() == [1, 2, 3, *new]


def test_a_file_that_may_not_be_read_is_told_of_once(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_options: object) -> int:
        raise PermissionError(13, "Permission denied", "metrics.jsonl")

    script.bench.steps(1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        notes = [note.text for _ in range(2) for _, note in script.bench.ingest.pump().notes]
    assert len(notes) == 1 and "Permission denied" in notes[0]
    script.look()
    assert script.steps() == [1]


def test_a_file_is_read_that_got_the_inode_of_a_removed_one(tmp_path: Path) -> None:
    """As on ext4, for a script that writes a file per epoch and removes the one before."""
    bench = Bench(tmp_path, name="m-epoch*.jsonl")
    bench.begin()
    for epoch in range(4):
        bench.file = tmp_path / f"m-epoch{epoch}.jsonl"
        two_before = tmp_path / f"m-epoch{epoch - 2}.jsonl"
        if two_before.exists():
            # Renamed and emptied, a file is like a new one with its inode.
            two_before.rename(bench.file)
            bench.file.write_bytes(b"")
        # Each counts its steps anew: one file is no version of another.
        bench.append(line(1, loss=epoch) + line(2, loss=epoch))
        os.utime(bench.file, (NOW + epoch, NOW + epoch))
        bench.pump()
    assert [step for _, step in bench.stored()] == [1, 2] * 4


# --- attempts ---------------------------------------------------------------------------------------------------------


def test_before_an_attempt_nothing_is_read(bench: Bench) -> None:
    bench.steps(1)
    bench.append('{"step": 3')
    bench.pump()
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
@table(
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
        (line(7).rstrip(), True, True, False),
        (line(7).rstrip(), False, False, False),
    ],
)
def test_half_a_line_of_a_killed_attempt(
    tmp_path: Path, half: str, newline_first: bool, restarted: bool, pumped: bool
) -> None:
    bench = Bench(tmp_path)
    bench.begin(1)
    bench.append(line(1) + line(2) + half)
    if pumped:
        bench.pump()
    if restarted:
        bench.restart()
    bench.begin(2)
    bench.append(("\n" if newline_first else "") + line(2) + line(3))
    bench.pump()
    is_whole = half.startswith('{"step": 7')
    assert bench.stored() == [(1, 1), (1, 2), *([(1, 7)] if is_whole else []), (2, 2), (2, 3)]
    assert [attempt for attempt, _ in bench.rejected()] == [1] * (bool(half) and not is_whole)
    assert sum(bench.counts()) == 4 + bool(half)


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


@table("again", [[10], [1], [1, 2, 3, 4]])
def test_an_attempt_that_begins_the_file_anew(tmp_path: Path, again: list[int]) -> None:
    """Its lines are its own, even if another attempt has written the same: it computed them."""
    bench = Bench(tmp_path)
    bench.begin(1)
    bench.steps(1, 2, 3)
    bench.pump()
    bench.begin(2)
    bench.file.write_text(line(again[0]))
    bench.pump()
    bench.steps(*again[1:])
    bench.pump()
    assert bench.stored() == [(1, 1), (1, 2), (1, 3), *((2, step) for step in again)]


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
    with pytest.raises(RuntimeError):
        bench.ingest.pump()
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
    bench.steps(*range(50_000))
    for number, file in enumerate(files.values()):
        file.write_text(line(number))
    # The flood of one run does not keep the others waiting.
    reports = [bench.ingest.pump(0.005) for _ in range(8)]
    assert reports[0].more
    assert {run_id for report in reports for run_id, _ in report.progress} == {RUN, *files}
    bench.pump()
    counts = bench.connection.execute(
        "SELECT run_id, count(*) FROM metrics JOIN metric_sources USING (source_id) GROUP BY 1"
    ).fetchall()
    assert dict(counts) == {RUN: 50_000} | dict.fromkeys(files, 1)


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


def test_sources_that_cannot_be(connection: sqlite3.Connection) -> None:
    for kind, patterns in [("xml", ()), ("stdout", ("(",)), ("stdout", ("loss (?P<loss>.*)",))]:
        with pytest.raises(ValueError, match=r"."):
            MetricsIngest(connection).open_source(RUN, "/x", kind, Reading(patterns))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in (
        "metrics.csv", "logs/version_0/metrics.csv", "logs/version_10/metrics.csv", "logs/.hidden/metrics.csv",
        "deep/er/still/metrics.csv", "a[1]/metrics.csv", "other.txt",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def test_it_finds_what_glob_finds(tree: Path) -> None:
    for pattern in [
        "*.csv", "logs/version_*/metrics.csv", "logs/version_?/metrics.csv", "**/metrics.csv",
        "**/*", "**/still/*.csv", "a[[]1]/*.csv", "logs/.*/metrics.csv", "none/*", "metrics.csv",
        "**/er/**/metrics.csv", "log**/**_10/metrics.csv",
    ]:  # fmt: skip
        text = f"{glob.escape(str(tree))}/{pattern}"
        expected = {path.rstrip("/") for path in glob.glob(text, recursive=True)}  # noqa: PTH207 - compared with it
        assert {str(path) for path in find(text)} == expected, pattern
    assert tree / "logs/version_0/metrics.csv" in find(f"{tree}/logs/**")


def test_two_stars_follow_no_links_and_names_do(tree: Path) -> None:
    (tree / "circle").symlink_to(".")
    (tree / "logs" / "version_11").symlink_to(tree / "deep" / "er" / "still")
    assert len(list(find(f"{tree}/**/metrics.csv"))) == 5
    assert tree / "logs/version_11/metrics.csv" in find(f"{tree}/logs/version_*/metrics.csv")


def test_patterns_that_may_match_the_same_file() -> None:
    for one, other, expected in [
        ("/w/log.csv", "/w/log.csv", True),
        ("/w/log.csv", "/v/log.csv", False),
        ("/w/logs/version_*/metrics.csv", "/w/logs/version_3/metrics.csv", True),
        ("/w/logs/version_*/metrics.csv", "/w/logs/other/metrics.csv", False),
        ("/w/logs/version_*/metrics.csv", "/w/**/metrics.csv", True),
        ("/w/logs/version_*/metrics.csv", "/v/**/metrics.csv", False),
        ("/w/**/metrics.csv", "/w/metrics.csv", True),
        ("/w/[[]a]/*.csv", "/w/[[]b]/*.csv", False),
        ("/w/[[]a]/*.csv", "/w/[[]a]/x/*.csv", True),
        ("/w/[[]a]/*.csv", "/w/[[]a]/m.csv", False),
        ("/w/[[]a]/*.csv", "/w/[a]/m.csv", True),
    ]:
        assert may_overlap(one, other) is may_overlap(other, one) is expected
