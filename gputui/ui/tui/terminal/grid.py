"""The wanted and the shown cells of a terminal, and the fewest bytes from one to the other.

Two grids of cells: *want* is fed with strips, *have* is what was written. So frames may be left out: the next one
carries the whole difference.

Assumes of the terminal: absolute and relative cursor moves, carriage return, SGR and "erase display", which every
terminal since the VT100 has, and that wrapping at the last column is off.
"""

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from rich.cells import get_character_cell_size, split_graphemes
from rich.segment import Segment

from gputui.core.text import PLAIN, clean
from gputui.metrics.draw.glyphs import Characters, translator
from gputui.ui.tui.terminal.pens import Pen, PenCase

_MOST_CACHED_LENGTH = 256  # a longer text is hardly drawn twice

# Wide characters whose width every terminal in use agrees on: CJK, kana, hangul, full-width forms. Emoji are not among
# them, they grew wide at different times in different terminals.
_AGREED_WIDE = (
    ("\u2e80", "\ua4cf"),
    ("\uac00", "\ud7a3"),
    ("\uf900", "\ufaff"),
    ("\ufe30", "\ufe6f"),
    ("\uff01", "\uff60"),
    ("\uffe0", "\uffe6"),
    ("\U00020000", "\U0003fffd"),
)

_RESET = "\x1b[m"
_ERASE = "\x1b[m\x1b[2J"

_LONGEST_GAP = 5
"""Most unchanged cells between two changed ones that may be cheaper to write again than to skip."""


def cells_of(text: str) -> Sequence[str]:
    """The cells of one piece of a line."""
    if PLAIN.issuperset(text):
        return text
    if len(text) <= _MOST_CACHED_LENGTH:
        return _cached_cells(text)
    return _cells(text)


def has_certain_width(cell: str) -> bool:
    """Return whether all terminals agree on the cursor's place after writing this cell."""
    if cell in PLAIN:
        return True
    return len(cell) == 1 and any(first <= cell <= last for first, last in _AGREED_WIDE)


def _cells(text: str) -> Sequence[str]:
    cells: list[str] = []
    for start, end, width in split_graphemes(text)[0]:
        if width:
            cells += _cluster_cells(text[start:end], width)
    return cells


_cached_cells = lru_cache(1024)(_cells)


def _cluster_cells(cluster: str, width: int) -> list[str]:
    """`width` cells for one cluster, reduced to a single character and its marks.

    What a terminal makes of joined emoji and variation selectors differs; their first character alone does not.
    """
    text = clean(cluster.partition("\u200d")[0])
    if not text:
        return [" "] * width
    base = text[0]
    base_width = get_character_cell_size(base)
    if not 0 < base_width <= width:
        return [" "] * width
    marks = "".join(mark for mark in text[1:] if unicodedata.category(mark)[0] == "M")
    return [base + marks, *([""] * (base_width - 1)), *([" "] * (width - base_width))]


class CellGrid:
    """The two grids of one terminal."""

    def __init__(self, pens: PenCase) -> None:
        self.characters: Characters = "braille"
        self._translate: Callable[[Sequence[str]], Sequence[str]] | None = None
        self.width = 0
        self.height = 0
        self._pens = pens
        self._want_text: list[list[str]] = []
        self._want_pens: list[list[Pen]] = []
        self._have_text: list[list[str]] = []
        self._have_pens: list[list[Pen]] = []
        self._dirty: set[int] = set()
        self._is_unknown = True
        # The terminal's cursor, None if unknown, and its current pen.
        self._at: tuple[int, int] | None = None
        self._pen: Pen = pens.default
        self._out: list[str] = []

    @property
    def is_pending(self) -> bool:
        """True if the terminal may differ from what it should show."""
        return self._is_unknown or bool(self._dirty)

    def use_characters(self, characters: Characters) -> None:
        """Feed the grid in these characters from now on. Cells fed before stay until they are fed again."""
        self.characters = characters
        self._translate = translator(characters)

    def resize(self, width: int, height: int) -> None:
        """Set the size. A new one starts with a blank grid and an unknown terminal."""
        if (width, height) == (self.width, self.height):
            return
        self.width = width
        self.height = height
        self._want_text, self._want_pens = self._blank()
        self._have_text, self._have_pens = self._blank()
        self._dirty.clear()
        self._is_unknown = True

    def mark_unknown(self) -> None:
        """Assume nothing about the terminal: another program may have written to it."""
        self._is_unknown = True

    def feed(self, y: int, x: int, width: int, segments: Iterable[Segment]) -> None:
        """Set `width` cells of line `y` from column `x` on; missing cells become blanks, further ones are cut off."""
        if not (0 <= y < self.height and 0 <= x < self.width):
            return
        width = min(width, self.width - x)
        for_style = self._pens.for_style
        text: list[str] = []
        pens: list[Pen] = []
        for piece, style, control in segments:
            if control:
                continue
            pen = for_style(style)
            cells = cells_of(piece)
            if self._translate is not None:
                cells = self._translate(cells)
            text += cells
            if pen.blank is pen or " " not in piece:
                pens += [pen] * len(cells)
            else:
                blank = pen.blank
                pen_of = {" ": blank}
                pens += [pen_of.get(cell, pen) for cell in cells]
        missing = width - len(text)
        if missing > 0:
            last = pens[-1].blank if pens else self._pens.default
            text += [" "] * missing
            pens += [last] * missing
        elif missing < 0:
            if not text[width]:
                text[width - 1] = " "
                pens[width - 1] = pens[width - 1].blank
            del text[width:], pens[width:]
        self._set_cells(y, x, x + width, text, pens)

    def emit(self, caret: tuple[int, int]) -> str:
        """The bytes after which the terminal shows *want* with its cursor at `caret`; empty if it does already.

        The caller must write them: *have* is updated.
        """
        if not self.width or not self.height:
            return ""
        out = self._out
        out.clear()
        if self._is_unknown:
            out.append(_ERASE)
            self._at = None
            self._pen = self._pens.default
            self._have_text, self._have_pens = self._blank()
            self._dirty.update(range(self.height))
            self._is_unknown = False
        for y in sorted(self._dirty):
            want_text = self._want_text[y]
            want_pens = self._want_pens[y]
            have_text = self._have_text[y]
            have_pens = self._have_pens[y]
            if want_text == have_text and want_pens == have_pens:
                continue
            cells = zip(want_text, have_text, want_pens, have_pens, strict=True)
            changed = [x for x, (text, had, pen, had_pen) in enumerate(cells) if text != had or pen is not had_pen]
            if PLAIN.issuperset("".join(want_text)) and PLAIN.issuperset("".join(have_text)):
                self._write_plain_line(y, changed)
            else:
                self._write_mixed_line(y, changed)
            have_text[:] = want_text
            have_pens[:] = want_pens
        self._dirty.clear()
        if self._pen is not self._pens.default:
            # So that a killed app leaves no coloured prompt.
            out.append(_RESET)
            self._pen = self._pens.default
        self._move(min(max(caret[0], 0), self.width - 1), min(max(caret[1], 0), self.height - 1))
        return "".join(out)

    def line(self, y: int) -> list[tuple[str, Pen]]:
        """The cells that line `y` should show, for tests and diagnosis."""
        return list(zip(self._want_text[y], self._want_pens[y], strict=True))

    def _blank(self) -> tuple[list[list[str]], list[list[Pen]]]:
        pen = self._pens.default
        return [[" "] * self.width for _ in range(self.height)], [[pen] * self.width for _ in range(self.height)]

    def _set_cells(self, y: int, x: int, end: int, text: Sequence[str], pens: Sequence[Pen]) -> None:
        row = self._want_text[y]
        row_pens = self._want_pens[y]
        if row[x:end] == text and row_pens[x:end] == pens:
            return
        # A wide character that loses one half to the new cells loses the other, too.
        if not row[x] and text[0]:
            row[x - 1] = " "
            row_pens[x - 1] = row_pens[x - 1].blank
        if end < self.width and not row[end]:
            row[end] = " "
            row_pens[end] = row_pens[end].blank
        row[x:end] = text
        row_pens[x:end] = pens
        self._dirty.add(y)

    def _write_plain_line(self, y: int, changed: Sequence[int]) -> None:
        """Write changed cells of a line in which every cell holds one plain character."""
        text = self._want_text[y]
        pens = self._want_pens[y]
        start = last = changed[0]
        for x in changed:
            gap = x - last - 1
            if gap > 0 and (gap > _LONGEST_GAP or not _is_cheap(text, pens, last, x)):
                self._write_run(y, start, last + 1)
                start = x
            last = x
        self._write_run(y, start, last + 1)

    def _write_run(self, y: int, start: int, end: int) -> None:
        """Write the cells of a line from ``start`` to before ``end``."""
        text = self._want_text[y]
        pens = self._want_pens[y]
        self._move(start, y)
        out = self._out
        x = start
        while x < end:
            pen = pens[x]
            # A space needs only its background: any pen with that background will do.
            if self._pen is not pen and not (self._pen.blank is pen and text[x] == " "):
                out.append(self._pen.change_to(pen))
                self._pen = pen
            pen = self._pen
            blank = self._pen.blank
            stop = x + 1
            while stop < end and (pens[stop] is pen or (pens[stop] is blank and text[stop] == " ")):
                stop += 1
            out.append("".join(text[x:stop]))
            x = stop
        self._set_cursor(end, y)

    def _write_mixed_line(self, y: int, changed: Sequence[int]) -> None:
        """Write changed cells of a line that has, or had, wide or otherwise special characters."""
        text = self._want_text[y]
        pens = self._want_pens[y]
        width = self.width
        write = set(changed)
        # Terminals disagree on the width of a cluster of several characters, so that from the first one on, neither
        # what is shown nor what a new one covers is known.
        clusters = [x for x in range(width) if len(text[x]) > 1 or len(self._have_text[y][x]) > 1]
        if clusters:
            write.update(range(clusters[0], width))
        for x in changed:
            if text[x] and not has_certain_width(text[x]):
                write.update(range(x, min(x + 3, width)))
        for x in sorted(write):
            cell = text[x]
            pen = pens[x]
            if not cell:
                # A second half never changes without its head, and is written with it.
                if x - 1 in write:
                    continue
                x -= 1
                cell = text[x]
            cells = 1
            if x + 1 < width and not text[x + 1]:
                cells = 2
            self._move(x, y)
            if self._pen is not pen and not (self._pen.blank is pen and cell == " "):
                self._out.append(self._pen.change_to(pen))
                self._pen = pen
            if has_certain_width(cell):
                self._out.append(cell)
                self._set_cursor(x + cells, y)
                continue
            # If the terminal draws it narrower than counted, blanks must be beside it.
            self._out.append(" " * cells)
            self._at = None
            self._move(x, y)
            self._out.append(cell)
            self._at = None

    def _set_cursor(self, x: int, y: int) -> None:
        """Note where the terminal's cursor is. Terminals differ in its place after the last column."""
        self._at = None
        if x < self.width:
            self._at = (x, y)

    def _move(self, x: int, y: int) -> None:
        """Move the cursor by the shortest sequence."""
        if self._at == (x, y):
            return
        best = _absolute(x, y)
        if self._at is not None:
            from_x, from_y = self._at
            vertical = _vertical(from_y, y)
            for relative in (
                vertical + _horizontal(from_x, x),
                "\r" + vertical + _horizontal(0, x),
            ):
                if len(relative) < len(best):
                    best = relative
        self._out.append(best)
        self._at = (x, y)


def _is_cheap(text: Sequence[str], pens: Sequence[Pen], last: int, following: int) -> bool:
    """Return whether writing the cells between two changed ones again costs no more than a move."""
    pen = pens[last]
    for x in range(last + 1, following):
        if pens[x] is not pen and not (text[x] == " " and pens[x] is pen.blank):
            return False
    move = len(f"\x1b[{_count(following - last - 1)}C")
    return len("".join(text[last + 1 : following]).encode()) <= move


def _count(number: int) -> str:
    """The parameter of a relative move; 1 is the default."""
    if number == 1:
        return ""
    return str(number)


def _absolute(x: int, y: int) -> str:
    row = "" if y == 0 else str(y + 1)
    if x == 0:
        return f"\x1b[{row}H"
    return f"\x1b[{row};{x + 1}H"


def _vertical(from_y: int, y: int) -> str:
    if y == from_y:
        return ""
    if y > from_y:
        return f"\x1b[{_count(y - from_y)}B"
    return f"\x1b[{_count(from_y - y)}A"


def _horizontal(from_x: int, x: int) -> str:
    if x == from_x:
        return ""
    if x > from_x:
        return f"\x1b[{_count(x - from_x)}C"
    if from_x - x <= 4:
        return "\b" * (from_x - x)
    return f"\x1b[{from_x - x}D"
