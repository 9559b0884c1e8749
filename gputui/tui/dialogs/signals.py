"""Choosing the signal for a process, and being asked once more."""

from __future__ import annotations

import signal
from typing import ClassVar, NamedTuple

from textual import events
from textual.app import ComposeResult
from textual.screen import ModalScreen

from gputui.charts.chart import Line
from gputui.tui.layout.boxes import box
from gputui.tui.layout.columns import fit_line, wrap
from gputui.tui.widgets.pane import Pane


class Choice(NamedTuple):
    """A key, the signal it stands for, and what that does."""

    key: str
    number: signal.Signals
    words: str


CHOICES: tuple[Choice, ...] = (
    Choice("t", signal.SIGTERM, "asks it to end"),
    Choice("i", signal.SIGINT, "interrupts it, as ctrl+c would"),
    Choice("k", signal.SIGKILL, "ends it at once; it saves nothing"),
    Choice("s", signal.SIGSTOP, "stops it where it is"),
    Choice("c", signal.SIGCONT, "lets it go on after a stop"),
)


class SignalScreen(ModalScreen[signal.Signals | None]):
    """Answers with a signal that a person chose and confirmed, or None."""

    BINDINGS: ClassVar = []
    WIDTH: ClassVar = 68

    def __init__(self, about: str, warning: str = "") -> None:
        super().__init__()
        self._about = about
        self._warning = warning
        self._chosen: Choice | None = None
        self._pane = Pane(id="confirm")

    def compose(self) -> ComposeResult:
        self._draw()
        yield self._pane

    def on_resize(self) -> None:
        self._draw()

    def on_key(self, event: events.Key) -> None:
        event.stop()
        if event.key in ("escape", "q", "n", "ctrl+c"):
            self.dismiss(None)
        elif self._chosen is not None:
            if event.key in ("y", "Y"):
                self.dismiss(self._chosen.number)
        else:
            self._chosen = next((choice for choice in CHOICES if choice.key == event.key), None)
            self._draw()

    def _draw(self) -> None:
        width = min(self.WIDTH, self.app.size.width)
        inner = width - 4
        lines: list[Line] = [[(part, "text")] for part in wrap(self._about, inner)]
        lines += [[(part, "warn")] for part in wrap(self._warning, inner)]
        lines.append(fit_line([], inner))
        if self._chosen is None:
            lines += [
                [(f"{choice.key}  ", "key"), (f"{_name(choice.number):<6}", "text"), (choice.words, "dim")]
                for choice in CHOICES
            ]
            note = "esc sends nothing"
        else:
            words = f"Send {_name(self._chosen.number)}? It {self._chosen.words}."
            lines += [[(part, "text")] for part in wrap(words, inner)]
            lines.append([("y", "key"), (" yes   ", "text"), ("n", "key"), (" no", "text")])
            note = ""
        shown = box("Signal", lines, width, note)
        self._pane.styles.width = width
        self._pane.show(shown, height=len(shown))


def _name(number: signal.Signals) -> str:
    return number.name.removeprefix("SIG")
