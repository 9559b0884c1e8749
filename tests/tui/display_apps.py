"""Apps for the tests of the display layer, one of them started as a program of its own on a pseudo-terminal."""

import random
import sys
from pathlib import Path
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Button, DataTable, Footer, Input, Label, Log, RichLog, Static, TextArea

from gputui.charts.bars import bar
from gputui.charts.chart import Curve, chart
from gputui.charts.envelope import Buckets
from gputui.tui.terminal.grid import CellGrid
from gputui.tui.terminal.layer import DisplayLayer
from tests.tui.emulator import Terminal

STYLES = [
    "", "bold", "dim", "italic", "underline", "reverse", "strike", "bold red", "green on blue", "dim cyan",
    "#ff8800", "black on #445566", "bold reverse magenta",
]  # fmt: skip
WORDS = [
    "loss",
    "3.214",
    "▇▅▄▃▂",
    "⣀⣤⣶⣿",
    "漢字",
    "ひらがな",
    "한국어",
    "→ ✗ ●",
    "naïve café",
    "ไทยกำลัง",
    "e\u0301a\u0308",
    "   ",
]
EMOJI = ["👩\u200d💻", "❤\ufe0f", "🇩🇪", "🚀", "👍🏽", "⚠"]


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
    """Many stock widgets, changed at random."""

    CSS = """
    DataTable { height: 10; } Log, RichLog { height: 1fr; width: 1fr; border: solid green; }
    TextArea { height: 4; } #static { height: 3; } Input { height: 3; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [("q", "quit", "Quit"), ("t", "theme", "Theme")]

    def compose(self) -> ComposeResult:
        yield Static("static", id="static")
        yield DataTable(id="table")
        with Horizontal():
            yield Log(id="log")
            yield RichLog(id="rich", wrap=True)
        yield Input("input", id="input")
        yield TextArea("text\narea", id="area")
        yield Footer()

    def on_mount(self) -> None:
        table = self.query_one(DataTable)
        for column in range(8):
            table.add_column(f"col {column}", width=8, key=str(column))
        for row in range(10):
            table.add_row(*(f"{row}.{column}" for column in range(8)), key=str(row))

    def change(self, source: random.Random, words: list[str]) -> None:
        """One random change."""
        word = " ".join(source.choice(words) for _ in range(source.randint(1, 4)))
        style = source.choice(STYLES)
        screen = self.screen_stack[0]
        what = source.randrange(9)
        if what <= 2:
            table = screen.query_one(DataTable)
            table.update_cell(str(source.randrange(10)), str(source.randrange(8)), Text(word, style))
        elif what == 3:
            screen.query_one("#static", Static).update(Text(f"{word}\n{word}", style))
        elif what == 4:
            screen.query_one(Log).write_line(word)
        elif what == 5:
            screen.query_one(RichLog).write(Text(word, style))
        elif what == 6:
            self.notify(word, timeout=source.choice([0.05, 5]))
        elif what == 7:
            screen.query_one(TextArea).insert(word)
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


class Dashboard(Captured):
    """Eight GPUs, two charts, runs and a log tail, as a busy machine would change them within a second."""

    CSS = """
    Static { text-wrap: nowrap; text-overflow: clip; }
    #head { height: 1; } #gpus { height: 9; } #charts { height: 1fr; } .chart { width: 1fr; height: 1fr; }
    #runs { height: 7; } #log { height: 3; }
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.source = random.Random(7)
        self.ticks = 0
        self.loss, self.rate = Buckets(), Buckets()
        self.values = [[self.source.randrange(100) for _ in range(10)] for _ in range(8)]
        self.log_lines = ["starting"] * 3
        for _ in range(400):
            self.grow()

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        yield Static(id="gpus")
        with Horizontal(id="charts"):
            yield Static(id="loss", classes="chart")
            yield Static(id="rate", classes="chart")
        yield Static(id="runs")
        yield Static(id="log")

    def grow(self) -> None:
        self.ticks += 1
        self.loss.append(self.ticks, 1 + 7 / self.ticks**0.5 + self.source.random() / 10)
        self.rate.append(self.ticks, 3000 + self.source.gauss(0, 60))

    def tick(self) -> None:
        """One second: 72 of 80 numbers, two runs, both charts, two log lines."""
        self.grow()
        for row in self.values:
            for column in range(9):
                row[column] = min(99, max(0, row[column] + self.source.choice((-2, -1, 1, 2))))
        gpus = ["  # util        memory  temp  power  clock   pcie   fan  sm  enc  dec"]
        gpus += [
            f"  {number} {row[0]:>3} {bar(row[0] / 100, 8)}" + "".join(f"{value:>6}" for value in row[1:])
            for number, row in enumerate(self.values)
        ]
        runs = ["RUNS"] + [
            f"run-{number}  running  step {self.ticks * 37 + number if number < 2 else number:>8}  loss 1.{number}"
            for number in range(6)
        ]
        self.log_lines = [*self.log_lines, *(f"12:00:{self.ticks % 60:02} step {self.ticks * 2 + n}" for n in (0, 1))][
            -3:
        ]
        total = sum(row[0] for row in self.values)
        self.show("head", f" 8 GPUs  util {total / 8:3.0f}%  tick {self.ticks}")
        self.show("gpus", "\n".join(gpus))
        self.show("runs", "\n".join(runs))
        self.show("log", "\n".join(self.log_lines))
        for name, buckets in (("loss", self.loss), ("rate", self.rate)):
            size = self.query_one(f"#{name}").size
            curve = Curve(buckets.bins(4 * max(1, size.width)), value=buckets.last_value)
            lines = chart([curve], width=size.width, height=size.height, title=name)
            self.show(name, "\n".join("".join(text for text, _ in line).rstrip() for line in lines))

    def show(self, name: str, text: str) -> None:
        self.query_one(f"#{name}", Static).update(Text(text), layout=False)


class TickApp(DisplayLayer[None]):
    """A screen of numbers that counts ticks, to be driven on a pseudo-terminal."""

    CSS = "Screen { layers: base; } #rows { height: 1fr; text-wrap: nowrap; text-overflow: clip; } Input { height: 3; }"
    BINDINGS: ClassVar[list[BindingType]] = [("f2", "lend", "Lend the terminal")]

    def compose(self) -> ComposeResult:
        yield Static(id="rows")
        yield Input(id="input")

    def on_mount(self) -> None:
        self.ticks = 0
        self.query_one(Input).cursor_blink = False
        self.set_interval(0.05, self.tick)
        self.tick()

    def action_lend(self) -> None:
        """Lend the terminal to another program, which leaves something on it."""
        with self.suspend():
            print("another program was here\n" * 9, flush=True)

    def tick(self) -> None:
        self.ticks += 1
        with Path(sys.argv[1]).open("a", encoding="utf-8") as notes:
            notes.write(f"{self.ticks} {self.display_counters.frames_put_off} {self.display_counters.bytes_written}\n")
        if "still" in sys.argv and self.ticks > 5:
            return
        rows = [f"row {row:3} " + f"{self.ticks * 7919 * row % 1000003:>8} " * 12 for row in range(60)]
        self.query_one("#rows", Static).update(Text("\n".join(rows), "green"))


if __name__ == "__main__":
    TickApp().run()
