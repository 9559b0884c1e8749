"""A page with a list: a cursor that stays on its row, scrolling, and a filter."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace
from textual import events

from gputui.metrics.draw.parts import Line
from gputui.ui.tui.layout.columns import fit_line
from gputui.ui.tui.widgets.line_edit import LineEdit
from gputui.ui.tui.widgets.page import ActionScreen

Id = TypeVar("Id")


def moved(ids: Sequence[Id], current: Id | None, by: int, start: int = 0) -> Id | None:
    """The id ``by`` places after ``current``, at most the last or first; at index ``start`` if there is no current one.
    None for an empty list."""
    if not ids:
        return None
    place = ids.index(current) + by if current is not None and current in ids else start
    return ids[min(max(place, 0), len(ids) - 1)]


class ListPage(ActionScreen):
    """Moves the cursor of ``table``, a frozen dataclass with a ``cursor`` (the id of a row). If the list scrolls and
    has a filter, ``table`` has a ``top`` (the index of the first row shown) and a ``filter_text``."""

    table: Any
    page_rows = 1
    """Rows that a page key moves by."""

    def __init__(self) -> None:
        super().__init__()
        self._filter_line: LineEdit | None = None

    @property
    def row_ids(self) -> Sequence[Hashable]:
        """The ids of all rows, in order."""
        raise NotImplementedError

    def replacement(self, ids: Sequence[Any]) -> Any:
        """The row for the cursor when its row is gone."""
        return ids[0]

    def keep_cursor(self) -> None:
        """Keep the cursor on its row; if that is gone, move it to the `replacement`."""
        ids = self.row_ids
        if self.table.cursor not in ids:
            self.table = replace(self.table, cursor=self.replacement(ids) if ids else None)

    def scroll_to_cursor(self, room: int) -> None:
        """Scroll as little as needed to have the cursor among the ``room`` visible rows."""
        ids, room = self.row_ids, max(1, room)
        place = ids.index(self.table.cursor) if self.table.cursor in ids else 0
        top = min(self.table.top, place, max(0, len(ids) - room))
        self.table = replace(self.table, top=max(top, place - room + 1))

    def point_at(self, row: Hashable) -> None:
        """Move the cursor to a row."""
        self.table = replace(self.table, cursor=row)

    def move(self, by: int) -> None:
        """Move the cursor by rows."""
        self.point_at(moved(self.row_ids, self.table.cursor, by))
        self.changed()

    def do_up(self) -> None:
        self.move(-1)

    def do_down(self) -> None:
        self.move(1)

    def do_first(self) -> None:
        self.move(-(1 << 20))

    def do_last(self) -> None:
        self.move(1 << 20)

    def do_page_up(self) -> None:
        self.move(-max(1, self.page_rows))

    def do_page_down(self) -> None:
        self.move(max(1, self.page_rows))

    # --- the filter

    @property
    def filter_text(self) -> str:
        """The words that shown rows contain."""
        return getattr(self.table, "filter_text", "")

    def set_filter(self, text: str) -> None:
        """Show only rows that contain these words."""
        self.table = replace(self.table, filter_text=text, top=0)

    def with_filter(self, lines: list[Line], width: int) -> list[Line]:
        """The lines of the list; while the filter is being typed, it replaces the first one."""
        if self._filter_line is not None and lines:
            spans = self._filter_line.spans(max(8, width - 9))
            return [fit_line([(" filter ", "title"), *spans], width), *lines[1:]]
        return lines

    def do_filter(self) -> None:
        self._filter_line = LineEdit.at_end(self.filter_text)

    @property
    def line(self) -> LineEdit | None:
        return self._filter_line

    def type_line(self, line: LineEdit | None, text: str) -> None:
        self._filter_line = line
        if text != self.filter_text:
            self.set_filter(text)

    def take_key(self, event: events.Key) -> bool:
        """Move the cursor with the arrows while the filter is being typed; else clear it with escape."""
        if self.line is not None and event.key in ("up", "down"):
            with self.shell.one_paint():
                self.move(-1 if event.key == "up" else 1)
            return True
        if self.line is None and event.key == "escape" and self.filter_text:
            self.set_filter("")
            self.changed()
            return True
        return False
