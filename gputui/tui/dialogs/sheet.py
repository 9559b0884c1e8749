"""Text to read above a screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.screen import ModalScreen

from gputui.charts.chart import Line
from gputui.tui.layout.boxes import box
from gputui.tui.layout.columns import wrap
from gputui.tui.widgets.pane import Pane

WHEEL_LINES = 3


class SheetScreen(ModalScreen[None]):
    """Lines in a frame; arrows scroll, any other key closes."""

    BINDINGS: ClassVar = []
    WIDTH: ClassVar = 120

    def __init__(self, title: str, texts: Sequence[str] = ()) -> None:
        super().__init__()
        self._title = title
        self._texts = tuple(texts)
        self._top = 0
        self._pane = Pane(id="sheet")

    def compose(self) -> ComposeResult:
        self._draw()
        yield self._pane

    def on_resize(self) -> None:
        self._draw()

    def content(self, width: int) -> list[Line]:
        """The lines for a width."""
        return [[(part, "text")] for text in self._texts for part in (wrap(text, width, indent=13) or [""])]

    def on_key(self, event: events.Key) -> None:
        event.stop()
        steps = {"down": 1, "j": 1, "pagedown": 10, "space": 10, "up": -1, "k": -1, "pageup": -10}
        if event.key in steps:
            self._top += steps[event.key]
            self._draw()
        else:
            self.dismiss(None)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self._top += WHEEL_LINES
        self._draw()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self._top -= WHEEL_LINES
        self._draw()

    def on_click(self, event: events.Click) -> None:
        """A click beside the sheet closes it."""
        event.stop()
        if event.widget is not self._pane:
            self.dismiss(None)

    def _draw(self) -> None:
        columns, rows = self.app.size
        width = min(self.WIDTH, columns)
        lines = self.content(width - 4)
        room = max(1, rows - 4)
        self._top = min(max(0, self._top), max(0, len(lines) - room))
        note = "↑↓ more, any other key closes" if len(lines) > room else "any key closes"
        shown = box(self._title, lines[self._top : self._top + room], width, note)
        self._pane.styles.width = width
        self._pane.show(shown, height=len(shown))
