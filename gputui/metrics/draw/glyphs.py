"""The characters of charts and bars. Where a terminal cannot show them, `gputui.metrics.draw.plain` replaces them."""

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
