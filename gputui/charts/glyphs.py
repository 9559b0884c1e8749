"""The three sets of characters that charts and bars are drawn with: braille, blocks, plain ASCII."""

from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True)
class Glyphs:
    """One set of characters.

    A cell of a curve is `dots_across` × `dots_down` dots. `cells[mask]` draws it; the mask holds the columns from left
    to right, the leftmost in the highest bits, and each column's top dot in its lowest bit.
    """

    name: str
    dots_across: int
    dots_down: int
    cells: tuple[str, ...]
    vertical: str
    horizontal: str
    corner: str
    value_tick: str
    x_tick: str
    marker: str
    area: str
    """What lies below a curve."""
    note: str
    """A place on the x axis that needs no line."""
    nan: str
    above: str
    below: str
    bar: str
    """Partly filled cells of a bar from least to full."""
    spark: str
    """Heights of a sparkline's cells from lowest to highest."""
    ellipsis: str


def _braille() -> tuple[str, ...]:
    left, right = (0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80)
    cells = []
    for mask in range(256):
        dots = sum(bit for row, bit in enumerate(left) if mask >> (4 + row) & 1)
        dots += sum(bit for row, bit in enumerate(right) if mask >> row & 1)
        cells.append(chr(0x2800 + dots) if dots else " ")
    return tuple(cells)


BRAILLE: Final = Glyphs(
    name="braille",
    dots_across=2,
    dots_down=4,
    cells=_braille(),
    vertical="│",
    horizontal="─",
    corner="└",
    value_tick="┤",
    x_tick="┬",
    marker="┊",
    area="⢕",
    note="┴",
    nan="×",
    above="↑",
    below="↓",
    bar="▏▎▍▌▋▊▉█",
    spark="▁▂▃▄▅▆▇█",
    ellipsis="…",
)

BLOCK: Final = replace(
    BRAILLE,
    name="block",
    dots_across=2,
    dots_down=2,
    # Right column in bits 0 (top) and 1 (bottom), left column in bits 2 and 3.
    cells=(" ", "▝", "▗", "▐", "▘", "▀", "▚", "▜", "▖", "▞", "▄", "▟", "▌", "▛", "▙", "█"),
    area="░",
)

ASCII: Final = Glyphs(
    name="ascii",
    dots_across=1,
    dots_down=3,
    cells=(" ", "'", "-", "|", ".", ":", "|", "|"),
    vertical="|",
    horizontal="-",
    corner="+",
    value_tick="+",
    x_tick="+",
    marker="!",
    area=":",
    note="'",
    nan="x",
    above="^",
    below="v",
    bar="#",
    spark="_.-=*#",
    ellipsis="~",
)
