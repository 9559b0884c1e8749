"""Everything by a part of its name: what can be done here, and every run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.screen import ModalScreen

from gputui.charts.chart import Line
from gputui.tui.editing import LineEdit
from gputui.tui.render.boxes import box
from gputui.tui.render.columns import between, fit_line
from gputui.tui.widgets.pane import Pane


@dataclass(frozen=True, slots=True)
class Choice:
    """One thing to choose. ``why_not`` is a sentence when it is not possible now."""

    title: str
    hint: str
    do: Callable[[], object]
    why_not: str | None = None


def ranked(choices: Sequence[Choice], typed: str) -> list[Choice]:
    """Those in which every typed word occurs, then those in which its letters occur in order; within each, possible
    ones first and as given."""
    words = typed.lower().split()
    near, far = [], []
    for choice in choices:
        text = f"{choice.title} {choice.hint}".lower()
        if all(word in text for word in words):
            near.append(choice)
        elif _in_order("".join(words), choice.title.lower()):
            far.append(choice)
    near.sort(
        key=lambda choice: (choice.why_not is not None, bool(words) and not choice.title.lower().startswith(words[0]))
    )
    return [*near, *far]


def _in_order(letters: str, text: str) -> bool:
    rest = iter(text)
    return all(letter in rest for letter in letters)


class PaletteScreen(ModalScreen[Choice | None]):
    """A line to type into and the choices that fit; Enter takes the one under the cursor."""

    BINDINGS: ClassVar = []
    WIDTH: ClassVar = 76
    ROWS: ClassVar = 12

    def __init__(self, choices: Sequence[Choice]) -> None:
        super().__init__()
        self._choices = list(choices)
        self._edit = LineEdit()
        self._place = 0
        self._pane = Pane(id="palette")

    def compose(self) -> ComposeResult:
        self._draw()
        yield self._pane

    def on_resize(self) -> None:
        self._draw()

    def on_key(self, event: events.Key) -> None:
        event.stop()
        found = ranked(self._choices, self._edit.text)
        if event.key in ("escape", "ctrl+c"):
            self.dismiss(None)
        elif event.key == "enter":
            self.dismiss(found[self._place] if self._place < len(found) else None)
        elif event.key in ("down", "ctrl+n", "tab"):
            self._place = min(self._place + 1, max(0, len(found) - 1))
        elif event.key in ("up", "ctrl+p", "shift+tab"):
            self._place = max(0, self._place - 1)
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
        found = ranked(self._choices, self._edit.text)
        room = max(1, min(self.ROWS, rows - 5))
        top = max(0, self._place - room + 1)
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
