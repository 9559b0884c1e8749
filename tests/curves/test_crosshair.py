"""What curves say where the crosshair stands."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from gputui.charts.envelope import Bin, reduce
from gputui.curves.crosshair import ValueAt, values_at

POINTS = [(0.0, 5.0), (1.0, 4.0), (10.0, 3.0), (11.0, math.nan), (20.0, math.inf)]


def test_the_nearest_place_and_its_value() -> None:
    bins = reduce(POINTS, 1000)
    for position, expected in ((-5.0, (0.0, 5.0)), (0.4, (0.0, 5.0)), (0.6, (1.0, 4.0)), (5.4, (1.0, 4.0)),
                               (5.6, (10.0, 3.0)), (10.0, (10.0, 3.0))):  # fmt: skip
        (found,) = values_at([bins], position)
        assert (found.x, found.value) == expected


def test_what_is_not_finite_is_said() -> None:
    bins = reduce(POINTS, 1000)
    (nan, infinite) = (values_at([bins], x)[0] for x in (11.1, 99.0))
    assert nan.x == 11.0 and nan.value is not None and math.isnan(nan.value) and nan.low is None
    assert (infinite.x, infinite.value) == (20.0, math.inf)


def test_several_curves_and_one_that_is_empty() -> None:
    one, other = reduce(POINTS[:2], 9), [Bin(0.0, 8.0, 1.0, 9.0, 2.0, 7.0, 40)]
    assert values_at([one, [], other], 6.0) == [
        ValueAt(1.0, 4.0, 4.0, 4.0),
        ValueAt(),
        ValueAt(8.0, 7.0, 1.0, 9.0),
    ]


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), min_size=1, max_size=30), st.floats(-2e6, 2e6))
def test_nothing_lies_nearer(points: list[tuple[float, float]], position: float) -> None:
    # A series comes in the order of x.
    bins = reduce(sorted(points), 500)
    (found,) = values_at([bins], position)
    assert found.x is not None
    ends = [x for each in bins for x in (each.first_x, each.last_x)]
    inside = any(each.first_x <= position <= each.last_x for each in bins)
    assert inside or abs(found.x - position) <= min(abs(x - position) for x in ends) + 1e-9
