"""Tables in terminals: no broken line, and what matters last to go."""

from __future__ import annotations

import pytest

from gputui.core.config import Workspace
from gputui.core.text import cell_width
from gputui.recovery.watch.engine import in_unit
from gputui.recovery.watch.rules import RULES
from gputui.ui.cli import context, explain
from gputui.ui.cli.context import table_lines
from tests.homes import Home, add_boundary
from tests.ui.cli.program import output_of

HEADER = ("RUN", "SIZE", "STATE", "")
ROWS = [
    ("vit-1", "12.3 GiB", "failed", "CUDA out of memory in forward of block 17; given up"),
    ("模型-2", "1 B", "running", ""),
]


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> int:
    """A terminal of 80 columns."""
    for module in (context, explain):
        monkeypatch.setattr(module, "terminal_columns", lambda: 80)
    return 80


def test_a_file_gets_everything() -> None:
    lines = table_lines(HEADER, ROWS, ("SIZE",), room=None)
    assert lines == [
        "RUN     SIZE      STATE",
        "vit-1   12.3 GiB  failed   CUDA out of memory in forward of block 17; given up",
        "模型-2  1 B       running",
    ]


@pytest.mark.parametrize("room", [10, 20, 40, 45, 60, 200])
def test_no_line_is_wider_than_the_terminal(room: int) -> None:
    lines = table_lines(HEADER, ROWS, ("SIZE",), room)
    assert len(lines) == 3
    assert all(cell_width(line) <= room for line in lines)
    assert ("SIZE" in lines[0]) is (room >= 60)
    assert lines[1].endswith("given up") is (room == 200)


def test_columns_are_left_out_in_order_and_no_more_than_needed() -> None:
    header = ("A", "B", "C", "D")
    row = ("a" * 10, "b" * 10, "c" * 10, "d" * 10)
    heads = {room: table_lines(header, [row], ("C", "A"), room)[0].split() for room in (46, 45, 34, 33)}
    # A column takes ten cells, and two stand between columns.
    assert heads == {46: ["A", "B", "C", "D"], 45: ["A", "B", "D"], 34: ["A", "B", "D"], 33: ["B", "D"]}


def test_a_column_that_may_be_left_out_need_not_be_there() -> None:
    assert table_lines(HEADER, ROWS, ("PRICE", "SIZE"), 45) == table_lines(HEADER, ROWS, ("SIZE",), 45)


def test_a_long_name_gives_way_first() -> None:
    name = "x" * 30 + "-of-the-seventeenth-of-november-7"
    header = ("RUN", "SIZE", "STATE", "STEP", "")
    rows = [(name, "1 GiB", "running", "300/600", ""), ("vit-1", "1 GiB", "failed", "30/600", "")]
    lines = table_lines(header, rows, ("SIZE",), 80)
    assert lines[0].split() == ["RUN", "SIZE", "STATE", "STEP"]
    assert all(cell_width(line) <= 80 for line in lines)
    assert lines[1].startswith("xxx")
    assert "…" in lines[1]
    assert lines[1].endswith("-7  1 GiB  running  300/600")
    assert table_lines(header, rows, ("SIZE",), 50)[0].split() == ["RUN", "STATE", "STEP"]
    assert all(name in table_lines(header, rows, ("SIZE",), room)[1] for room in (None, 100))


def test_every_threshold_of_the_rules_is_whole(workspace: Workspace, narrow: int) -> None:
    text, _, _ = output_of(workspace, "alerts", "rules").partition("\n\n")
    assert max(map(cell_width, text.splitlines())) <= narrow
    assert "…" not in text
    for rule in RULES.values():
        for threshold in rule.thresholds:
            assert f"{threshold.name} {in_unit(rule.limits[threshold.name], threshold.unit)}" in text


def test_a_metric_with_a_long_name(home: Home, workspace: Workspace, narrow: int) -> None:
    home.run("long-1", "succeeded")
    home.attempt("long-1", 1)
    home.metrics("long-1", 1, [{"step": 1, "x" * 3000 + "-loss": 2.5}])
    add_boundary(home.connection, 1, offset=0)
    _, row = output_of(workspace, "metrics", "long-1").splitlines()
    assert "…" in row
    assert "-loss  2.5" in row
    assert cell_width(row) <= narrow
    (line,) = [line for line in output_of(workspace, "show", "long-1").splitlines() if line.startswith("metrics")]
    assert "-loss" in line
    assert cell_width(line.partition(", from ")[0]) <= narrow
