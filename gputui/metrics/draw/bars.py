"""Horizontal bars and sparklines as one line of text."""

import math
from collections.abc import Sequence

from gputui.metrics.draw import glyphs


def bar(fraction: float | None, width: int) -> str:
    """A bar filled to `fraction` (0 to 1, cut off beyond), padded with blanks to `width` cells.

    It is as fine as an eighth of a cell. Anything above 0 shows, and only a full 1 fills the last cell to its end.
    Unknown and NaN are blank: no bar claims an unknown value.
    """
    if width < 1 or fraction is None or math.isnan(fraction) or fraction <= 0:
        return " " * max(0, width)
    parts = len(glyphs.BAR)
    total = width * parts
    filled = total if fraction >= 1 else min(max(1, round(fraction * total)), total - 1)
    whole, rest = divmod(filled, parts)
    text = glyphs.BAR[-1] * whole + (glyphs.BAR[rest - 1] if rest else "")
    return text + " " * (width - len(text))


def sparkline(
    values: Sequence[float | None],
    width: int,
    low: float | None = None,
    high: float | None = None,
) -> str:
    """The newest `width` values as one cell each, padded with blanks on the left.

    Args:
        values: oldest first; `None` leaves a gap, NaN and infinities show as their signs.
        width: cells.
        low, high: values of the lowest and the highest cell; by default those of what is shown. Values beyond them
            show as lowest or highest.
    """
    if width < 1:
        return ""
    shown = list(values[-width:])
    finite = [value for value in shown if value is not None and math.isfinite(value)]
    start = min(finite, default=0.0) if low is None else low
    end = max(finite, default=0.0) if high is None else high
    cells = "".join(_spark_cell(value, start, end) for value in shown)
    return " " * (width - len(cells)) + cells


def _spark_cell(value: float | None, low: float, high: float) -> str:
    if value is None:
        return " "
    if not math.isfinite(value):
        return glyphs.NAN if math.isnan(value) else glyphs.ABOVE if value > 0 else glyphs.BELOW
    levels = glyphs.SPARK
    half_span = high / 2 - low / 2
    if not half_span > 0:
        return levels[0] if value <= low else levels[-1]
    place = min(max((value / 2 - low / 2) / half_span, 0.0), 1.0)
    return levels[min(int(place * len(levels)), len(levels) - 1)]
