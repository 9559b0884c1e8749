"""Lines for terminals that cannot show every character: each cell becomes one that they can.

One character replaces one, so that the layout stays the same. Curves in braille become the ASCII strokes
or the quarter blocks that come nearest.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final, Literal, cast

from gputui.metrics.draw.glyphs import AREA, QUARTERS

Characters = Literal["braille", "blocks", "ascii"]

UNKNOWN: Final = "?"

_ASCII: Final = {
    # frames and axes
    **dict.fromkeys("─━┄┈╌═", "-"),
    **dict.fromkeys("│┃║", "|"),
    **dict.fromkeys("┆┊╎", ":"),
    **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╰╯╞╡╪╔╗╚╝", "+"),
    # signs
    "●": "*", "◌": ".", "◔": "o", "◑": "%", "○": "o", "◐": "%", "◉": "@", "◆": "&", "◇": "o", "■": "#", "□": "o",
    "▪": "#", "▫": "o", "✓": "+", "✔": "+", "✗": "x", "✘": "x", "×": "x", "▲": "!", "△": "!", "⚠": "!", "▼": "v",
    "▽": "v", "▸": ">", "▶": ">", "►": ">", "›": ">", "»": ">", "◂": "<", "◀": "<", "◄": "<", "‹": "<", "«": "<",
    "▾": "v", "▴": "^", "⊘": "%", "◈": "+", "↻": "@", "↺": "@", "★": "*", "☆": "o", "✚": "+", "✖": "x",
    # arrows
    "↑": "^", "↓": "v", "←": "<", "→": ">", "↵": "<", "⇧": "^", "⇒": ">", "⇐": "<", "↔": "=", "↕": "|", "↗": "/",
    "↘": "\\",
    # letters and punctuation
    "…": "~", "–": "-", "—": "-", "−": "-", "·": ".", "•": "*", "°": " ", "µ": "u", "μ": "u", "≤": "<", "≥": ">",
    "≈": "~", "±": "~", "∞": "8", "½": "5", "²": "2", "³": "3", "Σ": "S", "σ": "s", "Δ": "d", "‘": "'", "’": "'",
    "“": '"', "”": '"', "„": '"', "ß": "s", "æ": "a", "œ": "o", "ø": "o", "Ø": "O", "ł": "l", "đ": "d",
    # bars and blocks
    **dict(zip("▁▂▃▄▅▆▇█", "_.-=+*%#", strict=True)),
    **dict(zip("▏▎▍▋▊▉", "---==#", strict=True)),
    **dict(zip("░▒▓", ".:%", strict=True)),
    **dict(zip("▝▗▐▘▀▚▜▖▞▄▟▌▛▙", "'.|''\\'./=/|'\\", strict=True)),
    "▔": "'", "▕": "|", "␛": "^",
}  # fmt: skip


def ascii_char(char: str) -> str:
    """One printable ASCII character for any cell's text; what has no likeness is a question mark."""
    if not char:
        return UNKNOWN
    first = char[0]
    if " " <= first <= "~":
        return first
    found = _ASCII.get(first)
    if found is not None:
        return found
    code = ord(first)
    if 0x2800 <= code <= 0x28FF:
        return _stroke(code - 0x2800)
    if 0x2400 <= code <= 0x2421:  # pictures of control characters
        return "^"
    base = unicodedata.normalize("NFKD", first)[:1]
    if " " <= base <= "~":
        return base
    return " " if unicodedata.category(first) == "Zs" else UNKNOWN


def block_char(char: str) -> str:
    """The cell's text with braille as quarter blocks, for fonts without braille."""
    if char == AREA:
        return "░"
    if len(char) == 1 and "\u2800" <= char <= "\u28ff":
        dots = ord(char) - 0x2800
        left = (dots & 0x03 > 0) | (dots & 0x44 > 0) << 1
        right = (dots & 0x18 > 0) | (dots & 0xA0 > 0) << 1
        return QUARTERS[left << 2 | right]
    return char


def _stroke(dots: int) -> str:
    """The ASCII character whose ink lies nearest to that of a braille cell of these dots (bit n is dot n + 1)."""
    if not dots:
        return " "
    if dots == ord(AREA) - 0x2800:
        return ":"
    left = [bool(dots & bit) for bit in (0x01, 0x02, 0x04, 0x40)]
    right = [bool(dots & bit) for bit in (0x08, 0x10, 0x20, 0x80)]
    rows = [row for row in range(4) if left[row] or right[row]]
    if any(left) and any(right):
        tilt = _middle(left) - _middle(right)
        if abs(tilt) >= 1.5 or (abs(tilt) >= 1 and len(rows) > 2):
            return "/" if tilt > 0 else "\\"
    if len(rows) >= 3:
        return "|" if rows != [0, 1, 3] and rows != [0, 2, 3] else ":"
    if rows[-1] - rows[0] >= 2:
        return ":"
    place = sum(rows) / len(rows)
    return "'" if place < 1 else "-" if place < 2.5 else "."


def _middle(column: Sequence[bool]) -> float:
    rows = [row for row, is_set in enumerate(column) if is_set]
    return sum(rows) / len(rows)


def translator(characters: Characters) -> Callable[[Sequence[str]], Sequence[str]] | None:
    """Return what converts cells to a set of characters; None for braille. An empty cell, the second half of a wide
    character, becomes a separate ASCII character."""
    if characters == "braille":
        return None
    convert = lru_cache(4096)(ascii_char if characters == "ascii" else block_char)
    return lambda cells: [convert(cell) for cell in cells]


def ascii_line(text: str) -> str:
    """A line of text in ASCII, for what is printed and not laid out in cells: its width may change."""
    return "".join(ascii_char(char) for char in text if unicodedata.category(char) not in ("Mn", "Me", "Cf"))


def characters_for(choice: str, environ: Mapping[str, str]) -> Characters:
    """The characters to use: those chosen, or with ``auto`` those that the locale and the terminal can show.

    ``GPUTUI_ASCII=1`` asks for ASCII in any case. A locale that is set and is not UTF-8 cannot carry more, and
    the fonts of the kernel's console hold no braille. Where no locale is set, or C or POSIX by LANG, UTF-8 is taken for
    granted, as Python does (PEP 538).
    """
    if environ.get("GPUTUI_ASCII", "0") not in ("", "0"):
        return "ascii"
    if choice in ("braille", "blocks", "ascii"):
        return cast("Characters", choice)
    locale = environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG") or "UTF-8"
    is_utf8 = "UTF-8" in locale.upper() or "UTF8" in locale.upper()
    return "braille" if is_utf8 and environ.get("TERM") != "linux" else "ascii"
