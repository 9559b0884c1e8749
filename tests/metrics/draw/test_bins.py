"""Reduction may lose points, never extremes or bad values."""

import math
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from gputui.metrics.draw.binned_series import BinnedSeries
from gputui.metrics.draw.bins import Bin, reduce

VALUES = st.floats()
XS = st.one_of(st.floats(-1e9, 1e9), st.integers(-1000, 1000).map(float), st.sampled_from([1e300, -1e300, math.nan]))
POINTS = st.lists(st.tuples(XS, VALUES), max_size=200)


def finite(points: list[tuple[float, float]]) -> list[float]:
    return [v for x, v in points if math.isfinite(x) and math.isfinite(v)]


def extend(series: BinnedSeries, points: Iterable[tuple[float, float]]) -> None:
    for x, value in points:
        series.add(x, value)


def check_totals(points: list[tuple[float, float]], bins: list[Bin]) -> None:
    placed = [v for x, v in points if math.isfinite(x)]
    assert sum(one_bin.points for one_bin in bins) == len(placed)
    assert sum(one_bin.non_finite for one_bin in bins) == sum(not math.isfinite(v) for v in placed)
    lows = [one_bin.low for one_bin in bins if one_bin.low is not None]
    highs = [one_bin.high for one_bin in bins if one_bin.high is not None]
    values = finite(points)
    assert (min(lows, default=None), max(highs, default=None)) == (min(values, default=None), max(values, default=None))
    for one_bin in bins:
        assert (one_bin.low is None) == (one_bin.points == one_bin.non_finite)


@given(POINTS, st.integers(1, 50))
def test_reduce_keeps_extremes_and_counts(points: list[tuple[float, float]], limit: int) -> None:
    bins = reduce(points, limit)
    assert len(bins) <= limit
    check_totals(points, bins)


@given(POINTS, st.integers(2, 50), st.integers(2, 20), st.sampled_from([1e-3, 1.0, 60.0]))
def test_binned_series_keep_extremes_and_counts(
    points: list[tuple[float, float]], limit: int, capacity: int, resolution: float
) -> None:
    series = BinnedSeries(resolution, capacity)
    extend(series, points)
    bins = series.bins(limit)
    assert len(bins) <= min(limit, capacity)
    check_totals(points, bins)


def test_a_range_holds_what_lies_in_it() -> None:
    series = BinnedSeries()
    extend(series, ((float(x), float(x)) for x in range(1000)))
    bins = series.bins(100, 100.0, 199.0)
    assert (bins[0].low, bins[-1].high) == (100.0, 199.0)
    assert series.bins(100, 2000.0) == []
    assert series.bins(100, 5.0, 4.0) == []
    assert series.bins(1) == []


def test_a_run_that_steps_back_shows_both_passes() -> None:
    series = BinnedSeries()
    extend(series, ((float(x), 1.0) for x in range(100)))
    extend(series, ((float(x), 9.0) for x in range(50, 80)))
    (middle,) = series.bins(2, 60.0, 60.0)
    assert (middle.low, middle.high, middle.last) == (1.0, 9.0, 9.0)


@given(
    st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats()), min_size=1, max_size=60),
    st.integers(1, 9),
    st.integers(2, 40),
)
def test_what_was_reduced_elsewhere_says_what_its_points_say(
    points: list[tuple[float, float]], size: int, capacity: int
) -> None:
    points = sorted(points, key=lambda point: point[0])
    plain = BinnedSeries(1.0, capacity)
    merged = BinnedSeries(1.0, capacity)
    extend(plain, points)
    for begin in range(0, len(points), size):
        (entry,) = reduce(points[begin : begin + size], 1)
        merged.add_bin(entry)
    for series in (plain, merged):
        bins = series.bins(1 << 20)
        assert len(bins) <= capacity
        check_totals(points, bins)
        assert [one_bin.first_x for one_bin in bins] == sorted(one_bin.first_x for one_bin in bins)


def test_logarithmic_bins_are_fine_where_x_is_small() -> None:
    series = BinnedSeries(1e-4, 64, is_log=True)
    extend(series, ((float(x), float(x)) for x in range(-5, 100_001)))
    bins = series.bins(40)
    assert len(bins) <= 40
    assert sum(one_bin.points for one_bin in bins) == 100_000
    assert [one_bin.points for one_bin in bins[:2]] == [1, 1]
    assert bins[0].first_x == 1.0
    ratios = [one_bin.last_x / one_bin.first_x for one_bin in bins[8:-1]]
    assert max(ratios) < 2.0
    assert series.bins(40, 50.0, 500.0)[0].first_x <= 50.0
