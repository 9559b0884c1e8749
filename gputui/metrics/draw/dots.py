"""A curve as braille dots.

A layer holds one integer per column of dots, bit r for the dot in row r from the top: a vertical stroke of any length
is one operation.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

from gputui.metrics.draw.glyphs import DOTS_DOWN


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
