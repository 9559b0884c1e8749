"""Larger one-off plots with plotext, for files and the command line.

plotext is imported when a plot is asked for: it takes a tenth of a second and 8 MB. It gets few and finite points only,
because its time grows with every point and infinities raise.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from gputui.metrics.draw.axes import AxisKind, round_outward, value_scale
from gputui.metrics.draw.envelope import Bin
from gputui.metrics.draw.ticks import linear_ticks, log_ticks, tick_labels

_MARKERS: Final = ("braille", "*", "o", "+", "x", "#")
_SHOWN_MARKERS: Final = ("⠿", "*", "o", "+", "x", "#")


def plot_text(
    series: Sequence[tuple[str, Sequence[Bin]]],
    width: int,
    height: int,
    *,
    title: str = "",
    x_label: str = "",
    log_y: bool = False,
) -> str:
    """A framed plot of several series as text without colours.

    Args:
        series: pairs of a label and a reduced series; twice as many bins as the width show all there is. What cannot be
            drawn (not finite, or for `log_y` not above 0) is left out and, as far as bins tell, counted in the line
            above the plot.
        width, height: size in cells, of the whole text; plotext needs about 20 × 8 for something readable.
        title: first words of the line above the plot. Like labels, it must be harmless text.
        x_label: name of the x axis.
        log_y: logarithmic value axis.

    Returns:
        Lines of at most `width` characters joined by newlines. With nothing to draw, a sentence that says so.
    """
    heading = [title] if title else []
    curves: list[tuple[str, list[tuple[float, float]]]] = []
    for number, (label, bins) in enumerate(series):
        marker = number % len(_MARKERS)
        path = [(x, value) for x, value in _path(bins) if not log_y or value > 0]
        words = [_SHOWN_MARKERS[marker], label] if len(series) > 1 else [label]
        left_out = sum(each.non_finite for each in bins)
        if log_y:
            below = (each for each in bins if each.high is not None and each.high <= 0)
            left_out += sum(each.points - each.non_finite for each in below)
        if left_out:
            words.append(f"({left_out} left out)")
        heading.append(" ".join(filter(None, words)))
        if path:
            curves.append((_MARKERS[marker], path))
    first_line = "  ".join(filter(None, heading))[: max(0, width)].rstrip()
    if not curves:
        return f"{first_line}\nnothing to plot".strip()
    body = _plotext(curves, width, height - bool(first_line), x_label, log_y)
    lines = [line.rstrip() for line in body.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return "\n".join([first_line, *lines] if first_line else lines)


def _path(bins: Iterable[Bin]) -> Iterable[tuple[float, float]]:
    """Points through the first, lowest, highest and last value of each bin."""
    for each in bins:
        if each.low is None or each.high is None or each.first is None or each.last is None:
            continue
        if each.low == each.high:
            yield each.first_x, each.first
            continue
        middle = each.first_x / 2 + each.last_x / 2
        yield each.first_x, each.first
        yield middle, each.low
        yield middle, each.high
        yield each.last_x, each.last


def _ends(values: Iterable[float]) -> tuple[float, float]:
    known = list(values)
    return min(known), max(known)


def _axis_value(value: float, log_y: bool) -> float:
    return math.log10(value) if log_y else value


def _unit(low: float, high: float) -> Callable[[float], float]:
    """A map from low … high to 0 … 1. plotext's library aborts the process if differences of values overflow, so it
    gets only these."""
    extent = high / 2 - low / 2

    def place(value: float) -> float:
        return min(1.0, max(0.0, (value / 2 - low / 2) / extent)) if extent > 0 else 0.5

    return place


def _plotext(
    curves: Sequence[tuple[str, Sequence[tuple[float, float]]]], width: int, height: int, x_label: str, log_y: bool
) -> str:
    import plotext

    # One figure serves the whole process, and by default it is no larger than the terminal.
    figure: Any = plotext.figure
    plotext.terminal.limit(False, False)
    figure.clear()
    try:
        figure.theme("colorless")
        figure.plot_size(width, height)
        kind: AxisKind = "log" if log_y else "linear"
        x_scale = value_scale(*_ends(x for _, path in curves for x, _ in path))
        y_scale = value_scale(*_ends(value for _, path in curves for _, value in path), kind)
        low, high = round_outward(y_scale.low, y_scale.high, kind)
        x_ticks = linear_ticks(x_scale.low, x_scale.high, max(2, width // 12))
        y_ticks = (log_ticks if log_y else linear_ticks)(low, high, max(2, height // 3))
        across = _unit(x_scale.low, x_scale.high)
        bottom, top = _axis_value(low, log_y), _axis_value(high, log_y)
        up = _unit(bottom, top)
        for marker, path in curves:
            heights = [up(_axis_value(value, log_y)) for _, value in path]
            figure.draw(figure.signal([across(x) for x, _ in path], heights, marker=marker).lines())
        # plotext's own logarithm fails on a constant, and its labels have an exponent in every place.
        x_ruler, y_ruler = figure.ruler("x"), figure.ruler("y")
        x_ruler.lim(0.0, 1.0)
        x_ruler.ticks([across(tick) for tick in x_ticks], tick_labels(x_ticks))
        y_ruler.lim(0.0, 1.0)
        y_ruler.ticks([up(_axis_value(tick, log_y)) for tick in y_ticks], tick_labels(y_ticks))
        if x_label:
            figure.label(x_label, "x")
        return str(figure.build().string(True))
    finally:
        figure.clear()
