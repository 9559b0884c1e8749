"""One metric of every rank beside the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gputui.metrics.curves.live_curves import RunCurves
from gputui.metrics.curves.model import ChartRequest, RankCurves

from .conftest import BEGAN_AT, CurvesHome

TIMES = ChartRequest(("loss",), ranked=("step_time",), bins=100)


def lines(first: int, last: int, *, count: int = 3, slow: int = 2, at: float = 0.0) -> Sequence[dict[str, Any]]:
    return [
        {
            "step": step, "time": BEGAN_AT + at + step - first, "rank": rank,
            "step_time": 2.0 if rank == slow else 1.0, **({"loss": float(step)} if rank == 0 else {}),
        }
        for step in range(first, last)
        for rank in range(count)
    ]  # fmt: skip


def times(home: CurvesHome, request: ChartRequest = TIMES, curves: RunCurves | None = None) -> RankCurves:
    return home.ask(request, curves).ranked["step_time"]


def test_each_rank_has_its_own_curve(home: CurvesHome) -> None:
    home.begin_at(1, 0)
    home.write(*lines(0, 700))  # some reduced, some not
    data = times(home)
    assert [curve.rank for curve in data.curves] == [0, 1, 2]
    assert not data.is_sampled
    assert [curve.last for curve in data.curves] == [1.0, 1.0, 2.0]
    assert all(sum(one_bin.points for one_bin in curve.bins) == 700 for curve in data.curves)
    assert {one_bin.high for one_bin in data.curves[2].bins} == {2.0}


def test_steps_that_were_done_again_are_those_of_the_newest_attempt(home: CurvesHome) -> None:
    home.begin_at(1, 0)
    home.write(*lines(0, 100, slow=0))
    home.begin_at(2, 200, first_step=50)
    home.write(*lines(50, 80, at=200.0))
    curve = times(home).curves[0]
    assert sum(one_bin.points for one_bin in curve.bins) == 80
    assert {one_bin.high for one_bin in curve.bins if one_bin.first_x >= 50} == {1.0}
    assert [one_bin.first_x for one_bin in curve.bins if one_bin.gap_before] == [50.0]
    over_time = times(home, ChartRequest(ranked=("step_time",), axis="time")).curves[0]
    assert sum(one_bin.points for one_bin in over_time.bins) == 130
