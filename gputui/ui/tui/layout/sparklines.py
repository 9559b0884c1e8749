"""Short histories: values of equal time buckets, oldest first, None if unknown."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import lru_cache

from gputui.metrics.draw.bins import Bin
from gputui.metrics.draw.glyphs import sparkline

History = Sequence[float | None]

EASE = 1 / 3
"""Exponent of `ease_losses`: a training that falls by nine tenths in its first tenth still descends over all of its
cells."""


def merge_histories(histories: Sequence[History], combine: Callable[[list[float]], float]) -> list[float | None]:
    """Several histories as one: what ``combine`` makes of the known values of each bucket."""
    merged: list[float | None] = []
    for bucket in zip(*histories, strict=False):
        values = [value for value in bucket if value is not None]
        mean = combine(values) if values else None
        merged.append(mean)
    return merged


def to_percent(history: History, whole: float | None) -> list[float | None]:
    """Each value in percent of a whole."""
    percentages: list[float | None] = []
    for value in history:
        if value is None or not whole:
            percentages.append(None)
        else:
            percentages.append(value / whole * 100)
    return percentages


def time_bins(history: History, span_seconds: float, unit_seconds: float = 60.0) -> list[Bin]:
    """The buckets of the last ``span_seconds`` as bins for a chart. x is the time before now, in units of
    ``unit_seconds``."""
    seconds = span_seconds / max(1, len(history))
    bins: list[Bin] = []
    gap = False
    for number, value in enumerate(history):
        if value is None:
            gap = True
            continue
        x = ((number + 0.5) * seconds - span_seconds) / unit_seconds
        bins.append(Bin(x, x, value, high=value, first=value, last=value, points=1, gap_before=gap))
        gap = False
    return bins


def newest_value(history: History) -> float | None:
    """The last known value."""
    return next((value for value in reversed(history) if value is not None), None)


def ease_losses(losses: History) -> tuple[float | None, ...]:
    """Losses as shares of their range, raised to `EASE`: the first steps change a loss many times as much as all that
    follow, which would be a flat line. NaN and infinities stay."""
    finite = [loss for loss in losses if loss is not None and math.isfinite(loss)]
    low = min(finite, default=0.0)
    high = max(finite, default=0.0)
    if not low < high:
        return tuple(losses)
    # Halves, because the range of two large numbers may be too large for one.
    half_range = high / 2 - low / 2
    eased: list[float | None] = []
    for loss in losses:
        if loss is None or not math.isfinite(loss):
            eased.append(loss)
        else:
            eased.append(((loss / 2 - low / 2) / half_range) ** EASE)
    return tuple(eased)


def to_quantiles(history: History, among: Sequence[float]) -> list[float | None]:
    """The place of each value in a sorted sequence, from 0 to 1: so curves of trials differ wherever their values are
    close together. NaN and infinities stay."""
    quantiles: list[float | None] = []
    for value in history:
        if value is None or not math.isfinite(value):
            quantiles.append(value)
        else:
            quantiles.append(bisect_left(among, value) / max(1, len(among) - 1))
    return quantiles


@lru_cache(256)
def spark(history: tuple[float | None, ...], width: int, low: float | None = None, high: float | None = None) -> str:
    """A sparkline of the whole history in ``width`` cells; of a longer one, of the means of finite values. Cached,
    because a history is drawn in many frames."""
    if width < 1 or len(history) <= width:
        return sparkline(history, width, low, high)
    edges = [number * len(history) // width for number in range(width + 1)]
    means: list[float | None] = []
    for start, end in itertools.pairwise(edges):
        values = [value for value in history[start:end] if value is not None and math.isfinite(value)]
        mean = sum(values) / len(values) if values else None
        means.append(mean)
    return sparkline(means, width, low, high)
