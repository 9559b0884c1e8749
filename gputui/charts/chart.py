"""A chart as lines of styled text: title and legend, value labels, curves, markers, x axis.

The result is plain data, `(text, style key)` pieces that fill every line exactly; the screen gives the keys colours,
the command line drops them. Keys: "title", "text", "dim", "axis", "marker", "bad", and whatever the curves name,
usually "series.0", "series.1", …
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gputui.charts.axes import (
    AxisKind,
    LinearScale,
    LogScale,
    Scale,
    bounds,
    linear_ticks,
    log_bounds,
    log_ticks,
    round_outward,
    stable_end,
    tick_labels,
    time_labels,
    time_ticks,
    value_scale,
)
from gputui.charts.cells import cell_width, clip, fit
from gputui.charts.envelope import Bin
from gputui.charts.glyphs import BRAILLE, Glyphs
from gputui.charts.raster import BAD_STYLE, Canvas, Span, spans
from gputui.charts.units import metric_value, short_number

Line = list[Span]
"""One line of a chart: pieces of text with the keys of their styles."""

_MOST_VALUE_TICKS = 6
_MOST_X_TICKS = 8
_LEAST_PLOT_COLUMNS = 8


@dataclass(frozen=True, slots=True)
class Curve:
    """One series of a chart.

    `label` and `value` (its newest value) go into the legend; a curve with neither has no place there.
    """

    bins: Sequence[Bin]
    style: str = "series.0"
    label: str = ""
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Marker:
    """A vertical line at `x`, such as a restart, with a short label below the axis."""

    x: float
    label: str = ""
    style: str = "marker"


@dataclass(frozen=True, slots=True)
class XAxis:
    """The horizontal axis; ends left `None` follow the curves, the right one in round steps. Time is in seconds."""

    name: str = ""
    start: float | None = None
    end: float | None = None
    kind: Literal["number", "time"] = "number"


@dataclass(frozen=True, slots=True)
class YAxis:
    """The value axis; ends left `None` follow the curves in round steps.

    A logarithmic axis without a positive value to show is drawn linear, and the legend says so.
    """

    kind: AxisKind = "linear"
    low: float | None = None
    high: float | None = None
    label: Callable[[float], str] | None = field(default=None)


def chart(
    curves: Sequence[Curve],
    *,
    width: int,
    height: int,
    title: str = "",
    x_axis: XAxis | None = None,
    y_axis: YAxis | None = None,
    markers: Sequence[Marker] = (),
    glyphs: Glyphs = BRAILLE,
    empty_text: str = "no data yet",
) -> list[Line]:
    """Draw curves as exactly `height` lines of exactly `width` cells.

    Later curves lie above earlier ones. Where room is short, marker labels go first, then the title, the x axis, and
    the value labels. Titles, labels and names must be harmless text (`gputui.charts.safe_text.clean`).
    """
    if width < 1 or height < 1:
        return []
    x_axis, y_axis = x_axis or XAxis(), y_axis or YAxis()
    bins = [each for curve in curves for each in curve.bins]
    y_scale, as_asked = _y_scale(bins, y_axis)
    x_scale = _x_scale(bins, x_axis)

    has_legend = bool(title) or any(curve.label or curve.value is not None for curve in curves)
    axis_rows = 1 if height >= 4 else 0
    title_rows = 1 if has_legend and height >= 3 else 0
    label_rows = 1 if height >= 6 and any(marker.label for marker in markers) else 0
    rows = height - axis_rows - title_rows - label_rows

    gutter = _value_labels(y_scale, rows, y_axis) if bins else {}
    gutter_width = max((cell_width(text) for text in gutter.values()), default=0) + 1
    if width - gutter_width - 1 < _LEAST_PLOT_COLUMNS:
        gutter, gutter_width = {}, -1
    canvas = Canvas(width - gutter_width - 1, rows, glyphs)

    marker_columns = [
        (column, marker) for marker in markers if (column := canvas.column(marker.x, x_scale)) is not None
    ]
    for column, marker in marker_columns:
        canvas.mark(column, marker.style)
    for curve in curves:
        canvas.draw(curve.bins, x_scale, y_scale, curve.style)
    plot = canvas.lines() if bins else _empty(canvas.width, rows, empty_text, glyphs)

    lines: list[Line] = []
    if title_rows:
        lines.append(_legend(title, curves, bins, y_axis, as_asked, width, glyphs))
    for row, plot_line in enumerate(plot):
        if gutter_width < 0:
            lines.append(plot_line)
            continue
        text = fit(gutter.get(row, ""), gutter_width - 1, ">", glyphs.ellipsis)
        edge = glyphs.value_tick if row in gutter else glyphs.vertical
        lines.append([(f"{text} {edge}", "axis"), *plot_line])
    if axis_rows:
        lines.append(_axis_line(canvas, x_scale, x_axis, marker_columns, gutter_width, bool(bins)))
    if label_rows:
        lines.append(_label_line(marker_columns, canvas.width, gutter_width + 1))
    return lines


def plain_text(lines: Sequence[Line]) -> str:
    """The lines of a chart without their styles, without trailing blanks."""
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)


def _y_scale(bins: Sequence[Bin], axis: YAxis) -> tuple[Scale, bool]:
    """The value scale, and whether it is of the kind that was asked for."""
    as_asked = True
    if axis.kind == "log":
        low, high = log_bounds(bins)
        low = axis.low if axis.low is not None and axis.low > 0 else low
        high = axis.high if axis.high is not None and axis.high > 0 else high
        if low is not None and high is not None and low <= high:
            scale = value_scale(low, high, "log")
            if axis.low is None and axis.high is None and isinstance(scale, LogScale):
                scale = LogScale(*round_outward(scale.low, scale.high, "log"))
            return scale, True
        as_asked = not bins
    low, high = bounds(bins)
    low = low if axis.low is None else axis.low
    high = high if axis.high is None else axis.high
    if low is not None and high is not None and low > high:
        # One end was given and all values lie beyond it.
        low = high = axis.low if axis.low is not None else axis.high
    scale = value_scale(low, high)
    start, end = round_outward(scale.low, scale.high)
    start = start if axis.low is None else scale.low
    end = end if axis.high is None else scale.high
    return LinearScale(start, end), as_asked


def _x_scale(bins: Sequence[Bin], axis: XAxis) -> Scale:
    xs = [x for each in bins for x in (each.first_x, each.last_x)]
    start, end = axis.start, axis.end
    if start is None:
        start = min(xs, default=0.0)
        # A series that begins near zero, as seen from its end, is shown from zero.
        if 0 <= start <= 0.1 * max(xs, default=0.0):
            start = 0.0
    if end is None:
        end = stable_end(max(xs, default=1.0))
    if not end / 2 - start / 2 > 0:
        # A single place is drawn in the middle.
        return value_scale(start, start)
    return LinearScale(start, end)


def _value_labels(scale: Scale, rows: int, axis: YAxis) -> dict[int, str]:
    """Labels by row of the plotting area."""
    most = min(_MOST_VALUE_TICKS, rows // 2 + 1)
    find = log_ticks if isinstance(scale, LogScale) else linear_ticks
    ticks = find(scale.low, scale.high, most)
    labels = [axis.label(tick) for tick in ticks] if axis.label else tick_labels(ticks)
    canvas = Canvas(1, rows, BRAILLE)
    placed: dict[int, str] = {}
    for tick, label in zip(ticks, labels, strict=True):
        row = canvas.row(tick, scale)
        if row is not None:
            placed.setdefault(row, label)
    return placed


def _empty(width: int, rows: int, text: str, glyphs: Glyphs) -> list[Line]:
    middle = (rows - 1) // 2
    blank = " " * width
    return [[(fit(text, width, "^", glyphs.ellipsis) if row == middle else blank, "dim")] for row in range(rows)]


def _legend(
    title: str,
    curves: Sequence[Curve],
    bins: Sequence[Bin],
    axis: YAxis,
    as_asked: bool,
    width: int,
    glyphs: Glyphs,
) -> Line:
    """The first line: title, newest values, and on the right what must not be overlooked."""
    notes: list[Span] = []
    non_finite = sum(each.non_finite for each in bins)
    if non_finite:
        notes.append((f"{glyphs.nan} {short_number(non_finite)} not finite", BAD_STYLE))
    if axis.kind == "log":
        if not as_asked:
            notes.append(("nothing above 0: linear", "dim"))
        elif any(each.low is not None and each.low <= 0 for each in bins):
            notes.append((f"{glyphs.below} 0 or less, log", BAD_STYLE))
        else:
            notes.append(("log", "dim"))
    left: list[Span] = [(title, "title")] if title else []
    for curve in curves:
        words = [curve.label] if curve.label else []
        if curve.value is not None:
            words.append(metric_value(curve.value))
        if words:
            left.append((" ".join(words), curve.style))
    line: Line = []
    room = width
    for text, style in left:
        lead = "  " if line else ""
        piece = clip(lead + text, room, glyphs.ellipsis)
        if not piece.strip():
            break
        line.append((piece, style))
        room -= cell_width(piece)
    tail: Line = []
    for text, style in notes:
        if cell_width(text) + 2 <= room:
            tail.append((f"  {text}", style))
            room -= cell_width(text) + 2
    return [*line, (" " * room, "dim"), *tail] if room else [*line, *tail]


def _axis_line(
    canvas: Canvas,
    scale: Scale,
    axis: XAxis,
    markers: Sequence[tuple[int, Marker]],
    gutter_width: int,
    with_ticks: bool,
) -> Line:
    """The x axis in one line: a label follows its tick; a tick whose label does not fit is left out."""
    glyphs = canvas.glyphs
    chars = [glyphs.horizontal] * canvas.width
    styles = ["axis"] * canvas.width
    name = f" {axis.name}" if axis.name else ""
    free = canvas.width
    if name and cell_width(name) == len(name) < canvas.width // 2:
        free -= len(name)
        chars[free:] = name
    taken = {column for column, _ in markers}
    most = min(_MOST_X_TICKS, max(2, canvas.width // 10))
    if with_ticks:
        is_time = axis.kind == "time"
        ticks = (time_ticks if is_time else linear_ticks)(scale.low, scale.high, most)
        next_free = 0
        for tick, label in zip(ticks, (time_labels if is_time else tick_labels)(ticks), strict=True):
            column = canvas.column(tick, scale)
            if column is None or column < next_free or column + 1 + len(label) > free:
                continue
            cells = range(column, column + 1 + len(label))
            if not taken.isdisjoint(cells):
                continue
            chars[column : column + 1 + len(label)] = glyphs.x_tick + label
            next_free = column + 2 + len(label)
    for column, marker in markers:
        chars[column], styles[column] = glyphs.marker, marker.style
    edge: Line = [(" " * gutter_width + glyphs.corner, "axis")] if gutter_width >= 0 else []
    return [*edge, *spans(chars, styles)]


def _label_line(markers: Sequence[tuple[int, Marker]], width: int, indent: int) -> Line:
    """The labels of markers below them, each where it does not touch the one before."""
    line: Line = [(" " * indent, "dim")] if indent else []
    at = 0
    for column, marker in sorted(markers, key=lambda each: each[0]):
        label_width = cell_width(marker.label)
        start = min(max(at, column - label_width // 2), width - label_width)
        if not label_width or start < at or start > column:
            continue
        line.append((" " * (start - at) + marker.label, marker.style))
        at = start + label_width + 1
        if at <= width:
            line.append((" ", marker.style))
    used = sum(cell_width(text) for text, _ in line)
    return [piece for piece in [*line, (" " * (width + indent - used), "dim")] if piece[0]]
