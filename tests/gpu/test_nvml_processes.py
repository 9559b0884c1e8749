"""Which process lists of the driver are believed, and how they are merged."""

from __future__ import annotations

from typing import Any

import pytest

from gputui.gpu.nvml_calls import Calls
from gputui.gpu.nvml_processes import ProcessLists, Row, invalid_reason, merged
from gputui.gpu.processes import GpuProcessReader

TOTAL = 80 * 2**30


def test_an_ordinary_list_is_believed() -> None:
    assert invalid_reason([Row(1234, 2**30, "C"), Row(1234, 2**30, "G"), Row(99, None, "C")], TOTAL) is None
    assert invalid_reason([Row(1234, 2**40, "C")], None) is None


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (Row(0, 2**30, "C"), "cannot be a PID"),
        (Row(0xFFFFFFFF, 2**30, "C"), "cannot be a PID"),
        (Row(1234, TOTAL + 1, "C"), "would hold"),
    ],
)
def test_a_senseless_row_discredits_the_list(row: Row, said: str) -> None:
    doubt = invalid_reason([Row(1, 1, "C"), row], TOTAL)
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


class Interrupted(ProcessLists):
    """The driver goes away while the first list of graphics processes is read."""

    has_failed = False

    def _list(self, gpu: str, handle: Any, kind: Any) -> list[Row] | None:
        if kind == "G" and not self.has_failed:
            self.has_failed = True
            raise RuntimeError("the driver is gone")
        return []


def test_a_first_read_that_was_interrupted_is_followed_by_another() -> None:
    lists = Interrupted(Calls(None), GpuProcessReader())
    with pytest.raises(RuntimeError):
        lists.read("GPU-1", None, TOTAL)
    assert lists.read("GPU-1", None, TOTAL) == ()
