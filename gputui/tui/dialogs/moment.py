"""The question for a moment of the past."""

from __future__ import annotations

from gputui.charts.chart import Line
from gputui.charts.units import duration
from gputui.tui.dialogs.typed_time import EXAMPLES, TypedTimeError, parse_moment
from gputui.tui.layout.columns import fit_line, wrap
from gputui.tui.layout.moments import day_and_clock
from gputui.tui.widgets.dialog import Content, Dialog
from gputui.tui.widgets.line_edit import LineEdit


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
