"""The charts of a run, or of several compared: metrics and hardware over one x axis, with markers and a crosshair."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from os.path import commonprefix
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gputui.core.text import cell_width, clip_middle
from gputui.core.units import count, gibibytes, short_number
from gputui.metrics.curves.bins import average_at
from gputui.metrics.curves.model import (
    Axis,
    ChartData,
    ChartMarker,
    ChartRequest,
    Frame,
    HardwareCurve,
    MarkerKind,
)
from gputui.metrics.curves.plot import value_at
from gputui.metrics.draw.bins import Bin
from gputui.metrics.draw.chart import Gutters, draw_chart
from gputui.metrics.draw.parts import Chart, Curve, Line, Marker, XAxis, XKind, YAxis
from gputui.metrics.draw.scales import AxisKind
from gputui.metrics.draw.viewport import Extent
from gputui.ui.tui.layout.chart_settings import ChartView
from gputui.ui.tui.layout.columns import fit_line
from gputui.ui.tui.layout.panels import FULL_HEIGHT, Panel, PanelRect
from gputui.ui.views.metric_words import metric_words
from gputui.ui.views.words import clock, dated_clock

GUTTER = 6
"""Cells of the value labels of all charts, so that charts below each other match."""

END_CELLS = 10
MOST_NAME_CELLS = 26
"""Cells at the right of a chart for the newest values, and most cells for the names of compared runs with them."""

LEAST_FOR_ENDS = 50
"""Least width of a chart with its newest values at the right."""

MOST_DEVICES = 6
"""Of more GPUs or ranks than this, only the lowest, the highest and slow ones have a colour and a label."""

AXIS_NAMES = {"step": "step", "time": "time", "trained": "time trained", "epoch": "epoch"}
AXIS_KINDS: dict[Axis, XKind] = {"step": "count", "time": "time", "trained": "time", "epoch": "number"}
MARKER_STYLES: Mapping[MarkerKind, str] = {
    "incident": "bad",
    "alert": "warn",
    "restart": "marker",
    "end": "dim",
    "start": "dim",
    "checkpoint": "good",
    "event": "dim",
}
"""The gravest kind first."""

SHAPES: Final = "●■▲◆✚▼"
"""Signs of curves, to distinguish them without colour."""

MARKED_APART = 8
"""Checkpoints closer than this many columns, on average, are counted instead of marked."""

GRAVITY = list(MARKER_STYLES)
_TIMES = frozenset({"time", "seconds", "sec", "ms", "latency", "throughput"})
_NOTCHES = frozenset({"checkpoint", "event", "end"})
_SIGN_CELLS = 4
_REACHES_END = 0.97
"""Part of the window beyond which a curve ends beside its name, and needs no other sign."""


class ChartedRun(Struct, frozen=True):
    """A run with its curves.

    Attributes:
        name: "" if it is the only one.
        colour: the number of its colour.
        is_in_front: whether its curve is drawn above those of the others.
    """

    data: ChartData
    name: str = ""
    colour: int = 0
    is_in_front: bool = False


class ChartLook(Struct, frozen=True):
    """Everything that charts are drawn from.

    Attributes:
        runs: one run, or all with a curve of a comparison.
        gpus: the index of each GPU by its UUID.
        slow_ranks: the ranks that the others wait for.
        window: the visible part of the x axis.
        focus: the key of the marked chart.
    """

    view: ChartView
    runs: tuple[ChartedRun, ...] = ()
    gpus: Mapping[str, int] = msgspec.field(default_factory=dict)
    slow_ranks: frozenset[int] = frozenset()
    window: tuple[float, float] = (0.0, 1.0)
    focus: str | None = None

    @property
    def is_compared(self) -> bool:
        return not self.runs or bool(self.runs[0].name)

    @property
    def data(self) -> ChartData:
        """The data of the run; of several runs nothing but the axis."""
        if self.is_compared:
            return ChartData(ChartRequest(), Frame(self.view.axis))
        return self.runs[0].data

    @property
    def reach(self) -> float:
        """The distance from the crosshair within which something lies at it."""
        return (self.window[1] - self.window[0]) / 60

    def is_by_rank(self, panel: Panel) -> bool:
        return panel.key in self.view.by_rank and panel.key in self.data.rank_names


def extent_of(look: ChartLook) -> Extent | None:
    """The whole x axis; None while it is empty."""
    frames = [run.data.frame for run in look.runs if run.data.frame.axis == look.view.axis]
    ends = [(frame.start, frame.end) for frame in frames if frame.start is not None and frame.end is not None]
    if not ends:
        return None
    start = min(start for start, _ in ends)
    last = min if look.view.is_cut else max
    end = last(end for _, end in ends)
    least = 1e-3 if look.view.axis == "epoch" else 1.0
    extent = Extent(start, max(end, start), least)
    if look.view.is_log_x:
        return extent.logarithmic()
    return extent


def x_words(frame: Frame, x: float) -> str:
    """A value of the x axis: ``step 4 310``, ``01:40:12``, ``epoch 3.25``."""
    if frame.axis == "step":
        return f"step {count(x)}"
    if frame.axis == "epoch":
        return f"epoch {short_number(x)}"
    minutes, seconds = divmod(round(max(0.0, x)), 60)
    elapsed = f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"
    if frame.axis == "time" and frame.origin_at is not None:
        return f"{frame_clock(frame, frame.origin_at + x)}, {elapsed} in"
    if frame.axis == "time":
        return elapsed
    return f"{elapsed} trained"


def frame_clock(frame: Frame, at: float) -> str:
    """The time of day, with the date if it is not that of the newest point."""
    if frame.end is not None:
        newest = frame.moment_at(frame.end)
        if newest is not None:
            return dated_clock(at, newest)
    return clock(at)


# --- charts


def grid_lines(
    panels: Sequence[Panel], rects: Sequence[PanelRect], look: ChartLook, width: int, height: int
) -> list[Line]:
    """The charts in their rectangles, as ``height`` lines of ``width`` cells."""
    lines: list[Line] = [[] for _ in range(height)]
    filled = [0] * height
    for panel, rect in zip(panels, rects, strict=False):
        for y, line in enumerate(panel_lines(panel, look, rect.width, rect.height), rect.y):
            if rect.x > filled[y]:
                lines[y].append((" " * (rect.x - filled[y]), "text"))
            lines[y] += line
            filled[y] = rect.x + rect.width
    return [fit_line(line, width) for line in lines]


def panel_lines(panel: Panel, look: ChartLook, width: int, height: int) -> list[Line]:
    """One chart as ``height`` lines of ``width`` cells."""
    data = look.data
    view = look.view
    title = f"*{panel.title}" if panel.is_pinned else panel.title
    title = f"▸{title}" if panel.key == look.focus else f" {title}"
    if look.is_by_rank(panel):
        title += " by rank"
        ranked = data.ranked.get(panel.key)
        if ranked is not None and ranked.is_sampled:
            title += ", samples"
    scale: AxisKind = "log" if view.is_log_x else "linear"
    chart = Chart(
        panel_curves(panel, look, width, height),
        title,
        XAxis(AXIS_NAMES[view.axis], *look.window, AXIS_KINDS[view.axis], scale),
        y_axis(panel, look),
        drawn_markers(look, width, height),
    )
    gutters = Gutters(GUTTER, end_cells(look, width, height))
    empty_text = _empty_text(panel, look)
    return draw_chart(chart, width, height, cursor=view.cursor, gutters=gutters, empty_text=empty_text)


def end_cells(look: ChartLook, width: int, height: int) -> int:
    """Cells at the right of a chart for the newest values, and the names of several runs; 0 for a small chart."""
    if look.is_compared:
        return min(MOST_NAME_CELLS, max(0, width - GUTTER - 2) * 2 // 5)
    if height >= FULL_HEIGHT and width >= LEAST_FOR_ENDS:
        return END_CELLS
    return 0


def plot_columns(look: ChartLook, width: int, height: int) -> int:
    """Cells along the x axis of a chart of this size."""
    return max(8, width - GUTTER - 2 - end_cells(look, width, height))


def panel_curves(panel: Panel, look: ChartLook, width: int, height: int) -> list[Curve]:
    """The curves of a chart of this size, from back to front."""
    if look.is_compared:
        return _compared_curves(panel, look, end_cells(look, width, height))
    devices = _devices(panel, look)
    if devices is not None and not any(device.bins for device in devices):
        return []
    curves = _metric_curves(panel, look) if devices is None else _device_curves(panel, devices, look, width)
    if end_cells(look, width, height):
        return _with_ends(curves, panel, look)
    return curves


def _with_ends(curves: Sequence[Curve], panel: Panel, look: ChartLook) -> list[Curve]:
    """Give each curve of a large chart its newest value at its end. A single curve then needs none in the title."""
    is_alone = look.view.cursor is None and sum(bool(curve.label) or curve.value is not None for curve in curves) == 1
    labelled = []
    for curve in curves:
        last = _end_value(curve.bins)
        if last is not None and not curve.is_shadow and curve.style != "shadow":
            if is_alone and curve.value in (None, last):
                curve = replace(curve, label="", value=None)
            curve = replace(curve, end=_value_words(panel, last))
        labelled.append(curve)
    return labelled


def _end_value(bins: Sequence[Bin]) -> float | None:
    """The value at which a curve ends, which its chart may cut before the newest one."""
    return next((stretch.last for stretch in reversed(bins) if stretch.last is not None), None)


def y_axis(panel: Panel, look: ChartLook) -> YAxis:
    """The value axis. Rates and times begin at 0: what hardly varies looks calm."""
    if panel.is_in_bytes:
        return YAxis(low=0.0, label=lambda value: short_number(value / 2**30), unit=2.0**30)
    if panel.field == "temperature":
        return YAxis(low=20.0)
    if panel.field in ("utilization", "host_cpu"):
        return YAxis(low=0.0, high=100.0)
    if panel.field is not None:
        return YAxis(low=0.0)
    if panel.key in look.view.logs:
        return YAxis("log")
    if panel.key.endswith("_per_s") or not _TIMES.isdisjoint(re.split(r"[^a-z]+", panel.key.lower())):
        return YAxis(low=0.0)
    return YAxis()


def _empty_text(panel: Panel, look: ChartLook) -> str:
    data = look.data
    if not look.runs:
        return "all runs are hidden"
    if panel.field is not None:
        # Without a step or an epoch the charts are about to be drawn over time.
        is_early = data.frame.axis in ("step", "epoch") and not data.frame.end
        if is_early or panel.field not in data.request.hardware:
            return "reading…"
        return "not recorded then"
    curves = [run.data.curves.get(panel.key) for run in look.runs]
    problems = [curve.problem for curve in curves if curve is not None]
    if not problems:
        return "reading…"
    if problems[0]:
        return problems[0]
    if look.view.is_log_x:
        return "nothing measured above 0 here"
    return "nothing measured here"


def bins_in_window(bins: Sequence[Bin], look: ChartLook) -> Sequence[Bin]:
    """The bins inside the window: others must not stretch the value axis."""
    start, end = look.window
    if not bins or (bins[0].first_x >= start and bins[-1].last_x <= end):
        return bins
    return [stretch for stretch in bins if stretch.last_x >= start and stretch.first_x <= end]


def _metric_curves(panel: Panel, look: ChartLook) -> list[Curve]:
    metric = look.data.curves.get(panel.key)
    if metric is None:
        return []
    cursor = look.view.cursor
    value = metric.last
    if cursor is not None:
        value = value_at(metric.bins, cursor)
    style = f"series.{panel.colour}"
    redone = Curve(bins_in_window(metric.redone, look), "shadow", is_shadow=True)
    measured = Curve(bins_in_window(metric.bins, look), style, "", value, is_strong=True)
    smooth = bins_in_window(metric.smooth, look)
    if not smooth:
        return [redone, measured]
    average = smooth[-1].last
    if cursor is not None:
        average = average_at(metric.smooth, cursor)
    raw = replace(measured, style="shadow", is_strong=False, is_shadow=True)
    return [redone, Curve(smooth, style, "~", average, is_strong=True), raw]


def _compared_curves(panel: Panel, look: ChartLook, end_room: int) -> list[Curve]:
    """The curve of each run with its name at its end; that of the run in front is on top."""
    cursor = look.view.cursor
    end = look.window[1]
    metrics = [(run, run.data.curves.get(panel.key)) for run in sorted(look.runs, key=lambda run: run.is_in_front)]
    drawn = [
        (run, curve, bins_in_window(curve.smooth or curve.bins, look)) for run, curve in metrics if curve and curve.bins
    ]
    # Of a smoothed curve, as on a run's page, the average is marked: the table has the value itself.
    texts = [f"{'~' * bool(curve.smooth)}{_value_words(panel, _end_value(bins))}" for _, curve, bins in drawn]
    names = _end_names([run.name for run, *_ in drawn], texts, end_room)
    curves: list[Curve] = []
    for (run, curve, bins), name, text in zip(drawn, names, texts, strict=True):
        if curve.smooth:
            curves.append(Curve(bins_in_window(curve.bins, look), "shadow", is_shadow=True))
        sign = SHAPES[run.colour]
        line = Curve(bins, f"series.{run.colour}", is_strong=run.is_in_front, end=f"{sign} {name} {text}")
        if cursor is not None and curve.smooth:
            line = replace(line, label=sign, value=average_at(curve.smooth, cursor))
        elif cursor is not None:
            line = replace(line, label=sign, value=value_at(bins, cursor))
        elif not bins or bins[-1].last_x < _REACHES_END * end:
            line = replace(line, shape=sign)
        curves.append(line)
    return curves


def _end_names(names: Sequence[str], texts: Sequence[str], end_room: int) -> list[str]:
    """The names at the ends of curves, each before its text, in ``end_room`` cells. If one is too long for them, what
    all begin with is left out: ``…3`` for ``vit-3``."""
    needed = [cell_width(name) + len(text) + _SIGN_CELLS for name, text in zip(names, texts, strict=True)]
    if max(needed, default=0) <= end_room:
        return list(names)
    # They are no paths.
    common = commonprefix(list(names)).rpartition("-")[0] + "-"  # noqa: RUF071
    short_names = []
    for name, text in zip(names, texts, strict=True):
        short_name = name
        if name.startswith(common):
            short_name = f"…{name.removeprefix(common)}"
        short_names.append(clip_middle(short_name, max(4, end_room - len(text) - _SIGN_CELLS)))
    return short_names


def _value_words(panel: Panel, value: float | None) -> str:
    """A value without its unit, which is in the title of the chart."""
    if panel.field is None:
        return metric_words(panel.key, value)
    if panel.is_in_bytes:
        return gibibytes(value)
    if value is None:
        return "–"
    return f"{value:.0f}"


class _Device(NamedTuple):
    """A rank, a GPU or the host.

    Attributes:
        name: "" for the host.
        value: the newest one, or that at the crosshair; None if unknown.
    """

    name: str
    bins: Sequence[Bin]
    value: float | None
    is_slow: bool = False


def _devices(panel: Panel, look: ChartLook) -> list[_Device] | None:
    """The devices of a chart, in order; None for a chart of the whole run."""
    if panel.field is not None:
        curves = [curve for curve in look.data.hardware if curve.field == panel.field]
        curves.sort(key=lambda curve: look.gpus.get(curve.uuid or "", 1 << 20))
        return [_Device(device_index(curve, look), curve.bins, crosshair_value(curve, look)) for curve in curves]
    if not look.is_by_rank(panel) or panel.key not in look.data.ranked:
        return None
    ranks = look.data.ranked[panel.key].curves
    cursor = look.view.cursor
    if cursor is not None:
        # What was measured far from the crosshair does not count.
        ranks = tuple(replace(curve, last=value_at(curve.bins, cursor, 3 * look.reach)) for curve in ranks)
    return [_Device(f"r{curve.rank}", curve.bins, curve.last, curve.rank in look.slow_ranks) for curve in ranks]


def crosshair_value(curve: HardwareCurve, look: ChartLook) -> float | None:
    """The value at the crosshair, unless nothing was measured near it; without a crosshair, the newest one."""
    cursor = look.view.cursor
    if cursor is None:
        return curve.last
    if value_at(curve.bins, cursor, 3 * look.reach) is None or look.data.request.cursor != cursor:
        return None
    return curve.at_cursor


def _device_curves(panel: Panel, devices: Sequence[_Device], look: ChartLook, room: int) -> list[Curve]:
    """A curve for each device; slow ranks are first in the legend and in front. Of many, only the lowest, the highest
    and slow ones have a name and a colour. If the names do not fit, the legend is the lowest and the highest value."""
    labels = _device_labels(panel, devices)
    coloured = labels.keys()
    legend = []
    if room < 2 + cell_width(panel.title) + sum(4 + cell_width(label) for label in labels.values()):
        values = sorted(device.value for device in devices if device.value is not None)
        ends = [_value_words(panel, value) for value in (*values[:1], *values[-1:])] or ["–"]
        legend = [Curve((), "text", "–".join(dict.fromkeys(ends)))]
        labels = {number: label for number, label in labels.items() if devices[number].is_slow}
    behind = list[Curve]()
    curves = list[Curve]()
    in_front = list[Curve]()
    for number, device in enumerate(devices):
        bins = bins_in_window(device.bins, look)
        label = labels.get(number, "")
        if device.is_slow:
            legend.insert(0, Curve((), "warn", label))
            in_front.append(Curve(bins, "warn"))
        elif number in coloured:
            shape = SHAPES[len(curves)] if label and len(devices) > 1 else ""
            curves.append(Curve(bins, f"series.{(panel.colour + number) % MOST_DEVICES}", label, shape=shape))
        else:
            behind.append(Curve(bins, "shadow"))
    return [*legend, *behind, *curves, *in_front]


def _device_labels(panel: Panel, devices: Sequence[_Device]) -> dict[int, str]:
    """The labels of the devices that have one, by their numbers: ``r3 slow: 0.41``, of a single device its value."""
    if len(devices) == 1:
        return {0: _value_words(panel, devices[0].value)}
    by_value = sorted((device.value, number) for number, device in enumerate(devices) if device.value is not None)
    notes: dict[int, str] = {}
    if by_value and len(devices) > MOST_DEVICES:
        notes = {by_value[-1][1]: " highest", by_value[0][1]: " lowest"}
    labels: dict[int, str] = {}
    for number, device in enumerate(devices):
        if len(devices) <= MOST_DEVICES or number in notes or device.is_slow:
            name = f"{device.name} slow" if device.is_slow else device.name
            labels[number] = f"{name}{notes.get(number, '')}: {_value_words(panel, device.value)}"
    return labels


def device_index(curve: HardwareCurve, look: ChartLook) -> str:
    """The index of a curve's GPU, or the start of its UUID if it is gone; empty for the host."""
    uuid = curve.uuid or ""
    return str(look.gpus.get(uuid, uuid[:8]))


# --- what happened


def counted_checkpoints(look: ChartLook, width: int) -> int:
    """The number of checkpoints in the window if they are too many to mark each; else 0."""
    start, end = look.window
    saved = sum(marker.kind == "checkpoint" and start <= marker.x <= end for marker in look.data.markers)
    if saved * MARKED_APART > width:
        return saved
    return 0


def drawn_markers(look: ChartLook, width: int, height: int) -> list[Marker]:
    """The markers of a chart of this size, the gravest last."""
    hidden = ("start", "checkpoint") if counted_checkpoints(look, width) else ("start",)
    drawn = []
    for marker in sorted(look.data.markers, key=lambda marker: -GRAVITY.index(marker.kind)):
        if marker.kind not in hidden:
            is_line = marker.kind not in _NOTCHES
            word = marker.word if is_line and height >= FULL_HEIGHT else ""
            drawn.append(Marker(marker.x, word, MARKER_STYLES[marker.kind], is_line=is_line))
    return drawn


def next_marker(markers: Sequence[ChartMarker], x: float | None, by: int) -> ChartMarker | None:
    """The next marker to the right of ``x``, or to the left with -1. For None, the first, or the last with -1."""
    ordered = sorted(markers, key=lambda marker: by * marker.x)
    return next((marker for marker in ordered if x is None or by * (marker.x - x) > 1e-9), None)
