"""Reading logs in bounded pieces."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.runs.logs import lines_of, printed_lines, rank_logs, read_window, tail_text
from tests.tables import table


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
    assert tail.splitlines()[0].startswith("line ") and tail.endswith("line 999\n")
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
        assert window.start == offset and window.end - window.start <= size
        if window.end == offset:
            break
        offset = window.end
    rest = data[offset:]
    # What is left is the beginning of one line.
    assert b"\n" not in rest and b"\r" not in rest and len(rest) < size


@table("pieces, lines, begun", [
    (["a\nb\n"], ["a", "b"], ""), (["\r  0%|\r 50%|\r100%|\ndone\n"], ["100%|", "done"], ""),
    (["\r  0%|\r", " 50%|\r", "100%|\n"], ["100%|"], ""), (["\r  0%|\r", " 50%|\r"], [], " 50%|\r"),
    (["windows\r", "\nagain\r\n"], ["windows", "again"], ""), (["\r100%|\r      \r", "after\n"], ["after"], ""),
    (["\n\n"], ["", ""], ""), (["no end"], ["no end"], ""),
])  # fmt: skip
def test_what_a_terminal_would_keep(pieces: list[str], lines: list[str], begun: str) -> None:
    found, rest = [], ""
    for piece in pieces:
        more, rest = printed_lines(piece, rest)
        found += more
    assert (found, rest) == (lines, begun)
