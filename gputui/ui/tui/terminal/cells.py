"""Text as terminal cells, without anything that could move the cursor or change neighbouring cells.

A cell is one character and at most a few combining marks. A wide character is a head and an empty second half. Cells
take exactly the width that Rich measures for the text, because the layout relies on it.
"""

import unicodedata
from collections.abc import Sequence
from functools import lru_cache

from rich.cells import get_character_cell_size, split_graphemes

from gputui.core.text import PLAIN, clean

_MOST_CACHED_LENGTH = 256

# Wide characters whose width every terminal in use agrees on: CJK, kana, hangul, full-width forms. Emoji are not among
# them, they grew wide at different times in different terminals.
_AGREED_WIDE = (
    ("\u2e80", "\ua4cf"),
    ("\uac00", "\ud7a3"),
    ("\uf900", "\ufaff"),
    ("\ufe30", "\ufe6f"),
    ("\uff01", "\uff60"),
    ("\uffe0", "\uffe6"),
    ("\U00020000", "\U0003fffd"),
)


def cells_of(text: str) -> Sequence[str]:
    """The cells of one piece of a line."""
    if PLAIN.issuperset(text):
        return text
    if len(text) <= _MOST_CACHED_LENGTH:
        return _cached_cells(text)
    return _cells(text)


def width_is_certain(cell: str) -> bool:
    """Return whether all terminals agree on the cursor's place after writing this cell."""
    if cell in PLAIN:
        return True
    return len(cell) == 1 and any(first <= cell <= last for first, last in _AGREED_WIDE)


def _cells(text: str) -> Sequence[str]:
    cells: list[str] = []
    for start, end, width in split_graphemes(text)[0]:
        if width:
            cells += _cluster_cells(text[start:end], width)
    return cells


_cached_cells = lru_cache(1024)(_cells)


def _cluster_cells(cluster: str, width: int) -> list[str]:
    """`width` cells for one cluster, reduced to a single character and its marks.

    What a terminal makes of joined emoji and variation selectors differs; their first character alone does not.
    """
    text = clean(cluster.partition("\u200d")[0])
    if not text:
        return [" "] * width
    base = text[0]
    base_width = get_character_cell_size(base)
    if not 0 < base_width <= width:
        return [" "] * width
    marks = "".join(mark for mark in text[1:] if unicodedata.category(mark)[0] == "M")
    return [base + marks, *([""] * (base_width - 1)), *([" "] * (width - base_width))]
