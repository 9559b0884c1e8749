"""Energy from counters that restart, and that are not there."""

from __future__ import annotations

import pytest

from gputui.store.attempts import alone_seconds, consumed_joules, energy_between, own_seconds


def test_consumed() -> None:
    for earlier, later, expected in [
        ((0.0, 1000.0), (5.0, 2500.0), 1500.0),
        ((0.0, 1000.0), (5.0, 1000.0), 0.0),
        ((0.0, 9_000_000.0), (5.0, 40.0), 40.0),  # the driver was loaded anew
    ]:
        assert consumed_joules(earlier, later) == pytest.approx(expected)


def test_parts_of_a_stretch_add_up_to_it() -> None:
    readings = [(t * 5.0, 300.0 * t * 5.0 + t * t) for t in range(100)]
    whole = energy_between(readings, 12.0, 400.0, 60.0)
    parts = [energy_between(readings, a, b, 60.0) for a, b in ((12.0, 77.7), (77.7, 300.0), (300.0, 400.0))]
    assert whole == pytest.approx(sum(part or 0 for part in parts))


def test_a_gap_tells_nothing_of_what_lay_in_it() -> None:
    readings = [(0.0, 0.0), (5.0, 1000.0), (605.0, 90_000.0), (610.0, 91_000.0)]
    assert energy_between(readings, 0.0, 700.0, 60.0) == 2000.0
    assert energy_between(readings, 100.0, 200.0, 60.0) is None
    assert energy_between([(0.0, 5.0)], 0.0, 10.0, 60.0) is None


def test_time_that_several_share_is_divided_among_them() -> None:
    for others, own, alone in [
        ([], 12.0, 12.0),
        ([(0.0, 100.0)], 6.0, 0.0),
        ([(4.0, 10.0)], 9.0, 6.0),
        ([(-5.0, 3.0), (9.0, float("inf"))], 9.0, 6.0),
        ([(0.0, 6.0), (3.0, 9.0)], 1.5 + 1.0 + 1.5 + 3.0, 3.0),
        ([(12.0, 20.0), (-3.0, 0.0)], 12.0, 12.0),
    ]:
        assert own_seconds(0.0, 12.0, others) == pytest.approx(own)
        assert alone_seconds(0.0, 12.0, others) == pytest.approx(alone)


def test_a_clock_that_was_set_back_costs_nothing() -> None:
    assert own_seconds(12.0, 0.0, [(1.0, 5.0)]) == alone_seconds(12.0, 0.0, []) == 0.0
