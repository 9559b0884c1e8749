"""Widgets that show lines of styled text and repaint only what changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import ClassVar, cast

from rich.segment import Segment
from rich.style import Style
from textual.containers import Container
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from gputui.core.text import cell_width
from gputui.metrics.draw.parts import Line
from gputui.ui.tui.shell import Shell
from gputui.ui.tui.theme.colors import styles_of

REGIONS_AT_ONCE = 6
"""More changed lines than this are repainted together with those in between."""

REDRAW_SECONDS = 0.9  # a little less than the second between readings of curves


class Pane(Widget):
    """Lines in a fixed place. It repaints only when `show` gives it other lines.

    No style sheet may give it a border, padding or opacity: `render_lines` bypasses Textual's passes.
    """

    DEFAULT_CSS: ClassVar[str] = "Pane { height: 1; width: 1fr; }"

    def __init__(self, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._lines: list[Line] = []
        self._strips: dict[int, Strip] = {}
        self._strip_width = 0
        self._styles_by_key: dict[str, Style] = {}
        self._height: int | None = None

    def show(self, lines: Sequence[Line], *, height: int | None = None) -> None:
        """Show ``lines`` in a widget of their height, or of ``height``."""
        if height is None:
            height = len(lines)
        self.set_height(height)
        before = self._lines
        changed = [y for y, line in enumerate(lines) if y >= len(before) or line != before[y]]
        changed += range(len(lines), len(before))
        if not changed:
            return
        self._lines = list(lines)
        for y in changed:
            self._strips.pop(y, None)
        if len(changed) > REGIONS_AT_ONCE:
            self.refresh()
        else:
            self.refresh(*(Region(0, y, self.size.width, 1) for y in changed))

    def draw(self, drawing: Callable[[], Sequence[Line]], *, height: int | None = None) -> None:
        """Show the lines of ``drawing``; if it raises, a line that says so, and the rest of the page goes on."""
        lines: Sequence[Line] = []
        try:
            if height != 0:
                lines = drawing()
        except Exception as error:
            lines = [cast("Shell", self.app).failure_line(self.id or "page", error)]
        self.show(lines, height=height)

    def set_height(self, height: int) -> None:
        """Set the widget's height, in lines."""
        if height != self._height:
            self._height = height
            self.styles.height = height

    def clear(self) -> None:
        """Show nothing and take no room, until the next `show`."""
        self.show([])

    @property
    def text(self) -> str:
        """The shown lines without their styles."""
        return "\n".join("".join(text for text, _ in line).rstrip() for line in self._lines)

    def render_lines(self, crop: Region) -> list[Strip]:
        width = self.size.width
        if width != self._strip_width:
            self._strips.clear()
            self._strip_width = width
        drawn = self._strips
        for y in crop.line_range:
            if y not in drawn:
                line = self._lines[y] if y < len(self._lines) else []
                drawn[y] = self._strip(line, width)
        strips = [drawn[y] for y in crop.line_range]
        if crop.width == width:
            return strips
        return [strip.crop(*crop.column_span) for strip in strips]

    def notify_style_update(self) -> None:
        self._strips.clear()
        self._styles_by_key.clear()
        super().notify_style_update()

    def _strip(self, line: Line, width: int) -> Strip:
        segments = [
            Segment("".join(text for text, _ in spans), self._style(key)) for key, spans in groupby(line, itemgetter(1))
        ]
        strip = Strip(segments, cell_width("".join(text for text, _ in line)))
        strip = strip.adjust_cell_length(width, self._style("text"))
        for line_filter in self.get_line_filters():
            strip = strip.apply_filter(line_filter, self.background_colors[1])
        return strip

    def _style(self, key: str) -> Style:
        """The style of a key over this pane's background."""
        if key not in self._styles_by_key:
            styles = styles_of(getattr(self.app, "theme_name", "ansi"))
            plain = self.rich_style + styles["text"]
            self._styles_by_key[key] = plain + styles.get(key, Style.null())
        return self._styles_by_key[key]


class Area(Container):
    """A place for panes. ``BLANK``: Textual neither renders the lines below them nor keeps those of closed pages."""

    BLANK = True


class SlowPane(Pane):
    """A pane whose lines are expensive to draw. It draws them when their shape changes, and new data
    once a second at most: curves are read no faster."""

    _shape: Hashable = None
    _data: Sequence[object] = ()
    _drawn_at = float("-inf")
    is_behind = False
    """True while newer data than those drawn wait."""

    def show_when(
        self, shape: Hashable, data: Sequence[object], drawing: Callable[[], Sequence[Line]], *, height: int
    ) -> None:
        """Show the lines of ``drawing`` if they are due.

        Args:
            shape: size and settings; they are due if it changes, or the past moment.
            data: what is drawn; they are due `REDRAW_SECONDS` after the last drawing if it changes.
            drawing: makes the lines.
            height: that of the pane.
        """
        now = time.monotonic()
        snapshot = cast("Shell", self.app).snapshot
        if snapshot.past is not None:
            shape = (shape, snapshot.at)
        self.set_height(height)
        is_same = len(data) == len(self._data) and all(a is b or a == b for a, b in zip(data, self._data, strict=True))
        is_due = shape != self._shape or (not is_same and now - self._drawn_at >= REDRAW_SECONDS)
        self.is_behind = not is_same and not is_due
        if is_due:
            self._shape = shape
            self._data = data
            self._drawn_at = now
            self.draw(drawing, height=height)

    def clear(self) -> None:
        self._shape = None
        super().clear()
