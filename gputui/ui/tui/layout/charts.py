"""The charts of a run: metrics and hardware over one x axis, with markers and a crosshair."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.text import cell_width
from gputui.core.units import count, gibibytes, metric_value, short_number
from gputui.metrics.curves.model import (
    Axis,
    ChartData,
    ChartMarker,
    Frame,
    HardwareCurve,
    HardwareField,
    MarkerKind,
    RankCurves,
)
from gputui.metrics.curves.plot import values_at
from gputui.metrics.draw.axes import AxisKind
from gputui.metrics.draw.chart import chart
from gputui.metrics.draw.envelope import Bin
from gputui.metrics.draw.parts import Curve, Line, Marker, XAxis, XKind, YAxis
from gputui.metrics.draw.viewport import Extent
from gputui.ui.tui.layout.chart_settings import ChartSettings
from gputui.ui.tui.layout.columns import fit_line
from gputui.ui.tui.layout.panels import FULL_HEIGHT, Panel, PanelPlace
from gputui.ui.tui.layout.words import clock, dated_clock

GUTTER = 6
"""Cells of the value labels of all charts, so that charts below each other match."""

END_CELLS = 10
LEAST_FOR_ENDS = 50
"""Least width of a chart with its newest values in `END_CELLS` cells at the right."""

MOST_GPU_LINES = 4
"""More GPUs than this share one colour, and the legend shows their lowest and highest value."""

MOST_RANK_LINES = 6
"""More ranks than this share one colour, except the lowest, the highest and slow ones."""

AXIS_NAMES = {"step": "step", "time": "time", "trained": "time trained", "epoch": "epoch"}
AXIS_KINDS: dict[Axis, XKind] = {"step": "count", "time": "time", "trained": "time", "epoch": "number"}
MARKER_STYLES: Mapping[MarkerKind, str] = {
    "start": "dim",
    "restart": "marker",
    "checkpoint": "good",
    "incident": "bad",
    "alert": "warn",
    "event": "dim",
    "end": "dim",
}

SHAPES: Final = "●■▲◆✚▼"
"""Signs of curves, to distinguish them without colour."""

MARKED_APART = 8
"""Checkpoints closer than this many columns, on average, are counted instead of marked."""

_TIMES = frozenset({"time", "seconds", "sec", "ms", "latency", "throughput"})
_NOTCHES = frozenset({"checkpoint", "event", "end"})
_GRAVITY = ("incident", "alert", "restart", "end", "start", "checkpoint", "event")


class ChartLook(Struct, frozen=True):
    """The settings and the state of the charts. ``focus`` is the key of the marked chart; ``gpus`` gives each GPU's
    index by its UUID."""

    settings: ChartSettings
    window: tuple[float, float]
    cursor: float | None
    focus: str | None
    gpus: Mapping[str, int]
    slow_ranks: frozenset[int] = frozenset()


def extent_of(data: ChartData, *, is_log: bool = False) -> Extent | None:
    """The whole x axis of the run; None while it is empty."""
    frame = data.frame
    if frame.start is None or frame.end is None:
        return None
    resolution = {"step": 1.0, "epoch": 1e-3}.get(frame.axis, 1.0)
    extent = Extent(frame.start, max(frame.end, frame.start), resolution)
    return extent.logarithmic() if is_log else extent


def place_words(frame: Frame, x: float) -> str:
    """A place on the axis: ``step 4 310``, ``01:40:12``, ``epoch 3.25``."""
    if frame.axis == "step":
        return f"step {count(x)}"
    if frame.axis == "epoch":
        return f"epoch {short_number(x)}"
    if frame.axis == "time" and frame.origin_at is not None:
        return f"{frame_clock(frame, frame.origin_at + x)}, {_elapsed(x)} in"
    return f"{_elapsed(x)} trained"


def frame_clock(frame: Frame, at: float) -> str:
    """The time of day, with the date if it is not that of the newest point."""
    newest = None if frame.end is None else frame.moment_at(frame.end)
    return clock(at) if newest is None else dated_clock(at, newest)


def _elapsed(seconds: float) -> str:
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"


def grid_lines(
    panels: Sequence[Panel], places: Sequence[PanelPlace], data: ChartData, look: ChartLook, width: int, height: int
) -> list[Line]:
    """The charts in their places, as ``height`` lines of ``width`` cells."""
    lines: list[Line] = [[] for _ in range(height)]
    filled = [0] * height
    for panel, place in zip(panels, places, strict=False):
        drawn = panel_lines(panel, data, look, place.width, place.height)
        for y, line in enumerate(drawn, place.top):
            if place.left > filled[y]:
                lines[y].append((" " * (place.left - filled[y]), "text"))
            lines[y] += line
            filled[y] = place.left + place.width
    return [fit_line(line, width) for line in lines]


def panel_lines(panel: Panel, data: ChartData, look: ChartLook, width: int, height: int) -> list[Line]:
    title = f"{'▸' if panel.key == look.focus else ' '}{'*' if panel.is_pinned else ''}{panel.title}"
    if is_by_rank(panel, data, look.settings):
        ranked = data.ranked.get(panel.key)
        title += " by rank, samples" if ranked is not None and ranked.is_sampled else " by rank"
    curves = panel_curves(panel, data, look, room=width)
    if end_cells(width, height):
        curves = _with_ends(curves, panel, look)
    return chart(
        curves,
        width=width,
        height=height,
        title=title,
        x_axis=x_axis(data, look),
        y_axis=y_axis(panel, look),
        markers=drawn_markers(
            data.markers, with_words=height >= FULL_HEIGHT, notches=not counted_checkpoints(data.markers, look, width)
        ),
        cursor=look.cursor,
        least_gutter=GUTTER,
        end_gutter=end_cells(width, height),
        empty_text=_empty_text(panel, data),
    )


def end_cells(width: int, height: int) -> int:
    """Cells at the right of a chart for the newest values; 0 for a small chart."""
    return END_CELLS if height >= FULL_HEIGHT and width >= LEAST_FOR_ENDS else 0


def plot_columns(width: int, height: int) -> int:
    return max(1, width - GUTTER - 2 - end_cells(width, height))


def _with_ends(curves: Sequence[Curve], panel: Panel, look: ChartLook) -> list[Curve]:
    """Give each curve of a large chart its newest value at its end. A single curve then needs none in the title."""
    words = metric_value if panel.field is None else _value_words(panel.field)
    is_alone = look.cursor is None and sum(curve.value is not None for curve in curves) == 1
    found = []
    for curve in curves:
        last = next((each.last for each in reversed(curve.bins) if each.last is not None), None)
        if last is not None and not curve.is_shadow and curve.style != "shadow":
            is_repeated = is_alone and curve.value == last
            curve = replace(curve, end=words(last), value=None if is_repeated else curve.value)
        found.append(curve)
    return found


def panel_curves(panel: Panel, data: ChartData, look: ChartLook, *, room: int | None = None) -> list[Curve]:
    """The curves of a chart, from back to front; ``room`` are cells for title and legend."""
    if panel.field is None:
        if is_by_rank(panel, data, look.settings) and panel.key in data.ranked:
            return rank_curves(panel, data.ranked[panel.key], look)
        return _metric_curves(panel, data, look)
    return _hardware_curves([curve for curve in data.hardware if curve.field == panel.field], panel, look, room)


def x_axis(data: ChartData, look: ChartLook) -> XAxis:
    axis = data.frame.axis
    scale: AxisKind = "log" if look.settings.is_log_x else "linear"
    return XAxis(AXIS_NAMES[axis], *look.window, AXIS_KINDS[axis], scale)


def y_axis(panel: Panel, look: ChartLook) -> YAxis:
    if panel.field is not None:
        return _hardware_axis(panel.field)
    return metric_axis(panel.key, look.settings.logs)


def metric_axis(name: str, logs: Set[str]) -> YAxis:
    """The value axis of a metric. Rates and times begin at 0: what hardly varies looks calm."""
    is_log, words = name in logs, re.split(r"[^a-z]+", name.lower())
    is_from_zero = name.endswith("_per_s") or not _TIMES.isdisjoint(words)
    return YAxis("log" if is_log else "linear", low=0.0 if is_from_zero and not is_log else None)


def _empty_text(panel: Panel, data: ChartData) -> str:
    if panel.field is not None:
        if panel.field not in data.request.hardware:
            return "reading…"
        # Without a step or an epoch the charts are about to be drawn over time.
        return "reading…" if data.frame.axis in ("step", "epoch") and not data.frame.end else "not recorded then"
    curve = data.curves.get(panel.key)
    if curve is None:
        return "reading…"
    return curve.problem or ("nothing measured above 0 here" if data.request.is_log else "nothing measured here")


def _metric_curves(panel: Panel, data: ChartData, look: ChartLook) -> list[Curve]:
    found = data.curves.get(panel.key)
    if found is None:
        return []
    bins, smooth = within(found.bins, look.window), within(found.smooth, look.window)
    value, average = found.last, smooth[-1].last if smooth else None
    if look.cursor is not None:
        value, average = (at.value for at in values_at((found.bins, found.smooth), look.cursor))
    style = f"series.{panel.colour}"
    redone = Curve(within(found.redone, look.window), "shadow", is_shadow=True)
    measured = Curve(bins, style, "", value, is_strong=True)
    if not smooth:
        return [redone, measured]
    raw = replace(measured, style="shadow", is_strong=False, is_shadow=True)
    return [redone, Curve(smooth, style, "~", average, is_strong=True), raw]


# --- the ranks


def is_by_rank(panel: Panel, data: ChartData, settings: ChartSettings) -> bool:
    return panel.key in settings.by_rank and panel.key in data.rank_names


def rank_curves(panel: Panel, found: RankCurves, look: ChartLook) -> list[Curve]:
    """A curve for each rank; slow ranks are first in the legend and in front. Of many ranks, only the lowest, the
    highest and the slow ones have a name and a colour."""
    values = {each.rank: each.last for each in found.curves}
    if look.cursor is not None:
        at = values_at([each.bins for each in found.curves], look.cursor)
        values = {each.rank: value.value for each, value in zip(found.curves, at, strict=True)}
    named = set(values)
    notes: dict[int, str] = {}
    if len(values) > MOST_RANK_LINES:
        known = {rank: value for rank, value in values.items() if value is not None}
        if known:
            notes[min(known, key=lambda rank: known[rank])] = " lowest"
            notes[max(known, key=lambda rank: known[rank])] = " highest"
        named = {*notes, *look.slow_ranks}
    drawn, legend, in_front = [], [], []
    for number, each in enumerate(sorted(found.curves, key=lambda one: (one.rank in named, one.rank))):
        is_slow = each.rank in look.slow_ranks
        bins = within(each.bins, look.window)
        if each.rank not in named:
            drawn.append(Curve(bins, "shadow"))
            continue
        note, value = notes.get(each.rank, ""), values[each.rank]
        if is_slow:
            legend.append(Curve((), "warn", f"r{each.rank} slow{note}", value))
            in_front.append(Curve(bins, "warn"))
        else:
            style = f"series.{(panel.colour + number) % MOST_RANK_LINES}"
            shape = SHAPES[len(drawn) % len(SHAPES)]
            drawn.append(Curve(bins, style, f"r{each.rank}{note}", value, shape=shape))
    return [*legend, *drawn, *in_front]


def within(bins: Sequence[Bin], window: tuple[float, float] | None) -> Sequence[Bin]:
    """The bins inside the window: others must not stretch the value axis."""
    if window is None:
        return bins
    start, end = window
    if not bins or (bins[0].first_x >= start and bins[-1].last_x <= end):
        return bins
    return [each for each in bins if each.last_x >= start and each.first_x <= end]


# --- the hardware


def _hardware_axis(field: HardwareField) -> YAxis:
    if field in ("utilization", "host_cpu"):
        return YAxis(low=0.0, high=100.0)
    if field in ("memory", "host_memory"):
        return YAxis(low=0.0, label=lambda value: short_number(value / 2**30), unit=2.0**30)
    return YAxis(low=20.0 if field == "temperature" else 0.0)


def _value_words(field: HardwareField) -> Callable[[float | None], str]:
    """Writes a value without its unit, which is in the title."""
    if field in ("memory", "host_memory"):
        return gibibytes
    return lambda value: "–" if value is None else f"{value:.0f}"


def _hardware_curves(
    found: Sequence[HardwareCurve], panel: Panel, look: ChartLook, room: int | None = None
) -> list[Curve]:
    assert panel.field is not None
    ordered = sorted(found, key=lambda curve: look.gpus.get(curve.uuid or "", 1 << 20))
    if not any(curve.bins for curve in ordered):
        return []
    words = _value_words(panel.field)
    values = [curve.last for curve in ordered]
    if look.cursor is not None:
        # Samples far from the crosshair do not count.
        reach = (look.window[1] - look.window[0]) / 20
        found_at = values_at([curve.bins for curve in ordered], look.cursor)
        values = [at.value if at.x is not None and abs(at.x - look.cursor) <= reach else None for at in found_at]
    is_alone, are_many = len(ordered) == 1, len(ordered) > MOST_GPU_LINES
    labels = [
        words(value) if curve.uuid is None or is_alone else f"{_index(curve, look)}: {words(value)}"
        for value, curve in zip(values, ordered, strict=True)
    ]
    legend: list[Curve] = []
    if are_many or (room is not None and room < 2 + cell_width(panel.title) + sum(4 + len(text) for text in labels)):
        known = [(value, number) for number, value in enumerate(values) if value is not None]
        text = words(None)
        if known:
            (lowest, where), (highest, _) = min(known), max(known)
            text = "–".join(dict.fromkeys((words(lowest), words(highest))))
            if are_many:
                text = f"{words(lowest)} (GPU {_index(ordered[where], look)}) to {words(highest)}"
        legend = [Curve((), f"series.{panel.colour}" if are_many else "text", text)]
        labels = [""] * len(labels)
    return legend + [
        Curve(
            within(curve.bins, look.window),
            f"series.{panel.colour if are_many else (panel.colour + number) % 4}",
            label,
            shape="" if is_alone or not label else SHAPES[number],
        )
        for number, (curve, label) in enumerate(zip(ordered, labels, strict=True))
    ]


def _index(curve: HardwareCurve, look: ChartLook) -> str:
    found = look.gpus.get(curve.uuid or "")
    return (curve.uuid or "")[:8] if found is None else str(found)


# --- what happened


def counted_checkpoints(markers: Sequence[ChartMarker], look: ChartLook, width: int) -> int:
    """The number of checkpoints in the window if they are too many to mark each; else 0."""
    start, end = look.window
    saved = sum(marker.kind == "checkpoint" and start <= marker.x <= end for marker in markers)
    return saved if saved * MARKED_APART > width else 0


def drawn_markers(markers: Sequence[ChartMarker], *, with_words: bool, notches: bool = True) -> list[Marker]:
    """The markers of a chart, the gravest last; without ``notches``, no checkpoints."""
    drawn = []
    for marker in sorted(markers, key=lambda each: -_GRAVITY.index(each.kind)):
        if marker.kind == "start" or (marker.kind == "checkpoint" and not notches):
            continue
        word = marker.word if with_words and marker.kind not in _NOTCHES else ""
        drawn.append(Marker(marker.x, word, MARKER_STYLES[marker.kind], is_line=marker.kind not in _NOTCHES))
    return drawn


def markers_near(markers: Sequence[ChartMarker], x: float, reach: float) -> list[ChartMarker]:
    """The markers within ``reach`` of ``x``, the gravest first."""
    near = [marker for marker in markers if abs(marker.x - x) <= reach]
    return sorted(near, key=lambda marker: (_GRAVITY.index(marker.kind), abs(marker.x - x)))


def next_marker(markers: Sequence[ChartMarker], x: float | None, by: int) -> ChartMarker | None:
    """The next marker to the right of ``x``, or to the left with -1. For None, the first, or the last with -1."""
    ordered = sorted(markers, key=lambda marker: marker.x)
    if by > 0:
        return next((marker for marker in ordered if x is None or marker.x > x + 1e-9), None)
    return next((marker for marker in reversed(ordered) if x is None or marker.x < x - 1e-9), None)
