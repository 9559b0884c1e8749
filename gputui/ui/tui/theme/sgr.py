"""Lines as printed text, without colours or with the terminal's own sixteen, which follow the user's theme."""

from __future__ import annotations

from collections.abc import Sequence

from gputui.metrics.draw.glyphs import Characters, ascii_line, translator
from gputui.metrics.draw.parts import Line
from gputui.ui.tui.theme.looks import LOOKS

_COLOURS = {
    "good": "32", "warn": "33", "bad": "31", "accent": "36", "second": "35", "series.0": "36", "series.1": "35",
    "series.2": "94", "series.3": "95", "series.4": "96", "series.5": "34", "dim": "2", "rule": "2",
    "track": "2", "history": "36",
}  # fmt: skip


def as_text(lines: Sequence[Line], *, characters: Characters = "braille", is_coloured: bool = False) -> str:
    """The lines, each with a line feed and without trailing blanks."""
    return "".join(_line(line, characters, is_coloured) + "\n" for line in lines)


def _line(line: Line, characters: Characters, is_coloured: bool) -> str:
    parts: list[tuple[str, str]] = [(_shown(text, characters), key) for text, key in line]
    while parts and not parts[-1][0].rstrip():
        parts.pop()
    if parts:
        parts[-1] = (parts[-1][0].rstrip(), parts[-1][1])
    if not is_coloured:
        return "".join(text for text, _ in parts)
    return "".join(_coloured(text, key) for text, key in parts)


def _shown(text: str, characters: Characters) -> str:
    if characters == "ascii":
        return ascii_line(text)
    turn = translator(characters)
    return text if turn is None else "".join(turn(list(text)))


def _coloured(text: str, key: str) -> str:
    look = LOOKS.get(key) or LOOKS["text"]
    codes = [
        *(["1"] if look.bold else []),
        *(["4"] if look.underline else []),
        *(["7"] if look.reverse else []),
        *([_COLOURS[look.role]] if look.role in _COLOURS else []),
    ]
    return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if codes and text else text
