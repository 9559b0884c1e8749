"""Logs in bounded pieces: windows, times and levels of lines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.runs.log_lines import Level, LevelReader, line_time, lines_by
from gputui.runs.logs import RankLog, lines_of, printed_lines, rank_logs, read_window, shown_logs, tail_text
from tests.tables import table

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC).timestamp()


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_logs_of_an_attempt_are_found_in_order(tmp_path: Path) -> None:
    node = tmp_path / "nodes" / "0"
    for rank in (10, 2):
        folder = node / "ranks" / "job-1.1_ab12" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        for stream in ("stderr", "stdout"):
            (folder / f"{stream}.log").write_text(stream)
    (node / "ranks" / "job-1.1_ab12" / "attempt_0" / "notes").mkdir()
    (node / "ranks" / "job-1.1_ab12" / "attempt_0" / "notes" / "stdout.log").write_text("not a rank")
    assert [(log.rank, log.stream) for log in rank_logs(tmp_path)] == [
        (2, "stdout"),
        (2, "stderr"),
        (10, "stdout"),
        (10, "stderr"),
    ]
    (node / "output.log").write_text("")
    first = rank_logs(tmp_path)[0]
    assert (first.rank, first.stream, first.path) == (None, "output", node / "output.log")
    (tmp_path / "remote").mkdir()
    (tmp_path / "remote" / "job.log").write_text("")
    assert shown_logs(tmp_path) == rank_logs(tmp_path), "the job has printed nothing"
    (tmp_path / "remote" / "job.log").write_text("slurmstepd: error\n")
    assert shown_logs(tmp_path) == [
        *rank_logs(tmp_path),
        RankLog(rank=None, stream="job", path=tmp_path / "remote" / "job.log"),
    ]


@table("text, lines", [
    ("a\nb\n", ["a", "b"]), ("a\r\nb", ["a", "b"]),
    ("  0%|\r 50%|\r100%|\ndone\n", ["  0%|", " 50%|", "100%|", "done"]), ("", []), ("\n\n", ["", ""]),
    ("one\u2028line\x0bonly\n", ["one\u2028line\x0bonly"]),
])  # fmt: skip
def test_lines(text: str, lines: list[str]) -> None:
    assert lines_of(text) == lines


def test_the_tail_begins_with_a_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"line {number}\n" for number in range(1000)))
    tail = tail_text(path, 100)
    assert tail.splitlines()[0].startswith("line ")
    assert tail.endswith("line 999\n")
    assert 80 <= len(tail) <= 100
    assert tail_text(path, 10**6) == path.read_text()


def test_a_window_holds_whole_lines_and_leads_to_the_next(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("one\ntwo\nthr")
    window = read_window(path, 0, 100)
    assert (window.text, window.start, window.end, window.size) == ("one\ntwo\n", 0, 8, 11)
    assert read_window(path, 8, 100).text == ""
    with path.open("a") as file:
        file.write("ee\n")
    assert read_window(path, 8, 100).text == "three\n"


@given(st.binary(max_size=300), st.integers(1, 50))
def test_windows_cover_every_byte_once(tmp_path_factory: pytest.TempPathFactory, data: bytes, size: int) -> None:
    path = tmp_path_factory.mktemp("logs") / "log"
    path.write_bytes(data)
    offset = 0
    while True:
        window = read_window(path, offset, size)
        assert window.start == offset
        assert window.end - window.start <= size
        if window.end == offset:
            break
        offset = window.end
    rest = data[offset:]
    # Only the beginning of one line may remain unread.
    assert b"\n" not in rest
    assert b"\r" not in rest
    assert len(rest) < size


@table("pieces, lines, begun", [
    (["a\nb\n"], ["a", "b"], ""), (["\r  0%|\r 50%|\r100%|\ndone\n"], ["100%|", "done"], ""),
    (["\r  0%|\r", " 50%|\r", "100%|\n"], ["100%|"], ""), (["\r  0%|\r", " 50%|\r"], [], " 50%|\r"),
    (["windows\r", "\nagain\r\n"], ["windows", "again"], ""), (["\r100%|\r      \r", "after\n"], ["after"], ""),
    (["\n\n"], ["", ""], ""), (["no end"], ["no end"], ""),
])  # fmt: skip
def test_what_a_terminal_would_keep(pieces: list[str], lines: list[str], begun: str) -> None:
    printed = []
    rest = ""
    for piece in pieces:
        more, rest = printed_lines(piece, rest)
        printed += more
    assert (printed, rest) == (lines, begun)


@table("line, level", [
    ("step 12 loss 2.31", Level.INFO), ("error rate 0.12 after 3 epochs", Level.INFO),
    ("no warnings were met", Level.INFO), ("2026-11-21 03:12:44 WARNING loader is slow", Level.WARNING),
    ("W1121 03:12:30.123 torch/run.py:792] slow", Level.WARNING),
    ("[rank0]:[W227 10:54:51.980 ProcessGroupNCCL.cpp:1496] slow", Level.WARNING),
    ("[rank0]:[E227 10:54:51.980 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught a timeout", Level.ERROR),
    ("ws:11:12 [0] transport/net.cc:1 NCCL WARN Call to connect failed", Level.WARNING),
    ("/x/y.py:3: UserWarning: lr_scheduler.step() before optimizer.step()", Level.WARNING),
    ("E1121 03:12:30.123 torch/elastic] failed (exitcode: 1)", Level.ERROR),
    ("[rank1]: torch.OutOfMemoryError: CUDA out of memory.", Level.ERROR),
    ("ERROR: could not open the file", Level.ERROR), ("error: no such option", Level.ERROR),
    ("Segmentation fault (core dumped)", Level.ERROR),
])  # fmt: skip
def test_words_tell(line: str, level: Level) -> None:
    assert LevelReader().level(line) is level


def test_a_traceback_is_grave_as_a_whole_and_ends_with_its_exception() -> None:
    reader = LevelReader()
    lines = [
        "[rank0]: Traceback (most recent call last):",
        "[rank0]:   File 'train.py', line 3, in <module>",
        "[rank0]:     main()",
        "[rank0]: KeyboardInterrupt",
        "[rank0]: shutting down",
    ]
    assert [reader.level(line) for line in lines] == [Level.ERROR] * 4 + [Level.INFO]
    cut = ["Traceback (most recent call last):", "  File 'x'", "", "step 1"]
    assert [reader.level(line) for line in cut] == [Level.ERROR, Level.ERROR, Level.INFO, Level.INFO]


@table("line, after_noon", [
    ("2026-11-21 12:00:05,250 INFO step 3", 5.25), ("[2026-11-21T12:00:05Z] step 3", 5.0),
    ("2026-11-21T14:00:05.5+02:00 x", 5.5), ("[rank1]:[2026-11-21 12:01:00,000] torch", 60.0),
    ("W1121 12:00:07.125000 4242 torch/distributed/run.py:766] x", 7.125),
    ("[rank0]:[W1121 12:00:07.5 x.cpp:1] y", 7.5), ("I20261121 12:00:07 x", 7.0),
    ("2026-11-21 12:00:05 +0000 x", 5.0), ("2026-11-21T13:00:05+01 x", 5.0), ("2026-11-21 12:00:05 UTC x", 5.0),
    ("2026-11-21 12:00:05 - INFO", 5.0), ("[" + "p" * 58 + "] [abcdef] 2026-11-21T14:00:05.000000+02:00 x", 5.0),
    ("12:00:05 step 3", None), ("step 3 loss 2.0", None), ("2026-13-41 12:00:05 no day", None),
    ("x" * 100 + "2026-11-21 12:00:05", None), ("INFO 2026-11-21 12:00:05 step 3", 5.0),
    ("INFO:2026-11-21 12:00:05:train:step 3", 5.0), ("[INFO|trainer.py:2409] 2026-11-21 12:00:05,000 >> step 3", 5.0),
    ('{"level": "info", "time": "2026-11-21T12:00:05Z"}', 5.0),
    ('{"message": "a file of", "time": "2026-11-21T12:00:05Z"}', None),
    ("(Worker pid=7, ip=10.0.0.1) 2026-11-21 12:00:05 step 3", 5.0), ("0: 2026-11-21 12:00:05 step 3", 5.0),
    ("loaded the snapshot of 2020-01-01 00:00:00", None), ("data from I0101 00:00:00", None),
])  # fmt: skip
def test_the_time_of_a_line(line: str, after_noon: float | None) -> None:
    at = line_time(line, NOON)
    expected = None if after_noon is None else NOON + after_noon
    assert at == expected


@table(
    ("stamp", "near", "written"),
    [
        ("I1231 23:59:58", (2027, 1, 1, 0, 0, 5), (2026, 12, 31, 23, 59, 58)),
        ("I0101 00:00:02", (2026, 12, 31, 23, 59, 59), (2027, 1, 1, 0, 0, 2)),
        ("I0229 12:00:00", (2028, 3, 1), (2028, 2, 29, 12)),
        # As c10 writes it: the month without a leading zero.
        ("[rank0]:[W227 10:54:51 ProcessGroupNCCL.cpp:1]", (2026, 3, 1), (2026, 2, 27, 10, 54, 51)),
        ("I20250227 12:34:56", (2026, 3, 1), (2025, 2, 27, 12, 34, 56)),
        ("I0229 12:00:00", (2029, 1, 1), (2028, 2, 29, 12)),
        ("I0229 12:00:00", (2026, 3, 1), None),
    ],
)
def test_a_stamp_without_a_year_is_of_the_nearest(
    stamp: str, near: tuple[int, int, int], written: tuple[int, int, int] | None
) -> None:
    expected = None if written is None else datetime(*written, tzinfo=UTC).timestamp()
    assert line_time(f"{stamp} step 3", datetime(*near, tzinfo=UTC).timestamp()) == expected


def test_lines_up_to_a_moment() -> None:
    lines = [
        "banner", "2026-11-21 12:00:01 one", "  detail", "2026-11-21 12:00:05 two", "  more",
        "2026-11-21 12:00:09 three", "tail",
    ]  # fmt: skip
    counts = [lines_by(lines, NOON + seconds) for seconds in (0, 1, 4.9, 5, 8, 9, 99)]
    assert counts == [0, 3, 3, 5, 5, 7, 7]
    assert lines_by(["no", "times"], NOON) is None
    assert lines_by([], NOON) is None
    new_year = datetime(2027, 1, 1, 0, 0, 5, tzinfo=UTC).timestamp()
    assert lines_by(["I1231 23:59:58 one"], new_year) == 1
