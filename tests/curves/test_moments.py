"""A place on the axis and the moment when the run was there."""

from __future__ import annotations

from gputui.curves.axis import AxisMap, AxisTimeline
from gputui.curves.model import Frame


def test_a_place_tells_when_the_run_was_there() -> None:
    assert Frame("time", 0.0, 10.0, origin_at=100.0).moment_at(3.5) == 103.5
    frame = Frame("step", 0.0, 40.0, None, ((0.0, 100.0), (10.0, 110.0), (20.0, 500.0)))
    assert frame.moment_at(5.0) == 105.0 and frame.moment_at(10.0) == 110.0
    assert frame.moment_at(99.0) == 500.0 and frame.moment_at(-5.0) == 100.0
    assert Frame("step").moment_at(1.0) is None


def test_moments_leave_out_what_was_done_again() -> None:
    paces = {1: [(100.0, 0.0), (110.0, 10.0), (120.0, 20.0)], 2: [(200.0, 10.0), (210.0, 20.0)]}
    found = AxisMap("step", AxisTimeline(100.0), paces=paces).moments({1: 10.0})
    assert found == ((0.0, 100.0), (10.0, 200.0), (20.0, 210.0))
