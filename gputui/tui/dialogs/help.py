"""What is possible on the screen behind it."""

from __future__ import annotations

from typing import ClassVar

from gputui.charts.chart import Line
from gputui.tui.actions import Context
from gputui.tui.actions.footer import help_lines
from gputui.tui.dialogs.sheet import SheetScreen


class HelpScreen(SheetScreen):
    """The keys of one screen, with why some do nothing now."""

    WIDTH: ClassVar = 84

    def __init__(self, about: Context) -> None:
        super().__init__("Keys")
        self._about = about

    def content(self, width: int) -> list[Line]:
        return help_lines(self._about, width)
