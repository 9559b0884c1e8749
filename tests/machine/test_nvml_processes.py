"""Which process lists of the driver are believed, and how they are merged."""

from __future__ import annotations

from gputui.machine.nvml_readings import Row, invalid_reason, merged
from tests.tables import table

TOTAL = 80 * 2**30


@table("row, said", [
    (Row(0, 2**30, "C"), "cannot be a PID"), (Row(0xFFFFFFFF, 2**30, "C"), "cannot be a PID"),
    (Row(1234, TOTAL + 1, "C"), "would hold"),
])  # fmt: skip
def test_a_senseless_row_discredits_the_list(row: Row, said: str) -> None:
    doubt = invalid_reason([Row(1, 1, "C"), row], TOTAL)
    assert doubt is not None
    assert said in doubt


def test_a_process_in_two_lists_is_one_with_the_larger_memory() -> None:
    rows = [Row(1, 100, "C"), Row(2, None, "C"), Row(1, 300, "G"), Row(2, None, "G"), Row(3, 50, "G")]
    found = sorted(merged(rows), key=lambda row: row.pid)
    assert found == [Row(1, 300, "C"), Row(2, None, "C"), Row(3, 50, "G")]
    assert merged([Row(1, 300, "G"), Row(1, None, "C")]) == [Row(1, 300, "C")]
