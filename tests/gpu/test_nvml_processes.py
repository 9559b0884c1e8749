"""Which process lists of the driver are believed, and how they are merged."""

from __future__ import annotations

import pytest

from gputui.gpu.nvml_processes import Row, merged, senseless

TOTAL = 80 * 2**30


def test_an_ordinary_list_is_believed() -> None:
    assert senseless([Row(1234, 2**30, "C"), Row(1234, 2**30, "G"), Row(99, None, "C")], TOTAL) is None
    assert senseless([Row(1234, 2**40, "C")], None) is None


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (Row(0, 2**30, "C"), "cannot be a PID"),
        (Row(0xFFFFFFFF, 2**30, "C"), "cannot be a PID"),
        (Row(1234, TOTAL + 1, "C"), "would hold"),
    ],
)
def test_a_senseless_row_discredits_the_list(row: Row, said: str) -> None:
    doubt = senseless([Row(1, 1, "C"), row], TOTAL)
    assert doubt is not None
    assert said in doubt


def test_a_process_in_two_lists_is_one_with_the_larger_memory() -> None:
    rows = [
        Row(1, 100, "C"),
        Row(2, None, "C"),
        Row(1, 300, "G"),
        Row(2, None, "G"),
        Row(3, 50, "G"),
        Row(4, None, "M"),
    ]
    assert sorted(merged(rows), key=lambda row: row.pid) == [
        Row(1, 300, "C"),
        Row(2, None, "C"),
        Row(3, 50, "G"),
        Row(4, None, "M"),
    ]
    assert merged([Row(1, 300, "G"), Row(1, None, "C")]) == [Row(1, 300, "C")]
