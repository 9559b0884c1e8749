"""What curves say where the crosshair stands."""

from __future__ import annotations

import math

from gputui.metrics.curves.drawing import values_at
from gputui.metrics.draw.envelope import reduce

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
