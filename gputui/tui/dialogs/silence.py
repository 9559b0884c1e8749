"""The question how long an alert sends no notifications."""

from __future__ import annotations

from typing import NamedTuple

from gputui.alerts.overrides import parse_seconds
from gputui.alerts.rules import RULES
from gputui.charts.chart import Line
from gputui.charts.safe_text import clean
from gputui.charts.units import duration
from gputui.store.alerts import AlertView
from gputui.tui.layout.columns import fit_line, wrap
from gputui.tui.layout.words import clock
from gputui.tui.widgets.dialog import Content, Dialog
from gputui.tui.widgets.line_edit import LineEdit


class Silence(NamedTuple):
    """A duration, and whether it is for all subjects of the rule."""

    seconds: float
    is_everywhere: bool


class SilenceScreen(Dialog[Silence]):
    """Answers with a typed duration. Tab switches between this subject and all subjects of the rule."""

    PANE_ID = "silence"

    def __init__(self, alert: AlertView, now: float) -> None:
        super().__init__()
        self._alert = alert
        self._now = now
        self.edit: LineEdit = LineEdit.at_end("1h")
        self._is_everywhere = False

    def press(self, key: str) -> bool:
        if key == "enter":
            if (seconds := self._seconds()) is not None:
                self.dismiss(Silence(seconds, self._is_everywhere))
        elif key in ("tab", "shift+tab"):
            self._is_everywhere = not self._is_everywhere
        else:
            return False
        return True

    def _seconds(self) -> float | None:
        text = self.edit.text.strip()
        return 0.0 if text == "0" else parse_seconds(text)

    def content(self, width: int) -> Content:
        title = RULES[self._alert.rule].title if self._alert.rule in RULES else clean(self._alert.rule)
        whose = "everywhere" if self._is_everywhere else f"for {clean(self._alert.subject_name)}"
        seconds = self._seconds()
        if seconds is None:
            meant, style = "a time such as 30min, 2h or 1d, of at most 30 days; 0 ends it", "warn"
        elif seconds == 0:
            meant, style = "no longer silenced", "dim"
        else:
            meant, style = f"no notifications until {clock(self._now + seconds)} ({duration(seconds)})", "dim"
        body: list[Line] = [[(part, "text")] for part in wrap(f"{title} {whose}", width)]
        body.append(fit_line([("for ", "dim"), *self.edit.spans(max(8, width - 4))], width))
        body += [[(part, style)] for part in wrap(meant, width)]
        return Content("Silence", body, "↵ silence   tab this / everywhere   esc back")
