"""The x axis of a chart: its scale, its ticks, and the lines of text below a plotting area."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gputui.core.text import cell_width
from gputui.metrics.draw import glyphs
from gputui.metrics.draw.bins import Bin
from gputui.metrics.draw.parts import Line, Marker, XAxis
from gputui.metrics.draw.raster import CURSOR_STYLE, Canvas, spans
from gputui.metrics.draw.scales import LinearScale, LogScale, Scale, value_scale, x_bounds
from gputui.metrics.draw.ticks import log_ticks, log_time_ticks, tick_labels, time_labels, time_ticks, whole_ticks

_MOST_TICKS = 8  # more labels say no more
_LEAST_TICKS = 2  # one tick tells no scale


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
            start = min((x for one_bin in bins for x in (one_bin.first_x, one_bin.last_x) if x > 0), default=end)
        return value_scale(start, end, "log")
    if not end / 2 - start / 2 > 0:
        # A single place is drawn in the middle.
        return value_scale(start, start)
    return LinearScale(start, end)


def x_ticks(scale: Scale, axis: XAxis, most: int) -> tuple[list[float], list[str]]:
    """At most ``most`` ticks of an x axis, and their labels."""
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


class PlacedMarker(NamedTuple):
    """A marker and its column in the plotting area."""

    column: int
    marker: Marker


class _Text(NamedTuple):
    """Text of the axis, and the column of its first character."""

    start: int
    text: str

    @property
    def end(self) -> int:
        """The column behind it."""
        return self.start + len(self.text)


class XAxisText(NamedTuple):
    """The x axis below a plotting area, as text.

    Attributes:
        cursor: the column of the crosshair, None without one.
        gutter_width: cells of the value labels left of the area; -1 without them.
    """

    canvas: Canvas
    scale: Scale
    axis: XAxis
    markers: Sequence[PlacedMarker]
    cursor: int | None
    gutter_width: int

    def axis_line(self, *, has_ticks: bool) -> Line:
        """The axis in one line. A label is centred on its tick, or ends at the edge.
        The axis' name is below the value labels or, if that is too narrow, at the end."""
        width = self.canvas.width
        name = self.axis.title(self.scale)
        is_beside = bool(name) and cell_width(name) < self.gutter_width
        end_name = ""
        if not is_beside and len(name) == cell_width(name) < width // 2:
            end_name = name
        chars = [glyphs.HORIZONTAL] * width
        styles = ["axis"] * width
        for label in self._labels(end_name, has_ticks=has_ticks):
            chars[label.start : label.end] = label.text
        self._draw_markers(chars, styles)
        line = spans(chars, styles)
        if self.gutter_width < 0:
            return line
        gutter = " " * self.gutter_width
        if is_beside:
            gutter = f"{name:>{self.gutter_width - 1}} "
        return [(gutter + glyphs.CORNER, "axis"), *line]

    def _draw_markers(self, chars: list[str], styles: list[str]) -> None:
        """Draw the feet of the markers and of the crosshair, between the labels."""
        for column, marker in sorted(self.markers, key=lambda placed: placed.marker.is_line):
            # Labels cover markers, whose lines go on above and below.
            if chars[column] in (glyphs.HORIZONTAL, glyphs.NOTCH):
                chars[column] = glyphs.MARKER if marker.is_line else glyphs.NOTCH
                styles[column] = marker.style
        if self.cursor is not None and chars[self.cursor] in (glyphs.HORIZONTAL, glyphs.NOTCH, glyphs.MARKER):
            chars[self.cursor] = glyphs.VERTICAL
            styles[self.cursor] = CURSOR_STYLE

    def _labels(self, name: str, *, has_ticks: bool) -> Sequence[_Text]:
        """The labels of the ticks that fit, and the axis' name at the end; closer ticks if fewer than two fit."""
        width = self.canvas.width
        best: list[_Text] = []
        end_name = _Text(width - len(name) - 1, f" {name}")
        if name:
            best.append(end_name)
        if not has_ticks:
            return best
        first = min(_MOST_TICKS, max(3, width // 7))
        for most in range(first, max(first, width // 4) + 1):
            labels = self._labels_of(most, name)
            if len(labels) > len(best):
                best = labels
            if len(best) >= _LEAST_TICKS + (end_name in labels):
                break
        return best

    def _labels_of(self, most: int, name: str) -> list[_Text]:
        """The labels of those of ``most`` ticks that fit, and the axis' name before the last or at the end."""
        width = self.canvas.width
        end_room = len(name) + bool(name)
        labels: list[_Text] = []
        next_free = 0
        for tick, text in zip(*x_ticks(self.scale, self.axis, most), strict=True):
            column = self.canvas.column(tick, self.scale)
            if column is None:
                continue
            label = _Text(min(max(0, column - len(text) // 2), width - len(text)), text)
            is_end = label.end > width - end_room
            if is_end and end_room:
                label = _Text(label.start - end_room - 1, f" {name} {text}")
            is_below_cursor = self.cursor is not None and label.start <= self.cursor < label.end
            if label.start >= next_free and (is_end or not is_below_cursor):
                labels.append(label)
                next_free = label.end + 1
                if is_end:
                    end_room = 0
        if end_room:
            labels.append(_Text(width - end_room, f" {name}"))
        return labels

    def marker_line(self, width: int) -> Line:
        """The labels of markers below or beside them, in ``width`` cells behind the gutter. Short
        ones, such as a restart's, come first, because they leave room for others."""
        labels: list[tuple[int, PlacedMarker]] = []
        lines = [placed for placed in self.markers if placed.marker.is_line and placed.marker.label]
        longest_first = sorted(lines, key=lambda placed: -cell_width(placed.marker.label))
        for placed in reversed(longest_first):
            column = placed.column
            size = cell_width(placed.marker.label)
            ends = [start + cell_width(label.marker.label) + 1 for start, label in labels if label.column < column]
            starts = [start - size - 1 for start, label in labels if label.column >= column]
            low = max(0, column - size - 3, *ends)
            high = min(column + 3, width - size, *starts)
            if low <= high:
                labels.append((min(max(low, column - size // 2), high), placed))
        line: Line = [(" " * (self.gutter_width + 1), "dim")]
        end = 0
        for start, (_, marker) in sorted(labels, key=lambda label: label[0]):
            line.append((" " * (start - end) + marker.label, marker.style))
            end = start + cell_width(marker.label)
        return [piece for piece in [*line, (" " * (width - end), "dim")] if piece[0]]
