"""The dialog of settings; each change takes effect at once."""

from __future__ import annotations

import os
from typing import Any, ClassVar, NamedTuple

from gputui.metrics.draw.parts import Line
from gputui.ui.tui.layout.columns import fit_line, wrap
from gputui.ui.tui.settings import values_of
from gputui.ui.tui.widgets.dialog import Content, ListDialog


class Item(NamedTuple):
    """A setting with its possible values in order."""

    name: str
    label: str
    help: str
    values: tuple[Any, ...]

    @staticmethod
    def word(value: object) -> str:
        """A value as it is shown."""
        if isinstance(value, bool):
            return "on" if value else "off"
        return f"{value:g} s" if isinstance(value, float) else str(value)


ITEMS = tuple(
    Item(name, label, words, (0.25, 0.5, 1.0, 2.0, 5.0, 10.0) if name == "refresh_seconds" else values_of(name))
    for name, label, words in (
        ("theme", "theme", "auto: dark where the terminal knows all colours; NO_COLOR means mono"),
        ("characters", "characters", "of curves and signs; auto: by the locale, GPUTUI_ASCII=1 means ASCII"),
        ("mouse", "mouse", "auto: on, but off over SSH; hold shift to select text"),
        ("refresh_seconds", "update at most every", "keys are answered at once"),
        ("slow_line", "slow line", "auto: fewer updates while the line does not keep up; on: always fewer"),
        ("title", "terminal's title", "counts of runs and the worst state, in the window's title"),
        ("bell", "bell", "ring for warnings and errors among the events"),
        ("fold", "GPUs together", "begin with all GPUs together instead of each in a row"),
    )
)


class SettingsScreen(ListDialog[None]):
    """Arrows choose and change; escape, enter or the key that opened it close."""

    WIDTH = 72
    PANE_ID = "settings"
    CLOSING: ClassVar = frozenset({"escape", "enter", "comma", "f2", "q", "ctrl+c"})

    @property
    def count(self) -> int:
        return len(ITEMS)

    def press(self, key: str) -> bool:
        if key in ("right", "l", "space"):
            self.choose()
        elif key in ("left", "h"):
            self.choose(-1)
        else:
            super().press({"j": "down", "k": "up"}.get(key, key))
        return True

    def choose(self, by: int = 1) -> None:
        """Change the setting under the cursor to the next value, or the previous one with -1."""
        item = ITEMS[self.place]
        value = getattr(self.shell.settings, item.name)
        place = item.values.index(value) if value in item.values else 0
        self.shell.change(**{item.name: item.values[(place + by) % len(item.values)]})

    def content(self, width: int) -> Content:
        overruled = {"theme": "NO_COLOR is set"} if self.app.no_color else {}
        if os.environ.get("GPUTUI_ASCII", "0") not in ("", "0"):
            overruled["characters"] = "GPUTUI_ASCII is set"
        label_width = max(len(item.label) for item in ITEMS) + 2
        lines: list[Line] = []
        for number in self.rows_in_view(self.count):
            item, is_current = ITEMS[number], number == self.place
            value = item.word(getattr(self.shell.settings, item.name))
            spans = [(f"{item.label:<{label_width}}", "text"), ("← " if is_current else "  ", "dim"),
                     (value, "title" if is_current else "text"), (" →" if is_current else "", "dim"),
                     (f"  {overruled.get(item.name, '')}", "warn")]  # fmt: skip
            lines.append(self.row(number, fit_line(spans, width - 2)))
        help_parts = wrap(ITEMS[self.place].help, width - 2)
        lines += [[], *([(f"  {part}", "dim")] for part in help_parts), *([[]] * (2 - len(help_parts)))]
        return Content("Settings", lines, "↑↓ choose  ←→ change  esc closes")
