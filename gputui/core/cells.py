"""How many terminal cells a text takes, and cutting or padding text to a number of cells.

Widths are those that terminals agree on for text that went through `gputui.core.safe_text.clean`: combining marks
take none, East Asian wide characters and emoji two, everything else one.
"""

import unicodedata
from functools import lru_cache
from typing import Final

_PLAIN_RANGES: Final = (
    (0x20, 0x7E),  # ASCII
    (0xA0, 0xAC),
    (0xAE, 0x2FF),  # Latin; without U+00AD, the soft hyphen
    (0x370, 0x377),
    (0x37A, 0x37F),
    (0x384, 0x38A),
    (0x38C, 0x38C),
    (0x38E, 0x3A1),
    (0x3A3, 0x482),  # Greek and Cyrillic
    (0x1E00, 0x1EFF),  # Latin with two diacritics
    (0x2010, 0x2027),
    (0x2030, 0x205E),  # punctuation; without line separators and bidirectional controls
    (0x20A0, 0x20BF),  # currency
    (0x2190, 0x21FF),  # arrows
    (0x2200, 0x22FF),  # mathematics
    (0x2400, 0x2426),  # control pictures
    (0x2500, 0x25FC),  # box drawing, blocks, geometric shapes
    (0x2713, 0x2717),  # check marks and crosses
    (0x2800, 0x28FF),  # braille
)

PLAIN: Final = frozenset(chr(code) for first, last in _PLAIN_RANGES for code in range(first, last + 1))
"""Characters that every terminal draws exactly one cell wide and that change nothing around them."""


@lru_cache(8192)
def char_width(char: str) -> int:
    """Cells that one character takes: 0, 1 or 2."""
    if char in PLAIN:
        return 1
    if unicodedata.category(char) in ("Mn", "Me", "Mc", "Cc", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cell_width(text: str) -> int:
    """Cells that `text` takes on one line of a terminal."""
    if (text.isascii() and text.isprintable()) or PLAIN.issuperset(text):
        return len(text)
    return sum(map(char_width, text))


def clip(text: str, width: int, ellipsis: str = "…") -> str:
    """`text` cut to at most `width` cells; a cut text ends with `ellipsis` where that fits."""
    # A cell holds four characters at most (`clean` leaves three marks behind one): a long text need not be measured.
    if len(text) <= 4 * max(0, width) and cell_width(text) <= width:
        return text
    if width <= 0:
        return ""
    if width <= len(ellipsis):
        ellipsis = ""
    room = width - len(ellipsis)
    if PLAIN.issuperset(text):
        return text[:room] + ellipsis
    kept = ""
    used = 0
    for char in text:
        used += char_width(char)
        if used > room:
            break
        kept += char
    return kept + ellipsis


def clip_middle(text: str, width: int, ellipsis: str = "…") -> str:
    """`text` cut to at most `width` cells in its middle, for names whose ends tell them apart."""
    if len(text) <= 4 * max(0, width) and cell_width(text) <= width:
        return text
    room = width - len(ellipsis)
    if room < 2:
        return clip(text, width, ellipsis)
    behind = room // 2
    end, used = len(text), 0
    while end > 0 and used + (size := char_width(text[end - 1])) <= behind:
        end -= 1
        used += size
    while end < len(text) and not char_width(text[end]):
        end += 1
    return clip(text, room - used, "") + ellipsis + text[end:]


def fit(text: str, width: int, align: str = "<", ellipsis: str = "…") -> str:
    """`text` in exactly `width` cells: cut, or padded with spaces.

    Args:
        text: one line of harmless text.
        width: cells to fill.
        align: "<" puts the padding right, ">" left, "^" on both sides.
        ellipsis: what ends a cut text.
    """
    text = clip(text, width, ellipsis)
    space = max(0, width - cell_width(text))
    if align == ">":
        return " " * space + text
    if align == "^":
        return " " * (space // 2) + text + " " * (space - space // 2)
    return text + " " * space
