"""The drawing of a run's chart, and the crosshair on it."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from gputui.metrics.curves.model import Axis, ChartData, HardwareCurve, MarkerKind, MetricCurve, RankCurve
from gputui.metrics.draw.bins import Bin
from gputui.metrics.draw.parts import Chart, Marker, XAxis, YAxis
from gputui.metrics.draw.parts import Curve as DrawnCurve
from gputui.metrics.draw.scales import AxisKind

COLOURS = 6  # the series colours of every theme

X_AXES: Mapping[Axis, XAxis] = {
    "step": XAxis("step", kind="count"),
    "time": XAxis("time since the start", kind="time"),
    "trained": XAxis("time of training", kind="time"),
    "epoch": XAxis("epoch"),
}

_LINES: frozenset[MarkerKind] = frozenset({"restart", "incident", "alert"})
"""Markers drawn as a line with a word; the others are notches."""


def value_at(bins: Sequence[Bin], position: float, reach: float = math.inf) -> float | None:
    """The value measured nearest to ``position``, of bins in order of x; NaN or infinite if nothing finite was
    measured there, None without a bin within ``reach``."""
    if not bins:
        return None
    place = bisect_left(bins, position, key=lambda one_bin: one_bin.last_x)
    near = bins[max(0, place - 1) : place + 1]
    nearest = min(near, key=lambda one_bin: max(one_bin.first_x - position, position - one_bin.last_x, 0.0))
    at_start = abs(position - nearest.first_x) < abs(position - nearest.last_x)
    if min(abs(position - nearest.first_x), abs(position - nearest.last_x)) > reach:
        return None
    if nearest.first is None or nearest.last is None:
        if nearest.nan:
            return math.nan
        if nearest.positive_infinite >= nearest.negative_infinite:
            return math.inf
        return -math.inf
    if at_start:
        return nearest.first
    return nearest.last


def drawing(data: ChartData, title: str, names: Sequence[str] | None = None, *, is_log: bool = False) -> Chart:
    """A drawing of the curves of ``names``, or of all. ``title`` is harmless text."""
    curves = [curve for name, curve in data.curves.items() if names is None or name in names]
    drawn = [drawn for number, curve in enumerate(curves) for drawn in _drawn(curve, f"series.{number % COLOURS}")]
    kind: AxisKind = "log" if is_log else "linear"
    return Chart(drawn, title, _axis(data), YAxis(kind), _markers(data))


def hardware_drawing(
    data: ChartData, title: str, curves: Sequence[HardwareCurve | RankCurve], labels: Sequence[str]
) -> Chart:
    """A drawing of hardware curves of one field, each with its label."""
    drawn = [
        DrawnCurve(curve.bins, f"series.{number % COLOURS}", label, curve.last)
        for number, (curve, label) in enumerate(zip(curves, labels, strict=True))
    ]
    return Chart(drawn, title, _axis(data), YAxis(), _markers(data))


def _drawn(curve: MetricCurve, style: str) -> list[DrawnCurve]:
    """A curve, behind it the redone steps and, for an average, the measured curve."""
    shadows = []
    if curve.redone:
        shadows.append(DrawnCurve(curve.redone, style, f"{curve.name} (redone)", is_shadow=True))
    if curve.smooth:
        shadows.append(DrawnCurve(curve.bins, style, f"{curve.name} (measured)", is_shadow=True))
    return [*shadows, DrawnCurve(curve.smooth or curve.bins, style, curve.name, curve.last)]


def _axis(data: ChartData) -> XAxis:
    axis = X_AXES[data.request.axis]
    window = data.request.window
    start, end = window or (None, None)
    if data.request.is_log:
        return replace(axis, start=start, end=end, scale="log")
    return replace(axis, start=start, end=end, scale="linear")


def _markers(data: ChartData) -> list[Marker]:
    markers = (marker for marker in data.markers if marker.kind not in ("start", "end"))
    return [Marker(marker.x, marker.word, is_line=marker.kind in _LINES) for marker in markers]
