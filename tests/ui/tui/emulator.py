"""A terminal emulator for tests: pyte, with what it lacks or trips over taken care of."""

import re
from functools import lru_cache
from typing import Any
from unicodedata import combining, normalize

import pyte
from pyte.screens import Char

from gputui.ui.tui.terminal.grid import CellGrid
from gputui.ui.tui.terminal.layer import DisplayLayer
from gputui.ui.tui.terminal.pens import Pen

# pyte prints parts of sequences it does not know: private CSI, mode queries and the kitty keyboard protocol.
_UNKNOWN_TO_PYTE = re.compile(r"\x1b\[[<>=][0-9;]*[a-zA-Z]|\x1b\[\?[0-9;]*\$p|\x1b\[\?2026[hl]")

LOOKS = {"1": "bold", "2": "blink", "3": "italics", "4": "underscore", "7": "reverse", "9": "strikethrough"}
"""SGR codes and pyte's attributes. pyte knows no dim; nothing of ours blinks, so that flag stands for it."""

GARBAGE = "#"


class _Screen(pyte.Screen):
    def select_graphic_rendition(self, *codes: int, **options: Any) -> None:
        mapped: list[int] = []
        position = 0
        while position < len(codes):
            code = codes[position]
            if code in (38, 48):
                length = 5 if codes[position + 1] == 2 else 3
                mapped += codes[position : position + length]
                position += length
                continue
            mapped += {2: [5], 22: [22, 25]}.get(code, [code])
            position += 1
        super().select_graphic_rendition(*(mapped or [0]), **options)


class Terminal:
    """An emulated terminal that starts out full of garbage, with autowrap off as Textual sets it."""

    def __init__(self, width: int, height: int) -> None:
        self.screen = _Screen(width, height)
        self._stream = pyte.Stream(self.screen)
        self._stream.feed("\x1b[?7l")
        self.fill_with_garbage()

    def feed(self, data: str) -> None:
        self._stream.feed(_UNKNOWN_TO_PYTE.sub("", data))

    def resize(self, width: int, height: int) -> None:
        self.screen.resize(height, width)
        self.screen.reset_mode(7)
        self.fill_with_garbage()

    def fill_with_garbage(self) -> None:
        for y in range(self.screen.lines):
            for x in range(self.screen.columns):
                self.screen.buffer[y][x] = Char(GARBAGE, fg="red", bold=True)

    @property
    def lines(self) -> list[str]:
        return [
            "".join(self.screen.buffer[y][x].data for x in range(self.screen.columns)) for y in range(self.screen.lines)
        ]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def cursor(self) -> tuple[int, int]:
        return self.screen.cursor.x, self.screen.cursor.y

    def wrong_cells(self, grid: CellGrid) -> list[str]:
        """The cells where the terminal differs from `grid`."""
        wrong = []
        for y in range(grid.height):
            for x, (text, pen) in enumerate(grid.line(y)):
                cell = self.screen.buffer[y][x]
                if _look(cell) != _wanted_look(text, pen):
                    wrong.append(f"({x}, {y}): wanted {text!r} {_wanted_look(text, pen)}, shown {_look(cell)}")
        return wrong


def repaint(app: DisplayLayer[Any]) -> None:
    app._cell_grid.mark_unknown()
    app._emit()


@lru_cache(20_000)
def _look(char: Char) -> tuple[Any, ...]:
    # pyte puts a combining mark beside a wide character and drops those without a combining class; so marks are not
    # compared, only what they sit on.
    text = normalize("NFD", char.data)[:1]
    text = "" if combining(text or " ") else text
    blank = not text.strip() and not (char.underscore or char.reverse or char.strikethrough)
    flags = frozenset() if blank else frozenset(name for name in LOOKS.values() if getattr(char, name))
    return text, "default" if blank else char.fg, char.bg, flags


@lru_cache(20_000)
def _wanted_look(text: str, pen: Pen) -> tuple[Any, ...]:
    """The look of a cell of this pen, found out by asking pyte."""
    probe = _Screen(4, 1)
    pyte.Stream(probe).feed(Pen(0, "", "").change_to(pen) + "x")
    return _look(probe.buffer[0][0]._replace(data=text))
