"""Names of metrics, and the moving average."""

from __future__ import annotations

import math

import pytest

from gputui.metrics.curves.bins import average_at, smooth_bins
from gputui.metrics.curves.names import filter_names, is_set
from gputui.metrics.draw.bins import reduce

NAMES = ("loss", "val/loss", "val/acc", "lr", "grad_norm", "Layer.0.norm")


def test_a_constant_stays_what_it_is_from_the_first_bin_on() -> None:
    smoothed = smooth_bins(reduce([(float(x), 7.0) for x in range(100)], 100), 0.99)
    assert [one_bin.last for one_bin in smoothed] == pytest.approx([7.0] * 100)
    exact = smooth_bins(reduce([(float(x), 0.3) for x in range(100)], 100), 0.6)
    assert {one_bin.last for one_bin in exact} == {0.3}, "no digits of rounding are shown"


def test_nothing_that_is_not_finite_moves_it() -> None:
    bins = reduce([(0.0, 1.0), (1.0, math.nan), (2.0, math.inf), (3.0, 1.0)], 100)
    smoothed = smooth_bins(bins, 0.9)
    assert [(one_bin.first_x, one_bin.last) for one_bin in smoothed] == [(0.0, 1.0), (3.0, pytest.approx(1.0))]


def test_a_window_shows_a_piece_of_the_average_of_the_whole_run() -> None:
    bins = reduce([(float(x), math.sin(x) + x / 50) for x in range(200)], 200)
    whole = smooth_bins(bins, 0.8)
    piece = smooth_bins(bins, 0.8, (50.5, 120.0))
    assert (piece[0].first_x, piece[-1].first_x, len(piece)) == (50.5, 120.0, 71)
    for x in (50.5, 51.0, 77.3, 120.0):
        assert average_at(piece, x) == pytest.approx(average_at(whole, x))
    assert smooth_bins(bins, 0.8, (300.0, 400.0)) == []
    assert average_at([], 1.0) is None


def test_what_is_set_and_what_is_measured() -> None:
    settings = ["lr", "learning_rate", "epoch", "optim/lr", "lr_head", "train.lr", "total_steps", "base_lr"]
    measured = ["loss", "val/loss", "grad_norm", "samples_per_s", "blr", "colour", "total_loss", "train/total_loss"]
    assert [name for name in settings + measured if is_set(name)] == settings


def test_patterns() -> None:
    expected: dict[str, tuple[str, ...]] = {
        "": NAMES,
        "loss": ("loss", "val/loss"),
        "LOSS": ("loss", "val/loss"),
        "val/*": ("val/loss", "val/acc"),
        "l?": ("lr",),
        "loss lr": ("loss", "val/loss", "lr"),
        "!val": ("loss", "lr", "grad_norm", "Layer.0.norm"),
        "loss !val/*": ("loss",),
        "~^l": ("loss", "lr", "Layer.0.norm"),
        "~norm$": ("grad_norm", "Layer.0.norm"),
        "~a b": (),
        "nothing": (),
        "*": NAMES,
        "[": (),
    }
    assert {pattern: filter_names(NAMES, pattern).names for pattern in expected} == expected
    assert {filter_names(NAMES, pattern).problem for pattern in expected} == {None}
