"""Lists as data: sections of rows below headings, with a cursor, a filter and scrolling."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.text import clean
from gputui.metrics.draw.parts import Line
from gputui.metrics.draw.raster import Span
from gputui.ui.tui.layout.columns import Column, filled, fit_line, head_line, place, row_line, rule, selected

Row = TypeVar("Row")


def after(choices: Sequence[Row], chosen: Row | None, by: int = 1) -> Row:
    """The choice ``by`` places after ``chosen``, wrapping around."""
    place = choices.index(chosen) if chosen is not None and chosen in choices else 0
    return choices[(place + by) % len(choices)]


class RowOrder(NamedTuple, Generic[Row]):
    """A sort order and the letter that chooses it. Rows whose ``key`` is None go to the end;
    without a key the rows stay as they are."""

    name: str
    letter: str
    words: str
    key: Callable[[Row], float | str | None] | None = None

    def sorted(self, rows: Sequence[Row]) -> list[Row]:
        """The rows in this order; equal ones stay as they are."""
        if self.key is None:
            return list(rows)
        keyed = [(self.key(row), row) for row in rows]
        return [row for _, row in sorted(keyed, key=lambda pair: (pair[0] is None, pair[0] or 0))]


def order_named(orders: Sequence[RowOrder[Row]], name: str) -> RowOrder[Row]:
    """The order of this name; the first for an unknown name."""
    return next((order for order in orders if order.name == name), orders[0])


def matching(rows: Iterable[Row], filter_text: str, words_of: Callable[[Row], str]) -> list[Row]:
    """The rows whose words contain each word of the filter."""
    wanted = filter_text.lower().split()
    if not wanted:
        return list(rows)
    return [row for row in rows if all(word in words_of(row).lower() for word in wanted)]


class ListState(Struct, frozen=True):
    """The key of the row under the cursor, the first item shown, the filter and the order."""

    cursor: Any = None
    top: int = 0
    filter_text: str = ""
    order: str = ""


class Listing(Struct, Generic[Row], frozen=True):
    """The content of a list: ``sections`` are rows by their heading, ``key`` the identity of a row,
    on which the cursor stays, ``notes`` end the title, ``empty`` is the line in place of rows,
    ``base`` the style of a whole row if its cells have none of their own."""

    title: str
    columns: Sequence[Column[Row]]
    sections: Mapping[str, Sequence[Row]]
    key: Callable[[Row], Hashable]
    notes: Sequence[Span] = ()
    empty: str = ""
    base: Callable[[Row], str | None] = lambda row: None

    @property
    def head_lines(self) -> int:
        """Lines above the first item."""
        if any(column.head for column in self.columns):
            return 2
        return 1

    @property
    def rows(self) -> list[Row]:
        """All rows, in order."""
        return [row for rows in self.sections.values() for row in rows]

    @property
    def items(self) -> list[tuple[str, Row | None]]:
        """The lines of the list: a heading, or an empty text and a row."""
        items: list[tuple[str, Row | None]] = []
        for heading, rows in self.sections.items():
            items += [(heading, None)] if heading and rows else []
            items += [("", row) for row in rows]
        return items

    def scrolled(self, state: ListState, height: int) -> ListState:
        """Scroll as little as needed to show the cursor below the heading of its section."""
        items, room = self.items, max(1, height - self.head_lines)
        keys = [None if row is None else self.key(row) for _, row in items]
        at = keys.index(state.cursor) if state.cursor in keys else 0
        top = max(min(state.top, at, max(0, len(items) - room)), at - room + 1)
        if room > 1 and top == at > 0 and items[at - 1][0]:
            top -= 1
        return replace(state, top=top)

    def row_at(self, state: ListState, y: int) -> Row | None:
        """The row in line ``y``; None in a heading or below."""
        below = self.items[state.top :][y - self.head_lines :] if y >= self.head_lines else []
        if below:
            return below[0][1]
        return None

    def lines(self, state: ListState, width: int, height: int) -> list[Line]:
        """The list in exactly ``height`` lines."""
        items, placed = self.items, place(self.columns, width - 1)
        shown = items[state.top :][: max(0, height - self.head_lines)]
        words = clean(state.filter_text)
        notes: list[Span] = [(f"/{words}", "accent")] if words else []
        if len(shown) < len(items):
            notes.append((f"{state.top + 1}–{state.top + len(shown)} of {len(items)}", "dim"))
        notes += [(f"by {state.order}", "dim")] if state.order else []
        lines = [rule(self.title, width, notes=[*notes, *self.notes])]
        if self.head_lines > 1:
            lines.append([(" ", "text"), *head_line(placed, width - 1)])
        if not items:
            empty = "Nothing matches the filter; esc clears it." if words else self.empty
            lines.append(fit_line([(f"  {empty}", "dim")], width))
        for heading, row in shown:
            if row is None:
                lines.append(rule(heading, width, style="label"))
                continue
            is_current = self.key(row) == state.cursor
            mark: Span = ("▸" if is_current else " ", "cursor")
            line = [mark, *row_line(placed, row, width - 1, self.base(row))]
            lines.append(selected(line) if is_current else line)
        return filled(lines, width, height)
