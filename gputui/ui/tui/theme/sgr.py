"""Lines as printed text, without colours or with the terminal's own sixteen, which follow the user's theme."""

from __future__ import annotations

from collections.abc import Sequence

from gputui.metrics.draw.glyphs import Characters, ascii_line, translator
from gputui.metrics.draw.parts import Line


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
    # Rich is not needed for text without colours.
    from rich.color import ColorSystem

    from gputui.ui.tui.theme.colors import ANSI

    return "".join(ANSI.style(key).render(text, color_system=ColorSystem.STANDARD) for text, key in parts)


def _shown(text: str, characters: Characters) -> str:
    if characters == "ascii":
        return ascii_line(text)
    turn = translator(characters)
    if turn is None:
        return text
    return "".join(turn(list(text)))
