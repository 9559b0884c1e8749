"""Curves as characters: dots become cells; markers are drawn below the curves, signs and cursor
above."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gputui.metrics.draw import glyphs
from gputui.metrics.draw.bins import Bin, without_noise
from gputui.metrics.draw.glyphs import DOTS_ACROSS, DOTS_DOWN
from gputui.metrics.draw.parts import Span
from gputui.metrics.draw.scales import Scale

if TYPE_CHECKING:
    from gputui.metrics.draw.parts import Curve

BAD_STYLE = "bad"
"""Style key of the signs of values without a place: NaN, infinities, and on a log axis values up to
0."""

CURSOR_STYLE = "cursor"
"""Style key of the crosshair."""


class Layer:
    """The dots of one curve, in ``down`` rows: an integer per column of dots, whose lowest bit is
    the top dot."""

    def __init__(self, curve: Curve, across: int, down: int) -> None:
        self.curve = curve
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
        """Connect two places; the first column is assumed to be drawn and lies left of, or at, the
        other."""
        distance = other_column - column
        if distance <= 1:
            nearer = row
            if distance:
                nearer += (other_row > row) - (other_row < row)
            self.stroke(other_column, nearer, other_row)
            return
        slope = (other_row - row) / distance
        previous = row
        for step in range(1, distance + 1):
            here = round(row + slope * step)
            start = previous + (here > previous) - (here < previous)
            self.stroke(column + step, start, here)
            previous = here

    def thicken(self) -> None:
        """Make every stroke one dot longer, downwards; dots of the lowest row grow upwards."""
        whole = (1 << self.down) - 1
        lowest = 1 << (self.down - 1)
        self.columns = [(bits | bits << 1 | (bits & lowest) >> 1) & whole for bits in self.columns]

    def masks(self, row: int) -> list[int]:
        """The dots of each cell in a row of cells, as `glyphs.CELLS` is indexed."""
        shift = row * DOTS_DOWN
        full = (1 << DOTS_DOWN) - 1
        return [
            (left_dots >> shift & full) << DOTS_DOWN | right_dots >> shift & full
            for left_dots, right_dots in zip(self.columns[0::2], self.columns[1::2], strict=True)
        ]


class Canvas:
    """A plotting area of `columns` × `rows` cells."""

    def __init__(self, columns: int, rows: int) -> None:
        self.width = columns
        self.rows = rows
        self._across = columns * DOTS_ACROSS
        self._down = rows * DOTS_DOWN
        self._layers: list[Layer] = []
        # Signs by column and row of their cell: of bad values, and of curves' ends.
        self._signs: dict[tuple[int, int], Span] = {}
        self._shapes: dict[tuple[int, int], Span] = {}
        self._markers: dict[int, str] = {}
        self._cursor: int | None = None

    def column(self, x: float, scale: Scale) -> int | None:
        """The cell column of `x`, or `None` when it lies outside."""
        column = self._dot_column(x, scale)
        if column is None:
            return None
        return column // DOTS_ACROSS

    def row(self, value: float, scale: Scale) -> int | None:
        """The cell row of `value`, from the top, or `None` when it lies outside."""
        place = scale.place(value)
        if place is None or not 0 <= place <= 1 or self.rows < 1:
            return None
        return self._dot_row(place) // DOTS_DOWN

    def mark(self, column: int, style: str) -> None:
        """Draw a vertical marker line behind the curves, in a column from 0 to `width` - 1."""
        self._markers[column] = style

    def point(self, column: int) -> None:
        """Draw the crosshair in a column from 0 to `width` - 1; it gives its style to curves that
        it meets."""
        self._cursor = column

    def draw(self, curve: Curve, x_scale: Scale, y_scale: Scale) -> None:
        """Draw a curve, whose bins are in order of x, above those drawn before."""
        if not self.width or not self.rows:
            return
        layer = Layer(curve, self._across, self._down)
        self._layers.append(layer)
        self._trace(layer, x_scale, y_scale)
        if curve.is_strong:
            layer.thicken()
        if curve.shape:
            # Of curves that end in the same cell, the later one's sign is further left.
            for column in range(self._across - 1, -1, -1):
                bits = layer.columns[column]
                place = (column // DOTS_ACROSS, ((bits & -bits).bit_length() - 1) // DOTS_DOWN)
                if bits and place not in self._shapes:
                    self._shapes[place] = (curve.shape, curve.style)
                    break

    def lines(self) -> list[list[Span]]:
        """The rows of the area, each in as few pieces as its styles allow, exactly `width` cells
        wide."""
        return [self._line(row) for row in range(self.rows)]

    # --- from values to dots

    def _trace(self, layer: Layer, x_scale: Scale, y_scale: Scale) -> None:
        """Draw a curve's bins and the lines between them."""
        before: tuple[int, int] | None = None  # where the last bin ended, None where nothing is joined to it
        bins = layer.curve.bins
        if not layer.curve.is_shadow:
            bins = without_noise(bins)
        for one_bin in bins:
            column = self._dot_column(one_bin.first_x / 2 + one_bin.last_x / 2, x_scale)
            if column is None:
                before = None
                continue
            # A value beside NaN is not its neighbour.
            is_bad = bool(one_bin.nan or one_bin.positive_infinite or one_bin.negative_infinite)
            if is_bad:
                self._sign_non_finite(one_bin, column)
            if is_bad or one_bin.gap_before:
                before = None
            ends = self._spread(layer, one_bin, column, y_scale)
            if ends is None:
                continue
            first_row, last_row = ends
            if before is not None and first_row is not None:
                layer.join(before[0], before[1], column, first_row)
            before = None if last_row is None or is_bad else (column, last_row)

    def _spread(self, layer: Layer, one_bin: Bin, column: int, y_scale: Scale) -> tuple[int | None, int | None] | None:
        """Draw a bin from its low to its high, or the sign of what the axis cannot hold. Returns
        the dot rows of its first and its last value, `None` where it cannot hold it; `None` without
        a finite value."""
        if one_bin.low is None or one_bin.high is None or one_bin.first is None or one_bin.last is None:
            return None
        low = y_scale.place(one_bin.low)
        if low is None:
            self._sign(column, self.rows - 1, glyphs.BELOW)
        high = low if one_bin.high == one_bin.low else y_scale.place(one_bin.high)
        if high is None:
            return None, None
        top = self._dot_row(high)
        bottom = self._down - 1
        if low is not None:
            bottom = self._dot_row(low)
        layer.stroke(column, top, bottom)
        if one_bin.high == one_bin.low:
            return top, top
        first = y_scale.place(one_bin.first)
        last = y_scale.place(one_bin.last)
        first_row = None if first is None else self._dot_row(first)
        last_row = None if last is None else self._dot_row(last)
        return first_row, last_row

    def _dot_column(self, x: float, scale: Scale) -> int | None:
        """The dot column of `x`, or `None` when it lies outside."""
        place = scale.place(x)
        if place is None or not 0 <= place <= 1 or self.width < 1:
            return None
        return min(int(place * self._across), self._across - 1)

    def _dot_row(self, place: float) -> int:
        """The dot row, from the top, of a place on the value axis; outside the area for one beyond
        its ends."""
        if 0 <= place <= 1:
            return int((1 - place) * (self._down - 1) + 0.5)
        # Far outside is as good as just outside, and stays within what an integer row needs.
        if place < 0:
            return self._down + int(min(-place, 8.0) * self._down)
        return -1 - int(min(place - 1, 8.0) * self._down)

    def _sign(self, column: int, row: int, sign: str) -> None:
        """Put a sign of a bad value into the cell of a dot column."""
        self._signs[column // DOTS_ACROSS, row] = (sign, BAD_STYLE)

    def _sign_non_finite(self, one_bin: Bin, column: int) -> None:
        """Put the signs of infinities at the top and bottom, that of NaN at the bottom or between
        infinities."""
        if one_bin.positive_infinite:
            self._sign(column, 0, glyphs.ABOVE)
        if one_bin.negative_infinite:
            self._sign(column, self.rows - 1, glyphs.BELOW)
        if one_bin.nan:
            row = self.rows // 2 if one_bin.positive_infinite or one_bin.negative_infinite else self.rows - 1
            self._sign(column, row, glyphs.NAN)

    # --- from dots to characters

    def _line(self, row: int) -> list[Span]:
        masks = [layer.masks(row) for layer in self._layers]
        signs = [(column, span) for (column, at), span in self._signs.items() if at == row]
        shapes = [(column, span) for (column, at), span in self._shapes.items() if at == row]
        is_plain = not (self._markers or signs or shapes or self._cursor is not None)
        if is_plain and len(masks) == 1:
            return [("".join(map(glyphs.CELLS.__getitem__, masks[0])), self._layers[0].curve.style)]
        chars, styles = self._curves(masks)
        for layer, layer_masks in zip(self._layers, masks, strict=True):
            if layer.curve.is_shadow:
                for column, mask in enumerate(layer_masks):
                    if mask and not styles[column]:
                        chars[column] = glyphs.CELLS[mask]
                        styles[column] = layer.curve.style
        for column, (shape, style) in shapes:
            chars[column] = shape
            styles[column] = style
        for column, style in self._markers.items():
            if chars[column] == " ":
                chars[column] = glyphs.MARKER
                styles[column] = style
        if self._cursor is not None:
            if chars[self._cursor] in (" ", glyphs.MARKER):
                chars[self._cursor] = glyphs.VERTICAL
            styles[self._cursor] = CURSOR_STYLE
        for column, (sign, style) in signs:
            chars[column] = sign
            styles[column] = style
        return spans(chars, styles)

    def _curves(self, masks: Sequence[Sequence[int]]) -> tuple[list[str], list[str]]:
        """The characters of a row and their styles, from all curves but shadows; a cell has the
        style of the last."""
        styles = [""] * self.width
        merged: Sequence[int] = [0] * self.width
        for layer, layer_masks in zip(self._layers, masks, strict=True):
            if not layer.curve.is_shadow:
                merged = list(map(operator.or_, merged, layer_masks))
                for column, mask in enumerate(layer_masks):
                    if mask:
                        styles[column] = layer.curve.style
        return [glyphs.CELLS[mask] for mask in merged], styles


def spans(chars: Sequence[str], styles: Sequence[str]) -> list[Span]:
    """Characters and their styles as pieces; a blank takes the style before it, so that it starts
    no piece."""
    result: list[Span] = []
    start = 0
    style: str | None = None  # of the piece from `start`, None before a visible character
    for index, (char, own_style) in enumerate(zip(chars, styles, strict=True)):
        if own_style == style or char == " ":
            continue
        if style is not None:
            result.append(("".join(chars[start:index]), style))
            start = index
        style = own_style
    if chars:
        result.append(("".join(chars[start:]), style or ""))
    return result
