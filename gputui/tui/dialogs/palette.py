"""Everything by a part of its name: what can be done here, runs, GPUs, profiles, settings."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.message import Message
from textual.screen import ModalScreen

from gputui.charts.chart import Line
from gputui.tui.dialogs.fuzzy import ranked
from gputui.tui.layout.boxes import box
from gputui.tui.layout.columns import between, fit_line
from gputui.tui.widgets.line_edit import LineEdit
from gputui.tui.widgets.pane import Pane


@dataclass(frozen=True, slots=True)
class Choice:
    """One thing to choose. ``why_not`` is a sentence when it is not possible now; ``name`` is a short one by which it
    is found too, for example that of the footer."""

    title: str
    hint: str
    do: Callable[[], object]
    why_not: str | None = None
    name: str = ""

    @property
    def searched(self) -> str:
        """What is typed is looked for in this; its beginning counts most."""
        return f"{self.name} {self.title}" if self.name else self.title


class Found(Message):
    """More to choose from, found by a thread."""

    def __init__(self, choices: Sequence[Choice]) -> None:
        super().__init__()
        self.choices = choices


class PaletteScreen(ModalScreen[Choice | None]):
    """A line to type into and the choices that fit; Enter takes the one under the cursor."""

    BINDINGS: ClassVar = []
    WIDTH: ClassVar = 76
    ROWS: ClassVar = 12

    def __init__(self, choices: Sequence[Choice], more: Callable[[], Sequence[Choice]] | None = None) -> None:
        """``more`` is called in a thread: what it finds comes behind the others."""
        super().__init__()
        self._choices = list(choices)
        self._more = more
        self._edit = LineEdit()
        self._place = 0
        self._top = 0
        self._room = 1
        self._pane = Pane(id="palette")

    def compose(self) -> ComposeResult:
        self._draw()
        yield self._pane

    def on_mount(self) -> None:
        if self._more is not None:
            threading.Thread(target=self._find_more, args=(self._more,), name="palette", daemon=True).start()

    def _find_more(self, more: Callable[[], Sequence[Choice]]) -> None:
        with suppress(OSError):
            self.post_message(Found(more()))

    def on_found(self, message: Found) -> None:
        current = self._current()
        self._choices += message.choices
        if current is not None:
            self._place = self._found().index(current)
        self._draw()

    def _found(self) -> list[Choice]:
        return ranked(self._choices, self._edit.text, lambda each: (each.searched, each.hint, each.why_not is None))

    def _current(self) -> Choice | None:
        found = self._found()
        return found[self._place] if self._place < len(found) else None

    def on_resize(self) -> None:
        self._draw()

    def on_click(self, event: events.Click) -> None:
        """A click takes a choice; one beside the palette closes it."""
        event.stop()
        if event.widget is not self._pane:
            self.dismiss(None)
            return
        place = self._top + event.y - 2
        found = self._found()
        if event.y >= 2 and place < min(len(found), self._top + self._room):
            self.dismiss(found[place])

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self._move(1)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self._move(-1)

    def _move(self, by: int) -> None:
        self._place = min(max(0, self._place + by), max(0, len(self._found()) - 1))
        self._draw()

    def on_key(self, event: events.Key) -> None:
        event.stop()
        if event.key in ("escape", "ctrl+c"):
            self.dismiss(None)
        elif event.key == "enter":
            self.dismiss(self._current())
        elif event.key in ("down", "ctrl+n", "tab"):
            self._move(1)
        elif event.key in ("up", "ctrl+p", "shift+tab"):
            self._move(-1)
        elif event.key in ("pagedown", "pageup"):
            self._move(self._room if event.key == "pagedown" else -self._room)
        elif (edit := self._edit.press(event.key)) is not None:
            self._edit, self._place = edit, 0
        elif event.character is not None and event.is_printable:
            self._edit, self._place = self._edit.insert(event.character), 0
        self._draw()

    def on_paste(self, event: events.Paste) -> None:
        event.stop()
        self._edit, self._place = self._edit.insert(event.text), 0
        self._draw()

    def _draw(self) -> None:
        columns, rows = self.app.size
        width = min(self.WIDTH, columns)
        inner = width - 4
        found = self._found()
        room = self._room = max(1, min(self.ROWS, rows - 5))
        top = self._top = max(0, self._place - room + 1)
        lines: list[Line] = [[("› ", "cursor"), *self._edit.spans(inner - 2)]]
        for number, choice in enumerate(found[top : top + room], top):
            current = number == self._place
            style = "dim" if choice.why_not else "cursor" if current else "text"
            title = ("▸ " if current else "  ") + choice.title
            lines.append(between([(title, style)], [(" " + (choice.why_not or choice.hint), "dim")], inner))
        if not found:
            lines.append(fit_line([("  Nothing fits.", "dim")], inner))
        lines += [fit_line([], inner)] * (room + 1 - len(lines))
        shown = box("Find", lines, width, f"{len(found)} of {len(self._choices)}")
        self._pane.styles.width = width
        self._pane.show(shown, height=len(shown))
