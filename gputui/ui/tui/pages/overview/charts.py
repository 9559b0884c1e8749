"""The charts of all GPUs over the last minutes, side by side: utilisation, memory, power, temperature."""

from __future__ import annotations

from gputui.core.units import UNKNOWN, celsius, percent
from gputui.metrics.draw.chart import chart
from gputui.metrics.draw.envelope import Bin
from gputui.metrics.draw.parts import Curve, Line, XAxis, YAxis
from gputui.metrics.draw.raster import Span
from gputui.ui.tui.data.snapshot import HISTORY_SECONDS, Snapshot
from gputui.ui.tui.layout.columns import box, figures_rule
from gputui.ui.tui.layout.sparklines import History, mean_history, peak_history, shares, sum_history, time_bins
from gputui.ui.tui.layout.strips import gpu_totals, no_samples, power_unit

FOUR_WIDTH = 110
"""Least width with all four charts; narrower pages have two."""


def chart_panels(snapshot: Snapshot, width: int, height: int, *, is_framed: bool) -> list[Line]:
    """The charts, each with its current value in its heading."""
    across = 4 if width >= FOUR_WIDTH else 2
    edges = [width * number // across for number in range(across + 1)]
    frame = 2 if is_framed else 0
    columns = []
    for (figure, curve, scale), left, right in zip(_charts(snapshot), edges, edges[1:], strict=False):
        inner, room = right - left - frame, height - 1 - frame // 2
        axis = XAxis("min", -HISTORY_SECONDS / 60, 0.0, "count")
        body = chart(
            [curve],
            width=inner,
            height=room,
            x_axis=axis,
            y_axis=scale,
            empty_text=no_samples(snapshot),
            least_gutter=4,
        )
        lines = [figures_rule("", [figure], inner), *body]
        columns.append(box(lines, right - left) if is_framed else lines)
    return [[span for part in parts for span in part] for parts in zip(*columns, strict=True)]


def _charts(snapshot: Snapshot) -> list[tuple[list[Span], Curve, YAxis]]:
    """The heading, the curve and the scale of each chart."""
    histories = list(snapshot.gpu_history.values())
    total = gpu_totals(snapshot.gpus)
    used = shares([total.memory_used_bytes], total.memory_total_bytes)[0]
    full = shares(sum_history([each.memory_used_bytes for each in histories]), total.memory_total_bytes)
    power = sum_history([each.power_watts for each in histories])
    size, unit = power_unit([*power, total.power_watts])
    [watts, *drawn] = [None if value is None else value / size for value in (total.power_watts, *power)]
    drawn_now = UNKNOWN if watts is None else f"{watts:.{2 if size > 1 else 0}f} {unit}"
    busy = mean_history([each.utilization_percent for each in histories])
    warm = peak_history([each.temperature_celsius for each in histories])
    whole = YAxis(low=0.0, high=100.0)
    return [
        (
            _heading("utilisation", percent(total.utilization_percent)),
            _curve(busy, total.utilization_percent, "bar"),
            whole,
        ),
        (_heading("memory", percent(used)), _curve(full, used, "bar2"), whole),
        (_heading("power", drawn_now), _curve(drawn, watts, "text"), YAxis(low=0.0)),
        (
            _heading("hottest", celsius(total.hottest_celsius)),
            _curve(warm, total.hottest_celsius, "text"),
            YAxis(low=20.0),
        ),
    ]


def _heading(name: str, value: str) -> list[Span]:
    return [(f"{name} ", "dim"), (value, "label")]


def _curve(values: History, now: float | None, style: str) -> Curve:
    """A curve that ends with the current value."""
    bins = time_bins(values, HISTORY_SECONDS)
    if now is not None and bins:
        bins.append(Bin(0.0, 0.0, now, now, now, now, 1))
    return Curve(bins, style)
