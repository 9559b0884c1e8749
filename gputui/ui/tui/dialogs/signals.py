"""Choosing a signal for a process, and confirming it."""

from __future__ import annotations

import signal
from typing import ClassVar, NamedTuple

from gputui.metrics.draw.parts import Line
from gputui.ui.tui.layout.columns import fit_line, wrap
from gputui.ui.tui.widgets.dialog import Content, Dialog


class SignalChoice(NamedTuple):
    """A key, its signal, and the effect."""

    key: str
    number: signal.Signals
    words: str


CHOICES: tuple[SignalChoice, ...] = (
    SignalChoice("t", signal.SIGTERM, "asks it to end"),
    SignalChoice("i", signal.SIGINT, "interrupts it, as ctrl+c would"),
    SignalChoice("k", signal.SIGKILL, "ends it at once; it saves nothing"),
    SignalChoice("s", signal.SIGSTOP, "stops it where it is"),
    SignalChoice("c", signal.SIGCONT, "continues it after a stop"),
)


class SignalScreen(Dialog[signal.Signals]):
    """Answers with a chosen and confirmed signal."""

    WIDTH = 68
    PANE_ID = "confirm"
    CLOSING: ClassVar = frozenset({"escape", "q", "n", "ctrl+c"})

    def __init__(self, about: str, warning: str = "") -> None:
        super().__init__()
        self._about = about
        self._warning = warning
        self._chosen: SignalChoice | None = None

    def press(self, key: str) -> bool:
        if self._chosen is None:
            self._chosen = next((choice for choice in CHOICES if choice.key == key), None)
        elif key in ("y", "Y"):
            self.dismiss(self._chosen.number)
        return True

    def content(self, width: int) -> Content:
        lines: list[Line] = [[(part, "text")] for part in wrap(self._about, width)]
        lines += [[(part, "warn")] for part in wrap(self._warning, width)]
        lines.append(fit_line([], width))
        if self._chosen is None:
            lines += [
                [(f"{choice.key}  ", "key"), (f"{_name(choice.number):<6}", "text"), (choice.words, "dim")]
                for choice in CHOICES
            ]
            return Content("Signal", lines, "esc sends nothing")
        words = f"Send {_name(self._chosen.number)}? It {self._chosen.words}."
        lines += [[(part, "text")] for part in wrap(words, width)]
        lines.append([("y", "key"), (" yes   ", "text"), ("n", "key"), (" no", "text")])
        return Content("Signal", lines)


def _name(number: signal.Signals) -> str:
    return number.name.removeprefix("SIG")
