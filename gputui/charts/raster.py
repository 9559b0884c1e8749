"""Curves as dots, dots as characters.

A layer holds one integer per column of dots, bit r for the dot in row r from the top: a vertical stroke of any
length is one operation.
"""

from collections.abc import Callable, Sequence

from gputui.charts.axes import Scale
from gputui.charts.envelope import Bin
from gputui.charts.glyphs import Glyphs

Span = tuple[str, str]
"""A piece of text and the key of its style."""

BAD_STYLE = "bad"
"""Style key of the signs that stand for values without a place: NaN, infinities, what a log axis cannot hold."""

CURSOR_STYLE = "cursor"
"""Style key of the line that a person moves over a chart."""


SHAPE_APART = 24
"""Cells from one sign of a curve's shape to the next."""


class Layer:
    """The dots of one curve. A shadow shows only in cells that no other curve goes through."""

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


class Canvas:
    """A plotting area of `columns` × `rows` cells."""

    def __init__(self, columns: int, rows: int, glyphs: Glyphs) -> None:
        self.width = columns
        self.rows = rows
        self.glyphs = glyphs
        self._across = columns * glyphs.dots_across
        self._down = rows * glyphs.dots_down
        self._layers: list[Layer] = []
        self._signs: dict[tuple[int, int], Span] = {}
        self._shapes: dict[tuple[int, int], Span] = {}
        self._shapes_of: list[str] = []
        self._markers: dict[int, str] = {}
        self._cursor: int | None = None

    def column(self, x: float, scale: Scale) -> int | None:
        """The cell column of `x`, or `None` when it lies outside."""
        place = scale.place(x)
        if place is None or not 0 <= place <= 1 or self.width < 1:
            return None
        return min(int(place * self.width), self.width - 1)

    def row(self, value: float, scale: Scale) -> int | None:
        """The cell row of `value`, from the top, or `None` when it lies outside."""
        place = scale.place(value)
        if place is None or not 0 <= place <= 1 or self.rows < 1:
            return None
        return min(self._dot_row(place), self._down - 1) // self.glyphs.dots_down

    def mark(self, column: int, style: str) -> None:
        """A vertical marker line behind the curves."""
        self._markers[column] = style

    def point(self, column: int) -> None:
        """A vertical line that a person moves; a curve that it meets is drawn in its style there."""
        self._cursor = column

    def draw(
        self,
        bins: Sequence[Bin],
        x_scale: Scale,
        y_scale: Scale,
        style: str,
        *,
        is_shadow: bool = False,
        is_strong: bool = False,
        area: str = "",
        shape: str = "",
    ) -> None:
        """Draw a curve above those drawn before: every bin from its low to its high, bins joined unless broken.

        Strong: two dots thick. `area` is the style of what lies below it; `shape` a sign that stands along it.
        """
        if not self.width or not self.rows:
            return
        layer = Layer(self._across, self._down, style, is_shadow=is_shadow, area=area)
        self._layers.append(layer)
        self._trace(layer, bins, x_scale, y_scale)
        if is_strong:
            # The lowest dots grow upwards, the others down.
            whole, lowest = (1 << self._down) - 1, 1 << (self._down - 1)
            layer.columns = [(bits | bits << 1 | (bits & lowest) >> 1) & whole for bits in layer.columns]
        if shape:
            number = len(self._shapes_of)
            self._shapes_of.append(shape)
            first = SHAPE_APART * (number % 3) // 3 + 3
            for cell in range(first, self.width, SHAPE_APART):
                bits = layer.columns[cell * self.glyphs.dots_across]
                if bits:
                    row = ((bits & -bits).bit_length() - 1) // self.glyphs.dots_down
                    self._shapes[cell, row] = (shape, style)

    def _trace(self, layer: Layer, bins: Sequence[Bin], x_scale: Scale, y_scale: Scale) -> None:
        place_x, place_y = x_scale.place, y_scale.place
        across, last_column = self._across, self._across - 1
        before: tuple[int, int] | None = None
        first_row: int | None
        last_row: int | None
        for each in bins:
            place = place_x(each.first_x / 2 + each.last_x / 2)
            if place is None or not 0 <= place <= 1:
                before = None
                continue
            column = min(int(place * across), last_column)
            if each.nan or each.positive_infinite or each.negative_infinite:
                self._sign_non_finite(each, column)
                # What stands beside a value that is no number is not its neighbour.
                before = None
            if each.gap_before:
                before = None
            if each.low is None or each.high is None or each.first is None or each.last is None:
                continue
            if each.low == each.high:
                place = place_y(each.low)
                if place is None:
                    self._sign(column, self.rows - 1, self.glyphs.below)
                    before = None
                    continue
                first_row = last_row = self._dot_row(place)
                layer.stroke(column, first_row, first_row)
            else:
                low, high = place_y(each.low), place_y(each.high)
                if low is None:
                    self._sign(column, self.rows - 1, self.glyphs.below)
                if high is None:
                    before = None
                    continue
                layer.stroke(column, self._dot_row(high), self._down - 1 if low is None else self._dot_row(low))
                first, last = place_y(each.first), place_y(each.last)
                first_row = None if first is None else self._dot_row(first)
                last_row = None if last is None else self._dot_row(last)
            if before is not None and first_row is not None:
                layer.join(before[0], before[1], column, first_row)
            before = None if last_row is None or each.non_finite else (column, last_row)

    def lines(self) -> list[list[Span]]:
        """The rows of the area, each in as few pieces as its styles allow, exactly `width` cells wide."""
        return [self._line(row) for row in range(self.rows)]

    def _dot_row(self, place: float) -> int:
        """The dot row, from the top, of a place on the value axis; outside the area for one beyond its ends."""
        if 0 <= place <= 1:
            return int((1 - place) * (self._down - 1) + 0.5)
        # Far outside is as good as just outside, and stays within what an integer row needs.
        if place < 0:
            return self._down + int(min(-place, 8.0) * self._down)
        return -1 - int(min(place - 1, 8.0) * self._down)

    def _sign(self, column: int, row: int, sign: str) -> None:
        self._signs[column // self.glyphs.dots_across, row] = (sign, BAD_STYLE)

    def _sign_non_finite(self, each: Bin, column: int) -> None:
        if each.positive_infinite:
            self._sign(column, 0, self.glyphs.above)
        if each.negative_infinite:
            self._sign(column, self.rows - 1, self.glyphs.below)
        if each.nan:
            row = self.rows // 2 if each.positive_infinite or each.negative_infinite else self.rows - 1
            self._sign(column, row, self.glyphs.nan)

    def _masks(self, columns: Sequence[int], row: int) -> list[int]:
        down = self.glyphs.dots_down
        shift, full = row * down, (1 << down) - 1
        if self.glyphs.dots_across == 1:
            return [bits >> shift & full for bits in columns]
        return [
            (left >> shift & full) << down | right >> shift & full
            for left, right in zip(columns[0::2], columns[1::2], strict=True)
        ]

    def _line(self, row: int) -> list[Span]:
        table = self.glyphs.cells
        layers = self._layers
        masks = [self._masks(layer.columns, row) for layer in layers]
        extras = (
            self._markers
            or self._cursor is not None
            or any(sign_row == row for _, sign_row in (*self._signs, *self._shapes))
            or any(layer.area for layer in layers)
        )
        if len(layers) == 1 and not extras:
            return [("".join(map(table.__getitem__, masks[0])), layers[0].style)]
        styles = [""] * self.width
        solid = [(layer, mask) for layer, mask in zip(layers, masks, strict=True) if not layer.is_shadow]
        for layer, layer_masks in solid:
            for column, mask in enumerate(layer_masks):
                if mask:
                    styles[column] = layer.style
        chars = [table[merged] for merged in _merged([mask for _, mask in solid], self.width)]
        for layer, layer_masks in zip(layers, masks, strict=True):
            if layer.area:
                # Of a dot in this row or above, the cell lies below the curve.
                above = (1 << (row + 1) * self.glyphs.dots_down) - 1
                for column, bits in enumerate(layer.columns[:: self.glyphs.dots_across]):
                    if bits & above and not styles[column]:
                        chars[column], styles[column] = self.glyphs.area, layer.area
            if layer.is_shadow:
                for column, mask in enumerate(layer_masks):
                    if mask and not styles[column]:
                        chars[column], styles[column] = table[mask], layer.style
        for (column, sign_row), (sign, style) in self._shapes.items():
            if sign_row == row:
                chars[column], styles[column] = sign, style
        for column, style in self._markers.items():
            if chars[column] in (" ", self.glyphs.area):
                chars[column], styles[column] = self.glyphs.marker, style
        if self._cursor is not None:
            blank = chars[self._cursor] in (" ", self.glyphs.marker, self.glyphs.area)
            chars[self._cursor] = self.glyphs.vertical if blank else chars[self._cursor]
            styles[self._cursor] = CURSOR_STYLE
        for (column, sign_row), (sign, style) in self._signs.items():
            if sign_row == row:
                chars[column], styles[column] = sign, style
        return spans(chars, styles)


def _merged(masks: Sequence[Sequence[int]], width: int) -> Sequence[int]:
    """The dots of all layers together."""
    if not masks:
        return [0] * width
    if len(masks) == 1:
        return masks[0]
    merge: Callable[[int, int], int] = int.__or__
    merged = masks[0]
    for other in masks[1:]:
        merged = list(map(merge, merged, other))
    return merged


def spans(chars: Sequence[str], styles: Sequence[str]) -> list[Span]:
    """Characters and their styles as pieces; a blank takes the style before it, so that it starts no piece."""
    result: list[Span] = []
    start = 0
    style = ""
    for index, (char, own) in enumerate(zip(chars, styles, strict=True)):
        if own == style or char == " ":
            continue
        if style:
            result.append(("".join(chars[start:index]), style))
            start = index
        style = own
    if chars:
        result.append(("".join(chars[start:]), style))
    return result
