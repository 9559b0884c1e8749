"""Texts to read above a page: of parameters, of a launch; a diff; and the help of the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from gputui.core.text import clean, clip
from gputui.core.units import count_of
from gputui.metrics.draw.parts import Line
from gputui.ui.tui.actions import Context
from gputui.ui.tui.actions.key_lines import help_lines
from gputui.ui.tui.layout.columns import wrap
from gputui.ui.tui.widgets.dialog import Content, Dialog
from gputui.ui.views.words import Sign
from gputui.version import VERSION

LABEL_CELLS = 13
_STEPS = {"down": 1, "j": 1, "pagedown": 10, "space": 10, "up": -1, "k": -1, "pageup": -10}


class SheetScreen(Dialog):
    """Lines in a frame. The arrows scroll, any other key closes."""

    WIDTH = 120
    PANE_ID = "sheet"
    IS_MARKED = False
    keys = (("up down", "scroll"), ("escape", "close"))

    def __init__(self, title: str, texts: Sequence[str] = ()) -> None:
        super().__init__()
        self._title = title
        self._texts = texts

    def lines(self, width: int) -> list[Line]:
        """All lines for a width."""
        return [line for text in self._texts for line in _fact_lines(text, width)]

    def press(self, key: str) -> bool:
        if key in _STEPS:
            self.move(_STEPS[key])
        else:
            self.dismiss(None)
        return True

    def move(self, by: int) -> None:
        """Scroll."""
        self.top = self.cursor = min(max(0, self.top + by), self.count - self.room)

    def content(self, width: int) -> Content:
        return Content(self._title, [], self.lines(width))


def _fact_lines(text: str, width: int) -> list[Line]:
    """A text wrapped to ``width`` cells; beside the label in its first `LABEL_CELLS` if it has one."""
    label = text[:LABEL_CELLS]
    value = text[LABEL_CELLS:]
    if not label.endswith("  ") or width < 3 * LABEL_CELLS:
        return [[(part, "text")] for part in wrap(text, width) or [""]]
    first, *others = wrap(value, width - LABEL_CELLS) or [""]
    indent = " " * LABEL_CELLS
    return [[(label, "dim"), (first, "text")], *([(indent, "dim"), (part, "text")] for part in others)]


class DiffScreen(SheetScreen):
    """A unified diff, cut to `MOST_ROWS`."""

    STYLES: ClassVar = {"---": "dim", "+++": "dim", "dif": "dim", "ind": "dim", "+": "good", "-": "bad", "@": "accent"}

    def lines(self, width: int) -> list[Line]:
        styles = self.STYLES
        lines: list[Line] = [
            [(clip(clean(text).expandtabs(4), width), styles.get(text[:3]) or styles.get(text[:1], "text"))]
            for text in self._texts[: self.MOST_ROWS]
        ]
        more = len(self._texts) - self.MOST_ROWS
        if more <= 0:
            return lines
        return [*lines, [], [(f"… {count_of(more, 'more line')}", "text")]]


class HelpScreen(SheetScreen):
    """The help of one page: its keys, and its signs."""

    def __init__(self, about: Context, signs: Sequence[Sign]) -> None:
        super().__init__(f"Keys and signs · gputui {VERSION} · gputui help screen")
        self._about = about
        self._signs = signs

    def lines(self, width: int) -> list[Line]:
        return help_lines(self._about, width, self._signs)
