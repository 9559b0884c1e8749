"""What lies around a chart's plotting area: the legend above, the x axis and the markers' labels below."""

from collections.abc import Sequence

from gputui.core.cells import cell_width, clip, clip_middle
from gputui.core.units import metric_value, short_number
from gputui.metrics.draw import glyphs
from gputui.metrics.draw.axes import LogScale, Scale
from gputui.metrics.draw.envelope import Bin
from gputui.metrics.draw.parts import Curve, Line, Marker, XAxis, YAxis
from gputui.metrics.draw.raster import BAD_STYLE, CURSOR_STYLE, Canvas, Span, spans
from gputui.metrics.draw.ticks import linear_ticks, log_ticks, log_time_ticks, tick_labels, time_labels, time_ticks

_MOST_X_TICKS = 8
_LEAST_X_TICKS = 2
_LEAST_FOR_NEWEST = 30
"""Cells of an axis on which the newest value's place is labelled beside the ticks."""


def legend(
    title: str,
    curves: Sequence[Curve],
    bins: Sequence[Bin],
    axis: YAxis,
    as_asked: bool,
    width: int,
    note: str = "",
) -> Line:
    """The first line: title, newest values, and on the right notes."""
    notes: list[Span] = [(note, "dim")] if note else []
    non_finite = sum(each.non_finite for each in bins)
    if non_finite:
        notes.append((f"{glyphs.NAN} {short_number(non_finite)} not finite", BAD_STYLE))
    if axis.kind == "log":
        if not as_asked:
            notes.append(("nothing above 0: linear", "dim"))
        elif any(each.low is not None and each.low <= 0 for each in bins):
            notes.append((f"{glyphs.BELOW} 0 or less, log", BAD_STYLE))
        else:
            notes.append(("log", "dim"))
    left: list[Span] = []
    for curve in curves:
        words = [" ".join(filter(None, (curve.shape, curve.label)))] if curve.label else []
        if curve.value is not None:
            words.append(metric_value(curve.value))
        if words:
            left.append((" ".join(words), curve.style))
    if title:
        # A long title leaves up to half of the line for the newest values.
        values = min(sum(2 + cell_width(text) for text, _ in left), width // 2)
        left.insert(0, (clip_middle(title, width - values), "title"))
    line: Line = []
    room = width
    for text, style in left:
        lead = "  " if line else ""
        piece = clip(lead + text, room)
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


def x_ticks(scale: Scale, axis: XAxis, most: int) -> tuple[list[float], list[str]]:
    """At most so many ticks of an x axis, and their labels."""
    if axis.names:
        places = range(0, len(axis.names), -(-len(axis.names) // max(1, most)))
        return [float(place) for place in places], [axis.names[place] for place in places]
    if axis.kind == "time":
        ticks = (log_time_ticks if isinstance(scale, LogScale) else time_ticks)(scale.low, scale.high, most)
        return ticks, time_labels(ticks)
    ticks = (log_ticks if isinstance(scale, LogScale) else linear_ticks)(scale.low, scale.high, most)
    if axis.kind == "count":
        ticks = [tick for tick in ticks if tick == round(tick)]
    return ticks, tick_labels(ticks)


def newest_label(axis: XAxis) -> str:
    """The place of the newest value as its label shows it."""
    if axis.newest is None:
        return ""
    if axis.kind == "time":
        return time_labels([float(round(axis.newest))])[0]
    return str(round(axis.newest)) if axis.kind == "count" else short_number(axis.newest)


def axis_line(
    canvas: Canvas,
    scale: Scale,
    axis: XAxis,
    markers: Sequence[tuple[int, Marker]],
    cursor: int | None,
    gutter_width: int,
    with_ticks: bool,
) -> Line:
    """The x axis in one line. A label follows its tick, or is left out with it; the newest value's label precedes its
    tick. The axis' name is below the value labels or, if that is too narrow, at the end.
    """
    chars = [glyphs.HORIZONTAL] * canvas.width
    styles = ["axis"] * canvas.width
    words = axis.words(scale)
    is_beside = bool(words) and cell_width(words) < gutter_width
    name = f" {words}" if words and not is_beside else ""
    free = canvas.width
    taken = {column for column, marker in markers if marker.is_line} | ({cursor} if cursor is not None else set())
    newest = None if axis.newest is None or not with_ticks else canvas.column(axis.newest, scale)
    if newest is not None and axis.newest is not None and canvas.width >= _LEAST_FOR_NEWEST:
        label = f"{name} {newest_label(axis)}" if name else newest_label(axis)
        start = newest - len(label)
        if start >= 0 and taken.isdisjoint(range(start, newest + 1)):
            chars[start : newest + 1] = label + glyphs.X_TICK
            taken |= set(range(start - 1, newest + 2))
            name = ""
    if name and cell_width(name) == len(name) < canvas.width // 2:
        free -= len(name)
        chars[free:] = name
    if with_ticks:
        for column, label in _placed_ticks(canvas, scale, axis, free, taken):
            chars[column : column + 1 + len(label)] = glyphs.X_TICK + label
    for column, marker in sorted(markers, key=lambda each: each[1].is_line):
        if column >= free:
            continue
        if marker.is_line:
            chars[column] = glyphs.MARKER
        elif chars[column] == glyphs.HORIZONTAL:
            chars[column] = glyphs.NOTCH
        styles[column] = marker.style
    if cursor is not None and cursor < free:
        chars[cursor], styles[cursor] = glyphs.VERTICAL, CURSOR_STYLE
    before = f"{words:>{gutter_width - 1}} " if is_beside else " " * gutter_width
    edge: Line = [(before + glyphs.CORNER, "axis")] if gutter_width >= 0 else []
    return [*edge, *spans(chars, styles)]


def _placed_ticks(canvas: Canvas, scale: Scale, axis: XAxis, free: int, taken: set[int]) -> Sequence[tuple[int, str]]:
    """Columns and labels of the ticks that fit. If fewer than two fit, closer ticks are tried."""
    first = min(_MOST_X_TICKS, max(2, canvas.width // 10))
    best: list[tuple[int, str]] = []
    for most in range(first, max(first, canvas.width // 4) + 1):
        placed: list[tuple[int, str]] = []
        next_free = 0
        for tick, label in zip(*x_ticks(scale, axis, most), strict=True):
            column = canvas.column(tick, scale)
            if column is None or column < next_free or column + 1 + len(label) > free:
                continue
            if taken.isdisjoint(range(column, column + 1 + len(label))):
                placed.append((column, label))
                next_free = column + 2 + len(label)
        if len(placed) > len(best):
            best = placed
        if len(best) >= _LEAST_X_TICKS:
            break
    return best


def label_line(markers: Sequence[tuple[int, Marker]], width: int, indent: int) -> Line:
    """The labels of markers below them. Of two that would touch, the later marker's stays."""
    taken: dict[int, tuple[int, Marker]] = {}
    for column, marker in reversed(markers):
        size = cell_width(marker.label) if marker.is_line else 0
        start = min(max(0, column - size // 2), width - size)
        around = range(start - 1, start + size + 1)
        if size and start >= 0 and not any(at in around or at + used in around or at < start < at + used
                                           for at, (used, _) in taken.items()):  # fmt: skip
            taken[start] = (size, marker)
    line: Line = [(" " * indent, "dim")] if indent else []
    at = 0
    for start, (size, marker) in sorted(taken.items(), key=lambda each: each[0]):
        line.append((" " * (start - at) + marker.label, marker.style))
        at = start + size
    return [piece for piece in [*line, (" " * (width - at), "dim")] if piece[0]]
