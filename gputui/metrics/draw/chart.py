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
from gputui.metrics.draw.axes import (
    LinearScale,
    LogScale,
    Scale,
    bounds,
    even_ticks,
    linear_ticks,
    log_bounds,
    log_ticks,
    log_time_ticks,
    round_outward,
    tick_labels,
    time_labels,
    time_ticks,
    value_scale,
    whole_ticks,
    x_bounds,
)
from gputui.metrics.draw.envelope import Bin
from gputui.metrics.draw.parts import Curve, Line, Marker, Span, XAxis, YAxis
from gputui.metrics.draw.raster import BAD_STYLE, CURSOR_STYLE, Canvas, spans

_MOST_VALUE_TICKS = 6
_LEAST_PLOT_COLUMNS = 8
_MOST_X_TICKS = 8
_LEAST_X_TICKS = 2


def _notes(bins: Sequence[Bin], axis: YAxis, *, as_asked: bool) -> Line:
    """Notes of the legend about values that the axis cannot hold."""
    notes: Line = []
    non_finite = sum(bucket.non_finite for bucket in bins)
    if non_finite:
        notes.append((f"{glyphs.NAN} {short_number(non_finite)} not finite", BAD_STYLE))
    if axis.kind == "log":
        if not as_asked:
            notes.append(("nothing above 0: linear", "dim"))
        elif any(bucket.low is not None and bucket.low <= 0 for bucket in bins):
            notes.append((f"{glyphs.BELOW} 0 or less, log", BAD_STYLE))
        else:
            notes.append(("log", "dim"))
    return notes


def _legend(title: str, curves: Sequence[Curve], axis: YAxis, notes: Line, width: int) -> Line:
    """The first line: title, newest values as on the axis, and on the right notes."""
    words_of = axis.label or metric_value
    entries: Line = []
    for curve in curves:
        parts = []
        if curve.label:
            parts += [curve.shape, curve.label]
        if curve.value is not None:
            parts.append(words_of(curve.value))
        if entry := " ".join(filter(None, parts)):
            entries.append((entry, curve.style))
    if title:
        # A long title leaves up to half of the line for the newest values.
        values_width = min(sum(2 + cell_width(text) for text, _ in entries), width // 2)
        entries.insert(0, (clip_middle(title, width - values_width), "title"))
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
    tail: Line = []
    for text, style in notes:
        if cell_width(text) + 2 <= room:
            tail.append((f"  {text}", style))
            room -= cell_width(text) + 2
    if room:
        return [*line, (" " * room, "dim"), *tail]
    return [*line, *tail]


def x_ticks(scale: Scale, axis: XAxis, most: int) -> tuple[list[float], list[str]]:
    """At most so many ticks of an x axis, and their labels."""
    if axis.names:
        places = range(0, len(axis.names), -(-len(axis.names) // max(1, most)))
        return [float(place) for place in places], [axis.names[place] for place in places]
    if axis.kind == "time":
        time_ticks_of = log_time_ticks if isinstance(scale, LogScale) else time_ticks
        ticks = time_ticks_of(scale.low, scale.high, most)
        return ticks, time_labels(ticks)
    ticks_of = log_ticks if isinstance(scale, LogScale) else whole_ticks
    ticks = ticks_of(scale.low, scale.high, most)
    if axis.kind == "count":
        ticks = [tick for tick in ticks if tick == round(tick)]
    return ticks, tick_labels(ticks)


class _Plot(NamedTuple):
    """A plotting area with its x axis. ``markers`` have a column, ``cursor`` is the column of the
    crosshair; ``gutter_width`` is -1 without value labels."""

    canvas: Canvas
    x_scale: Scale
    x_axis: XAxis
    markers: Sequence[tuple[int, Marker]]
    cursor: int | None
    gutter_width: int

    def axis_line(self, *, with_ticks: bool) -> Line:
        """The x axis in one line. A label is centred on its tick, or ends at the edge.
        The axis' name is below the value labels or, if that is too narrow, at the end."""
        width = self.canvas.width
        chars = [glyphs.HORIZONTAL] * width
        styles = ["axis"] * width
        axis_name = self.x_axis.words(self.x_scale)
        is_beside = bool(axis_name) and cell_width(axis_name) < self.gutter_width
        fits = len(axis_name) == cell_width(axis_name) < width // 2
        name = ""
        if axis_name and fits and not is_beside:
            name = f" {axis_name}"
        ticks = self._ticks(name, with_ticks=with_ticks)
        for start, text in ticks:
            chars[start : start + len(text)] = text
        for column, marker in sorted(self.markers, key=lambda placed: placed[1].is_line):
            # Labels cover markers, whose lines go on above and below.
            if chars[column] in (glyphs.HORIZONTAL, glyphs.NOTCH):
                chars[column] = glyphs.MARKER if marker.is_line else glyphs.NOTCH
                styles[column] = marker.style
        if self.cursor is not None and chars[self.cursor] in (glyphs.HORIZONTAL, glyphs.NOTCH, glyphs.MARKER):
            chars[self.cursor] = glyphs.VERTICAL
            styles[self.cursor] = CURSOR_STYLE
        line = spans(chars, styles)
        if self.gutter_width < 0:
            return line
        before = " " * self.gutter_width
        if is_beside:
            before = f"{axis_name:>{self.gutter_width - 1}} "
        return [(before + glyphs.CORNER, "axis"), *line]

    def _ticks(self, name: str, *, with_ticks: bool) -> Sequence[tuple[int, str]]:
        """Starts and texts of the ticks that fit, and of the axis' name. If fewer than two fit,
        closer ticks are tried."""
        width = self.canvas.width
        first = min(_MOST_X_TICKS, max(3, width // 7))
        best: list[tuple[int, str]] = []
        if name:
            best.append((width - len(name), name))
        if not with_ticks:
            return best
        for most in range(first, max(first, width // 4) + 1):
            placed: list[tuple[int, str]] = []
            next_free = 0
            last = name
            for tick, label in zip(*x_ticks(self.x_scale, self.x_axis, most), strict=True):
                column = self.canvas.column(tick, self.x_scale)
                if column is None:
                    continue
                start = min(max(0, column - len(label) // 2), width - len(label))
                text = label
                is_end = start + len(text) > width - len(last)
                if is_end and last:
                    text = f"{last} {label}"
                    start -= len(last) + 1
                if start >= next_free and (is_end or self.cursor not in range(start, start + len(text))):
                    placed.append((start, text))
                    next_free = start + len(text) + 1
                    if is_end:
                        last = ""
            if last:
                placed.append((width - len(last), last))
            if len(placed) > len(best):
                best = placed
            if len(best) >= _LEAST_X_TICKS + bool(last):
                break
        return best

    def label_line(self, width: int) -> Line:
        """The labels of markers below or beside them, in ``width`` cells behind the gutter. Short
        ones, such as a restart's, come first, because they leave room for others."""
        labels: list[tuple[int, int, int, Marker]] = []
        by_size = sorted(self.markers, key=lambda placed: -cell_width(placed[1].label))
        for column, marker in by_size[::-1]:
            size = cell_width(marker.label) if marker.is_line else 0
            ends = [at + used + 1 for at, used, its, _ in labels if its < column]
            starts = [at - size - 1 for at, _, its, _ in labels if its >= column]
            low = max(0, column - size - 3, *ends)
            high = min(column + 3, width - size, *starts)
            if size and low <= high:
                labels.append((min(max(low, column - size // 2), high), size, column, marker))
        line: Line = [(" " * (self.gutter_width + 1), "dim")]
        at = 0
        for start, size, _, marker in sorted(labels, key=lambda label: label[0]):
            line.append((" " * (start - at) + marker.label, marker.style))
            at = start + size
        return [piece for piece in [*line, (" " * (width - at), "dim")] if piece[0]]


def chart(
    curves: Sequence[Curve],
    *,
    width: int,
    height: int,
    title: str = "",
    x_axis: XAxis | None = None,
    y_axis: YAxis | None = None,
    markers: Sequence[Marker] = (),
    cursor: float | None = None,
    least_gutter: int = 0,
    end_gutter: int = 0,
    empty_text: str = "no data yet",
) -> list[Line]:
    """Draw curves, the later above the earlier, as exactly `height` lines of exactly `width` cells.

    If there is too little room, marker labels go first, then title, x axis, curves' ends, and value
    labels. `cursor` is the x of a line over the whole height; `least_gutter` are the least cells of
    the value labels, `end_gutter` those at the right for the curves' ends. All texts must be
    harmless.
    """
    if width < 1 or height < 1:
        return []
    x_axis = x_axis or XAxis()
    y_axis = y_axis or YAxis()
    bins = [bucket for curve in curves for bucket in curve.bins]
    has_axis = height >= 4
    has_legend = height >= 3 and (bool(title) or any(curve.label or curve.value is not None for curve in curves))
    has_labels = height >= 6 and any(marker.label and marker.is_line for marker in markers)
    rows = height - has_axis - has_legend - has_labels

    y_scale, as_asked = y_scale_of(bins, y_axis)
    if isinstance(y_scale, LinearScale):
        y_scale, gutter = _even(y_scale, bins, y_axis, rows)
    else:
        gutter = _value_labels(y_scale, rows, y_axis)
    if not bins:
        gutter = {}
    gutter_width = 1 + max([least_gutter, *map(cell_width, gutter.values())])
    if width - gutter_width - 1 < _LEAST_PLOT_COLUMNS:
        gutter = {}
        gutter_width = -1
    room = width - gutter_width - 1
    end_width = end_gutter if end_gutter <= room // 2 and rows >= 3 else 0

    canvas = Canvas(room - end_width, rows)
    x_scale = x_scale_of(bins, x_axis)
    columns = [(column, marker) for marker in markers if (column := canvas.column(marker.x, x_scale)) is not None]
    pointed = None
    if cursor is not None:
        pointed = canvas.column(cursor, x_scale)
    for column, marker in columns:
        if marker.is_line:
            canvas.mark(column, marker.style)
    for curve in curves:
        canvas.draw(curve, x_scale, y_scale)
    if pointed is not None:
        canvas.point(pointed)
    plotted = canvas.lines() if bins else _empty(canvas.width, rows, empty_text)
    if end_width:
        ends = _end_labels(curves, canvas, y_scale, end_width)
        plotted = [[*line, ends[row]] for row, line in enumerate(plotted)]

    lines: list[Line] = []
    if has_legend:
        lines.append(_legend(title, curves, y_axis, _notes(bins, y_axis, as_asked=as_asked), width))
    for row, line in enumerate(plotted):
        if gutter_width >= 0:
            text = fit(gutter.get(row, ""), gutter_width - 1, ">")
            edge = glyphs.VALUE_TICK if row in gutter else glyphs.VERTICAL
            line = [(f"{text} {edge}", "axis"), *line]
        lines.append(line)
    plot = _Plot(canvas, x_scale, x_axis, columns, pointed, gutter_width)
    if has_axis:
        line = plot.axis_line(with_ticks=bool(bins))
        if end_width:
            line.append((glyphs.HORIZONTAL * end_width, "axis"))
        lines.append(line)
    if has_labels:
        lines.append(plot.label_line(room))
    return lines


def y_scale_of(bins: Sequence[Bin], axis: YAxis) -> tuple[Scale, bool]:
    """The value scale, and whether it is of the requested kind."""
    as_asked = True
    if axis.kind == "log":
        low, high = log_bounds(bins)
        if axis.low is not None and axis.low > 0:
            low = axis.low
        if axis.high is not None and axis.high > 0:
            high = axis.high
        if low is not None and high is not None and low <= high:
            scale = value_scale(low, high, "log")
            if axis.low is None and axis.high is None and isinstance(scale, LogScale):
                scale = LogScale(*round_outward(scale.low, scale.high, "log"))
            return scale, True
        as_asked = not bins
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
    return LinearScale(start, end), as_asked


def x_scale_of(bins: Sequence[Bin], axis: XAxis) -> Scale:
    """The scale of the x axis; open ends are those of the bins. A logarithmic axis without an x
    above 0 is linear."""
    start, end = x_bounds(bins)
    if axis.start is not None:
        start = axis.start
    if axis.end is not None:
        end = axis.end
    if axis.scale == "log" and end > 0:
        if start <= 0:
            start = min((x for bucket in bins for x in (bucket.first_x, bucket.last_x) if x > 0), default=end)
        return value_scale(start, end, "log")
    if not end / 2 - start / 2 > 0:
        # A single place is drawn in the middle.
        return value_scale(start, start)
    return LinearScale(start, end)


def value_ticks(scale: Scale, axis: YAxis, most: int) -> tuple[list[float], list[str]]:
    """At most ``most`` ticks of a value axis, and their labels."""
    if isinstance(scale, LogScale):
        ticks = log_ticks(scale.low, scale.high, most)
    else:
        ticks = [tick * axis.unit for tick in linear_ticks(scale.low / axis.unit, scale.high / axis.unit, most)]
    return ticks, _labels(axis, ticks)


def _even(scale: LinearScale, bins: Sequence[Bin], axis: YAxis, rows: int) -> tuple[LinearScale, dict[int, str]]:
    """The scale with ends at which ticks are in equally distant rows, and the labels by row."""
    low, high = bounds(bins)
    if axis.low is not None or low is None or low < scale.low:
        low = scale.low
    if axis.high is not None or high is None or high > scale.high:
        high = scale.high
    if not high / 2 - low / 2 > 1e-9 * max(abs(low), abs(high)):
        low = scale.low
        high = scale.high
    start, end, ticks = even_ticks(
        low / axis.unit, high / axis.unit, rows, max(2, min(_MOST_VALUE_TICKS, rows // 2 + 1)),
        is_low_fixed=axis.low is not None, is_high_fixed=axis.high is not None,
    )  # fmt: skip
    values = [value * axis.unit for _, value in ticks]
    texts = {rows - 1 - row: label for (row, _), label in zip(ticks, _labels(axis, values), strict=True)}
    return LinearScale(start * axis.unit, end * axis.unit), texts


def _labels(axis: YAxis, ticks: Sequence[float]) -> list[str]:
    if axis.label is None:
        return tick_labels(ticks)
    return [axis.label(tick) for tick in ticks]


def _end_labels(curves: Sequence[Curve], canvas: Canvas, scale: Scale, width: int) -> list[Span]:
    """The text right of each row: the curves' ends, moved apart if they overlap; of too many, that of
    a strong one stays."""
    ends: list[tuple[int, float, Curve]] = []
    for curve in sorted(curves, key=lambda curve: not curve.is_strong):
        last = next((bucket.last for bucket in reversed(curve.bins) if bucket.last is not None), None)
        if last is not None and curve.end and (row := canvas.row(last, scale)) is not None:
            ends.append((row, last, curve))
    ends = sorted(ends[: canvas.rows], key=lambda end: (end[0], -end[1]))
    labels: list[Span] = [(" " * width, "dim")] * canvas.rows
    free = 0
    for number, (row, _, curve) in enumerate(ends):
        # Those that come below need a row each.
        row = min(max(row, free), canvas.rows - len(ends) + number)
        labels[row] = (fit(f" {curve.end}", width), curve.style)
        free = row + 1
    return labels


def _value_labels(scale: LogScale, rows: int, axis: YAxis) -> dict[int, str]:
    """Labels of a logarithmic axis by row of the plotting area."""
    canvas = Canvas(1, rows)
    ticks, labels = value_ticks(scale, axis, max(2, min(_MOST_VALUE_TICKS, rows // 2 + 1)))
    rows_of = ((canvas.row(tick, scale), label) for tick, label in zip(reversed(ticks), reversed(labels), strict=True))
    return {row: label for row, label in rows_of if row is not None}


def _empty(width: int, rows: int, text: str) -> list[Line]:
    lines: list[Line] = [[(" " * width, "dim")] for _ in range(rows)]
    lines[(rows - 1) // 2] = [(fit(text, width, "^"), "dim")]
    return lines
