"""From steps, moments and epochs to places, and back."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gputui.metrics.curves.axis import AxisMap, AxisTimeline, interpolate, monotonic_pairs
from gputui.metrics.curves.epochs import epoch_pairs
from gputui.metrics.curves.model import Frame

LINE = [(0.0, 10.0), (10.0, 20.0), (20.0, 20.0), (30.0, 60.0)]
TIMELINE = AxisTimeline(100.0, {1: 100.0, 2: 300.0}, {1: 200.0}, {1: 0.0, 2: 100.0})


def test_interpolation_stays_within_its_ends() -> None:
    assert [interpolate(LINE, x) for x in (-1, 0, 5, 15, 25, 30, 99)] == [10, 10, 15, 20, 40, 60, 60]
    assert interpolate([], 3) is None


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), max_size=30))
def test_what_goes_back_is_left_out(pairs: list[tuple[float, float]]) -> None:
    monotonic = monotonic_pairs(pairs)
    assert monotonic[:1] == pairs[:1]
    assert all(a[0] < b[0] and a[1] <= b[1] for a, b in itertools.pairwise(monotonic))


def test_whole_epochs_go_evenly() -> None:
    pairs = epoch_pairs([(0, 0), (50, 0), (100, 1), (150, 1), (200, 2), (210, 2)])
    assert [interpolate(pairs, step) for step in (0, 50, 100, 175, 200, 250, 900)] == [0, 0.5, 1, 1.75, 2, 2.5, 3]


def test_epochs_with_fractions_are_taken_as_they_are() -> None:
    assert epoch_pairs([(0, 0.0), (10, 0.25), (5, 0.1), (20, 0.5)]) == [(0, 0.0), (10, 0.25), (20, 0.5)]


def test_an_epoch_that_has_not_ended_is_of_unknown_length() -> None:
    assert epoch_pairs([(0, 0), (500, 0)]) == []
    assert epoch_pairs([]) == []


def test_moments() -> None:
    over_time = AxisMap("time", TIMELINE)
    trained = AxisMap("trained", TIMELINE)
    assert [over_time.place_moment(at) for at in (50.0, 150.0, 250.0, 310.0)] == [-50.0, 50.0, 150.0, 210.0]
    assert [trained.place_moment(at) for at in (50.0, 150.0, 250.0, 310.0)] == [None, 50.0, None, 110.0]
    by_step = AxisMap("step", TIMELINE, paces={1: [(110.0, 0.0), (190.0, 80.0)]})
    assert [by_step.place_moment(at) for at in (150.0, 250.0, 310.0)] == [40.0, None, None]
    assert AxisMap("time", AxisTimeline(None)).place_moment(3.0) is None


def test_a_place_tells_when_the_run_was_there() -> None:
    assert Frame("time", 0.0, 10.0, origin_at=100.0).moment_at(3.5) == 103.5
    frame = Frame("step", 0.0, 40.0, origin_at=None, moments=((0.0, 100.0), (10.0, 110.0), (20.0, 500.0)))
    assert frame.moment_at(5.0) == 105.0
    assert frame.moment_at(10.0) == 110.0
    assert frame.moment_at(99.0) == 500.0
    assert frame.moment_at(-5.0) == 100.0
    assert Frame("step").moment_at(1.0) is None


def test_moments_leave_out_what_was_done_again() -> None:
    paces = {1: [(100.0, 0.0), (110.0, 10.0), (120.0, 20.0)], 2: [(200.0, 10.0), (210.0, 20.0)]}
    moments = AxisMap("step", AxisTimeline(100.0), paces=paces, cuts={1: 10.0}).moments()
    assert moments == ((0.0, 100.0), (10.0, 200.0), (20.0, 210.0))
