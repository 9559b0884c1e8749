"""A table that can be filtered: while the filter is typed, keys are text."""

from __future__ import annotations

from textual import events

from gputui.charts.chart import Line
from gputui.tui.layout.columns import fit_line
from gputui.tui.widgets.line_edit import LineEdit
from gputui.tui.widgets.page import ActionScreen


class FilterScreen(ActionScreen):
    """Keeps the filter and its editing; what is filtered, and what arrows do meanwhile, is the screen's."""

    def __init__(self) -> None:
        super().__init__()
        self.filter_edit: LineEdit | None = None

    @property
    def filter_text(self) -> str:
        """What the rows shown have in them."""
        raise NotImplementedError

    def set_filter(self, text: str) -> None:
        """Show only the rows in which this occurs."""
        raise NotImplementedError

    def move(self, by: int) -> None:
        """Move the cursor of the table by so many rows."""
        raise NotImplementedError

    def with_filter(self, lines: list[Line], width: int) -> list[Line]:
        """The lines of the table, the first of them the filter while it is typed."""
        if self.filter_edit is not None and lines:
            spans = self.filter_edit.spans(max(8, width - 9))
            return [fit_line([(" filter ", "title"), *spans], width), *lines[1:]]
        return lines

    def do_filter(self) -> None:
        self.filter_edit = LineEdit.at_end(self.filter_text)
        self.changed()

    def on_key(self, event: events.Key) -> None:
        """While the filter is typed, keys are text; otherwise escape clears it."""
        edit = self.filter_edit
        if edit is None:
            if event.key == "escape" and self.filter_text:
                event.stop()
                self.set_filter("")
                self.changed()
            return
        if event.key == "enter":
            self.filter_edit = None
        elif event.key == "escape":
            self.filter_edit = None
            self.set_filter("")
        elif event.key in ("up", "down"):
            with self.shell.one_paint():
                self.move(-1 if event.key == "up" else 1)
            event.stop()
            return
        elif (pressed := edit.press(event.key)) is not None:
            self._filter_to(pressed)
        elif event.character is not None and event.is_printable:
            self._filter_to(edit.insert(event.character))
        else:
            return
        event.stop()
        self.changed()

    def on_paste(self, event: events.Paste) -> None:
        if self.filter_edit is not None:
            self._filter_to(self.filter_edit.insert(event.text))
            event.stop()
            self.changed()

    def _filter_to(self, edit: LineEdit) -> None:
        self.filter_edit = edit
        self.set_filter(edit.text)
