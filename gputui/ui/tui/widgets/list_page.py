"""A page with a list: a cursor that stays on its row, scrolling, orders and a filter."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from functools import partialmethod
from typing import Any, ClassVar, Generic, TypeVar

from msgspec.structs import replace
from textual import events

from gputui.metrics.draw.parts import Line, Span
from gputui.store.runs import Run
from gputui.ui.tui.layout.columns import box, fit_line, is_boxed, justify
from gputui.ui.tui.layout.lists import Listing, ListState, RowOrder, index_of, next_choice, order_named
from gputui.ui.tui.layout.moments import right_end
from gputui.ui.tui.widgets.line_edit import LineEdit
from gputui.ui.tui.widgets.page import ActionScreen
from gputui.ui.tui.widgets.pane import Pane
from gputui.ui.views.snapshot import Snapshot

Id = TypeVar("Id")
Row = TypeVar("Row")

LIST_LEAST = 6
"""The foot of a page is left out if the list would get fewer lines."""

MORE_THAN_ANY = 1 << 20
"""More rows than any list has."""


def neighbour(ids: Sequence[Id], current: Id | None, by: int, start: int = 0) -> Id | None:
    """The id ``by`` steps after another one, or the first or last one; None for an empty list.

    Args:
        current: the other id; None to begin at the index ``start``.
    """
    if not ids:
        return None
    index = index_of(ids, current, start - by) + by
    return ids[min(max(index, 0), len(ids) - 1)]


class ListPage(ActionScreen):
    """Moves the cursor of ``table``, filters and sorts it."""

    table: ListState
    page_rows = 1
    """Rows that a page key moves by."""
    ORDERS: ClassVar[Sequence[RowOrder[Any]]] = ()
    """The orders that `o` steps through; ``table.order`` is the name of one."""
    _awaits_letter = False
    _before_past: tuple[Any, Any] = None, None
    """The row with the cursor before the past moment, which does not have it, and the row with the cursor instead."""
    _filter_line: LineEdit | None = None
    _before_filter: Hashable = None
    """The row with the cursor when the filter was begun."""

    @property
    def row_ids(self) -> Sequence[Hashable]:
        """The ids of all rows, in order."""
        raise NotImplementedError

    def replacement(self, ids: Sequence[Any]) -> Any:
        """The row for the cursor when its row is gone."""
        return ids[0]

    def keep_cursor(self) -> None:
        """Keep the cursor on its row; if that is gone, move it to the `replacement`. A row that only a past moment
        does not have gets it back."""
        ids = self.row_ids
        cursor = self.table.cursor
        before, instead = self._before_past
        if before in ids and cursor == instead:
            self.table = replace(self.table, cursor=before)
            self._before_past = (None, None)
        elif cursor not in ids:
            replacement = self.replacement(ids) if ids else None
            if cursor != instead or before is None:
                before = cursor if self.snapshot.past is not None else None
            self._before_past = (before, replacement)
            self.table = replace(self.table, cursor=replacement)

    def scroll_to_cursor(self, room: int) -> None:
        """Scroll as little as needed to have the cursor among the ``room`` visible rows."""
        ids = self.row_ids
        room = max(1, room)
        index = index_of(ids, self.table.cursor)
        top = min(self.table.top, index, max(0, len(ids) - room))
        self.table = replace(self.table, top=max(top, index - room + 1))

    def point_at(self, row: Hashable) -> None:
        """Move the cursor to a row."""
        self.table = replace(self.table, cursor=row)

    def move(self, by: int) -> None:
        """Move the cursor by rows."""
        self.point_at(neighbour(self.row_ids, self.table.cursor, by))
        self.changed()

    def _step(self, rows: int = 0, pages: int = 0) -> None:
        self.move(rows + pages * max(1, self.page_rows))

    do_up = partialmethod(_step, -1)
    do_down = partialmethod(_step, 1)
    do_first = partialmethod(_step, -MORE_THAN_ANY)
    do_last = partialmethod(_step, MORE_THAN_ANY)
    do_page_up = partialmethod(_step, pages=-1)
    do_page_down = partialmethod(_step, pages=1)

    def sort_by(self, order: RowOrder[Any]) -> None:
        """Sort by this order."""
        self.table = replace(self.table, order=order.name, top=0)
        self.changed()

    def do_sort(self) -> None:
        """Sort by the next order; the following key may choose one by its letter."""
        orders = self.ORDERS
        order = next_choice(orders, order_named(orders, self.table.order))
        self.sort_by(order)
        self._awaits_letter = True
        letters = " · ".join(f"{choice.letter} {choice.name}" for choice in orders)
        self.shell.say(f"Sorted by {order.name}. A letter chooses another order: {letters}")

    # --- the filter

    def set_filter(self, text: str) -> None:
        """Show only rows that contain these words."""
        self.table = replace(self.table, filter_text=text, top=0)

    def with_filter(self, lines: list[Line], width: int) -> list[Line]:
        """The lines of the list; while the filter is being typed, it replaces the first one."""
        if self._filter_line is None or not lines:
            return lines
        return [fit_line([(" filter ", "title"), *self._filter_line.spans(max(8, width - 9))], width), *lines[1:]]

    def do_filter(self) -> None:
        self._filter_line = LineEdit.at_end(self.table.filter_text)
        self._before_filter = self.table.cursor

    @property
    def line(self) -> LineEdit | None:
        return self._filter_line

    def type_line(self, line: LineEdit | None, text: str) -> None:
        self._filter_line = line
        if text != self.table.filter_text:
            self.set_filter(text)

    def take_key(self, event: events.Key) -> bool:
        """Choose an order by its letter, move the cursor while the filter is typed, or clear the filter."""
        awaits = self._awaits_letter
        self._awaits_letter = False
        if event.key == "escape" and (self.line is not None or self.table.cursor is None):
            self.point_at(self._before_filter)
        if self.line is not None:
            if event.key not in ("up", "down"):
                return False
            with self.shell.one_paint():
                if event.key == "up":
                    self.do_up()
                else:
                    self.do_down()
            return True
        order = next((order for order in self.ORDERS if awaits and order.letter == event.key), None)
        if order is not None:
            self.shell.say("")
            self.sort_by(order)
        elif event.key == "escape" and self.table.filter_text:
            self.set_filter("")
            self.changed()
        else:
            return False
        return True


class ListingPage(ListPage, Generic[Row]):
    """A page whose list is a `Listing`, in a frame where the terminal has room for one."""

    OPENS: ClassVar[str] = "open"
    """The action of a double click."""

    table: ListState
    list_top = 0
    """Lines of the list's pane above it."""

    def __init__(self, table: ListState) -> None:
        super().__init__()
        self.list = Pane(id="list")
        self.detail = Pane(id="detail")
        self.body = (self.list, self.detail)
        self.table = table
        self._made: tuple[Snapshot, ListState, Listing[Row]] | None = None
        self._cursor_index = 0

    @abstractmethod
    def make_listing(self) -> Listing[Row]:
        """The list of the snapshot, with the filter and order of ``table``."""

    @property
    def listing(self) -> Listing[Row]:
        """The list, made anew when the snapshot, the filter or the order changed."""
        snapshot = self.snapshot
        state = replace(self.table, cursor=None, top=0)
        if self._made is None or self._made[0] is not snapshot or self._made[1] != state:
            self._made = (snapshot, state, self.make_listing())
        return self._made[2]

    @property
    def row_ids(self) -> list[Hashable]:
        listing = self.listing
        return [listing.key(row) for row in listing.rows]

    @property
    def current(self) -> Row | None:
        """The row under the cursor; None without one."""
        listing = self.listing
        cursor = self.table.cursor
        return next((row for row in listing.rows if listing.key(row) == cursor), None)

    def replacement(self, ids: Sequence[Any]) -> Any:
        """The row that is now where the one that is gone was."""
        return ids[min(self._cursor_index, len(ids) - 1)]

    def set_filter(self, text: str) -> None:
        super().set_filter(text)
        self._cursor_index = 0

    def run_id_of(self, row: Row) -> str | None:
        """The run that a row is about."""
        return None

    @property
    def run_in_question(self) -> Run | None:
        if (row := self.current) is None:
            return None
        return self.snapshot.run_of(self.run_id_of(row))

    def do_open(self) -> None:
        """Open the page of the run that the row under the cursor is about."""
        if (run := self.run_in_question) is not None:
            self.shell.open_run(run.run_id)

    # --- drawing

    def summary(self) -> list[Span]:
        """The words behind the page's name."""
        return []

    def foot(self, width: int, height: int) -> list[Line]:
        """A panel below the list on a page of ``height`` lines."""
        return []

    def draw(self, width: int, height: int) -> None:
        room = height - 1 - self.draw_frame(width)
        self.keep_cursor()
        self.show_head(width)
        foot = self.framed(self.foot(self.inner_width(width), room), width)
        if room - len(foot) < LIST_LEAST:
            foot = []
        rows = room - len(foot)
        self.list.draw(lambda: self.list_lines(width, rows), height=rows)
        self.detail.show(foot)

    def show_head(self, width: int) -> None:
        """Show the page's name behind the trail of pages, the summary, and the time."""
        end: list[Span] = [(" ", "text"), *right_end(self.snapshot.at, self.snapshot.past, self.key_words)]
        name: list[Span] = [(f" {self.crumb}", "title"), *self.summary()]
        self.head.show([self.with_trail(lambda room: justify(name, end, room), width)])

    def framed(self, lines: list[Line], width: int) -> list[Line]:
        """Lines of `inner_width` in a frame, if panels have one."""
        if is_boxed(*self.app.size) and lines:
            return box(lines, width)
        return lines

    def inner_width(self, width: int) -> int:
        """The width of the lines of a panel."""
        if is_boxed(*self.app.size):
            return width - 2
        return width

    def list_lines(self, width: int, height: int) -> list[Line]:
        """The list in exactly ``height`` lines, with the cursor in sight."""
        self.keep_cursor()
        rows = height - is_boxed(*self.app.size)
        inner = self.inner_width(width)
        ids = self.row_ids
        listing = self.listing
        self._cursor_index = index_of(ids, self.table.cursor)
        self.table = listing.scroll(self.table, rows)
        self.page_rows = rows - listing.head_lines - 1
        return self.framed(self.with_filter(listing.lines(self.table, inner, rows), inner), width)

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the clicked row; a double click opens it."""
        if event.widget is not self.list:
            return
        row = self.listing.row_at(self.table, event.y - self.list_top)
        if row is not None:
            self.point_at(self.listing.key(row))
            self.changed()
            if event.chain == 2:
                self.shell.perform(self.OPENS)
