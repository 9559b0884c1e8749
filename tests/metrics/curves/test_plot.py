"""The drawing of a chart, and the crosshair on it."""

from __future__ import annotations

import math

from gputui.metrics.curves.model import ChartData, ChartRequest
from gputui.metrics.curves.plot import drawing, value_at
from gputui.metrics.draw.bins import reduce
from gputui.metrics.draw.export import csv_text, export

from .conftest import BEGAN_AT, CurvesHome

POINTS = [(0.0, 5.0), (1.0, 4.0), (10.0, 3.0), (11.0, math.nan), (20.0, math.inf)]


def chart_data(home: CurvesHome, request: ChartRequest) -> ChartData:
    home.begin_at(1, 0)
    home.steps_at(0, 300, 0.0, lr=0.1)
    home.write({"step": 100, "time": BEGAN_AT + 100, "event": "checkpoint"})
    home.begin_at(2, 400, first_step=200)
    home.steps_at(200, 400, 400.0, lr=0.1)
    return home.ask(request)


def test_a_curve_stands_before_its_shadows(home: CurvesHome) -> None:
    data = chart_data(home, ChartRequest(("loss", "lr"), smoothing=0.9))
    picture = drawing(data, "run-1")
    curves = [(curve.label, curve.style, curve.is_shadow) for curve in picture.curves]
    assert curves == [
        ("loss (redone)", "series.0", True), ("loss (measured)", "series.0", True), ("loss", "series.0", False),
        ("lr (redone)", "series.1", True), ("lr", "series.1", False),
    ]  # fmt: skip
    assert [(marker.x, marker.label, marker.is_line) for marker in picture.markers] == [
        (100.0, "ckpt", False), (200.0, "↻1", True),
    ]  # fmt: skip
    assert "lr (redone),200.0" in csv_text(picture.curves)
    for kind in ("csv", "svg"):
        assert export(kind, picture)  # type: ignore[arg-type]


def test_the_nearest_value_finite_or_not() -> None:
    bins = reduce(POINTS, 1000)
    places = {-5.0: 5.0, 0.4: 5.0, 0.6: 4.0, 5.4: 4.0, 5.6: 3.0, 10.0: 3.0, 99.0: math.inf}
    assert {at: value_at(bins, at) for at in places} == places
    assert math.isnan(value_at(bins, 11.1) or 0.0)
    assert [value_at(bins, 5.4, reach) for reach in (4.3, 4.5)] == [None, 4.0]
    assert value_at((), 1.0) is None
