"""The dialog of settings; each change takes effect at once."""

from __future__ import annotations

import os
from typing import Any, ClassVar, NamedTuple

from gputui.metrics.draw.parts import Line
from gputui.ui.tui.layout.columns import wrap
from gputui.ui.tui.layout.lists import next_choice
from gputui.ui.tui.settings import values_of
from gputui.ui.tui.widgets.dialog import Content, Dialog

HELP_LINES = 2  # the longest help

_REFRESH_SECONDS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0)


class SettingItem(NamedTuple):
    """A setting with its possible values in order."""

    name: str
    label: str
    help: str
    values: tuple[Any, ...]

    @staticmethod
    def word(value: object) -> str:
        """A value as it is shown."""
        if value is True:
            return "on"
        if value is False:
            return "off"
        if isinstance(value, float):
            return f"{value:g} s"
        return str(value)


ITEMS = tuple(
    SettingItem(name, label, help_text, values_of(name) or _REFRESH_SECONDS)
    for name, label, help_text in (
        ("theme", "theme", "auto: dark where the terminal knows all colours; NO_COLOR means mono"),
        ("characters", "characters", "of curves and signs; auto: by the locale, GPUTUI_ASCII=1 means ASCII"),
        ("mouse", "mouse", "auto: on, but off over SSH; hold shift to select text"),
        ("refresh_seconds", "update at most every", "keys are answered at once"),
        ("slow_line", "slow line", "auto: fewer updates while the line does not keep up; on: always fewer"),
        ("title", "terminal's title", "counts of runs and the worst state, in the window's title"),
        ("bell", "bell", "ring for warnings and errors among the events"),
        ("fold", "charts of all GPUs", "begin with these on the overview; off: with a row for each GPU"),
    )
)


class SettingsScreen(Dialog):
    """Arrows choose and change; escape, enter or the key that opened it close."""

    WIDTH = 72
    PANE_ID = "settings"
    CLOSING: ClassVar = frozenset({"escape", "enter", "comma", "f2", "q", "ctrl+c"})
    keys = (("up down", "choose"), ("left right", "change"), ("escape", "close"))

    def press(self, key: str) -> bool:
        by = {"right": 1, "l": 1, "space": 1, "left": -1, "h": -1}.get(key, 0)
        self.choose(by)
        return by != 0

    def choose(self, by: int = 1) -> None:
        item = ITEMS[self.cursor]
        if by:
            value = getattr(self.shell.settings, item.name)
            self.shell.change(**{item.name: next_choice(item.values, value, by)})

    def content(self, width: int) -> Content:
        overruled = {}
        if self.app.no_color:
            overruled["theme"] = "NO_COLOR is set"
        if os.environ.get("GPUTUI_ASCII", "0") not in ("", "0"):
            overruled["characters"] = "GPUTUI_ASCII is set"
        label_width = max(len(item.label) for item in ITEMS) + 2
        rows: list[Line] = []
        for number, item in enumerate(ITEMS):
            value = item.word(getattr(self.shell.settings, item.name))
            note = overruled.get(item.name, "")
            choice = (f"  {value}", "text")
            if number == self.cursor:
                choice = (f"← {value} →", "title")
            rows.append([(f"{item.label:<{label_width}}", "text"), choice, (f"  {note}", "warn")])
        help_parts = [*wrap(ITEMS[self.cursor].help, width - 2), *[""] * HELP_LINES][:HELP_LINES]
        below: list[Line] = [[], *([(f"  {part}", "dim")] for part in help_parts)]
        return Content("Settings", [], rows, below)
