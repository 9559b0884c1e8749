"""A list of files to choose from: typed text filters it, and a typed path opens any file."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partialmethod
from pathlib import Path
from typing import Generic, TypeVar

from textual import events
from textual.app import ComposeResult

from gputui.core.text import clean
from gputui.metrics.draw.parts import Line
from gputui.ui.tui.layout.columns import between, fit_line, selected
from gputui.ui.tui.widgets.line_edit import LineEdit
from gputui.ui.tui.widgets.page import ActionScreen
from gputui.ui.tui.widgets.pane import Pane

Row = TypeVar("Row")

_LIST_TOP = 2
"""Lines above the rows: the title with the typed text, and the names of the columns."""


class FileListScreen(ActionScreen, Generic[Row]):
    """The list. A path has a slash or ends in .yaml. ``rows`` is None while they are being read."""

    def __init__(self, pane_id: str) -> None:
        super().__init__()
        self.pane = Pane(id=pane_id)
        self.edit = LineEdit()
        self.rows: tuple[Row, ...] | None = None
        self.place = 0
        self._top = 0
        self._room = 1
        self._is_taken_ahead = False

    def compose(self) -> ComposeResult:
        self.paint()
        yield from (self.notice, self.pane, self.message, self.footer)

    def interest(self) -> None:
        """None: the list shows nothing of the feed."""

    @property
    @abstractmethod
    def found(self) -> Sequence[Row]:
        """The rows that match the typed text."""

    @abstractmethod
    def take(self, chosen: Row | Path) -> None:
        """Go on with a row, or with the existing file of a typed path."""

    @property
    def current(self) -> Row | None:
        """The row under the cursor."""
        found = self.found
        return found[min(self.place, len(found) - 1)] if found else None

    def rows_read(self, rows: Sequence[Row]) -> None:
        """Take the rows; a choice made before now counts."""
        self.rows = tuple(rows)
        if self._is_taken_ahead:
            self._is_taken_ahead = False
            self.do_choose()
        self.changed()

    @property
    def is_path(self) -> bool:
        return "/" in self.edit.text or self.edit.text.endswith((".yaml", ".yml"))

    def list_lines(
        self, title: str, note: str, head: Line, rows: Sequence[Line], empty: str, width: int, height: int
    ) -> list[Line]:
        """At most ``height`` lines: the title with the typed text, the names of the columns, and the rows around the
        cursor. ``rows`` are those of `found`; ``empty`` is said without any."""
        notes = [(f"{note} ", "dim")] if width >= 76 else []
        edit = self.edit.spans(max(8, width - len(title) - len(note) - 6))
        lines: list[Line] = [between([(f" {title}  ", "title"), *edit], notes, width), head]
        self._room = max(1, height - _LIST_TOP)
        self._top = min(max(self._top, self.place - self._room + 1), max(0, self.place))
        for number, line in enumerate(rows[self._top : self._top + self._room], self._top):
            lines.append(selected(line) if number == self.place else line)
        if not rows:
            lines.append(fit_line([(f"  {empty}", "dim")], width))
        return lines

    # --- keys

    def take_key(self, event: events.Key) -> bool:
        if event.key == "question_mark":
            return False
        edit = self.edit.typed(event.key, event.character if event.is_printable else None)
        if edit is None:
            return False
        self.shell.message = ("", "info")
        if edit.text != self.edit.text:
            self.place = 0
        self.edit = edit
        self.changed()
        return True

    def on_paste(self, event: events.Paste) -> None:
        event.stop()
        self.edit, self.place = self.edit.insert(event.text), 0
        self.changed()

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the clicked row; a double click chooses it."""
        number = self._top + event.y - _LIST_TOP
        if event.widget is self.pane and event.y >= _LIST_TOP and number < min(len(self.found), self._top + self._room):
            self.place = number
            if event.chain == 2:
                self.do_choose()
            self.changed()

    def _move(self, by: int) -> None:
        self.place = min(max(0, self.place + by), max(0, len(self.found) - 1))

    do_up = partialmethod(_move, -1)
    do_down = partialmethod(_move, 1)

    def do_page_up(self) -> None:
        self._move(-self._room)

    def do_page_down(self) -> None:
        self._move(self._room)

    def do_choose(self) -> None:
        """Go on with the row under the cursor, or with the file of the typed path."""
        current = self.current
        if self.rows is None:
            self._is_taken_ahead = True
        elif current is not None:
            self.take(current)
        elif self.is_path:
            path = Path(self.edit.text.strip()).expanduser().absolute()
            if path.is_file():
                self.take(path)
            else:
                self.shell.say(f"There is no file {clean(str(path))}.", "warning")

    def do_cancel(self) -> None:
        if self.edit.text:
            self.edit, self.place = LineEdit(), 0
        else:
            self.app.pop_screen()
