"""The base of dialogs: a frame above a page that asks one question and closes with the answer."""

from __future__ import annotations

from typing import ClassVar, NamedTuple, TypeVar, cast

from textual import events, on
from textual.app import ComposeResult

from gputui.core.text import cell_width, clip
from gputui.metrics.draw.parts import Line
from gputui.ui.tui.layout.columns import box, fit_line, rule, selected
from gputui.ui.tui.shell import Shell, passed_to_top
from gputui.ui.tui.terminal.layer import Overlay
from gputui.ui.tui.widgets.line_edit import LineEdit
from gputui.ui.tui.widgets.pane import Pane

Answer = TypeVar("Answer")


class Content(NamedTuple):
    """The content of the frame; ``note`` is in its lower edge."""

    title: str
    lines: list[Line]
    note: str = ""


class Dialog(Overlay[Answer | None]):
    """A frame that closes with an answer; None if nothing was chosen.

    A subclass implements ``content`` and ``press``; if ``edit`` is set, other keys are text.
    """

    BINDINGS: ClassVar = []
    WIDTH: ClassVar = 64
    PANE_ID: ClassVar = "dialog"
    CLOSING: ClassVar[frozenset[str]] = frozenset({"escape", "ctrl+c"})
    """Keys that close it without an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.pane = Pane(id=self.PANE_ID)
        self.edit: LineEdit | None = None
        self._drawn_size = self.app.size

    @property
    def shell(self) -> Shell:
        """The app."""
        return cast("Shell", self.app)

    def content(self, width: int) -> Content:
        """The content in lines of ``width`` cells."""
        raise NotImplementedError

    def press(self, key: str) -> bool:
        """Handle a key; False if it means nothing here."""
        return False

    def edited(self) -> None:
        """The typed text has changed."""

    def scroll(self, by: int) -> None:
        """Handle a notch of the wheel: 1 down, -1 up."""

    def click(self, row: int) -> None:
        """Handle a click on line ``row`` of the content, from 0."""

    def compose(self) -> ComposeResult:
        self.draw()
        yield self.pane

    def on_resize(self) -> None:
        if self.app.size != self._drawn_size:
            self.draw()

    def on_key(self, event: events.Key) -> None:
        event.stop()
        if passed_to_top(self, event):
            return
        if event.key in self.CLOSING:
            self.dismiss(None)
            return
        if not self.press(event.key) and self.edit is not None:
            self._edit_to(self.edit.typed(event.key, event.character))
        self.draw()

    def on_paste(self, event: events.Paste) -> None:
        event.stop()
        if self.edit is not None:
            self._edit_to(self.edit.insert(event.text))
            self.draw()

    def _edit_to(self, edit: LineEdit | None) -> None:
        if edit is not None:
            self.edit = edit
            self.edited()

    @on(events.MouseScrollDown)
    @on(events.MouseScrollUp)
    def wheel_turned(self, event: events.MouseEvent) -> None:
        """Scroll the content."""
        event.stop()
        self.scroll(1 if isinstance(event, events.MouseScrollDown) else -1)
        self.draw()

    def on_click(self, event: events.Click) -> None:
        event.stop()
        if event.widget is self.pane:
            self.click(event.y - 1)
            self.draw()
        else:
            self.dismiss(None)

    def draw(self) -> None:
        """Draw the frame in the middle of the screen."""
        self._drawn_size = self.app.size
        width = min(self.WIDTH, self._drawn_size.width)
        title, lines, note = self.content(width - 4)
        body: list[Line] = [[(" ", "text"), *fit_line(line, width - 4), (" ", "text")] for line in lines]
        shown = box([rule(title, width - 2), *body], width)
        if note:
            foot = clip(f" {note} ", width - 2)
            shown[-1] = [("╰" + "─" * (width - 2 - cell_width(foot)), "rule"), (foot, "dim"), ("╯", "rule")]
        self.pane.styles.width = width
        self.pane.fit(shown)


class ListDialog(Dialog[Answer]):
    """A dialog with a cursor in a list. Enter, or a click on its row, calls ``choose``."""

    first_row = 0
    """Lines of the content above the list."""
    place = 0
    top = 0
    room = 1

    @property
    def count(self) -> int:
        """The number of rows."""
        raise NotImplementedError

    def choose(self) -> None:
        """Take the row of the cursor."""
        raise NotImplementedError

    def press(self, key: str) -> bool:
        steps = {"down": 1, "tab": 1, "up": -1, "shift+tab": -1, "pagedown": self.room, "pageup": -self.room}
        if key == "enter":
            self.choose()
        elif key in steps:
            self.scroll(steps[key])
        else:
            return False
        return True

    def scroll(self, by: int) -> None:
        self.place = min(max(0, self.place + by), max(0, self.count - 1))

    def click(self, row: int) -> None:
        number = self.top + row - self.first_row
        if self.top <= number < min(self.count, self.top + self.room):
            if number == self.place:
                self.choose()
            self.place = number

    def rows_in_view(self, most: int) -> range:
        """The rows to show in at most ``most`` lines, with that of the cursor."""
        self.room = max(1, min(most, self.count))
        self.top = min(max(self.top, self.place - self.room + 1), self.place)
        return range(self.top, min(self.count, self.top + self.room))

    def row(self, number: int, line: Line) -> Line:
        """The line of a row, marked if the cursor is on it."""
        marked: Line = [("▸ " if number == self.place else "  ", "cursor"), *line]
        return selected(marked) if number == self.place else marked
