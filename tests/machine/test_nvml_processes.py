"""Plausible process lists of the driver, and their merging."""

from __future__ import annotations

from gputui.machine.gpu_model import GpuProcess
from gputui.machine.nvml_processes import Kind, invalid_reason, merged
from tests.tables import table

TOTAL = 80 * 2**30


@table("row, said", [
    (GpuProcess(0, 2**30, "C"), "cannot be a PID"), (GpuProcess(0xFFFFFFFF, 2**30, "C"), "cannot be a PID"),
    (GpuProcess(1234, TOTAL + 1, "C"), "would hold"),
])  # fmt: skip
def test_a_senseless_row_discredits_the_list(row: GpuProcess, said: str) -> None:
    doubt = invalid_reason([GpuProcess(1, 1, "C"), row], TOTAL)
    assert doubt is not None
    assert said in doubt


def test_a_process_in_two_lists_is_one_with_the_larger_memory() -> None:
    def one(pid: int, memory_bytes: int | None, kind: Kind) -> GpuProcess:
        return GpuProcess(pid, memory_bytes, kind)

    rows = [one(1, 100, "C"), one(2, None, "C"), one(1, 300, "G"), one(2, None, "G"), one(3, 50, "G")]
    processes = sorted(merged(rows), key=lambda row: row.pid)
    assert processes == [one(1, 300, "C"), one(2, None, "C"), one(3, 50, "G")]
    assert merged([one(1, 300, "G"), one(1, None, "C")]) == [one(1, 300, "C")]
