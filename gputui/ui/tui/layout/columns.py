"""The screen's own drawing library: tables, lines and panels as styled text in a given number of cells.

A *span* is a text and the key of its style, ``("36%", "warn")``; a *line* is a list of spans; a *block* is a list of
lines, one below the other. ``theme`` turns the keys into colours. Widths are cells of a terminal, of which a wide
character takes two. Nothing here knows Textual, a run or a GPU. A panel, from its columns to its frame::

    columns = [Column("RUN", 12, name_cell, grow=1), Column("STEP", 8, step_cell, ">", importance=1)]
    fitted = fit_columns(columns, width)
    lines = [rule("RUNS", width, "3 of 12"), head_line(fitted, width)]
    lines += [row_line(fitted, run, width) for run in runs]
    block = box(fill_height(lines, width, height), width + 2)

    ╭ RUNS ───────── 3 of 12 ─╮
    │RUN                  STEP│
    │vit-b16-1           8 110│
    │resnet50-2         90 000│
    ╰─────────────────────────╯

Tables:
    A `Column` has a head, a width and a function for its cells. `fit_columns` chooses the columns that fit, without the
    least important ones, and shares the spare cells; `head_line` and `row_line` draw with what it returns. Before that,
    `drop_empty` leaves out columns that tell nothing of any row, and `shrink` makes one as narrow as its cells.

Lines:
    `fit_line` cuts or pads spans to exactly a width, for all that stands beside something else; `clip_line` only cuts
    them, and tells how many cells are left. `skip_cells` takes away the beginning of what is scrolled sideways.
    `fit_parts` keeps the parts that fit, each whole or not at all. `justify` puts spans at both ends of a line.
    `highlight` marks the row under the cursor. `bar_spans` is a bar over its track.

Panels:
    `rule` is a heading in a horizontal rule, with figures behind it and notes at its end. `fill_height` gives a block a
    height, `join_blocks` puts blocks side by side, `box` frames one. `draw_panel` draws a panel that has a frame only
    where there is room for one (`is_boxed`).

Texts:
    `wrap` breaks a text at blanks into lines of a width, `wrap_at_most` keeps the first of them, `clip_words` one.
    `paragraph` makes lines of a wrapped text, behind a sign: ``▲ driver silent for 12 s``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.text import cell_width, char_width, clip, fit
from gputui.metrics.draw.glyphs import bar
from gputui.metrics.draw.parts import Line, Span
from gputui.ui.tui.theme.looks import SELECTED

Row = TypeVar("Row")

GAP = 2

LEAST_SIZE = 40, 9
"""Least columns and rows of a terminal for a page or a dialog."""

BOX_FROM_WIDTH = 100
BOX_FROM_HEIGHT = 30
"""Least terminal whose panels have a frame; a smaller one has only their headings."""

# A space inside a number in groups of three is no place to break a line.
_BREAKS = re.compile(r"(?<![0-9]) | (?![0-9]{3}(?![0-9]))")


# --- tables


class Column(Struct, Generic[Row], frozen=True):
    """One column of a table.

    Attributes:
        width: its least width.
        cell: called with a row and the column's width; returns styled text, which is cut or padded.
        align: ``<`` or ``>``.
        importance: 0 is always shown; the higher it is, the sooner the column is left out.
        grow: the column's share of the spare cells.
        most: its largest width.
        gap: blanks before the column.
        value: what the column tells of a row; if it is None for all rows, `drop_empty` leaves the column out.
    """

    head: str
    width: int
    cell: Callable[[Row, int], Sequence[Span]]
    align: str = "<"
    importance: int = 0
    grow: int = 0
    most: int = 10_000
    gap: int = GAP
    value: Callable[[Row], object] = lambda _: True


FittedColumns = list[tuple[Column[Row], int]]
"""The columns of a table that fit, each with its width."""


def drop_empty(columns: Sequence[Column[Row]], rows: Sequence[Row]) -> list[Column[Row]]:
    """The columns that tell anything of these rows: others get the room of the rest."""
    return [column for column in columns if any(column.value(row) is not None for row in rows)]


def shrink(column: Column[Row], rows: Sequence[Row]) -> Column[Row]:
    """A column as wide as its head and the longest of its cells, up to its ``most``: what it does not need, others
    get."""
    longest = max((line_width(column.cell(row, column.most)) for row in rows), default=0)
    width = min(column.most, max(cell_width(column.head), longest))
    return replace(column, width=width, most=width)


def fit_columns(columns: Sequence[Column[Row]], width: int) -> FittedColumns[Row]:
    """The columns that fit into ``width`` cells, in their order, with their widths."""
    chosen = [column for column in columns if column.importance == 0]
    for column in sorted((c for c in columns if c.importance > 0), key=lambda c: c.importance):
        if _needed([*chosen, column]) > width:
            break
        chosen.append(column)
    numbers = set(map(id, chosen))
    chosen = [column for column in columns if id(column) in numbers]
    spare = max(0, width - _needed(chosen))
    widths = {id(column): column.width for column in chosen}
    growing = [column for column in chosen if column.grow]
    while spare and growing:
        share = spare / sum(column.grow for column in growing)
        for column in list(growing):
            extra = min(spare, max(1, int(share * column.grow)), column.most - widths[id(column)])
            widths[id(column)] += extra
            spare -= extra
            if widths[id(column)] >= column.most:
                growing.remove(column)
    return [(column, widths[id(column)]) for column in chosen]


def head_line(fitted: FittedColumns[Row], width: int, style: str = "head") -> Line:
    """The names of the columns."""
    heads = (" " * column.gap * (number > 0) + fit(column.head, room, column.align)
             for number, (column, room) in enumerate(fitted))  # fmt: skip
    return fit_line([("".join(heads), style)], width)


def row_line(fitted: FittedColumns[Row], row: Row, width: int, base: str | None = None) -> Line:
    """One row. ``base`` overrides the styles of all cells."""
    line: Line = []
    for number, (column, room) in enumerate(fitted):
        if number:
            line.append((" " * column.gap, "text"))
        line += fit_line(column.cell(row, room), room, column.align)
    if base is not None:
        line = [("".join(text for text, _ in line), base)]
    spare = width - sum(room for _, room in fitted) - sum(column.gap for column, _ in fitted[1:])
    if spare < 0:
        return fit_line(line, width)
    if spare:
        return [*line, (" " * spare, "text")]
    return line


def _needed(columns: Sequence[Column[Row]]) -> int:
    """The cells that columns take at their least widths; the first has no gap before it."""
    return sum(column.width for column in columns) + sum(column.gap for column in columns[1:])


# --- lines


def line_width(spans: Sequence[Span]) -> int:
    """The number of cells that spans take."""
    return sum(cell_width(text) for text, _ in spans)


def fit_line(spans: Sequence[Span], width: int, align: str = "<") -> Line:
    """Spans in exactly ``width`` cells, padded on the right, or with ``>`` on the left."""
    line, room = clip_line(spans, width)
    if room <= 0:
        return line
    padding = (" " * room, "text")
    if align == ">":
        return [padding, *line]
    return [*line, padding]


def clip_line(spans: Sequence[Span], width: int) -> tuple[Line, int]:
    """Spans cut to at most ``width`` cells, and the number of cells left."""
    line: Line = []
    room = width
    for span in spans:
        text = span[0]
        size = cell_width(text)
        if size > room:
            if room > 0:
                cut = clip(text, room)
                line.append((cut, span[1]))
                room -= cell_width(cut)
            break
        if text:
            line.append(span)
            room -= size
    return line, room


def skip_cells(spans: Sequence[Span], cells: int) -> Line:
    """Spans without their first ``cells`` cells; half a wide character becomes a blank."""
    line: Line = []
    for text, style in spans:
        start = 0
        while cells > 0 and start < len(text):
            cells -= char_width(text[start])
            start += 1
        if cells < 0:
            line.append((" ", style))
            cells = 0
        if start < len(text):
            line.append((text[start:], style))
    return line


def fit_parts(parts: Sequence[Sequence[Span]], width: int) -> Line:
    """The parts that fit into ``width`` cells, each whole or not at all."""
    line: Line = []
    room = width
    for part in parts:
        size = line_width(part)
        if size <= room:
            line += part
            room -= size
    return fit_line(line, width)


def justify(start: Sequence[Span], end: Sequence[Span], width: int) -> Line:
    """A line with spans at both ends; those at the start are cut if they do not fit."""
    end_width = line_width(end)
    if end_width >= width:
        return fit_line(end, width)
    return [*fit_line(start, width - end_width), *end]


def highlight(line: Sequence[Span]) -> Line:
    """A line in the style of the row under the cursor."""
    return [(text, style + SELECTED) for text, style in line]


def bar_spans(fraction: float | None, width: int, style: str = "bar") -> Line:
    """A bar of ``width`` cells over its track; blank if unknown."""
    filled, track = bar(fraction, width)
    return [(filled, style), (track, "track")]


# --- panels


def is_too_small(width: int, height: int) -> bool:
    """Return whether a terminal of this size shows only that it is too small."""
    return width < LEAST_SIZE[0] or height < LEAST_SIZE[1]


def is_boxed(width: int, height: int) -> bool:
    """Return whether panels have a frame in a terminal of this size."""
    return width >= BOX_FROM_WIDTH and height >= BOX_FROM_HEIGHT


def rule(
    title: str, width: int, note: str = "", *, figures: Sequence[Sequence[Span]] = (), notes: Sequence[Span] = (),
    style: str = "title",
) -> Line:  # fmt: skip
    """A heading in a horizontal rule, with figures behind it or notes at its end: ``GPUS ─ util 36% ─── 3 of 12 ─``.

    What does not fit is left out, the last ones first.

    Args:
        note: a dim text at the end, behind the ``notes``.
        figures: parts behind the title, each whole or not at all.
        style: that of the title.
    """
    line: Line = []
    if title:
        line = [(clip(f" {title} ", width), style)]
    room = width - line_width(line)
    for figure in figures:
        room -= 3 + line_width(figure)
        if room < 0:
            break
        line += [("─ ", "rule"), *figure, (" ", "text")]
    tail: Line = []
    for text, kind in [*notes, (note, "dim")]:
        if text and cell_width(text) + 5 + line_width(tail) <= width - line_width(line):
            tail += [(f" {text} ", kind), ("─", "rule")]
    return [*line, ("─" * (width - line_width(line) - line_width(tail)), "rule"), *tail]


def fill_height(lines: Sequence[Line], width: int, height: int) -> list[Line]:
    """Lines cut or filled up with blank ones to exactly ``height``."""
    return [*lines[:height], *[fit_line([], width)] * (height - len(lines))]


def join_blocks(*blocks: Sequence[Line]) -> list[Line]:
    """Blocks of the same height next to each other."""
    return [[span for line in lines for span in line] for lines in zip(*blocks, strict=True)]


def box(lines: Sequence[Line], width: int, foot: Sequence[Span] = ()) -> list[Line]:
    """Lines of ``width - 2`` cells in a frame with round corners; the first one is a heading, as of `rule`, and
    ``foot`` stands in the lower edge."""
    side: Span = ("│", "rule")
    rest = width - 2 - line_width(foot)
    return [
        [("╭", "rule"), *lines[0], ("╮", "rule")],
        *([side, *line, side] for line in lines[1:]),
        [("╰", "rule"), *foot, (f"{'─' * rest}╯", "rule")],
    ]


def draw_panel(draw: Callable[[int, int], list[Line]], width: int, height: int, *, is_framed: bool) -> list[Line]:
    """A panel in ``height`` lines: those that ``draw`` makes for the width and height within its frame, if it has one;
    the first is its heading."""
    if not is_framed:
        return draw(width, height)[:height]
    return box(fill_height(draw(width - 2, height - 1), width - 2, height - 1), width)


# --- texts


def wrap(text: str, width: int) -> list[str]:
    """Wrap words into lines of at most ``width`` cells. Longer words are split."""
    if width < 1 or not text.strip():
        return []
    lines: list[str] = []
    line = ""
    used = 0
    for word in _BREAKS.split(" ".join(text.split())):
        size = cell_width(word)
        if used:
            if used + 1 + size <= width:
                line += f" {word}"
                used += 1 + size
                continue
            lines.append(line)
            line = ""
            used = 0
        while used + size > width:
            piece, piece_width = _cut(word, width - used)
            if not piece:
                break
            if piece.strip():
                lines.append(line + piece)
            word = word[len(piece) :]
            size = size - piece_width
            line = ""
            used = 0
        line += word
        used += size
    if line.strip():
        return [*lines, line]
    return lines


def _cut(word: str, room: int) -> tuple[str, int]:
    """The longest prefix of a word in at most ``room`` cells, and its width."""
    used = 0
    for length, char in enumerate(word):
        size = char_width(char)
        if used + size > room:
            return word[:length], used
        used += size
    return word, used


def clip_words(text: str, width: int) -> str:
    """A text of at most ``width`` cells, cut at the end of a word."""
    lines = wrap(text, width)
    if len(lines) > 1:
        return f"{wrap(text, width - 2)[0]} …"
    return text


def wrap_at_most(text: str, width: int, count: int) -> list[str]:
    """The first ``count`` lines of a wrapped text; the last one ends with ``…`` if there are more."""
    lines = wrap(text, width)
    if len(lines) <= count:
        return lines
    return [*lines[: count - 1], clip_words(" ".join(lines[count - 1 :]), width)]


def paragraph(lead: Span, text: str, style: str, width: int) -> list[Line]:
    """A text over as many lines as it needs, with ``lead`` before the first."""
    indent = cell_width(lead[0])
    parts = wrap(text, max(10, width - indent - 1))
    leads = [lead, *[(" " * indent, lead[1])] * (len(parts) - 1)]
    return [fit_line([first, (part, style)], width) for first, part in zip(leads, parts, strict=False)]
