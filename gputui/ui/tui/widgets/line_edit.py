"""A line of text being typed, as an immutable value: each key returns a new one."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.text import cell_width
from gputui.metrics.draw.raster import Span


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
        first = typed.splitlines()[0] if typed.splitlines() else ""
        fit = "".join(char for char in first if char.isprintable())
        return LineEdit(self.text[: self.cursor] + fit + self.text[self.cursor :], self.cursor + len(fit))

    def press(self, key: str) -> LineEdit | None:
        """The edit after an editing key; None for other keys."""
        text, cursor = self.text, self.cursor
        if key in ("backspace", "ctrl+h"):
            return LineEdit(text[: max(0, cursor - 1)] + text[cursor:], max(0, cursor - 1))
        if key == "delete":
            return replace(self, text=text[:cursor] + text[cursor + 1 :])
        if key == "left":
            return replace(self, cursor=max(0, cursor - 1))
        if key == "right":
            return replace(self, cursor=min(len(text), cursor + 1))
        if key in ("home", "ctrl+a"):
            return replace(self, cursor=0)
        if key in ("end", "ctrl+e"):
            return replace(self, cursor=len(text))
        if key == "ctrl+u":
            return LineEdit(text[cursor:], 0)
        if key == "ctrl+k":
            return LineEdit(text[:cursor], cursor)
        if key == "ctrl+w":
            start = len(text[:cursor].rstrip())
            while start > 0 and not text[start - 1].isspace():
                start -= 1
            return LineEdit(text[:start] + text[cursor:], start)
        return None

    def typed(self, key: str, character: str | None) -> LineEdit | None:
        """The edit after a key that edits or types ``character``; None for other keys."""
        pressed = self.press(key)
        if pressed is None and character is not None and character.isprintable():
            return self.insert(character)
        return pressed

    def spans(self, width: int, style: str = "input") -> list[Span]:
        """The text with its cursor in ``width`` cells, scrolled to the cursor."""
        before, behind = self.text[: self.cursor], self.text[self.cursor :]
        under, rest = (behind[0], behind[1:]) if behind else (" ", "")
        while before and cell_width(before) + cell_width(under) > width:
            before = before[1:]
        room = width - cell_width(before) - cell_width(under)
        shown = ""
        for char in rest:
            if cell_width(shown + char) > room:
                break
            shown += char
        blank = " " * (room - cell_width(shown))
        return [(before, style), (under, "caret"), (shown + blank, style)]
