"""Dialogs that ask one question."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from gputui.core.text import clean
from gputui.core.units import duration
from gputui.metrics.draw.parts import Line
from gputui.recovery.watch.overrides import parse_seconds
from gputui.recovery.watch.rules import RULES
from gputui.store.alerts import AlertView
from gputui.ui.tui.dialogs.typed_time import EXAMPLES, TypedTimeError, parse_moment
from gputui.ui.tui.layout.columns import fit_line, wrap
from gputui.ui.tui.layout.moments import day_and_clock
from gputui.ui.tui.layout.words import dated_clock
from gputui.ui.tui.widgets.dialog import Content, Dialog
from gputui.ui.tui.widgets.line_edit import LineEdit


class ConfirmScreen(Dialog[bool]):
    """Answers True for y, None for n or escape. Other keys are ignored, also Enter."""

    PANE_ID = "confirm"
    CLOSING: ClassVar = frozenset({"n", "N", "escape", "q", "ctrl+c"})

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def press(self, key: str) -> bool:
        if key in ("y", "Y"):
            self.dismiss(True)
        return True

    def content(self, width: int) -> Content:
        body: list[Line] = [[(part, "text")] for part in wrap(self._text, width)]
        choice: Line = [("y", "key"), (" yes   ", "text"), ("n", "key"), (" no", "text")]
        return Content(self._title, [*body, fit_line([], width), choice])


class MomentScreen(Dialog[float]):
    """Answers with the typed moment in UTC unix seconds, and shows it while typing."""

    PANE_ID = "moment"

    def __init__(self, now: float) -> None:
        super().__init__()
        self._now = now
        self.edit: LineEdit = LineEdit()

    def press(self, key: str) -> bool:
        if key == "enter" and (at := self._typed()[0]) is not None:
            self.dismiss(at)
        return key == "enter"

    def _typed(self) -> tuple[float | None, str]:
        """The typed moment, None if it is invalid, and a text about it."""
        try:
            at = parse_moment(self.edit.text, self._now)
        except TypedTimeError as error:
            return None, str(error)
        return at, f"{day_and_clock(at)}, {duration(self._now - at)} ago"

    def content(self, width: int) -> Content:
        at, words = self._typed()
        empty = not self.edit.text.strip()
        style = "accent" if at is not None else "dim" if empty else "warn"
        hint = f"for example {EXAMPLES}" if empty else words
        lines: list[Line] = [
            fit_line([("look at ", "text"), *self.edit.spans(width - 8)], width),
            *([(part, style)] for part in wrap(hint, width)),
        ]
        return Content("A moment", lines, "↵ look   esc back")


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
            until = dated_clock(self._now + seconds, self._now)
            meant, style = f"no notifications until {until} ({duration(seconds)})", "dim"
        body: list[Line] = [[(part, "text")] for part in wrap(f"{title} {whose}", width)]
        body.append(fit_line([("for ", "dim"), *self.edit.spans(max(8, width - 4))], width))
        body += [[(part, style)] for part in wrap(meant, width)]
        return Content("Silence", body, "↵ silence   tab this / everywhere   esc back")


class ExtendScreen(Dialog[int]):
    """Answers with the typed number of trials."""

    PANE_ID = "extend"

    def __init__(self, study_id: str) -> None:
        super().__init__()
        self._study_id = study_id
        self.edit: LineEdit = LineEdit.at_end("")

    @property
    def _trials(self) -> int | None:
        text = self.edit.text.strip()
        number = int(text) if text.isdecimal() else 0
        return number if 0 < number < 100_000 else None

    def press(self, key: str) -> bool:
        if key == "enter" and self._trials is not None:
            self.dismiss(self._trials)
        return key == "enter"

    def content(self, width: int) -> Content:
        body = [[(part, "text")] for part in wrap(f"{self._study_id} continues with that many more trials.", width)]
        body.append(fit_line([("trials ", "dim"), *self.edit.spans(max(8, width - 8))], width))
        return Content("Extend the study", body, "↵ extend   esc back")
