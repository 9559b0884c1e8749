"""Following a file that is rotated, truncated, rewritten, deleted or damaged: every line once, and nothing glued."""

from __future__ import annotations

import os
import shutil
import time

import pytest

from .conftest import RUN, Bench, line


class Script:
    """Does things to a file that is followed by a new agent after every look, the harder case: all is in the store."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def look(self) -> list[str]:
        report = self.bench.ingest.pump()
        notes = [note.text for _, note in report.notes]
        while report.more:
            report = self.bench.ingest.pump()
            notes += [note.text for _, note in report.notes]
        self.bench.restart()
        return notes

    def steps(self) -> list[int]:
        return [step for _, step in self.bench.stored()]


@pytest.fixture
def script(bench: Bench) -> Script:
    bench.begin()
    return Script(bench)


def test_a_file_that_comes_late(script: Script) -> None:
    script.look()
    script.bench.steps(1, 2)
    script.look()
    script.bench.steps(3)
    script.look()
    assert script.steps() == [1, 2, 3]


def test_half_a_line_waits_for_its_end(script: Script) -> None:
    whole = line(1)
    script.bench.append(whole[:7])
    script.look()
    assert script.steps() == []
    script.bench.append(whole[7:])
    script.look()
    assert script.steps() == [1]
    assert script.bench.rejected() == []


def test_carriage_returns_belong_to_the_newline(script: Script) -> None:
    script.bench.append(line(1).replace("\n", "\r\n") + "\r\n" + line(2).replace("\n", "\r\n"))
    script.look()
    assert script.steps() == [1, 2]
    assert script.bench.data()[0] == {"step": 1, "loss": 0.5}
    assert script.bench.rejected() == []


def test_rotation_by_rename(script: Script) -> None:
    script.bench.steps(1)
    script.look()
    script.bench.steps(2)
    script.bench.file.rename(script.bench.folder / "metrics.jsonl.1")
    script.bench.steps(3)
    script.look()
    script.bench.steps(4)
    script.look()
    assert script.steps() == [1, 2, 3, 4]


def test_several_rotations_while_nobody_looks(script: Script) -> None:
    """The unread files are found by their names and times, oldest first; a copy under another name is none of them."""
    script.bench.steps(1)
    script.look()
    script.bench.steps(2)
    for number in (3, 4, 5):
        for old in (2, 1):
            if (numbered := script.bench.folder / f"metrics.jsonl.{old}").exists():
                numbered.rename(script.bench.folder / f"metrics.jsonl.{old + 1}")
        script.bench.file.rename(script.bench.folder / "metrics.jsonl.1")
        script.bench.steps(number)
        os.utime(script.bench.file, ns=(0, time.time_ns() + number * 10**9))
    shutil.copy(script.bench.file, script.bench.folder / "metrics.jsonl.bak")
    script.look()
    script.look()
    assert script.steps() == [1, 2, 3, 4, 5]


def test_late_writes_to_a_renamed_file(script: Script) -> None:
    file = script.bench.file.open("ab", 0)
    file.write(line(1).encode())
    script.look()
    script.bench.file.rename(script.bench.folder / "old")
    file.write(line(2).encode())
    script.look()
    file.write(line(3).encode())
    file.close()
    script.bench.steps(4)
    script.look()
    assert script.steps() == [1, 2, 3, 4]


def test_a_rotated_files_last_line_may_lack_its_newline(script: Script) -> None:
    script.bench.append(line(1) + line(2).rstrip())
    script.look()
    script.bench.file.rename(script.bench.folder / "old")
    script.bench.append(line(3) + '{"step": 4, "lo')
    script.look()
    script.bench.file.rename(script.bench.folder / "older")
    script.bench.steps(5)
    script.look()
    assert script.steps() == [1, 2, 3, 5]
    assert [reason.partition(":")[0] for _, reason in script.bench.rejected()] == ["cut off"]


def test_a_deleted_file_is_read_to_its_end_where_it_is_still_open(bench: Bench) -> None:
    bench.begin()
    bench.steps(1)
    bench.pump()
    bench.steps(2)
    bench.file.unlink()
    bench.steps(3)
    bench.pump()
    assert [step for _, step in bench.stored()] == [1, 2, 3]


def test_a_file_replaced_unseen_is_told_of(script: Script) -> None:
    script.bench.steps(1)
    script.look()
    script.bench.ingest.close()
    # The place that the old file held on the disk must not be given to the new one.
    kept = script.bench.folder / "elsewhere"
    kept.mkdir()
    os.link(script.bench.file, kept / "old")
    script.bench.file.unlink()
    script.bench.steps(2)
    assert "replaced" in script.look()[0]
    assert script.steps() == [1, 2]


def test_truncation(script: Script) -> None:
    script.bench.steps(1, 2, 3)
    script.look()
    os.truncate(script.bench.file, 0)
    script.look()
    script.bench.steps(4)
    script.look()
    assert script.steps() == [1, 2, 3, 4]


def test_copytruncate_and_growth_past_the_old_offset(script: Script) -> None:
    script.bench.steps(1, 2, 3)
    script.look()
    shutil.copy(script.bench.file, script.bench.folder / "copy")
    os.truncate(script.bench.file, 0)
    script.bench.steps(*range(4, 40))
    assert "rewritten" in script.look()[0]
    assert script.steps() == [1, 2, 3, *range(4, 40)]


def test_a_new_file_in_the_old_ones_place(script: Script) -> None:
    """Where the file system gives the same inode number again, only the content tells."""
    script.bench.steps(1)
    script.look()
    script.bench.file.write_text("".join(line(step) for step in range(100, 110)))
    script.look()
    assert script.steps() == [1, *range(100, 110)]


def test_zeros_at_the_end_after_a_power_cut(script: Script) -> None:
    script.bench.append(line(1) + '{"step": 2, "l' + "\0" * 5000)
    script.look()
    script.bench.begin(2)
    script.bench.steps(3)
    script.look()
    assert script.bench.stored() == [(1, 1), (2, 3)]
    assert len(script.bench.rejected()) == 1


def test_binary_garbage_between_lines(script: Script) -> None:
    garbage = bytes(range(256)).replace(b"\n", b"") * 40
    script.bench.append(line(1).encode() + garbage + b"\n" + b"\xff\n\n\x00\x01\n" + line(2).encode())
    script.look()
    assert script.steps() == [1, 2]
    assert script.bench.counts() == (2, 3)
    excerpts = script.bench.connection.execute("SELECT excerpt FROM rejected_lines").fetchall()
    assert all(text.isprintable() and len(text) <= 200 for (text,) in excerpts)


def test_a_line_of_ten_megabytes(script: Script) -> None:
    long_line = b'{"step": 2, "x": "' + b"a" * (10 << 20) + b'"}'
    script.bench.append(line(1).encode() + long_line[: 3 << 20])
    script.look()
    assert script.bench.counts() == (1, 1)
    script.bench.append(long_line[3 << 20 :])
    script.look()
    script.bench.append(b"\n" + line(3).encode())
    script.look()
    assert script.steps() == [1, 3]
    assert script.bench.counts() == (2, 1)
    row = script.bench.connection.execute("SELECT length_bytes, reason, excerpt FROM rejected_lines").fetchone()
    assert row[:2] == (len(long_line), "longer than 1 MiB") and row[2].startswith('{"step": 2, "x"')


def test_finishing_takes_what_is_complete(script: Script) -> None:
    script.bench.append(line(1) + line(2).rstrip())
    script.look()
    assert script.bench.ingest.finish(RUN).lines == 1
    assert script.steps() == [1, 2]


def test_finishing_sets_aside_what_is_not(script: Script) -> None:
    script.bench.append(line(1) + '{"step": 2, "loss": 0.1')
    script.look()
    report = script.bench.ingest.finish(RUN)
    assert (report.lines, report.rejected, report.more) == (0, 1, False)
    assert script.bench.rejected()[0][1].startswith("cut off")
    assert script.bench.ingest.finish(RUN).rejected == 0


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
