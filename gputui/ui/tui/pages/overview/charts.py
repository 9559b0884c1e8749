"""The charts of all GPUs over the last minutes, side by side: utilisation, memory, power, temperature."""

from __future__ import annotations

from statistics import fmean

from gputui.core.units import UNKNOWN, celsius, percent
from gputui.metrics.draw.chart import chart
from gputui.metrics.draw.envelope import Bin
from gputui.metrics.draw.parts import Curve, Line, XAxis, YAxis
from gputui.metrics.draw.raster import Span
from gputui.ui.tui.data.snapshot import HISTORY_SECONDS, Snapshot
from gputui.ui.tui.layout.columns import box, rule
from gputui.ui.tui.layout.sparklines import History, combined, held, shares, time_bins
from gputui.ui.tui.layout.strips import gpu_totals, power_unit

_AXIS = XAxis("min", -HISTORY_SECONDS / 60, 0.0, "count")

REDRAW_SECONDS = 5.0

HOTTEST_CELSIUS = 100.0
"""The upper end of temperatures: no GPU lets itself get hotter, and a fixed scale keeps still."""

FOUR_WIDTH = 110
"""Least width with all four charts; narrower pages have two."""


class ChartPanels:
    """The charts side by side, each with its current value in its heading. Headings follow each sample; the curves are
    drawn again every `REDRAW_SECONDS`, in which they move by half a cell at most."""

    def __init__(self) -> None:
        self._drawn_for: tuple[object, ...] = ()
        self._bodies: list[list[Line]] = []
        self._power_unit = power_unit([])

    def lines(self, snapshot: Snapshot, width: int, height: int, *, is_framed: bool) -> list[Line]:
        """The charts in ``height`` lines."""
        across, frame = 4 if width >= FOUR_WIDTH else 2, 2 if is_framed else 0
        widths = [width * (number + 1) // across - width * number // across for number in range(across)]
        agent, empty = snapshot.agent, "no samples in the last ten minutes"
        if agent is not None and snapshot.past is None and snapshot.at - agent.started_at < HISTORY_SECONDS:
            empty = "no samples yet"
        moment = snapshot.at // REDRAW_SECONDS if snapshot.past is None else snapshot.past.asked
        drawn_for = (width, height, is_framed, empty, len(snapshot.gpu_history), moment)
        if drawn_for != self._drawn_for:
            self._drawn_for = drawn_for
            curves, self._power_unit = _curves(snapshot)
            self._bodies = [
                chart([curve], width=each - frame, height=height - 1 - frame // 2, x_axis=_AXIS, y_axis=scale,
                      empty_text=empty, least_gutter=4)
                for (curve, scale), each in zip(curves, widths, strict=False)
            ]  # fmt: skip
        columns = []
        for figure, body, each in zip(_figures(snapshot, *self._power_unit), self._bodies, widths, strict=False):
            lines = [rule("", each - frame, figures=[figure]), *body]
            columns.append(box(lines, each) if is_framed else lines)
        return [[span for part in parts for span in part] for parts in zip(*columns, strict=True)]


def _figures(snapshot: Snapshot, size: float, unit: str) -> list[list[Span]]:
    """The heading of each chart; power in units of ``size`` watts."""
    total = gpu_totals(snapshot.gpus)
    used = shares([total.memory_used_bytes], total.memory_total_bytes)[0]
    watts = UNKNOWN if total.power_watts is None else f"{total.power_watts / size:.{2 if size > 1 else 0}f} {unit}"
    figures = {
        "utilisation": percent(total.utilization_percent),
        "memory": percent(used),
        "power": watts,
        "hottest": celsius(total.hottest_celsius),
    }
    return [[(f"{name} ", "dim"), (value, "label")] for name, value in figures.items()]


def _curves(snapshot: Snapshot) -> tuple[list[tuple[Curve, YAxis]], tuple[float, str]]:
    """The curve and the scale of each chart, and the unit of power."""
    histories = list(snapshot.gpu_history.values())
    total = gpu_totals(snapshot.gpus)
    memory = combined([held(each.memory_used_bytes) for each in histories], sum)
    full = shares([*memory, total.memory_used_bytes], total.memory_total_bytes)
    power = [*combined([held(each.power_watts) for each in histories], sum), total.power_watts]
    limit = total.power_limit_watts
    size, unit = power_unit([limit, *power])
    drawn = [None if value is None else value / size for value in power]
    busy = [*combined([each.utilization_percent for each in histories], fmean), total.utilization_percent]
    warm = [*combined([each.temperature_celsius for each in histories], max), total.hottest_celsius]
    whole = YAxis(low=0.0, high=100.0)
    curves = [
        (_curve(busy, "bar"), whole),
        (_curve(full, "bar2"), whole),
        (_curve(drawn, "power"), YAxis(low=0.0, high=None if limit is None else limit / size)),
        (_curve(warm, "heat"), YAxis(low=20.0, high=HOTTEST_CELSIUS)),
    ]
    return curves, (size, unit)


def _curve(values: History, style: str) -> Curve:
    """A curve over the last minutes that ends with the current value, the last one."""
    [*before, now] = values
    bins = time_bins(before, HISTORY_SECONDS)
    if now is not None and bins:
        bins.append(Bin(0.0, 0.0, now, now, now, now, 1))
    return Curve(bins, style)
