"""Energy from counters that restart, and that are not there."""

from __future__ import annotations

import pytest

from gputui.store.costs import consumed_joules, energy_between


@pytest.mark.parametrize(
    ("earlier", "later", "expected"),
    [
        ((0.0, 1000.0), (5.0, 2500.0), 1500.0),
        ((0.0, 1000.0), (5.0, 1000.0), 0.0),
        ((0.0, 9_000_000.0), (5.0, 40.0), 40.0),  # the driver was loaded anew
    ],
)
def test_consumed(earlier: tuple[float, float], later: tuple[float, float], expected: float) -> None:
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
