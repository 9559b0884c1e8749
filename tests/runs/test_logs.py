"""Reading logs in bounded pieces."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.runs.logs import MAX_LINE_CHARACTERS, lines_of, printed_lines, rank_logs, read_window, tail_text


def test_logs_of_an_attempt_are_found_in_order(tmp_path: Path) -> None:
    for rank in (10, 2):
        folder = tmp_path / "ranks" / "job-1.1_ab12" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        for stream in ("stderr", "stdout"):
            (folder / f"{stream}.log").write_text(stream)
    (tmp_path / "ranks" / "job-1.1_ab12" / "attempt_0" / "notes").mkdir()
    (tmp_path / "ranks" / "job-1.1_ab12" / "attempt_0" / "notes" / "stdout.log").write_text("not a rank")
    assert [(log.rank, log.stream) for log in rank_logs(tmp_path)] == [
        (2, "stdout"),
        (2, "stderr"),
        (10, "stdout"),
        (10, "stderr"),
    ]
    (tmp_path / "output.log").write_text("")
    first = rank_logs(tmp_path)[0]
    assert (first.rank, first.stream, first.path) == (None, "output", tmp_path / "output.log")


def test_an_attempt_without_logs(tmp_path: Path) -> None:
    assert rank_logs(tmp_path) == []
    assert rank_logs(tmp_path / "gone") == []


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a\nb\n", ["a", "b"]),
        ("a\r\nb", ["a", "b"]),
        ("  0%|\r 50%|\r100%|\ndone\n", ["  0%|", " 50%|", "100%|", "done"]),
        ("", []),
        ("\n\n", ["", ""]),
        ("one\u2028line\x0bonly\n", ["one\u2028line\x0bonly"]),
    ],
)
def test_lines(text: str, lines: list[str]) -> None:
    assert lines_of(text) == lines


def test_long_lines_are_cut() -> None:
    (line,) = lines_of("x" * 10_000_000)
    assert len(line) == MAX_LINE_CHARACTERS and line.endswith("…")


def test_the_tail_begins_with_a_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"line {number}\n" for number in range(1000)))
    tail = tail_text(path, 100)
    assert tail.splitlines()[0].startswith("line ") and tail.endswith("line 999\n")
    assert 80 <= len(tail) <= 100
    assert tail_text(path, 10**6) == path.read_text()


def test_the_tail_of_one_endless_line_is_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("x" * 1000 + "end")
    assert tail_text(path, 10) == "xxxxxxxend\n"


def test_the_tail_of_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"ok\n\xff\xfe broken \xf0\x9f\x8f\n")
    assert tail_text(path, 100) == "ok\n\ufffd\ufffd broken \ufffd\n"


def test_other_things_than_files_are_refused(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(OSError, match="not a regular file"):
        tail_text(fifo, 10)
    with pytest.raises(FileNotFoundError):
        tail_text(tmp_path / "gone", 10)


def test_a_window_holds_whole_lines_and_leads_to_the_next(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("one\ntwo\nthr")
    window = read_window(path, 0, 100)
    assert (window.text, window.start, window.end, window.size) == ("one\ntwo\n", 0, 8, 11)
    assert read_window(path, 8, 100).text == ""
    with path.open("a") as file:
        file.write("ee\n")
    assert read_window(path, 8, 100).text == "three\n"


def test_a_window_shows_a_line_without_an_end_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes("käse 🏖".encode()[:-1])
    window = read_window(path, 0, 100, partial=True)
    assert window.text == "käse " and window.end == 6


def test_a_line_longer_than_the_window_does_not_stop_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("x" * 100 + "\nnext\n")
    first = read_window(path, 0, 30)
    assert first.text == "x" * 30 and first.end == 30


def test_a_shorter_file_is_read_from_its_start_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("new\n")
    window = read_window(path, 500, 100)
    assert (window.text, window.start) == ("new\n", 0)


@given(st.binary(max_size=300), st.integers(1, 50))
def test_windows_cover_every_byte_once(tmp_path_factory: pytest.TempPathFactory, data: bytes, size: int) -> None:
    path = tmp_path_factory.mktemp("logs") / "log"
    path.write_bytes(data)
    offset = 0
    while True:
        window = read_window(path, offset, size)
        assert window.start == offset and window.end - window.start <= size
        if window.end == offset:
            break
        offset = window.end
    rest = data[offset:]
    # What is left is the beginning of one line.
    assert b"\n" not in rest and b"\r" not in rest and len(rest) < size


@pytest.mark.parametrize(
    ("pieces", "lines", "begun"),
    [
        (["a\nb\n"], ["a", "b"], ""),
        (["\r  0%|\r 50%|\r100%|\ndone\n"], ["100%|", "done"], ""),
        (["\r  0%|\r", " 50%|\r", "100%|\n"], ["100%|"], ""),
        (["\r  0%|\r", " 50%|\r"], [], " 50%|\r"),
        (["windows\r", "\nagain\r\n"], ["windows", "again"], ""),
        (["\r100%|\r      \r", "after\n"], ["after"], ""),
        (["\n\n"], ["", ""], ""),
        (["no end"], ["no end"], ""),
    ],
)
def test_what_a_terminal_would_keep(pieces: list[str], lines: list[str], begun: str) -> None:
    found, rest = [], ""
    for piece in pieces:
        more, rest = printed_lines(piece, rest)
        found += more
    assert (found, rest) == (lines, begun)


def test_a_window_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"a\r\n 1%\r 2%\r 3%")
    window = read_window(path, 0, 100, as_written=True)
    assert (window.text, window.end) == ("a\r\n 1%\r 2%\r", 11)
