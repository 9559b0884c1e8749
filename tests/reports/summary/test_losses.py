"""How runs of different sizes compare, as values."""

from __future__ import annotations

import pytest

from gputui.reports.summary.facts import Measured, spread
from gputui.reports.summary.losses import ScaledRun, scaling_rows


def told(step: float, speed: float | None, comm: float | None = None, data: float | None = None) -> Measured:
    return Measured(step_seconds=spread([(step, 3)]), samples_per_second=speed, comm_share=comm, data_share=data)


def test_speed_up_efficiency_and_where_time_went() -> None:
    rows = scaling_rows([
        ScaledRun("x4", 4, told(0.16, 250.0, comm=0.25, data=0.05)),
        ScaledRun("x1", 1, told(0.10, 100.0, data=0.05)),
    ])  # fmt: skip
    assert [row.run_id for row in rows] == ["x1", "x4"]
    first, last = rows
    assert (first.speed_up, first.efficiency, first.extra_other_seconds) == (1.0, 1.0, 0.0)
    assert first.comm_share == 0.0, "one rank waits for nobody, though it tells nothing of it"
    assert (last.speed_up, last.efficiency) == (2.5, 0.625)
    assert last.extra_comm_seconds == pytest.approx(0.04)
    assert last.extra_data_seconds == pytest.approx(0.003)
    assert last.extra_other_seconds == pytest.approx(0.06 - 0.043)


def test_what_is_not_told_is_unknown() -> None:
    _, last = scaling_rows([ScaledRun("x1", 1, Measured()), ScaledRun("x2", 2, told(0.1, None))])
    assert (last.speed, last.speed_up, last.efficiency, last.extra_comm_seconds) == (None, None, None, None)
    assert last.to_json()["step_seconds"] == 0.1 and last.to_json()["efficiency"] is None
    assert scaling_rows([]) == []
