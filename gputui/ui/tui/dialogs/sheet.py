"""Texts to read above a page: of parameters, of a launch; a diff; and the help of the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from gputui.core.text import clean, clip
from gputui.metrics.draw.parts import Line
from gputui.ui.tui.actions import Context
from gputui.ui.tui.actions.shown import help_lines
from gputui.ui.tui.layout.columns import wrap
from gputui.ui.tui.widgets.dialog import Content, Dialog
from gputui.version import VERSION

WHEEL_LINES = 3
LABEL_CELLS = 13
_STEPS = {"down": 1, "j": 1, "pagedown": 10, "space": 10, "up": -1, "k": -1, "pageup": -10}


class SheetScreen(Dialog[None]):
    """Lines in a frame. The arrows scroll, any other key closes."""

    WIDTH = 120
    PANE_ID = "sheet"

    def __init__(self, title: str, texts: Sequence[str] = ()) -> None:
        super().__init__()
        self._title = title
        self._texts = tuple(texts)
        self._top = 0

    def lines(self, width: int) -> list[Line]:
        """All lines for a width."""
        return [line for text in self._texts for line in _fact_lines(text, width)]

    def press(self, key: str) -> bool:
        if key in _STEPS:
            self._top += _STEPS[key]
        else:
            self.dismiss(None)
        return True

    def scroll(self, by: int) -> None:
        self._top += WHEEL_LINES * by

    def content(self, width: int) -> Content:
        lines = self.lines(width)
        room = max(1, self.app.size.height - 4)
        self._top = min(max(0, self._top), max(0, len(lines) - room))
        note = "↑↓ more, any other key closes" if len(lines) > room else "any key closes"
        return Content(self._title, lines[self._top : self._top + room], note)


def _fact_lines(text: str, width: int) -> list[Line]:
    """A text wrapped to ``width`` cells; beside the label in its first `LABEL_CELLS` if it has one."""
    label, value = text[:LABEL_CELLS], text[LABEL_CELLS:]
    if not label.endswith("  ") or width < 3 * LABEL_CELLS:
        return [[(part, "text")] for part in wrap(text, width) or [""]]
    parts = wrap(value, width - LABEL_CELLS) or [""]
    return [[(label if not place else " " * LABEL_CELLS, "dim"), (part, "text")] for place, part in enumerate(parts)]


class DiffScreen(SheetScreen):
    """A unified diff, cut to `MOST_LINES`."""

    MOST_LINES: ClassVar = 3000

    def __init__(self, title: str, texts: Sequence[str]) -> None:
        cut = ["", f"… {len(texts) - self.MOST_LINES} more lines"] if len(texts) > self.MOST_LINES else []
        super().__init__(title, (*texts[: self.MOST_LINES], *cut))

    def lines(self, width: int) -> list[Line]:
        return [[(clip(clean(text).expandtabs(4), width), self._style(text))] for text in self._texts]

    @staticmethod
    def _style(text: str) -> str:
        if text.startswith(("---", "+++", "diff ", "index ")):
            return "dim"
        return {"+": "good", "-": "bad", "@": "accent"}.get(text[:1], "text")


class HelpScreen(SheetScreen):
    """The help of one page."""

    def __init__(self, about: Context) -> None:
        super().__init__(f"Keys · gputui {VERSION} · docs/screen.md")
        self._about = about

    def lines(self, width: int) -> list[Line]:
        return help_lines(self._about, width)
