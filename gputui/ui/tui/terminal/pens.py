"""Pens: attributes and colours of cells, and the shortest sequences that switch between them."""

from __future__ import annotations

from rich.color import Color, ColorSystem
from rich.style import Style

_BOLD, _DIM, _ITALIC, _UNDERLINE, _REVERSE, _CONCEAL, _STRIKE = (1 << bit for bit in range(7))

# SGR codes that begin and end each attribute. Bold and dim share their end. Nothing blinks, so there is no code for it.
_ATTRIBUTES = (
    (_BOLD, "1", "22"),
    (_DIM, "2", "22"),
    (_ITALIC, "3", "23"),
    (_UNDERLINE, "4", "24"),
    (_REVERSE, "7", "27"),
    (_CONCEAL, "8", "28"),
    (_STRIKE, "9", "29"),
)
_VISIBLE_ON_BLANKS = _UNDERLINE | _REVERSE | _STRIKE


class Pen:
    """Attributes and colours of a cell. Equal pens of one `PenCase` are one object.

    Attributes:
        attributes: bits of bold, underline and so on.
        foreground: SGR code of the text's colour, empty for the terminal's own.
        background: SGR code of the colour behind it, empty for the terminal's own.
        blank: the pen for a space: without what is invisible on a space.
    """

    __slots__ = ("_changes", "attributes", "background", "blank", "foreground")

    def __init__(self, attributes: int, foreground: str, background: str, blank: Pen | None = None) -> None:
        self.attributes = attributes
        self.foreground = foreground
        self.background = background
        self.blank = blank or self
        self._changes: dict[Pen, str] = {}

    def change_to(self, target: Pen) -> str:
        """The escape sequence after which the terminal writes with `target` instead of this pen."""
        sequence = self._changes.get(target)
        if sequence is None:
            sequence = self._changes[target] = self._change(target)
        return sequence

    def _change(self, target: Pen) -> str:
        codes = [begin for bit, begin, _ in _ATTRIBUTES if target.attributes & bit]
        codes += filter(None, (target.foreground, target.background))
        full = ""
        if codes:
            full = ";".join(["0", *codes])
        ended = {end for bit, _, end in _ATTRIBUTES if self.attributes & ~target.attributes & bit}
        steps = sorted(ended)
        for bit, begin, end in _ATTRIBUTES:
            # An end that two attributes share also ends the one that stays.
            if target.attributes & bit and (not self.attributes & bit or end in ended):
                steps.append(begin)
        if self.foreground != target.foreground:
            steps.append(target.foreground or "39")
        if self.background != target.background:
            steps.append(target.background or "49")
        difference = ";".join(steps)
        return f"\x1b[{min(full, difference, key=len)}m"


class PenCase:
    """All pens for one terminal: Rich styles in, interned pens out.

    Args:
        color_system: the colours that the terminal can show; `None` for no colours at all.
    """

    def __init__(self, color_system: ColorSystem | None) -> None:
        self._color_system = color_system
        self._by_style: dict[Style, Pen] = {}
        self._by_look: dict[tuple[int, str, str], Pen] = {}
        self.default = self._pen(0, "", "")

    def for_style(self, style: Style | None) -> Pen:
        """The pen of a style; links and metadata do not matter."""
        if style is None:
            return self.default
        pen = self._by_style.get(style)
        if pen is None:
            pen = self._by_style[style] = self._make(style)
        return pen

    def _make(self, style: Style) -> Pen:
        attributes = (
            _BOLD * bool(style.bold)
            | _DIM * bool(style.dim)
            | _ITALIC * bool(style.italic)
            | _UNDERLINE * bool(style.underline or style.underline2)
            | _REVERSE * bool(style.reverse)
            | _CONCEAL * bool(style.conceal)
            | _STRIKE * bool(style.strike)
        )
        foreground = self._codes(style.color, is_foreground=True)
        background = self._codes(style.bgcolor, is_foreground=False)
        if self._color_system is ColorSystem.STANDARD and style.color != style.bgcolor:
            foreground = _legible(foreground, background)
        return self._pen(attributes, foreground, background)

    def _codes(self, color: Color | None, *, is_foreground: bool) -> str:
        if color is None or color.is_default or self._color_system is None:
            return ""
        return ";".join(color.downgrade(self._color_system).get_ansi_codes(is_foreground))

    def _pen(self, attributes: int, foreground: str, background: str) -> Pen:
        look = (attributes, foreground, background)
        pen = self._by_look.get(look)
        if pen is None:
            is_own_blank = bool(attributes & _VISIBLE_ON_BLANKS) or (not attributes and not foreground)
            blank = None
            if not is_own_blank:
                blank = self._pen(0, "", background)
            pen = self._by_look[look] = Pen(attributes, foreground, background, blank)
        return pen


def _legible(foreground: str, background: str) -> str:
    """The foreground code; a readable one if sixteen colours made text and background the same."""
    if not foreground or not background or int(foreground) + 10 != int(background):
        return foreground
    # Of each eight colours, the first five are dark enough for white; so is bright black.
    if int(background) % 10 in (0, 1, 2, 4, 5):
        return "97"
    return "30"
