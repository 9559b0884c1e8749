"""The dialog of settings; each change takes effect at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

from gputui.metrics.draw.parts import Line
from gputui.ui.tui.layout.columns import fit_line, selected, wrap
from gputui.ui.tui.settings import CHOICES, Settings
from gputui.ui.tui.widgets.dialog import Content, Dialog


class Item(NamedTuple):
    """A setting with its possible values in order, and how a value is written (``word``)."""

    name: str
    label: str
    values: tuple[Any, ...]
    help: str
    word: Callable[[Any], str] = str


def _on_off(value: object) -> str:
    return "on" if value else "off"


ITEMS: tuple[Item, ...] = (
    Item("theme", "theme", CHOICES["theme"],
         "auto: dark where the terminal knows all colours; NO_COLOR means mono whatever is chosen"),
    Item("characters", "characters", CHOICES["characters"],
         "what curves and signs are drawn with; auto looks at the locale, GPUTUI_ASCII=1 asks for ASCII"),
    Item("mouse", "mouse", CHOICES["mouse"], "auto: on, but off over SSH; hold shift to select text as ever"),
    Item("refresh_seconds", "update at most every", (0.25, 0.5, 1.0, 2.0, 5.0, 10.0),
         "keys are answered at once whatever it is", lambda value: f"{value:g} s"),
    Item("slow_line", "slow line", CHOICES["slow_line"],
         "auto: fewer updates while the line does not keep up; on: always fewer"),
    Item("title", "terminal's title", (False, True), "counts of runs and the worst state, in the window's title",
         _on_off),
    Item("bell", "bell", (False, True), "ring when something bad happens: warnings and errors among the events",
         _on_off),
    Item("fold", "GPUs together", (False, True), "begin with all GPUs together instead of each in a row", _on_off),
)  # fmt: skip


def turned(settings: Settings, item: Item, by: int) -> Any:
    """The value of a setting ``by`` places after the current one, wrapping around."""
    value = getattr(settings, item.name)
    values = item.values
    place = values.index(value) if value in values else min(range(len(values)), key=lambda n: _far(values[n], value))
    return values[(place + by) % len(values)]


def settings_lines(settings: Settings, place: int, width: int, overruled: Mapping[str, str]) -> list[Line]:
    """A line for each setting, and the help of the one under the cursor. ``overruled`` says why a setting has no effect
    now."""
    label_width = max(len(item.label) for item in ITEMS) + 2
    lines: list[Line] = []
    for number, item in enumerate(ITEMS):
        current = number == place
        value = item.word(getattr(settings, item.name))
        line = fit_line(
            [
                ("▸ " if current else "  ", "cursor"),
                (f"{item.label:<{label_width}}", "text"),
                ("← " if current else "  ", "dim"),
                (value, "title" if current else "text"),
                (" →" if current else "", "dim"),
                (f"  {overruled[item.name]}" if item.name in overruled else "", "warn"),
            ],
            width,
        )
        lines.append(selected(line) if current else line)
    lines.append(fit_line([], width))
    help_parts = wrap(ITEMS[place].help, width - 2)
    lines += [fit_line([("  ", "text"), (part, "dim")], width) for part in help_parts]
    return lines + [fit_line([], width)] * (2 - len(help_parts))


def _far(one: Any, other: Any) -> float:
    return abs(float(one) - float(other)) if isinstance(one, float) and isinstance(other, float) else 1.0


class SettingsScreen(Dialog[None]):
    """Arrows choose and change; escape, enter or the key that opened it close."""

    WIDTH = 72
    PANE_ID = "settings"
    CLOSING: ClassVar = frozenset({"escape", "enter", "comma", "f2", "q", "ctrl+c"})
    CLOSES_BESIDE = True

    def __init__(self) -> None:
        super().__init__()
        self._place = 0

    def press(self, key: str) -> bool:
        if key in ("down", "j", "tab"):
            self._place = (self._place + 1) % len(ITEMS)
        elif key in ("up", "k", "shift+tab"):
            self._place = (self._place - 1) % len(ITEMS)
        elif key in ("right", "l", "space"):
            self._turn(1)
        elif key in ("left", "h"):
            self._turn(-1)
        return True

    def scroll(self, by: int) -> None:
        self._place = min(max(self._place + by, 0), len(ITEMS) - 1)

    def click(self, row: int) -> None:
        """Move the cursor to the clicked setting; a click on the one under the cursor changes its value."""
        if 0 <= row < len(ITEMS):
            if row == self._place:
                self._turn(1)
            self._place = row

    def _turn(self, by: int) -> None:
        item = ITEMS[self._place]
        self.shell.change(**{item.name: turned(self.shell.settings, item, by)})

    def content(self, width: int) -> Content:
        overruled = {"theme": "NO_COLOR is set"} if self.app.no_color else {}
        if os.environ.get("GPUTUI_ASCII", "0") not in ("", "0"):
            overruled["characters"] = "GPUTUI_ASCII is set"
        lines = settings_lines(self.shell.settings, self._place, width, overruled)
        return Content("Settings", lines, "↑↓ choose  ←→ change  esc closes")
