"""The question for a time."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.screen import ModalScreen

from gputui.charts.chart import Line
from gputui.charts.units import duration
from gputui.tui.dialogs.typed_time import EXAMPLES, TypedTimeError, parse_moment
from gputui.tui.layout.boxes import box
from gputui.tui.layout.columns import fit_line, wrap
from gputui.tui.layout.moments import day_and_clock
from gputui.tui.widgets.line_edit import LineEdit
from gputui.tui.widgets.pane import Pane


class MomentScreen(ModalScreen[float | None]):
    """Answers with the moment that is typed, in UTC unix seconds, or None. While typing it says what is meant."""

    BINDINGS: ClassVar = []
    WIDTH: ClassVar = 64

    def __init__(self, now: float) -> None:
        super().__init__()
        self._now = now
        self._edit = LineEdit()
        self._pane = Pane(id="moment")

    def compose(self) -> ComposeResult:
        self._draw()
        yield self._pane

    def on_resize(self) -> None:
        self._draw()

    def on_paste(self, event: events.Paste) -> None:
        event.stop()
        self._edit = self._edit.insert(event.text)
        self._draw()

    def on_key(self, event: events.Key) -> None:
        event.stop()
        if event.key in ("escape", "ctrl+c"):
            self.dismiss(None)
        elif event.key == "enter":
            at, _ = self._meant()
            if at is not None:
                self.dismiss(at)
        elif (pressed := self._edit.press(event.key)) is not None:
            self._edit = pressed
        elif event.character is not None and event.is_printable:
            self._edit = self._edit.insert(event.character)
        self._draw()

    def _meant(self) -> tuple[float | None, str]:
        """The moment, and what to say about it."""
        try:
            at = parse_moment(self._edit.text, self._now)
        except TypedTimeError as error:
            return None, str(error)
        return at, f"{day_and_clock(at)}, {duration(self._now - at)} ago"

    def _draw(self) -> None:
        width = min(self.WIDTH, self.app.size.width)
        at, words = self._meant()
        empty = not self._edit.text.strip()
        style = "accent" if at is not None else "dim" if empty else "warn"
        told = f"for example {EXAMPLES}" if empty else words
        lines: list[Line] = [
            fit_line([("look at ", "text"), *self._edit.spans(width - 12)], width - 4),
            *([(part, style)] for part in wrap(told, width - 4)),
        ]
        shown = box("A moment", lines, width, "↵ look   esc back")
        self._pane.styles.width = width
        self._pane.show(shown, height=len(shown))
