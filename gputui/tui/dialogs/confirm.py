"""The confirmation of an action that cannot be undone."""

from __future__ import annotations

from typing import ClassVar

from gputui.charts.chart import Line
from gputui.tui.layout.columns import fit_line, wrap
from gputui.tui.widgets.dialog import Content, Dialog


class ConfirmScreen(Dialog[bool]):
    """Answers True for y, None for n or escape. Other keys are ignored, also Enter."""

    PANE_ID = "confirm"
    CLOSING: ClassVar = frozenset({"n", "N", "escape", "q", "ctrl+c"})

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def press(self, key: str) -> bool:
        if key in ("y", "Y"):
            self.dismiss(True)
        return True

    def content(self, width: int) -> Content:
        body: list[Line] = [[(part, "text")] for part in wrap(self._text, width)]
        choice: Line = [("y", "key"), (" yes   ", "text"), ("n", "key"), (" no", "text")]
        return Content(self._title, [*body, fit_line([], width), choice])
