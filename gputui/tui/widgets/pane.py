"""A widget that shows lines of styled text and repaints the lines that changed."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich.segment import Segment
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from gputui.charts.cells import cell_width
from gputui.charts.chart import Line
from gputui.tui.styles.palette import PLAIN, palette


class Pane(Widget):
    """Lines in a fixed place. `show` gives it new ones and its height; nothing else makes it repaint."""

    DEFAULT_CSS = "Pane { height: 1; width: 1fr; }"

    def __init__(self, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id, classes=classes)
        self._lines: list[Line] = []
        self._strips: list[Strip] = []
        self._height: int | None = None
        self._palette = palette(os.environ)

    def show(self, lines: Sequence[Line], *, height: int | None = None) -> None:
        """Show these lines. ``height`` sets the widget's own height where it is not its container's."""
        if height is not None:
            self.set_height(height)
        changed = [y for y, line in enumerate(lines) if y >= len(self._lines) or line != self._lines[y]]
        changed += range(len(lines), len(self._lines))
        if not changed:
            return
        strips = list(self._strips[: len(lines)])
        strips += [Strip.blank(0)] * (len(lines) - len(strips))
        for y in changed:
            if y < len(lines):
                strips[y] = self._strip(lines[y])
        self._lines, self._strips = list(lines), strips
        if len(changed) > 6:
            self.refresh()
        else:
            width = self.size.width
            self.refresh(*(Region(0, y, width, 1) for y in changed))

    def set_height(self, height: int) -> None:
        """Give the widget a height of its own."""
        if height != self._height:
            self._height = height
            self.styles.height = height

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if y >= len(self._strips):
            return Strip.blank(width, self.rich_style)
        return self._strips[y].adjust_cell_length(width, self.rich_style).apply_style(self.rich_style)

    @property
    def text(self) -> str:
        """What is shown, without styles."""
        return "\n".join("".join(text for text, _ in line).rstrip() for line in self._lines)

    def _strip(self, line: Line) -> Strip:
        styles = self._palette
        segments = [Segment(text, styles.get(key, PLAIN)) for text, key in line if text]
        return Strip(segments, sum(cell_width(text) for text, _ in line))
