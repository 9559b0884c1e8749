"""The themes: a style for each style key of lines.

A key names a role and attributes; a theme gives each role a colour. Glyphs and words say the same as colours, so that
nothing is lost without colours.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

import msgspec
from msgspec import Struct
from rich.style import Style

from gputui.ui.tui.theme.looks import LOOKS, SELECTED, Look

FAINT: Final = ("dim", "rule", "track")
"""Roles that are faint in a theme without a colour for them."""

# ANSI has the terminal's own sixteen colours: they cost the fewest bytes, follow the user's theme, and survive a
# terminal that knows no more. Of the others, the contrast of each text to its background, and to that of the row under
# the cursor, is at least 4.5 : 1 (WCAG 2.2, success criterion 1.4.3). The last column has the colours of Okabe and Ito
# ("Color Universal Design", 2008), the darker ones lightened; no state is shown by red against green only.
_COLUMNS = ("ansi", "dark", "light", "colour-blind")
_COLOURS: Mapping[str, tuple[str | None, ...]] = {
    "text": (None, "#d7dce2", "#1c2024", "#d7dce2"),
    "dim": (None, "#9aa3ad", "#5a626b", "#9aa3ad"),
    "rule": (None, "#5b6672", "#a3abb3", "#5b6672"),
    "track": (None, "#39424c", "#cdd3d9", "#39424c"),
    "history": ("cyan", "#3f9dbd", "#4d90ac", "#4289b3"),
    "good": ("green", "#5fd787", "#006b2d", "#56b4e9"),
    "warn": ("yellow", "#ffd75f", "#7a5200", "#f0e442"),
    "bad": ("red", "#ff6b6b", "#b3001b", "#ff7a33"),
    "accent": ("cyan", "#5fd7ff", "#005f87", "#56b4e9"),
    "second": ("magenta", "#b69cff", "#6a3fb5", "#e2a3c7"),
    # Those for a light background and for the colour-blind were found by a search for the largest least difference
    # (CIEDE2000) of any two, also as seen without the receptors for red or for green (Viénot 1999), from each other,
    # from the text and from the colours of states; the dark ones are clearer hues near those.
    "series.0": ("cyan", "#5fd7ff", "#005f87", "#5fd7ff"),
    "series.1": ("magenta", "#ff9f43", "#6f3100", "#eb8f30"),
    "series.2": ("bright_green", "#ff8fd0", "#9700e6", "#e8c1c3"),
    "series.3": ("bright_blue", "#9d8cff", "#bd004c", "#a98fef"),
    "series.4": ("bright_yellow", "#dcf587", "#291438", "#d3f26a"),
    "series.5": ("bright_magenta", "#2db57f", "#193424", "#56ae8b"),
}


class Theme(Struct, frozen=True):
    """A set of colours.

    Attributes:
        colours: the colour of each role; one without is the terminal's own.
        background: None for the terminal's own.
        selection: the background of the row under the cursor; None for reverse video.
        is_dark: whether the background is dark.
        extra: the looks of keys that differ from `LOOKS`.
    """

    name: str
    colours: Mapping[str, str]
    background: str | None = None
    selection: str | None = None
    is_dark: bool = True
    extra: Mapping[str, Look] = msgspec.field(default_factory=dict)

    @property
    def base(self) -> str:
        """The name of Textual's theme for what is between the panes."""
        if self.background is None:
            return "ansi-dark"
        return f"gputui-{self.name}"

    def style(self, key: str) -> Style:
        """The style of a key; an unknown one is plain text."""
        if key.endswith(SELECTED):
            plain = self.style(key.removesuffix(SELECTED))
            if self.selection is None:
                return Style(reverse=True, bold=plain.bold, underline=plain.underline)
            return plain + Style(bgcolor=self.selection)
        look = self.extra.get(key) or LOOKS.get(key) or LOOKS["text"]
        colour = self.colours.get(look.role)
        return Style(
            color=colour,
            bgcolor=self.background,
            bold=look.bold or None,
            # Not every terminal knows faint text, so that themes may give it a colour.
            dim=(look.role in FAINT and colour is None) or None,
            underline=look.underline or None,
            reverse=look.reverse or None,
        )

    def styles(self) -> Mapping[str, Style]:
        """Every key's style."""
        return {key: self.style(key) for key in (*LOOKS, *(key + SELECTED for key in LOOKS))}


def _colours(theme: str) -> dict[str, str]:
    column = _COLUMNS.index(theme)
    return {role: colour for role, row in _COLOURS.items() if (colour := row[column]) is not None}


ANSI = Theme("ansi", _colours("ansi"))
DARK = Theme("dark", _colours("dark"), "#101418", "#243447")
LIGHT = Theme("light", _colours("light"), "#fafafa", "#d8e6f2", is_dark=False)
COLOUR_BLIND = Theme(
    "colour-blind", _colours("colour-blind"), DARK.background, DARK.selection,
    extra={"bad": Look("bad", bold=True, underline=True)},
)  # fmt: skip
MONO = Theme(
    "mono",
    {},
    extra={"warn": Look(bold=True), "marker": Look(bold=True), "bad": Look(bold=True, underline=True)},
)

THEMES: Final[Mapping[str, Theme]] = {theme.name: theme for theme in (ANSI, DARK, LIGHT, COLOUR_BLIND, MONO)}
"""All themes by name, in the order in which a key steps through them."""


@cache
def styles_of(name: str) -> Mapping[str, Style]:
    """The styles of a theme by key."""
    return THEMES[name].styles()


def theme_for(name: str, *, no_color: bool, environ: Mapping[str, str]) -> Theme:
    """The chosen theme; always `MONO` with ``no_color`` (NO_COLOR is set: no-color.org).

    ``auto`` is the dark theme for a terminal that announces all colours (``COLORTERM``), else the terminal's own
    colours. SSH does not pass ``COLORTERM`` on, and the terminal's own colours need the fewest bytes.
    """
    if no_color:
        return MONO
    knows_all = environ.get("COLORTERM", "").lower() in ("truecolor", "24bit")
    auto = DARK if knows_all else ANSI
    return THEMES.get(name, auto)
