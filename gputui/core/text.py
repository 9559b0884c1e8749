"""Cells that a text takes in a terminal, and cutting or padding text to them, after `clean`:
combining marks take none, East Asian wide characters and emoji two, everything else one."""

from __future__ import annotations

import re
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
"""Characters that every terminal draws one cell wide and that change nothing around them."""

REPLACEMENT: Final = "\ufffd"
"""Replaces a character that cannot be shown."""

MARKS_PER_CHARACTER: Final = 3
"""Combining marks kept behind one character: enough for every script in use."""

_TAB_COLUMNS: Final = 4

# Colours and "erase to the end of the line" are what programs write all the time; nothing is lost
# with them.
_DECORATION = re.compile(r"(?:\x1b\[|\x9b)[0-9;:]*[mK]")
SEQUENCE = re.compile(
    r"(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"  # operating system command: title, clipboard, link
    r"|(?:\x1b[PX^_]|[\x90\x98\x9e\x9f])[^\x1b\x9c]*(?:\x1b\\|\x9c)"  # device control and other strings
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # control sequence
    r"|\x1b[ -/]*[0-~]"  # two-character and character-set sequences
)
_VARIATION_SELECTORS: Final = (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))
_SKIN_TONES: Final = range(0x1F3FB, 0x1F400)
_REGIONAL_INDICATORS: Final = range(0x1F1E6, 0x1F200)
# Their widths differ between terminals; without them the character in front, or a flag's two
# letters, remains.
_REDUCED: Final[dict[int, str | None]] = {
    **dict.fromkeys(_VARIATION_SELECTORS),
    **dict.fromkeys(_SKIN_TONES),
    **{code: chr(ord("A") + code - _REGIONAL_INDICATORS[0]) for code in _REGIONAL_INDICATORS},
}
_INVISIBLE: Final = frozenset(
    "\u034f\u115f\u17b4\u17b5\u3164\uffa0"
    + "".join(map(chr, (*range(0x1160, 0x1200), *range(0xD7B0, 0xD800))))  # jamo that found nothing to join
)
_ZERO_WIDTH_JOINER: Final = "\u200d"


@lru_cache(8192)
def char_width(char: str) -> int:
    """Cells that one character takes: 0, 1 or 2."""
    if char in PLAIN:
        return 1
    if unicodedata.category(char) in ("Mn", "Me", "Mc", "Cc", "Cf"):
        return 0
    if unicodedata.east_asian_width(char) in "WF":
        return 2
    return 1


def cell_width(text: str) -> int:
    """Cells that `text` takes on one line of a terminal."""
    if (text.isascii() and text.isprintable()) or PLAIN.issuperset(text):
        return len(text)
    return sum(map(char_width, text))


def clip(text: str, width: int, ellipsis: str = "…") -> str:
    """`text` cut to at most `width` cells; a cut text ends with `ellipsis` where that fits."""
    # A cell holds four characters at most (`clean` leaves three marks behind one): a long text need
    # not be measured.
    if len(text) <= 4 * max(0, width) and cell_width(text) <= width:
        return text
    if width <= 0:
        return ""
    if width <= len(ellipsis):
        ellipsis = ""
    room = width - len(ellipsis)
    if PLAIN.issuperset(text):
        return text[:room] + ellipsis
    clipped = ""
    used = 0
    for char in text:
        used += char_width(char)
        if used > room:
            break
        clipped += char
    return clipped + ellipsis


def clip_middle(text: str, width: int) -> str:
    """`text` cut to at most `width` cells in its middle, for names whose ends tell them apart."""
    if len(text) <= 4 * max(0, width) and cell_width(text) <= width:
        return text
    room = width - 1
    if room < 2:
        return clip(text, width)
    behind = room // 2
    end = len(text)
    used = 0
    while end > 0 and used + (size := char_width(text[end - 1])) <= behind:
        end -= 1
        used += size
    while end < len(text) and not char_width(text[end]):
        end += 1
    return f"{clip(text, room - used, '')}…{text[end:]}"


def fit(text: str, width: int, align: str = "<") -> str:
    """`text` in exactly `width` cells: cut, or padded right ("<"), left (">") or on both sides
    ("^")."""
    text = clip(text, width)
    space = max(0, width - cell_width(text))
    if align == ">":
        return " " * space + text
    if align == "^":
        return " " * (space // 2) + text + " " * (space - space // 2)
    return text + " " * space


def clean(text: str) -> str:
    """`text` as it may be written to one line of a terminal.

    Colour sequences vanish; every other escape sequence becomes one "␛"; other controls become
    their picture ("␇"); characters that reverse, hide or take no room (bidirectional controls,
    zero-width spaces, lone surrogates, private use) become "\\ufffd"; tabs become spaces. Joined
    emoji fall apart into single ones, flags into letters.
    """
    if PLAIN.issuperset(text):
        return text
    text = SEQUENCE.sub("\x1b", _DECORATION.sub("", text))
    text = unicodedata.normalize("NFC", text.translate(_REDUCED)).expandtabs(_TAB_COLUMNS)
    characters: list[str] = []
    marks = MARKS_PER_CHARACTER  # a mark with no character in front has nothing to sit on
    for char in text:
        if char in PLAIN:
            characters.append(char)
            marks = 0
            continue
        category = unicodedata.category(char)
        if category[0] == "M" and char not in _INVISIBLE:
            marks += 1
            if marks > MARKS_PER_CHARACTER:
                char = REPLACEMENT
            characters.append(char)
            continue
        if char == _ZERO_WIDTH_JOINER and characters and unicodedata.category(characters[-1]) == "So":
            continue
        marks = 0
        characters.append(_visible(char, category))
    return "".join(characters)


def _visible(char: str, category: str) -> str:
    """One character that is neither plain nor a mark, or its replacement."""
    code = ord(char)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    if category == "Zs":
        if unicodedata.east_asian_width(char) in "WF":
            return "  "
        return " "
    if category[0] in "CZ" or char in _INVISIBLE:
        return REPLACEMENT
    return char
