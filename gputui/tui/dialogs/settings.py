"""The settings, to change with keys; each change holds at once."""

from __future__ import annotations

import os
from typing import ClassVar, cast

from textual import events
from textual.app import ComposeResult
from textual.screen import ModalScreen

from gputui.tui.dialogs.settings_items import ITEMS, settings_lines, turned
from gputui.tui.layout.boxes import box
from gputui.tui.shell import Shell
from gputui.tui.widgets.pane import Pane


class SettingsScreen(ModalScreen[None]):
    """Arrows choose and change; escape, enter or the key that opened it close."""

    BINDINGS: ClassVar = []
    WIDTH: ClassVar = 72

    def __init__(self) -> None:
        super().__init__()
        self._place = 0
        self._pane = Pane(id="settings")

    @property
    def _shell(self) -> Shell:
        return cast("Shell", self.app)

    def compose(self) -> ComposeResult:
        self._draw()
        yield self._pane

    def on_resize(self) -> None:
        self._draw()

    def on_key(self, event: events.Key) -> None:
        event.stop()
        if event.key in ("down", "j", "tab"):
            self._place = (self._place + 1) % len(ITEMS)
        elif event.key in ("up", "k", "shift+tab"):
            self._place = (self._place - 1) % len(ITEMS)
        elif event.key in ("right", "l", "space"):
            self._turn(1)
        elif event.key in ("left", "h"):
            self._turn(-1)
        elif event.key in ("escape", "enter", "comma", "f2", "q", "ctrl+c"):
            self.dismiss(None)
            return
        self._draw()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self._place = min(self._place + 1, len(ITEMS) - 1)
        self._draw()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self._place = max(self._place - 1, 0)
        self._draw()

    def on_click(self, event: events.Click) -> None:
        """A click chooses a line, on the chosen one it changes the value; beside the sheet it closes."""
        event.stop()
        if event.widget is not self._pane:
            self.dismiss(None)
            return
        place = event.y - 1
        if 0 <= place < len(ITEMS):
            if place == self._place:
                self._turn(1)
            self._place = place
            self._draw()

    def _turn(self, by: int) -> None:
        item = ITEMS[self._place]
        self._shell.change(**{item.name: turned(self._shell.settings, item, by)})

    def _draw(self) -> None:
        width = min(self.WIDTH, self.app.size.width)
        overruled = {"theme": "NO_COLOR is set"} if self.app.no_color else {}
        if os.environ.get("GPUTUI_ASCII", "0") not in ("", "0"):
            overruled["characters"] = "GPUTUI_ASCII is set"
        lines = settings_lines(self._shell.settings, self._place, width - 4, overruled)
        shown = box("Settings", lines, width, "↑↓ choose  ←→ change  esc closes")
        self._pane.styles.width = width
        self._pane.show(shown, height=len(shown))
