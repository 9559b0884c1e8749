"""A line of text being typed, as an immutable value: each key returns a new one."""

from __future__ import annotations

import re

from msgspec import Struct

from gputui.core.text import cell_width
from gputui.metrics.draw.parts import Span

_SAME = {"ctrl+h": "backspace", "ctrl+a": "home", "ctrl+e": "end"}


class LineEdit(Struct, frozen=True):
    """A text and its cursor, in characters from the beginning."""

    text: str = ""
    cursor: int = 0

    @classmethod
    def at_end(cls, text: str) -> LineEdit:
        """An edit of ``text`` with the cursor behind it."""
        return cls(text, len(text))

    def insert(self, typed: str) -> LineEdit:
        """Insert the printable characters of the first line of ``typed``."""
        lines = typed.splitlines() or [""]
        printable = "".join(char for char in lines[0] if char.isprintable())
        text = self.text[: self.cursor] + printable + self.text[self.cursor :]
        return LineEdit(text, self.cursor + len(printable))

    def press(self, key: str) -> LineEdit | None:
        """The edit after an editing key; None for other keys."""
        before = self.text[: self.cursor]
        behind = self.text[self.cursor :]
        changed = {
            "backspace": (before[:-1], behind), "delete": (before, behind[1:]),
            "left": (before[:-1], before[-1:] + behind), "right": (before + behind[:1], behind[1:]),
            "home": ("", before + behind), "end": (before + behind, ""), "ctrl+u": ("", behind),
            "ctrl+k": (before, ""), "ctrl+w": (re.sub(r"\S*\s*$", "", before), behind),
        }.get(_SAME.get(key, key))  # fmt: skip
        if changed is None:
            return None
        return LineEdit("".join(changed), len(changed[0]))

    def typed(self, key: str, character: str | None) -> LineEdit | None:
        """The edit after a key that edits or types ``character``; None for other keys."""
        pressed = self.press(key)
        if pressed is None and character is not None and character.isprintable():
            return self.insert(character)
        return pressed

    def spans(self, width: int, style: str = "input") -> list[Span]:
        """The text with its cursor in ``width`` cells, scrolled to the cursor."""
        before = self.text[: self.cursor]
        behind = self.text[self.cursor :]
        under = behind[:1] or " "
        rest = behind[1:]
        while before and cell_width(before) + cell_width(under) > width:
            before = before[1:]
        room = width - cell_width(before) - cell_width(under)
        visible = ""
        for char in rest:
            if cell_width(visible + char) > room:
                break
            visible += char
        blank = " " * (room - cell_width(visible))
        return [(before, style), (under, "caret"), (visible + blank, style)]
