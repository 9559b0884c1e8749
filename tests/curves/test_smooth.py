"""A moving average over bins."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.charts.envelope import Bin, reduce
from gputui.curves.metric_names import is_set
from gputui.curves.smooth import smooth_bins


def test_a_constant_stays_what_it_is_from_the_first_bin_on() -> None:
    smoothed = smooth_bins(reduce([(float(x), 7.0) for x in range(100)], 100), 0.99)
    assert [each.last for each in smoothed] == pytest.approx([7.0] * 100)


def test_nothing_that_is_not_finite_moves_it() -> None:
    bins = reduce([(0.0, 1.0), (1.0, math.nan), (2.0, math.inf), (3.0, 1.0)], 100)
    smoothed = smooth_bins(bins, 0.9)
    assert [(each.first_x, each.last) for each in smoothed] == [(0.0, 1.0), (3.0, pytest.approx(1.0))]


def test_places_lie_in_the_middle_and_gaps_stay() -> None:
    bins = [Bin(0.0, 4.0, 1.0, 3.0, 1.0, 3.0, 5), Bin(10.0, 12.0, 2.0, 2.0, 2.0, 2.0, 3, gap_before=True)]
    one, other = smooth_bins(bins, 0.5)
    assert (one.first_x, one.last_x, one.low, one.high) == (2.0, 2.0, 2.0, 2.0)
    assert (other.first_x, other.gap_before) == (11.0, True)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=50), st.floats(0, 0.999))
def test_it_stays_within_what_was_measured(values: list[float], weight: float) -> None:
    bins = reduce([(float(x), value) for x, value in enumerate(values)], 100)
    known = [value for value in values if math.isfinite(value)]
    for each in smooth_bins(bins, weight):
        assert each.last is not None and math.isfinite(each.last)
        slack = 1e-6 * max(abs(value) for value in known) + 1e-300
        assert min(known) - slack <= each.last <= max(known) + slack


@pytest.mark.parametrize(
    "name", ["lr", "learning_rate", "epoch", "optim/lr", "lr_head", "train.lr", "total_steps", "base_lr"]
)
def test_what_is_set(name: str) -> None:
    assert is_set(name)
    assert not is_set("total_loss") and not is_set("train/total_loss")


@pytest.mark.parametrize("name", ["loss", "val/loss", "grad_norm", "samples_per_s", "blr", "colour"])
def test_what_is_measured(name: str) -> None:
    assert not is_set(name)
