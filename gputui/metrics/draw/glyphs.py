"""The characters of charts and bars, and their likeness in quarter blocks and ASCII."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final, Literal, cast

DOTS_ACROSS: Final = 2
DOTS_DOWN: Final = 4
"""Dots of a cell of a curve."""

VERTICAL: Final = "│"
HORIZONTAL: Final = "─"
CORNER: Final = "└"
VALUE_TICK: Final = "┤"
MARKER: Final = "┊"
NOTCH: Final = "┴"
"""A marker without a line, on the x axis."""

NAN: Final = "×"
ABOVE: Final = "↑"
BELOW: Final = "↓"
"""Values that the value axis cannot hold."""

BAR: Final = "━"
BAR_HALF: Final = "╸"
TRACK: Final = "─"
"""Cells of a bar: full, half full, and those up to its end. They are thin, so that bars below each other stay apart."""

SPARK: Final = "▁▂▃▄▅▆"
"""Cells of a sparkline, from the lowest to the highest; none is so high that it touches the row above."""

QUARTERS: Final = (" ", "▝", "▗", "▐", "▘", "▀", "▚", "▜", "▖", "▞", "▄", "▟", "▌", "▛", "▙", "█")
"""Quarter blocks by mask: the right column in bits 0 (top) and 1, the left column in bits 2 and 3.
"""

UNKNOWN: Final = "?"

_ASCII: Final = dict(
    zip(
        # frames, signs, arrows, letters and punctuation, blocks
        "─━╸┄┈╌═│┃║┆┊╎┌┐└┘├┤┬┴┼╭╮╰╯╞╡╪╔╗╚╝"
        "●◌◔◑◕○◐◉◆◇■□▪▫✓✔✗✘✂×▲△⚠▼▽▸▶►›»◂◀◄‹«▾▴⊘◈★☆✚✖"
        "↻↺↑↓←→↵⇧⇒⇐↔↕↗↘…–—−·•°µμ≤≥≈±∞½²³ΣσΔ‘’“”„ßæœøØłđ␛"
        "▁▂▃▄▅▆▇█▏▎▍▋▊▉░▒▓▝▗▐▘▀▚▜▖▞▟▌▛▙▔▕",
        "-==----|||:::++++++++++++++++++++"
        "*.o%=o%@&o#o#o++xx%x!!!vv>>>>><<<<<v^%+*o+x"
        '@@^v<><^><=|/\\~---.* uu<>~~8523Ssd\'\'"""saooOld^'
        "_.-=+*%#---==#.:%'.|''\\'.//|'\\'|",
        strict=True,
    )
)


def _braille() -> tuple[str, ...]:
    left_bits = (0x01, 0x02, 0x04, 0x40)
    right_bits = (0x08, 0x10, 0x20, 0x80)
    cells = []
    for mask in range(256):
        dots = sum(bit for row, bit in enumerate(left_bits) if mask >> (4 + row) & 1)
        dots += sum(bit for row, bit in enumerate(right_bits) if mask >> row & 1)
        cells.append(chr(0x2800 + dots))
    cells[0] = " "
    return tuple(cells)


CELLS: Final = _braille()
"""The character of each mask of dots: the left column in the upper four bits, each column's top dot
in its lowest."""


def bar(fraction: float | None, width: int) -> tuple[str, str]:
    """The filled part of a bar of `width` cells and the track behind the rest. `fraction` (0 to 1, cut off beyond) is
    rounded to half a cell; anything above 0 shows, and only a full 1 fills the last cell. Unknown and NaN are blank."""
    if width < 1 or fraction is None or math.isnan(fraction):
        return "", " " * max(0, width)
    halves = 0
    if fraction >= 1:
        halves = 2 * width
    elif fraction > 0:
        halves = min(max(1, round(fraction * 2 * width)), 2 * width - 1)
    filled = BAR * (halves // 2) + BAR_HALF * (halves % 2)
    return filled, TRACK * (width - len(filled))


def _sign(value: float) -> str:
    """The sign of a value that is not finite."""
    if math.isnan(value):
        return NAN
    if value > 0:
        return ABOVE
    return BELOW


def sparkline(values: Sequence[float | None], width: int, low: float | None = None, high: float | None = None) -> str:
    """The newest `width` values as one cell each, padded with blanks on the left. `None` leaves a
    gap, NaN and infinities show as their signs. `low` and `high` are by default those of what is
    shown."""
    newest = list(values[-width:]) if width > 0 else []
    finite = [value for value in newest if value is not None and math.isfinite(value)]
    start = min(finite, default=0.0) if low is None else low
    end = max(finite, default=0.0) if high is None else high
    half_span = end / 2 - start / 2
    cells = []
    for value in newest:
        if value is None:
            cells.append(" ")
        elif not math.isfinite(value):
            cells.append(_sign(value))
        elif not half_span > 0:
            spark = SPARK[0] if value <= start else SPARK[-1]
            cells.append(spark)
        else:
            place = min(max((value / 2 - start / 2) / half_span, 0.0), 1.0)
            cells.append(SPARK[min(int(place * len(SPARK)), len(SPARK) - 1)])
    return " " * (width - len(cells)) + "".join(cells)


# --- terminals and fonts that lack these characters

Characters = Literal["braille", "blocks", "ascii"]


def ascii_char(char: str) -> str:
    """One printable ASCII character for any cell's text, a question mark for the unlike."""
    if not char:
        return UNKNOWN
    first = char[0]
    if " " <= first <= "~":
        return first
    replacement = _ASCII.get(first)
    if replacement is not None:
        return replacement
    code = ord(first)
    if 0x2800 <= code <= 0x28FF:
        return _stroke(code - 0x2800)
    if 0x2400 <= code <= 0x2421:  # pictures of control characters
        return "^"
    base = unicodedata.normalize("NFKD", first)[:1]
    if " " <= base <= "~":
        return base
    if unicodedata.category(first) == "Zs":
        return " "
    return UNKNOWN


def block_char(char: str) -> str:
    """The cell's text with braille as quarter blocks, for fonts without braille."""
    if len(char) == 1 and "\u2800" <= char <= "\u28ff":
        dots = ord(char) - 0x2800
        left_half = (dots & 0x03 > 0) | (dots & 0x44 > 0) << 1
        right_half = (dots & 0x18 > 0) | (dots & 0xA0 > 0) << 1
        return QUARTERS[left_half << 2 | right_half]
    return char


def _stroke(dots: int) -> str:
    """The ASCII character whose ink lies nearest to that of a braille cell of these dots (bit n is
    dot n + 1)."""
    if not dots:
        return " "
    left_rows, right_rows = (
        [row for row, bit in enumerate(bits) if dots & bit] for bits in ((1, 2, 4, 0x40), (8, 0x10, 0x20, 0x80))
    )
    rows = sorted({*left_rows, *right_rows})
    if left_rows and right_rows:
        tilt = sum(left_rows) / len(left_rows) - sum(right_rows) / len(right_rows)
        if abs(tilt) >= 1.5 or (abs(tilt) >= 1 and len(rows) > 2):
            if tilt > 0:
                return "/"
            return "\\"
    if len(rows) >= 3:
        if rows != [0, 1, 3] and rows != [0, 2, 3]:
            return "|"
        return ":"
    if rows[-1] - rows[0] >= 2:
        return ":"
    place = sum(rows) / len(rows)
    if place < 1:
        return "'"
    if place < 2.5:
        return "-"
    return "."


def translator(characters: Characters) -> Callable[[Sequence[str]], Sequence[str]] | None:
    """Return what converts cells to a set of characters; None for braille. An empty cell, the
    second half of a wide character, becomes a separate ASCII character."""
    if characters == "braille":
        return None
    char_of = ascii_char if characters == "ascii" else block_char
    convert = lru_cache(4096)(char_of)
    return lambda cells: [convert(cell) for cell in cells]


def ascii_line(text: str) -> str:
    """A line of text in ASCII for printing: its width may change."""
    return "".join(ascii_char(char) for char in text if unicodedata.category(char) not in ("Mn", "Me", "Cf"))


def characters_for(choice: str, environ: Mapping[str, str]) -> Characters:
    """The characters to use: those chosen, or with ``auto`` those that the locale and the terminal
    can show; ``GPUTUI_ASCII=1`` asks for ASCII in any case. The fonts of the kernel's console hold
    no braille. Without a locale UTF-8 is taken for granted, as Python does (PEP 538)."""
    if environ.get("GPUTUI_ASCII", "0") not in ("", "0"):
        return "ascii"
    if choice in ("braille", "blocks", "ascii"):
        return cast("Characters", choice)
    locale = environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG") or "UTF-8"
    is_utf8 = "UTF-8" in locale.upper() or "UTF8" in locale.upper()
    if is_utf8 and environ.get("TERM") != "linux":
        return "braille"
    return "ascii"
