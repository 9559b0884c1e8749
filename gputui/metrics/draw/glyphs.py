"""The characters of charts and bars, and their likeness in ASCII."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

DOTS_ACROSS: Final = 2
DOTS_DOWN: Final = 4
"""Dots of a cell of a curve."""


def _braille() -> tuple[str, ...]:
    left, right = (0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80)
    cells = []
    for mask in range(256):
        dots = sum(bit for row, bit in enumerate(left) if mask >> (4 + row) & 1)
        dots += sum(bit for row, bit in enumerate(right) if mask >> row & 1)
        cells.append(chr(0x2800 + dots) if dots else " ")
    return tuple(cells)


CELLS: Final = _braille()
"""The character of each mask of dots: the left column in the upper four bits, each column's top dot
in its lowest."""

VERTICAL: Final = "│"
HORIZONTAL: Final = "─"
CORNER: Final = "└"
VALUE_TICK: Final = "┤"
X_TICK: Final = "┬"
MARKER: Final = "┊"
NOTCH: Final = "┴"
"""A marker without a line, on the x axis."""

AREA: Final = "⢕"
"""A cell below a curve."""

NAN: Final = "×"
ABOVE: Final = "↑"
BELOW: Final = "↓"
"""Values that the value axis cannot hold."""

BAR: Final = "▏▎▍▌▋▊▉█"
"""Partly filled cells of a bar, from the least to the full one."""

SPARK: Final = "▁▂▃▄▅▆▇█"
"""Cells of a sparkline, from the lowest to the highest."""

QUARTERS: Final = (" ", "▝", "▗", "▐", "▘", "▀", "▚", "▜", "▖", "▞", "▄", "▟", "▌", "▛", "▙", "█")
"""Quarter blocks by mask: the right column in bits 0 (top) and 1, the left column in bits 2 and 3.
"""


def bar(fraction: float | None, width: int) -> str:
    """A bar filled to `fraction` (0 to 1, cut off beyond) by eighths of a cell, padded with blanks
    to `width` cells. Anything above 0 shows, and only a full 1 fills the last cell. Unknown and NaN
    are blank."""
    if width < 1 or fraction is None or math.isnan(fraction) or fraction <= 0:
        return " " * max(0, width)
    parts = len(BAR)
    total = width * parts
    filled = total if fraction >= 1 else min(max(1, round(fraction * total)), total - 1)
    whole, rest = divmod(filled, parts)
    text = BAR[-1] * whole + (BAR[rest - 1] if rest else "")
    return text + " " * (width - len(text))


def sparkline(values: Sequence[float | None], width: int, low: float | None = None, high: float | None = None) -> str:
    """The newest `width` values as one cell each, padded with blanks on the left. `None` leaves a
    gap, NaN and infinities show as their signs. `low` and `high` are by default those of what is
    shown."""
    shown = list(values[-width:]) if width > 0 else []
    finite = [value for value in shown if value is not None and math.isfinite(value)]
    start = min(finite, default=0.0) if low is None else low
    end = max(finite, default=0.0) if high is None else high
    half_span = end / 2 - start / 2
    cells = []
    for value in shown:
        if value is None:
            cells.append(" ")
        elif not math.isfinite(value):
            cells.append(NAN if math.isnan(value) else ABOVE if value > 0 else BELOW)
        elif not half_span > 0:
            cells.append(SPARK[0] if value <= start else SPARK[-1])
        else:
            place = min(max((value / 2 - start / 2) / half_span, 0.0), 1.0)
            cells.append(SPARK[min(int(place * len(SPARK)), len(SPARK) - 1)])
    return " " * (width - len(cells)) + "".join(cells)
