from __future__ import annotations

from gputui.machine.aggregate import GpuTotals, totals
from gputui.store.series import GpuSample

INDICES = {"a": 0, "b": 1, "c": 2}


def test_totals_leave_unknown_values_out() -> None:
    totals_of_three = totals(
        [
            GpuSample("a", utilization_percent=90.0, memory_used_bytes=10, memory_total_bytes=80, power_watts=300.0),
            GpuSample("b", utilization_percent=30.0, memory_total_bytes=80, temperature_celsius=71.0),
            GpuSample("c", state="lost", detail="gone"),
        ],
        INDICES,
    )
    assert totals_of_three == GpuTotals(
        gpu_count=3,
        answering_count=2,
        lost_count=1,
        memory_used_bytes=10,
        memory_total_bytes=160,
        utilization_percent=60.0,
        power_watts=300.0,
        power_limit_watts=None,
        hottest_index=1,
        hottest_uuid="b",
        hottest_celsius=71.0,
    )


def test_nothing_known_is_none_and_a_known_zero_is_zero() -> None:
    nothing = totals([GpuSample("a")], INDICES)
    assert nothing == GpuTotals(gpu_count=1, answering_count=1)
    idle = totals([GpuSample("a", utilization_percent=0.0, memory_used_bytes=0, power_watts=0.0)], INDICES)
    assert (idle.utilization_percent, idle.memory_used_bytes, idle.power_watts) == (0.0, 0, 0.0)
