"""Apps for the tests of the display layer."""

import random
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Button, Footer, Input, Label, Log, Static

from gputui.ui.tui.terminal.grid import CellGrid
from gputui.ui.tui.terminal.layer import DisplayLayer
from tests.ui.tui.emulator import Terminal

STYLES = [
    "", "bold", "dim", "italic", "underline", "reverse", "strike", "bold red", "green on blue", "dim cyan",
    "#ff8800", "black on #445566", "bold reverse magenta",
]  # fmt: skip
WORDS = [
    "loss", "3.214", "▇▅▄▃▂", "⣀⣤⣶⣿", "漢字", "ひらがな", "한국어", "→ ✗ ●", "naïve café", "ไทยกำลัง",
    "e\u0301a\u0308", "   ",
]  # fmt: skip


class Dialog(ModalScreen[None]):
    CSS = "Dialog { align: center middle; } #box { width: 30; height: 7; border: round $accent; background: $surface; }"

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="box"):
            yield Label("A question, 漢字")
            yield Input("answer")
            yield Button("Yes")


class Other(Screen[None]):
    def compose(self) -> ComposeResult:
        yield Static("another screen\n" * 30)
        yield Footer()


class EverythingApp(App[None]):
    """Several stock widgets, changed at random."""

    CSS = "Log { height: 1fr; border: solid green; } #static { height: 3; } Input { height: 3; }"
    BINDINGS: ClassVar[list[BindingType]] = [("q", "quit", "Quit"), ("t", "theme", "Theme")]

    def compose(self) -> ComposeResult:
        yield Static("static", id="static")
        yield Log(id="log")
        yield Input("input", id="input")
        yield Footer()

    def change(self, source: random.Random, vocabulary: list[str]) -> None:
        word = " ".join(source.choice(vocabulary) for _ in range(source.randint(1, 4)))
        style = source.choice(STYLES)
        screen = self.screen_stack[0]
        what = source.randrange(4)
        if what == 0:
            screen.query_one("#static", Static).update(Text(f"{word}\n{word}", style))
        elif what == 1:
            screen.query_one(Log).write_line(word)
        elif what == 2:
            self.notify(word, timeout=source.choice([0.05, 5]))
        else:
            screen.query_one(Input).value = word


class Captured(DisplayLayer[None]):
    """A display layer whose frames go to an emulated terminal and are checked there, each of them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.frames: list[str] = []
        self.terminal: Terminal | None = None
        self.problems: list[str] = []

    @property
    def grid(self) -> CellGrid:
        return self._cell_grid

    def write_frame(self, data: str) -> None:
        self.frames.append(data)
        terminal = self.terminal
        if terminal is None or (terminal.screen.columns, terminal.screen.lines) != (self.grid.width, self.grid.height):
            return
        terminal.feed(data)
        self.problems += terminal.wrong_cells(self.grid)[:3]
        caret = self.size.clamp_offset(self.cursor_position)
        if terminal.cursor != tuple(caret):
            self.problems.append(f"cursor at {terminal.cursor} instead of {tuple(caret)}")


class Everything(Captured, EverythingApp):
    """`EverythingApp` on the display layer."""
