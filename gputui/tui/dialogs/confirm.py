"""A question before something that cannot be taken back."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.screen import ModalScreen

from gputui.charts.chart import Line
from gputui.tui.layout.boxes import box
from gputui.tui.layout.columns import fit_line, wrap
from gputui.tui.widgets.pane import Pane


class ConfirmScreen(ModalScreen[bool]):
    """Answers True for y, False for n or escape; every other key is ignored, Enter too."""

    BINDINGS: ClassVar = []
    WIDTH: ClassVar = 64

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title = title
        self._text = text
        self._pane = Pane(id="confirm")

    def compose(self) -> ComposeResult:
        self._draw()
        yield self._pane

    def on_resize(self) -> None:
        self._draw()

    def on_key(self, event: events.Key) -> None:
        event.stop()
        if event.key in ("y", "Y"):
            self.dismiss(True)
        elif event.key in ("n", "N", "escape", "q", "ctrl+c"):
            self.dismiss(False)

    def _draw(self) -> None:
        width = min(self.WIDTH, self.app.size.width)
        body: list[Line] = [[(part, "text")] for part in wrap(self._text, width - 4)]
        choice: Line = [("y", "key"), (" yes   ", "text"), ("n", "key"), (" no", "text")]
        lines = box(self._title, [*body, fit_line([], width - 4), choice], width)
        self._pane.styles.width = width
        self._pane.show(lines, height=len(lines))
