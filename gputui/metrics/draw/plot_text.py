"""Series as plain text, drawn by plotext."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from gputui.metrics.draw.bins import Bin
from gputui.metrics.draw.scales import AxisKind, Scale, round_outward, value_scale
from gputui.metrics.draw.ticks import linear_ticks, log_ticks, tick_labels

# plotext's markers, and how the heading shows them.
_MARKERS: Final = (("braille", "⠿"), *((sign, sign) for sign in "*o+x#"))

# Cells from one tick to the next: room for its label, and some rows.
_X_TICK_CELLS = 12
_Y_TICK_CELLS = 3

Points = Sequence[tuple[float, float]]


class _Line(NamedTuple):
    """The line of a series, with one of plotext's markers."""

    marker: str
    points: Points


def plot_text(
    series: Sequence[tuple[str, Sequence[Bin]]],
    width: int,
    height: int,
    *,
    title: str = "",
    x_label: str = "",
    log_y: bool = False,
) -> str:
    """A framed plot of several series (label and bins) as text of ``width`` × ``height`` cells,
    without colours; with nothing to draw, a sentence that says so.

    What cannot be drawn (not finite, or for ``log_y`` not above 0) is counted in the line above the
    plot, which begins with ``title``. plotext needs about 20 × 8 cells. All texts must be harmless.
    """
    kind: AxisKind = "log" if log_y else "linear"
    heading = [title]
    lines = []
    for number, (label, bins) in enumerate(series):
        marker, sign = _MARKERS[number % len(_MARKERS)]
        if len(series) == 1:
            sign = ""
        heading.append(" ".join(filter(None, (sign, label, _left_out(bins, kind)))))
        points = [(x, value) for x, value in _path(bins) if kind == "linear" or value > 0]
        if points:
            lines.append(_Line(marker, points))
    first_line = "  ".join(filter(None, heading))[: max(0, width)].rstrip()
    if not lines:
        return f"{first_line}\nnothing to plot".strip()
    body = _plot(lines, width, height - bool(first_line), x_label, kind)
    texts = [text.rstrip() for text in body.rstrip().split("\n")]
    if first_line:
        texts.insert(0, first_line)
    return "\n".join(texts)


def _left_out(bins: Sequence[Bin], kind: AxisKind) -> str:
    """How many points of a series cannot be drawn: ``(3 left out)``; nothing if all can be."""
    count = sum(one_bin.non_finite for one_bin in bins)
    if kind == "log":
        below = (one_bin for one_bin in bins if one_bin.high is not None and one_bin.high <= 0)
        count += sum(one_bin.points - one_bin.non_finite for one_bin in below)
    if count:
        return f"({count} left out)"
    return ""


def _path(bins: Iterable[Bin]) -> Iterable[tuple[float, float]]:
    """Points through the first, lowest, highest and last value of each bin."""
    for one_bin in bins:
        if one_bin.low is None or one_bin.high is None or one_bin.first is None or one_bin.last is None:
            continue
        yield one_bin.first_x, one_bin.first
        if one_bin.low != one_bin.high:
            middle = one_bin.first_x / 2 + one_bin.last_x / 2
            yield from ((middle, one_bin.low), (middle, one_bin.high), (one_bin.last_x, one_bin.last))


def _plot(lines: Sequence[_Line], width: int, height: int, x_label: str, kind: AxisKind) -> str:
    """The frame, with lines, ticks and the label of the x axis."""
    import plotext

    xs = [x for line in lines for x, _ in line.points]
    values = [value for line in lines for _, value in line.points]
    x_scale = value_scale(min(xs), max(xs))
    tight_scale = value_scale(min(values), max(values), kind)
    y_scale = value_scale(*round_outward(tight_scale.low, tight_scale.high, kind), kind)
    # One figure serves the whole process, and by default it is no larger than the terminal.
    figure: Any = plotext.figure
    plotext.terminal.limit(False, False)
    figure.clear()
    try:
        figure.theme("colorless")
        figure.plot_size(width, height)
        for line in lines:
            across = _places(x_scale, (x for x, _ in line.points))
            up = _places(y_scale, (value for _, value in line.points))
            figure.draw(figure.signal(across, up, marker=line.marker).lines())
        # plotext's own logarithm fails on a constant, and its labels have an exponent in every place.
        y_ticks = log_ticks if kind == "log" else linear_ticks
        _set_ticks(figure, "x", x_scale, linear_ticks(x_scale.low, x_scale.high, max(2, width // _X_TICK_CELLS)))
        _set_ticks(figure, "y", y_scale, y_ticks(y_scale.low, y_scale.high, max(2, height // _Y_TICK_CELLS)))
        if x_label:
            figure.label(x_label, "x")
        return str(figure.build().string(True))
    finally:
        figure.clear()


def _set_ticks(figure: Any, axis: str, scale: Scale, ticks: Sequence[float]) -> None:
    ruler = figure.ruler(axis)
    ruler.lim(0.0, 1.0)
    ruler.ticks(_places(scale, ticks), tick_labels(ticks))


def _places(scale: Scale, numbers: Iterable[float]) -> list[float]:
    """Numbers as places between the ends of a scale, 0 and 1: plotext's library aborts the process if differences of
    values overflow."""
    return [min(1.0, max(0.0, scale.place(number) or 0.0)) for number in numbers]
