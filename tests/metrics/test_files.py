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

from .conftest import NOW, RUN, MetricsHome, line


class Script:
    """Does things to a file that is followed by a new agent after every look, the harder case: all is in the store."""

    def __init__(self, home: MetricsHome) -> None:
        self.home = home
        self.file = home.file

    def look(self) -> list[str]:
        notes = self.home.notes()
        self.home.restart()
        return notes

    def steps(self) -> list[int]:
        return [step for _, step in self.home.stored()]

    def rename(self, name: str) -> None:
        self.file.rename(self.home.folder / name)


@pytest.fixture
def script(home: MetricsHome) -> Script:
    home.begin()
    return Script(home)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in (
        "metrics.csv", "logs/version_0/metrics.csv", "logs/version_10/metrics.csv", "logs/.hidden/metrics.csv",
        "deep/er/still/metrics.csv", "a[1]/metrics.csv", "other.txt",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


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
    home = MetricsHome(tmp_path)
    home.begin()
    script = Script(home)
    for piece in pieces:
        home.append(piece)
        script.look()
    home.ingest.finish(RUN)
    assert script.steps() == steps
    rejected = [reason for _, reason in home.rejected()]
    assert (len(rejected) if isinstance(reasons, int) else rejected) == reasons
    assert home.counts() == (len(steps), len(rejected))
    excerpts = home.connection.execute("SELECT excerpt FROM rejected_lines").fetchall()
    assert all(text.isprintable() and len(text) <= 200 for (text,) in excerpts)
    report = home.ingest.finish(RUN)
    assert (report.lines, report.rejected, report.more) == (0, 0, False)
    home.connection.close()


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
    script.home.append(line(2) + line(4) + '{"step": 5, "lo')
    script.look()
    script.rename("older")
    script.home.steps(6)
    script.look()
    assert script.steps() == [1, 2, 3, 2, 4, 6]
    assert [reason.partition(":")[0] for _, reason in script.home.rejected()] == ["cut off"]


def test_several_rotations_while_nobody_looks(script: Script) -> None:
    """The unread files are found by their names and times, oldest first; a copy under another name is none of them."""
    script.home.steps(1)
    script.look()
    script.home.steps(2)
    for number in (3, 4, 5):
        for old in (2, 1):
            if (numbered := script.home.folder / f"metrics.jsonl.{old}").exists():
                numbered.rename(script.home.folder / f"metrics.jsonl.{old + 1}")
        script.rename("metrics.jsonl.1")
        script.home.steps(number)
        os.utime(script.file, ns=(0, time.time_ns() + number * 10**9))
    shutil.copy(script.file, script.home.folder / "metrics.jsonl.bak")
    script.rename("metrics.jsonl.0")
    script.file.touch()
    script.look()
    script.look()
    assert script.steps() == [1, 2, 3, 4, 5]


def test_a_deleted_file_is_read_to_its_end_where_it_is_still_open(home: MetricsHome) -> None:
    """Not let go of before it is known that the store has moved on."""
    home.begin()
    home.steps(1)
    home.pump()
    home.steps(2)
    home.file.unlink()
    home.steps(3)
    home.connection.execute("PRAGMA query_only = ON")
    for _ in range(3):
        with pytest.raises(sqlite3.OperationalError):
            # On a busy machine the time of one round may be over before anything was read.
            home.ingest.pump(budget_seconds=60.0)
    home.connection.execute("PRAGMA query_only = OFF")
    home.pump()
    assert [step for _, step in home.stored()] == [1, 2, 3]


@table(
    ("copied", "new"),
    [(False, [4]), (True, range(4, 40)), (False, range(100, 110))],
)
def test_truncation_and_growth_past_the_old_offset(tmp_path: Path, copied: bool, new: list[int]) -> None:
    home = MetricsHome(tmp_path)
    home.begin()
    script = Script(home)
    home.steps(1, 2, 3)
    script.look()
    if copied:
        shutil.copy(home.file, tmp_path / "copy")
    os.truncate(home.file, 0)
    if not copied:
        script.look()
    home.steps(*new)
    script.look()
    assert script.steps() == [1, 2, 3, *new]


def test_a_file_that_may_not_be_read_is_told_of_once(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_options: object) -> int:
        raise PermissionError(13, "Permission denied", "metrics.jsonl")

    script.home.steps(1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        notes = [note.message for _ in range(2) for _, note in script.home.ingest.pump().notes]
    assert len(notes) == 1
    assert "Permission denied" in notes[0]
    script.look()
    assert script.steps() == [1]


def test_a_file_is_read_that_got_the_inode_of_a_removed_one(tmp_path: Path) -> None:
    """As on ext4, for a script that writes a file per epoch and removes the one before."""
    home = MetricsHome(tmp_path, name="m-epoch*.jsonl")
    home.begin()
    for epoch in range(4):
        home.file = tmp_path / f"m-epoch{epoch}.jsonl"
        two_before = tmp_path / f"m-epoch{epoch - 2}.jsonl"
        if two_before.exists():
            # Renamed and emptied, a file is like a new one with its inode.
            two_before.rename(home.file)
            home.file.write_bytes(b"")
        # Each counts its steps anew: one file is no version of another.
        home.append(line(1, loss=epoch) + line(2, loss=epoch))
        os.utime(home.file, (NOW + epoch, NOW + epoch))
        home.pump()
    assert [step for _, step in home.stored()] == [1, 2] * 4


# --- attempts ---------------------------------------------------------------------------------------------------------


def test_before_an_attempt_nothing_is_read(home: MetricsHome) -> None:
    home.steps(1)
    home.append('{"step": 3')
    home.pump()
    home.begin()
    home.steps(4)
    home.pump()
    assert home.stored() == [(1, 4)]
    assert home.counts() == (1, 0)


def test_a_rebuilt_run_finds_its_attempts_in_its_file(home: MetricsHome) -> None:
    home.steps(0)
    places = []
    for attempt in (1, 2, 3):
        places.append(home.file.stat().st_size)
        home.append(line(attempt) + '{"half')
    for attempt, place in enumerate(places, 1):
        home.ingest.readmit_attempt(RUN, attempt, {str(home.file): place})
    home.ingest.finish(RUN)
    assert home.stored() == [(1, 1), (2, 2), (3, 3)]
    assert [attempt for attempt, _ in home.rejected()] == [1, 2, 3]


# Every pair of values of two columns stands in one row at least.
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
    home = MetricsHome(tmp_path)
    home.begin(1)
    home.append(line(1) + line(2) + half)
    if pumped:
        home.pump()
    if restarted:
        home.restart()
    home.begin(2)
    home.append(("\n" if newline_first else "") + line(2) + line(3))
    home.pump()
    is_whole = half.startswith('{"step": 7')
    assert home.stored() == [(1, 1), (1, 2), *([(1, 7)] if is_whole else []), (2, 2), (2, 3)]
    assert [attempt for attempt, _ in home.rejected()] == [1] * (bool(half) and not is_whole)
    assert sum(home.counts()) == 4 + bool(half)


def test_finishing_between_attempts_changes_nothing_of_that(home: MetricsHome) -> None:
    home.begin(1)
    home.append(line(1) + line(2).rstrip())
    home.ingest.finish(RUN)
    home.begin(2)
    home.append("\n" + line(3) + '{"st')
    home.ingest.finish(RUN)
    home.begin(3)
    home.append("\n" + line(4))
    home.ingest.finish(RUN)
    assert home.stored() == [(1, 1), (1, 2), (2, 3), (3, 4)]
    assert [attempt for attempt, _ in home.rejected()] == [2]


@table("again", [[10], [1], [1, 2, 3, 4]])
def test_an_attempt_that_begins_the_file_anew(tmp_path: Path, again: list[int]) -> None:
    """Its lines are its own, even if another attempt has written the same: it computed them."""
    home = MetricsHome(tmp_path)
    home.begin(1)
    home.steps(1, 2, 3)
    home.pump()
    home.begin(2)
    home.file.write_text(line(again[0]))
    home.pump()
    home.steps(*again[1:])
    home.pump()
    assert home.stored() == [(1, 1), (1, 2), (1, 3), *((2, step) for step in again)]


def test_a_file_rotated_unread_before_the_next_attempt(home: MetricsHome) -> None:
    home.begin(1)
    home.steps(1)
    home.pump()
    home.steps(2)
    home.file.rename(home.folder / "old")
    home.steps(3)
    home.begin(2)
    home.steps(4)
    home.pump()
    assert home.stored() == [(1, 1), (1, 2), (1, 3), (2, 4)]


def test_an_attempt_that_was_rolled_back_never_began(home: MetricsHome) -> None:
    home.begin(1)
    home.steps(1)
    home.connection.execute("BEGIN IMMEDIATE")
    home.ingest.begin_attempt(RUN, 2)
    with pytest.raises(RuntimeError):
        home.ingest.pump()
    home.connection.execute("ROLLBACK")
    home.steps(2)
    home.pump()
    assert home.stored() == [(1, 1), (1, 2)]


# --- runs -------------------------------------------------------------------------------------------------------------


def test_many_runs_at_once(tmp_path: Path) -> None:
    home = MetricsHome(tmp_path)
    home.begin()
    files = {}
    for number in range(2, 6):
        run_id = f"run-{number}"
        home.add_run(run_id)
        files[run_id] = tmp_path / f"{run_id}.jsonl"
        home.ingest.open_source(run_id, str(files[run_id]), "jsonl")
        home.ingest.begin_attempt(run_id, 1)
    home.steps(*range(50_000))
    for number, file in enumerate(files.values()):
        file.write_text(line(number))
    # The flood of one run does not keep the others waiting.
    reports = [home.ingest.pump(0.005) for _ in range(8)]
    assert reports[0].more
    assert {run_id for report in reports for run_id, _ in report.progress} == {RUN, *files}
    home.pump()
    counts = home.connection.execute(
        "SELECT run_id, count(*) FROM metrics JOIN metric_sources USING (source_id) GROUP BY 1"
    ).fetchall()
    assert dict(counts) == {RUN: 50_000} | dict.fromkeys(files, 1)


def test_a_new_agent_finds_the_runs_that_are_not_over(home: MetricsHome) -> None:
    home.begin()
    home.restart()
    home.steps(1)
    assert home.pump().lines == 1
    home.connection.execute("UPDATE runs SET state = 'succeeded', ended_at = 1")
    home.steps(2)
    home.restart()
    assert home.pump().lines == 0
    assert home.ingest.finish(RUN).lines == 1


def test_sources_that_cannot_be(connection: sqlite3.Connection) -> None:
    for kind, patterns in [("xml", ()), ("stdout", ("(",)), ("stdout", ("loss (?P<loss>.*)",))]:
        with pytest.raises(ValueError, match=r"."):
            MetricsIngest(connection).open_source(RUN, "/x", kind, Reading(patterns))


# --- patterns ---------------------------------------------------------------------------------------------------------


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
    for first, second, expected in [
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
        assert may_overlap(first, second) is may_overlap(second, first) is expected
