"""A chart as lines of styled text: title and legend, value labels, curves, markers, x axis.

The result is `(text, style key)` pieces that fill every line exactly; the screen gives the keys
colours. Keys: "title", "text", "dim", "axis", "marker", "bad", and those of curves ("series.0").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gputui.core.text import cell_width, clip, clip_middle, fit
from gputui.core.units import metric_value, short_number
from gputui.metrics.draw import glyphs
from gputui.metrics.draw.parts import Chart, Curve, Line, Span
from gputui.metrics.draw.raster import BAD_STYLE, Canvas
from gputui.metrics.draw.scales import LinearScale, Scale
from gputui.metrics.draw.value_axis import ValueAxis, value_axis
from gputui.metrics.draw.x_axis import PlacedMarker, XAxisText, x_scale_of

_LEAST_PLOT_COLUMNS = 8  # with fewer, the labels of the axis have no room


class Gutters(NamedTuple):
    """The least cells of the value labels beside a plot, and the cells for the curves' ends."""

    labels: int = 0
    ends: int = 0


NO_GUTTERS = Gutters()


def draw_chart(
    chart: Chart,
    width: int,
    height: int,
    *,
    cursor: float | None = None,
    gutters: Gutters = NO_GUTTERS,
    empty_text: str = "no data yet",
) -> list[Line]:
    """Draw a chart, its later curves above the earlier, as exactly ``height`` lines of ``width`` cells.

    If there is too little room, marker labels go first, then title, x axis, curves' ends, and value
    labels.

    Args:
        cursor: the x of a line over the whole height.
        empty_text: what stands in a plot without bins.
    """
    if width < 1 or height < 1:
        return []
    bins = chart.bins
    has_axis = height >= 4
    has_legend = height >= 3 and _has_legend(chart)
    has_marker_labels = height >= 6 and any(marker.label and marker.is_line for marker in chart.markers)
    rows = height - has_axis - has_legend - has_marker_labels

    y_axis = value_axis(bins, chart.y_axis, rows)
    gutter_width = 1 + max([gutters.labels, *map(cell_width, y_axis.labels.values())])
    if width - gutter_width - 1 < _LEAST_PLOT_COLUMNS:
        gutter_width = -1
    room = width - gutter_width - 1
    end_width = 0
    if gutters.ends <= room // 2 and rows >= 3:
        end_width = gutters.ends

    canvas = Canvas(room - end_width, rows)
    x_axis = _x_axis(chart, canvas, cursor, gutter_width)
    plot = _plot(chart, x_axis, y_axis.scale)
    if not bins:
        plot = _empty(canvas.width, rows, empty_text)
    if end_width:
        ends = _end_labels(chart.curves, canvas, y_axis.scale, end_width)
        plot = [[*line, end] for line, end in zip(plot, ends, strict=True)]
    if gutter_width >= 0:
        plot = [[_gutter(y_axis, row, gutter_width), *line] for row, line in enumerate(plot)]

    lines = list(plot)
    if has_legend:
        lines.insert(0, _legend(chart, y_axis.scale, width))
    if has_axis:
        line = x_axis.axis_line(has_ticks=bool(bins))
        if end_width:
            line.append((glyphs.HORIZONTAL * end_width, "axis"))
        lines.append(line)
    if has_marker_labels:
        lines.append(x_axis.marker_line(room))
    return lines


def _x_axis(chart: Chart, canvas: Canvas, cursor: float | None, gutter_width: int) -> XAxisText:
    """The x axis below a canvas, with the markers and the crosshair that lie within it."""
    scale = x_scale_of(chart.bins, chart.x_axis)
    columns = [(canvas.column(marker.x, scale), marker) for marker in chart.markers]
    markers = [PlacedMarker(column, marker) for column, marker in columns if column is not None]
    cursor_column = None
    if cursor is not None:
        cursor_column = canvas.column(cursor, scale)
    return XAxisText(canvas, scale, chart.x_axis, markers=markers, cursor=cursor_column, gutter_width=gutter_width)


def _plot(chart: Chart, x_axis: XAxisText, y_scale: Scale) -> list[Line]:
    """Draw curves, markers and crosshair on the canvas above the x axis."""
    canvas = x_axis.canvas
    for column, marker in x_axis.markers:
        if marker.is_line:
            canvas.mark(column, marker.style)
    for curve in chart.curves:
        canvas.draw(curve, x_axis.scale, y_scale)
    if x_axis.cursor is not None:
        canvas.point(x_axis.cursor)
    return canvas.lines()


def _empty(width: int, rows: int, text: str) -> list[Line]:
    lines: list[Line] = [[(" " * width, "dim")] for _ in range(rows)]
    lines[(rows - 1) // 2] = [(fit(text, width, "^"), "dim")]
    return lines


def _gutter(axis: ValueAxis, row: int, width: int) -> Span:
    """The value label of a row and the edge of the plot."""
    edge = glyphs.VALUE_TICK if row in axis.labels else glyphs.VERTICAL
    label = fit(axis.labels.get(row, ""), width - 1, ">")
    return f"{label} {edge}", "axis"


class _End(NamedTuple):
    """The newest value of a curve and its row."""

    row: int
    value: float
    curve: Curve


def _end_labels(curves: Sequence[Curve], canvas: Canvas, scale: Scale, width: int) -> list[Span]:
    """The text right of each row: the curves' ends, moved apart if they overlap; of too many, that of
    a strong one stays."""
    ends: list[_End] = []
    for curve in sorted(curves, key=lambda curve: not curve.is_strong):
        newest = next((one_bin.last for one_bin in reversed(curve.bins) if one_bin.last is not None), None)
        if newest is not None and curve.end and (row := canvas.row(newest, scale)) is not None:
            ends.append(_End(row, newest, curve))
    ends = sorted(ends[: canvas.rows], key=lambda end: (end.row, -end.value))
    labels: list[Span] = [(" " * width, "dim")] * canvas.rows
    next_free = 0
    for number, (row, _, curve) in enumerate(ends):
        # Those that come below need a row each.
        row = min(max(row, next_free), canvas.rows - len(ends) + number)
        labels[row] = (fit(f" {curve.end}", width), curve.style)
        next_free = row + 1
    return labels


def _has_legend(chart: Chart) -> bool:
    return bool(chart.title) or any(curve.label or curve.value is not None for curve in chart.curves)


def _legend(chart: Chart, scale: Scale, width: int) -> Line:
    """The first line: title, newest values as on the axis, and on the right notes."""
    entries = _legend_entries(chart)
    if chart.title:
        # A long title leaves up to half of the line for the newest values.
        values_width = min(sum(2 + cell_width(text) for text, _ in entries), width // 2)
        entries.insert(0, (clip_middle(chart.title, width - values_width), "title"))
    line: Line = []
    room = width
    for text, style in entries:
        if line:
            text = f"  {text}"
        piece = clip(text, room)
        if not piece.strip():
            break
        line.append((piece, style))
        room -= cell_width(piece)
    notes: Line = []
    for text, style in _notes(chart, scale):
        if cell_width(text) + 2 <= room:
            notes.append((f"  {text}", style))
            room -= cell_width(text) + 2
    if room:
        line.append((" " * room, "dim"))
    return [*line, *notes]


def _legend_entries(chart: Chart) -> Line:
    """The sign, name and newest value of each curve: `● val 1.25`."""
    text_of = chart.y_axis.label or metric_value
    entries: Line = []
    for curve in chart.curves:
        parts = []
        if curve.label:
            parts += [curve.shape, curve.label]
        if curve.value is not None:
            parts.append(text_of(curve.value))
        if entry := " ".join(filter(None, parts)):
            entries.append((entry, curve.style))
    return entries


def _notes(chart: Chart, scale: Scale) -> Line:
    """What the legend says of values that the axis cannot hold."""
    bins = chart.bins
    notes: Line = []
    non_finite = sum(one_bin.non_finite for one_bin in bins)
    if non_finite:
        notes.append((f"{glyphs.NAN} {short_number(non_finite)} not finite", BAD_STYLE))
    if chart.y_axis.kind == "log":
        if bins and isinstance(scale, LinearScale):
            notes.append(("nothing above 0: linear", "dim"))
        elif any(one_bin.low is not None and one_bin.low <= 0 for one_bin in bins):
            notes.append((f"{glyphs.BELOW} 0 or less, log", BAD_STYLE))
        else:
            notes.append(("log", "dim"))
    return notes
