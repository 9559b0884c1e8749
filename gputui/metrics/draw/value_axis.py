"""The value axis of a chart: its scale, and its ticks with their labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gputui.metrics.draw.bins import Bin
from gputui.metrics.draw.parts import YAxis
from gputui.metrics.draw.raster import Canvas
from gputui.metrics.draw.scales import LinearScale, LogScale, Scale, bounds, log_bounds, round_outward, value_scale
from gputui.metrics.draw.ticks import even_axis, linear_ticks, log_ticks, tick_labels

_MOST_TICKS = 6  # more labels say no more, and cover the grid of small charts


class ValueAxis(NamedTuple):
    """A value axis beside a plotting area: its scale, and labels by row from the top."""

    scale: Scale
    labels: Mapping[int, str]


def value_axis(bins: Sequence[Bin], axis: YAxis, rows: int) -> ValueAxis:
    """Lay out the value axis of a plotting area of so many rows; without bins it has no labels."""
    scale = value_scale_of(bins, axis)
    if isinstance(scale, LinearScale):
        placed = _with_even_ticks(scale, bins, axis, rows)
    else:
        placed = ValueAxis(scale, _log_labels(scale, axis, rows))
    if bins:
        return placed
    return ValueAxis(placed.scale, {})


def value_scale_of(bins: Sequence[Bin], axis: YAxis) -> Scale:
    """The scale that holds all values between the ends of an axis; linear without a value above 0."""
    if axis.kind == "log":
        scale = _log_scale(bins, axis)
        if scale is not None:
            return scale
    low, high = bounds(bins)
    if axis.low is not None:
        low = axis.low
    if axis.high is not None:
        high = axis.high
    if low is not None and high is not None and low > high:
        # All values lie beyond the given end.
        low = high = axis.high if axis.low is None else axis.low
    scale = value_scale(low, high)
    start, end = (value * axis.unit for value in round_outward(scale.low / axis.unit, scale.high / axis.unit))
    if axis.low is not None:
        start = scale.low
    if axis.high is not None:
        end = scale.high
    return LinearScale(start, end)


def _log_scale(bins: Sequence[Bin], axis: YAxis) -> Scale | None:
    """The logarithmic scale of an axis; None without a value above 0."""
    low, high = log_bounds(bins)
    if axis.low is not None and axis.low > 0:
        low = axis.low
    if axis.high is not None and axis.high > 0:
        high = axis.high
    if low is None or high is None or low > high:
        return None
    scale = value_scale(low, high, "log")
    if axis.low is None and axis.high is None:
        return LogScale(*round_outward(scale.low, scale.high, "log"))
    return scale


def value_ticks(scale: Scale, axis: YAxis, most: int) -> tuple[list[float], list[str]]:
    """At most ``most`` ticks of a value axis, and their labels."""
    if isinstance(scale, LogScale):
        ticks = log_ticks(scale.low, scale.high, most)
    else:
        ticks = [tick * axis.unit for tick in linear_ticks(scale.low / axis.unit, scale.high / axis.unit, most)]
    return ticks, _labels(axis, ticks)


def _labels(axis: YAxis, ticks: Sequence[float]) -> list[str]:
    if axis.label is None:
        return tick_labels(ticks)
    return [axis.label(tick) for tick in ticks]


def _most_ticks(rows: int) -> int:
    return max(2, min(_MOST_TICKS, rows // 2 + 1))


def _with_even_ticks(scale: LinearScale, bins: Sequence[Bin], axis: YAxis, rows: int) -> ValueAxis:
    """Move the ends of a linear scale so that its ticks are in equally distant rows."""
    low, high = bounds(bins)
    if axis.low is not None or low is None or low < scale.low:
        low = scale.low
    if axis.high is not None or high is None or high > scale.high:
        high = scale.high
    if not high / 2 - low / 2 > 1e-9 * max(abs(low), abs(high)):
        low = scale.low
        high = scale.high
    placed = even_axis(
        low / axis.unit, high / axis.unit, rows, _most_ticks(rows),
        is_low_fixed=axis.low is not None, is_high_fixed=axis.high is not None,
    )  # fmt: skip
    values = [value * axis.unit for _, value in placed.ticks]
    labels = {rows - 1 - row: label for (row, _), label in zip(placed.ticks, _labels(axis, values), strict=True)}
    return ValueAxis(LinearScale(placed.low * axis.unit, placed.high * axis.unit), labels)


def _log_labels(scale: LogScale, axis: YAxis, rows: int) -> dict[int, str]:
    """The labels of a logarithmic axis by row; where two share a row, that of the lower tick."""
    canvas = Canvas(1, rows)
    labels = {}
    for tick, label in reversed(list(zip(*value_ticks(scale, axis, _most_ticks(rows)), strict=True))):
        row = canvas.row(tick, scale)
        if row is not None:
            labels[row] = label
    return labels
