"""Lists as data: sections of rows below headings, with a cursor, a filter and scrolling."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.text import clean
from gputui.metrics.draw.parts import Line, Span
from gputui.ui.tui.layout.columns import (
    Column,
    fill_height,
    fit_columns,
    fit_line,
    head_line,
    highlight,
    row_line,
    rule,
)

Row = TypeVar("Row")


def index_of(ids: Sequence[Row], chosen: Row | None, default: int = 0) -> int:
    """The index of ``chosen`` in a list, ``default`` where it is not in it."""
    if chosen is None or chosen not in ids:
        return default
    return ids.index(chosen)


def next_choice(choices: Sequence[Row], chosen: Row | None, by: int = 1) -> Row:
    """The choice ``by`` steps after ``chosen``, wrapping around."""
    return choices[(index_of(choices, chosen) + by) % len(choices)]


class RowOrder(NamedTuple, Generic[Row]):
    """A sort order.

    Attributes:
        letter: the key that chooses it.
        title: the words above the rows.
        key: the value to sort by; rows whose value is None go to the end. Without a key the rows stay as they are.
    """

    name: str
    letter: str
    title: str
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


def filter_rows(rows: Iterable[Row], filter_text: str, words_of: Callable[[Row], str]) -> list[Row]:
    """The rows whose words contain each word of the filter."""
    filter_words = filter_text.lower().split()
    if not filter_words:
        return list(rows)
    return [row for row in rows if all(word in words_of(row).lower() for word in filter_words)]


class ListState(Struct, frozen=True):
    """What a person has chosen in a list.

    Attributes:
        cursor: the key of the row under the cursor.
        top: the number of the first item in sight.
        order: the name of a `RowOrder`; "" for none.
    """

    cursor: Any = None
    top: int = 0
    filter_text: str = ""
    order: str = ""


class Listing(Struct, Generic[Row], frozen=True):
    """The content of a list.

    Attributes:
        sections: rows by their heading.
        key: the identity of a row, on which the cursor stays.
        notes: the end of the title.
        empty: the line if there are no rows.
        base: the style of a whole row; None if its cells have their own.
    """

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
            if heading and rows:
                items.append((heading, None))
            items += [("", row) for row in rows]
        return items

    def scroll(self, state: ListState, height: int) -> ListState:
        """Scroll as little as needed to show the cursor below the heading of its section."""
        items = self.items
        room = max(1, height - self.head_lines)
        at = 0
        for number, (_, row) in enumerate(items):
            if row is not None and self.key(row) == state.cursor:
                at = number
                break
        top = max(min(state.top, at, max(0, len(items) - room)), at - room + 1)
        if room > 1 and top == at > 0 and items[at - 1][0]:
            top -= 1
        return replace(state, top=top)

    def row_at(self, state: ListState, y: int) -> Row | None:
        """The row in line ``y``; None in a heading or below."""
        number = state.top + y - self.head_lines
        if number < state.top or number >= len(self.items):
            return None
        return self.items[number][1]

    def lines(self, state: ListState, width: int, height: int) -> list[Line]:
        """The list in exactly ``height`` lines."""
        items = self.items
        fitted = fit_columns(self.columns, width - 1)
        visible = items[state.top :][: max(0, height - self.head_lines)]
        filter_text = clean(state.filter_text)
        notes: list[Span] = []
        if filter_text:
            notes.append((f"/{filter_text}", "accent"))
        if len(visible) < len(items):
            notes.append((f"{state.top + 1}–{state.top + len(visible)} of {len(items)}", "dim"))
        if state.order:
            notes.append((f"by {state.order}", "dim"))
        lines = [rule(self.title, width, notes=[*notes, *self.notes])]
        if self.head_lines > 1:
            lines.append([(" ", "text"), *head_line(fitted, width - 1)])
        if not items:
            empty = "Nothing matches the filter; esc clears it." if filter_text else self.empty
            lines.append(fit_line([(f"  {empty}", "dim")], width))
        for heading, row in visible:
            if row is None:
                lines.append(rule(heading, width, style="label"))
                continue
            line = row_line(fitted, row, width - 1, self.base(row))
            if self.key(row) == state.cursor:
                lines.append(highlight([("▸", "cursor"), *line]))
            else:
                lines.append([(" ", "cursor"), *line])
        return fill_height(lines, width, height)
