"""The base of dialogs: a frame above a page with lines, rows that scroll, and lines to type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, cast

from textual import events, on
from textual.app import ComposeResult

from gputui.metrics.draw.parts import Line
from gputui.ui.tui.actions.key_lines import FooterKey, key_spans
from gputui.ui.tui.layout.columns import box, clip_line, fit_line, highlight, is_too_small, rule
from gputui.ui.tui.shell import Shell, passed_to_top
from gputui.ui.tui.terminal.layer import Overlay
from gputui.ui.tui.widgets.line_edit import LineEdit
from gputui.ui.tui.widgets.pane import Pane

AROUND = 4
"""Lines of the frame, and of the page above and below it."""


class Content(NamedTuple):
    """The content of the frame.

    Attributes:
        lines: what stands above the rows.
        rows: what the cursor moves in; they scroll where they have no room.
        below: what stands below the rows.
    """

    title: str
    lines: Sequence[Line]
    rows: Sequence[Line] = ()
    below: Sequence[Line] = ()


class Dialog(Overlay[None]):
    """A frame with a cursor in its rows.

    A subclass implements ``content``, and what keys do in ``press`` and ``choose``; other keys are text, if there are
    ``edits``.

    Attributes:
        WIDTH: the cells of the frame, on a screen that has as many.
        PANE_ID: the id of the pane, for the style sheet.
        MOST_ROWS: how many rows are in sight at most.
        IS_MARKED: whether the row of the cursor is marked.
        CLOSING: the keys that close it.
        keys: what its keys do, for the lower edge of the frame and the footer of the page below.
        edits: the lines to type: one for all rows, or one for each.
        cursor: the number of the row under the cursor.
        top: the number of the first row in sight.
        room: how many rows are in sight.
        count: how many rows there are.
    """

    BINDINGS: ClassVar = []
    WIDTH: ClassVar = 64
    PANE_ID: ClassVar = "dialog"
    MOST_ROWS: ClassVar = 1000
    IS_MARKED: ClassVar = True
    CLOSING: ClassVar[frozenset[str]] = frozenset({"escape", "ctrl+c"})
    keys: Sequence[FooterKey] = ()

    def __init__(self) -> None:
        super().__init__()
        self.pane = Pane(id=self.PANE_ID)
        self.edits: list[LineEdit] = []
        self.cursor = self.top = self.room = self.count = 0
        self._first_row = 0
        self._drawn_size = self.app.size

    @property
    def shell(self) -> Shell:
        """The app."""
        return cast("Shell", self.app)

    def content(self, width: int) -> Content:
        """The content in lines of ``width`` cells, marked rows in two cells less."""
        raise NotImplementedError

    def press(self, key: str) -> bool:
        """Handle a key; False if it means nothing here."""
        return False

    def choose(self) -> None:
        """Take the row of the cursor, after Enter or a click on it."""

    def edited(self) -> None:
        """The typed text has changed."""

    def move(self, by: int) -> None:
        """Move the cursor by rows."""
        self.cursor = min(max(0, self.cursor + by), max(0, self.count - 1))

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
        key = event.key
        if not self.edits:
            key = {"j": "down", "k": "up"}.get(key, key)
        steps = {"down": 1, "up": -1, "pagedown": self.room, "pageup": -self.room}
        if key in self.CLOSING:
            self.dismiss(None)
            return
        if is_too_small(*self.app.size) or self.press(event.key):
            pass
        elif key == "enter":
            self.choose()
        elif key == "tab":
            self.cursor = (self.cursor + 1) % max(1, self.count)
        elif key == "shift+tab":
            self.cursor = (self.cursor - 1) % max(1, self.count)
        elif key in steps and self.count:
            self.move(steps[key])
        elif self.edits and (typed := self.edits[self._edited].typed(key, event.character)) is not None:
            self._type(typed)
        self.draw()

    def on_paste(self, event: events.Paste) -> None:
        event.stop()
        if self.edits:
            self._type(self.edits[self._edited].insert(event.text))
            self.draw()

    @property
    def _edited(self) -> int:
        return min(self.cursor, len(self.edits) - 1)

    def _type(self, edit: LineEdit) -> None:
        self.edits[self._edited] = edit
        self.edited()

    @on(events.MouseScrollDown)
    @on(events.MouseScrollUp)
    def wheel_turned(self, event: events.MouseEvent) -> None:
        """Scroll the rows."""
        event.stop()
        by = 1 if isinstance(event, events.MouseScrollDown) else -1
        self.move(by)
        self.draw()

    def on_click(self, event: events.Click) -> None:
        event.stop()
        number = self.top + event.y - 1 - self._first_row
        if event.widget is not self.pane:
            self.dismiss(None)
        elif self.top <= number < min(self.count, self.top + self.room):
            if number == self.cursor:
                self.choose()
            self.cursor = number
            self.draw()

    def draw(self) -> None:
        """Draw the frame in the middle of the screen."""
        size = self._drawn_size = self.app.size
        if is_too_small(*size):
            # The page below says so.
            self.pane.show([])
            return
        width = min(self.WIDTH, size.width)
        self.pane.styles.width = width
        self.pane.draw(lambda: self._frame(width, size.height))
        self.shell.draw_footer()

    def _frame(self, width: int, height: int) -> list[Line]:
        """The content in a frame of ``width`` cells and at most ``height`` lines."""
        title, lines, rows, below = self.content(width - 4)
        self.count = len(rows)
        self._first_row = len(lines)
        self.room = max(1, min(self.count, self.MOST_ROWS, height - AROUND - len(lines) - len(below)))
        self.cursor = min(self.cursor, max(0, self.count - 1))
        self.top = min(max(self.top, self.cursor - self.room + 1), self.cursor, max(0, self.count - self.room))
        visible = map(self._row, range(self.top, self.top + self.room), rows[self.top :])
        body: list[Line] = [
            [(" ", "text"), *fit_line(line, width - 4), (" ", "text")] for line in (*lines, *visible, *below)
        ]
        keys, spare = clip_line(
            [(" ", "text"), *key_spans(self.keys, is_ascii=self.shell.is_ascii), (" ", "text")], width - 2
        )
        edge = [("─" * spare, "rule"), *keys]
        return box([rule(title, width - 2), *body[: height - 2]], width, edge)

    def _row(self, number: int, line: Line) -> Line:
        """A row behind the mark of the cursor, where it is marked."""
        if not self.IS_MARKED:
            return line
        room = min(self.WIDTH, self._drawn_size.width) - 6
        row = fit_line(line, room)
        if number == self.cursor:
            return highlight([("▸ ", "cursor"), *row])
        return [("  ", "cursor"), *row]
