"""The stretch of the x axis that is looked at, moved by keys."""

from __future__ import annotations

import pytest

from gputui.metrics.draw.bins import Bin
from gputui.metrics.draw.viewport import Extent, Viewport, next_point

RUN = Extent(0.0, 9440.0)

LOG = Extent(0.0, 40_000.0).logarithmic()


def bins(*xs: float) -> list[Bin]:
    return [Bin(x, x, 1.0, high=1.0, first=1.0, last=1.0, points=1) for x in xs]


def test_everything_is_shown_from_the_beginning_to_a_round_end() -> None:
    assert Viewport().window(RUN) == (0.0, 10_000.0)
    assert Viewport().window(Extent(8000.0, 9440.0)) == (8000.0, 10_000.0)
    start, end = Viewport().window(Extent(0.0, 0.0))
    assert end > start


def test_zooming_in_follows_the_newest_point_and_zooming_out_comes_back() -> None:
    near = Viewport().zoomed_in(RUN, None)
    start, end = near.window(RUN)
    assert end - start == 5000
    assert start < 9440 <= end
    assert near.end is None
    later = Extent(0.0, 9500.0)
    assert near.window(later) == (start, end)  # it does not move with every point
    assert near.window(Extent(0.0, 12_000.0))[1] > end
    assert near.zoomed_out(RUN, None) == Viewport()
    assert Viewport().zoomed_out(RUN, None) == Viewport()


def test_what_is_under_the_crosshair_stays_in_its_place() -> None:
    for about in (0.0, 2500.0, 7777.0):
        shares = []
        view = Viewport()
        for _ in range(3):
            start, end = view.window(RUN)
            shares.append((about - start) / (end - start))
            view = view.zoomed_in(RUN, about)
        assert shares == pytest.approx(shares[:1] * 3), about
        assert end - start == pytest.approx(2500), about


def test_panning_stays_within_the_run_and_follows_at_its_end() -> None:
    view = Viewport(1000.0)
    panned = view.panned(RUN, -1)
    assert panned.window(RUN)[1] == view.window(RUN)[1] - 250
    for _ in range(100):
        panned = panned.panned(RUN, -1)
    assert panned.window(RUN) == (0.0, 1000.0)
    right = panned
    for _ in range(100):
        right = right.panned(RUN, 1)
    assert right.end is None
    assert right.window(RUN)[1] >= 9440
    assert Viewport().panned(RUN, 1) == Viewport()


def test_the_crosshair_steps_from_point_to_point() -> None:
    points = bins(0, 10, 20, 30, 100)
    assert next_point(points, 0.0, 1, 1.0) == 10
    assert next_point(points, 0.0, 1, 15.0) == 20  # at least so far
    assert next_point(points, 30.0, 1, 5.0) == 100  # over a stretch without points
    assert next_point(points, 100.0, 1, 5.0) == 100
    assert next_point(points, 100.0, -1, 5.0) == 30
    assert next_point(points, 10.0, -1, 50.0) == 0
    assert next_point(points, 0.0, -1, 1.0) == 0
    assert next_point([], 5.0, 1, 1.0) == 5.0


# --- on a logarithmic axis


def test_zooming_and_panning_on_it_keep_the_ratio_of_the_ends() -> None:
    near = Viewport().zoomed_in(LOG, 100.0)
    start, end = near.window(LOG)
    assert start == pytest.approx(10.0)
    assert end / start == pytest.approx(50_000**0.5)
    assert near.zoomed_out(LOG, 100.0) == Viewport()
    panned = near.panned(LOG, -1)
    assert panned.window(LOG)[1] / panned.window(LOG)[0] == pytest.approx(50_000**0.5)
    assert panned.window(LOG)[0] == pytest.approx(10.0 / 50_000**0.125)
    newest = near
    for _ in range(20):
        newest = newest.panned(LOG, 1)
    assert newest.end is None
    assert newest.window(LOG)[1] >= 40_000
    view = Viewport()
    for _ in range(100):
        view = view.zoomed_in(LOG, None)
    start, end = view.window(LOG)
    assert end - start >= 4
