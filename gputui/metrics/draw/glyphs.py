"""The characters of charts and bars, and their likeness in ASCII."""

from __future__ import annotations

import math
import operator
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
"""The character of each mask of dots: the left column in the upper four bits, each column's top dot in its lowest."""

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
"""Quarter blocks by mask: the right column in bits 0 (top) and 1, the left column in bits 2 and 3."""


class Layer:
    """The dots of one curve.

    Attributes:
        style: style key of the curve.
        is_shadow: whether the curve shows only in cells that no other curve goes through.
        area: style key of the cells below the curve, empty for none.
        down: rows of dots.
        columns: the dots of each column, from left to right.
    """

    def __init__(self, across: int, down: int, style: str, *, is_shadow: bool = False, area: str = "") -> None:
        self.style = style
        self.is_shadow = is_shadow
        self.area = area
        self.down = down
        self.columns = [0] * across

    def stroke(self, column: int, row: int, other_row: int) -> None:
        """Set the dots of a column between two rows, both included; rows outside are cut off."""
        top = row if row < other_row else other_row
        bottom = row + other_row - top
        if top < 0:
            top = 0
        if bottom >= self.down:
            bottom = self.down - 1
        if top <= bottom:
            self.columns[column] |= ((2 << (bottom - top)) - 1) << top

    def join(self, column: int, row: int, other_column: int, other_row: int) -> None:
        """Connect two places; the first column is assumed to be drawn and lies left of, or at, the other."""
        distance = other_column - column
        if distance <= 1:
            nearer = row + (other_row > row) - (other_row < row) if distance else row
            self.stroke(other_column, nearer, other_row)
            return
        slope = (other_row - row) / distance
        previous = row
        for step in range(1, distance + 1):
            here = round(row + slope * step)
            start = previous + 1 if here > previous else previous - 1 if here < previous else here
            self.stroke(column + step, start, here)
            previous = here

    def thicken(self) -> None:
        """Make every stroke one dot longer, downwards; dots of the lowest row grow upwards."""
        whole, lowest = (1 << self.down) - 1, 1 << (self.down - 1)
        self.columns = [(bits | bits << 1 | (bits & lowest) >> 1) & whole for bits in self.columns]

    def by_cell(self) -> list[int]:
        """The dots of each column of cells in one integer: its two columns of dots laid over each other."""
        return [left | right for left, right in zip(self.columns[0::2], self.columns[1::2], strict=True)]

    def masks(self, row: int) -> list[int]:
        """The dots of each cell in a row of cells, as `glyphs.CELLS` is indexed."""
        shift, full = row * DOTS_DOWN, (1 << DOTS_DOWN) - 1
        return [
            (left >> shift & full) << DOTS_DOWN | right >> shift & full
            for left, right in zip(self.columns[0::2], self.columns[1::2], strict=True)
        ]


def merged(masks: Sequence[Sequence[int]], width: int) -> Sequence[int]:
    """The dots of several layers together, for a row of `width` cells."""
    if not masks:
        return [0] * width
    result = masks[0]
    for other in masks[1:]:
        result = list(map(operator.or_, result, other))
    return result


def top_row(bits: int) -> int:
    """The row of the highest dot; `bits` has at least one."""
    return (bits & -bits).bit_length() - 1


def bar(fraction: float | None, width: int) -> str:
    """A bar filled to `fraction` (0 to 1, cut off beyond), padded with blanks to `width` cells.

    It is as fine as an eighth of a cell. Anything above 0 shows, and only a full 1 fills the last cell to its end.
    Unknown and NaN are blank: no bar claims an unknown value.
    """
    if width < 1 or fraction is None or math.isnan(fraction) or fraction <= 0:
        return " " * max(0, width)
    parts = len(BAR)
    total = width * parts
    filled = total if fraction >= 1 else min(max(1, round(fraction * total)), total - 1)
    whole, rest = divmod(filled, parts)
    text = BAR[-1] * whole + (BAR[rest - 1] if rest else "")
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
        return NAN if math.isnan(value) else ABOVE if value > 0 else BELOW
    levels = SPARK
    half_span = high / 2 - low / 2
    if not half_span > 0:
        return levels[0] if value <= low else levels[-1]
    place = min(max((value / 2 - low / 2) / half_span, 0.0), 1.0)
    return levels[min(int(place * len(levels)), len(levels) - 1)]
