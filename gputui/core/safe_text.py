"""Making text from outside harmless for a terminal.

A log line or a name may contain escape sequences, controls that move the cursor, or characters that reverse or hide
their neighbours. `clean` makes them visible instead. Its result has only visible characters, spaces, and at most three
combining marks behind each.
"""

import re
import unicodedata
from typing import Final

from gputui.core.cells import PLAIN

REPLACEMENT: Final = "\ufffd"
"""Replaces a character that cannot be shown."""

MARKS_PER_CHARACTER: Final = 3
"""Combining marks kept behind one character: enough for every script in use, too few to paint over other lines."""

_TAB_COLUMNS: Final = 4

# Colours and "erase to the end of the line" are what programs write all the time; nothing is lost with them.
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
# Their widths differ between terminals; without them the character in front, or a flag's two letters, remains.
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


def clean(text: str, *, newlines: bool = False) -> str:
    """`text` as it may be written to a terminal.

    Colour sequences vanish; every other escape sequence becomes one "␛"; other controls become their picture ("␇");
    characters that reverse, hide or take no room (bidirectional controls, zero-width spaces, lone surrogates, private
    use) become "\ufffd"; tabs become spaces. Joined emoji fall apart into single ones, flags into letters.

    Args:
        text: anything.
        newlines: keep "\\n" (and read "\\r\\n" as "\\n"); otherwise both are shown as pictures.
    """
    if PLAIN.issuperset(text):
        return text
    text = SEQUENCE.sub("\x1b", _DECORATION.sub("", text))
    if newlines:
        text = text.replace("\r\n", "\n")
    text = unicodedata.normalize("NFC", text.translate(_REDUCED)).expandtabs(_TAB_COLUMNS)
    shown: list[str] = []
    marks = MARKS_PER_CHARACTER  # a mark with no character in front has nothing to sit on
    for char in text:
        if char in PLAIN:
            shown.append(char)
            marks = 0
            continue
        if char == "\n" and newlines:
            shown.append(char)
            marks = MARKS_PER_CHARACTER
            continue
        category = unicodedata.category(char)
        if category[0] == "M" and char not in _INVISIBLE:
            marks += 1
            shown.append(char if marks <= MARKS_PER_CHARACTER else REPLACEMENT)
            continue
        if char == _ZERO_WIDTH_JOINER and shown and unicodedata.category(shown[-1]) == "So":
            continue
        marks = 0
        shown.append(_visible(char, category))
    return "".join(shown)


def _visible(char: str, category: str) -> str:
    """One character that is neither plain nor a mark, or its replacement."""
    code = ord(char)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    if category == "Zs":
        return "  " if unicodedata.east_asian_width(char) in "WF" else " "
    if category[0] in "CZ" or char in _INVISIBLE:
        return REPLACEMENT
    return char
