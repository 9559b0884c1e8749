"""Tables in terminals: no broken line, and what matters last to go."""

from __future__ import annotations

import pytest

from gputui.core.text import cell_width
from gputui.ui.cli.context import table_lines

HEADER = ("RUN", "SIZE", "STATE", "")
ROWS = [
    ("vit-1", "12.3 GiB", "failed", "CUDA out of memory in forward of block 17; given up"),
    ("模型-2", "1 B", "running", ""),
]


def test_a_file_gets_everything() -> None:
    lines = table_lines(HEADER, ROWS, ("SIZE",), None)
    assert lines == [
        "RUN     SIZE      STATE",
        "vit-1   12.3 GiB  failed   CUDA out of memory in forward of block 17; given up",
        "模型-2  1 B       running",
    ]


@pytest.mark.parametrize("room", [10, 20, 40, 45, 60, 200])
def test_no_line_is_wider_than_the_terminal(room: int) -> None:
    lines = table_lines(HEADER, ROWS, ("SIZE",), room)
    assert len(lines) == 3 and all(cell_width(line) <= room for line in lines)
    assert ("SIZE" in lines[0]) is (room >= 8 + 10 + 9 + 24)
    assert lines[1].endswith("given up") is (room == 200)


def test_columns_are_left_out_in_order_and_no_more_than_needed() -> None:
    header, row = ("A", "B", "C", "D"), ("a" * 10, "b" * 10, "c" * 10, "d" * 10)
    heads = {room: table_lines(header, [row], ("C", "A", "none"), room)[0].split() for room in (46, 45, 34, 33)}
    assert heads == {46: ["A", "B", "C", "D"], 45: ["A", "B", "D"], 34: ["A", "B", "D"], 33: ["B", "D"]}


def test_a_long_name_gives_way_first() -> None:
    name, header = "x" * 30 + "-of-the-seventeenth-of-november-7", ("RUN", "SIZE", "STATE", "STEP", "")
    rows = [(name, "1 GiB", "running", "300/600", ""), ("vit-1", "1 GiB", "failed", "30/600", "")]
    shown = table_lines(header, rows, ("SIZE",), 80)
    assert shown[0].split() == ["RUN", "SIZE", "STATE", "STEP"] and all(cell_width(line) <= 80 for line in shown)
    assert shown[1].startswith("xxx") and "…" in shown[1] and shown[1].endswith("-7  1 GiB  running  300/600")
    assert table_lines(header, rows, ("SIZE",), 50)[0].split() == ["RUN", "STATE", "STEP"]
    assert all(name in table_lines(header, rows, ("SIZE",), room)[1] for room in (None, 100))
