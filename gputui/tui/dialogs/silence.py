"""The question for how long nobody is to be told of an alert."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from textual import events
from textual.app import ComposeResult
from textual.screen import ModalScreen

from gputui.alerts.overrides import parse_seconds
from gputui.alerts.rules import RULES
from gputui.charts.chart import Line
from gputui.charts.safe_text import clean
from gputui.charts.units import duration
from gputui.store.alerts import AlertView
from gputui.tui.layout.boxes import box
from gputui.tui.layout.columns import fit_line, wrap
from gputui.tui.layout.words import clock
from gputui.tui.widgets.line_edit import LineEdit
from gputui.tui.widgets.pane import Pane


class Silence(NamedTuple):
    """For how long, and whether for every subject of the rule."""

    seconds: float
    is_everywhere: bool


class SilenceScreen(ModalScreen[Silence | None]):
    """Answers with a time that is typed; tab turns between this subject and all of the rule's."""

    BINDINGS: ClassVar = []
    WIDTH: ClassVar = 64

    def __init__(self, alert: AlertView, now: float) -> None:
        super().__init__()
        self._alert = alert
        self._now = now
        self._edit = LineEdit.at_end("1h")
        self._is_everywhere = False
        self._pane = Pane(id="silence")

    def compose(self) -> ComposeResult:
        self._draw()
        yield self._pane

    def on_resize(self) -> None:
        self._draw()

    def on_key(self, event: events.Key) -> None:
        event.stop()
        seconds = self._seconds()
        if event.key in ("escape", "ctrl+c"):
            self.dismiss(None)
        elif event.key == "enter":
            if seconds is not None:
                self.dismiss(Silence(seconds, self._is_everywhere))
        elif event.key in ("tab", "shift+tab"):
            self._is_everywhere = not self._is_everywhere
        elif (pressed := self._edit.press(event.key)) is not None:
            self._edit = pressed
        elif event.character is not None and event.is_printable:
            self._edit = self._edit.insert(event.character)
        self._draw()

    def on_paste(self, event: events.Paste) -> None:
        event.stop()
        self._edit = self._edit.insert(event.text)
        self._draw()

    def _seconds(self) -> float | None:
        text = self._edit.text.strip()
        return 0.0 if text == "0" else parse_seconds(text)

    def _draw(self) -> None:
        width = min(self.WIDTH, self.app.size.width)
        title = RULES[self._alert.rule].title if self._alert.rule in RULES else clean(self._alert.rule)
        whose = "everywhere" if self._is_everywhere else f"for {clean(self._alert.subject_name)}"
        seconds = self._seconds()
        if seconds is None:
            meant, style = "a time such as 30min, 2h or 1d, of at most 30 days; 0 ends it", "warn"
        elif seconds == 0:
            meant, style = "no longer silenced", "dim"
        else:
            meant, style = f"nobody is told until {clock(self._now + seconds)} ({duration(seconds)})", "dim"
        body: list[Line] = [[(part, "text")] for part in wrap(f"{title} {whose}", width - 4)]
        body.append(fit_line([("for ", "dim"), *self._edit.spans(max(8, width - 8))], width - 4))
        body += [[(part, style)] for part in wrap(meant, width - 4)]
        lines = box("Silence", body, width, "↵ silence   tab this / everywhere   esc back")
        self._pane.styles.width = width
        self._pane.show(lines, height=len(lines))
