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


class Theme(Struct, frozen=True):
    """A set of colours. ``selection`` is the background of the row under the cursor; without one, the row is in reverse
    video."""

    name: str
    title: str
    colours: Mapping[str, str]
    background: str | None = None
    selection: str | None = None
    is_dark: bool = True
    extra: Mapping[str, Look] = msgspec.field(default_factory=dict)

    @property
    def base(self) -> str:
        """The name of Textual's theme for what is between the panes."""
        return "ansi-dark" if self.background is None else f"gputui-{self.name}"

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


# The terminal's own sixteen colours: they cost the fewest bytes, follow the user's theme, and survive a terminal that
# knows no more.
ANSI = Theme(
    "ansi",
    "the terminal's own colours",
    {
        "history": "cyan",
        "good": "green",
        "warn": "yellow",
        "bad": "red",
        "accent": "cyan",
        "second": "magenta",
        "series.0": "cyan",
        "series.1": "magenta",
        "series.2": "bright_blue",
        "series.3": "bright_magenta",
        "series.4": "bright_cyan",
        "series.5": "blue",
    },
)

# Contrast of each colour to its background, and to that of the row under the cursor, is at least 4.5 : 1 (WCAG 2.2,
# success criterion 1.4.3), of dim text too.
DARK = Theme(
    "dark",
    "dark background",
    {
        "text": "#d7dce2",
        "dim": "#9aa3ad",
        "rule": "#5b6672",
        "track": "#39424c",
        "history": "#3f9dbd",
        "good": "#5fd787",
        "warn": "#ffd75f",
        "bad": "#ff6b6b",
        "accent": "#5fd7ff",
        "second": "#b69cff",
        "series.0": "#5fd7ff",
        "series.1": "#ff9ad5",
        "series.2": "#8ab4ff",
        "series.3": "#ffb48a",
        "series.4": "#5fd7c0",
        "series.5": "#cfa6ff",
    },
    background="#101418",
    selection="#243447",
)

LIGHT = Theme(
    "light",
    "light background",
    {
        "text": "#1c2024",
        "dim": "#5a626b",
        "rule": "#a3abb3",
        "track": "#cdd3d9",
        "history": "#4d90ac",
        "good": "#006b2d",
        "warn": "#7a5200",
        "bad": "#b3001b",
        "accent": "#005f87",
        "second": "#6a3fb5",
        "series.0": "#005f87",
        "series.1": "#9b0080",
        "series.2": "#0044aa",
        "series.3": "#8a4600",
        "series.4": "#006a60",
        "series.5": "#6a3fb5",
    },
    background="#fafafa",
    selection="#d8e6f2",
    is_dark=False,
)

# The colours of Okabe and Ito ("Color Universal Design", 2008), the darker ones lightened for a dark background. No
# state is shown by red against green only.
COLOUR_BLIND = Theme(
    "colour-blind",
    "safe for colour blindness",
    {
        "text": "#d7dce2",
        "dim": "#9aa3ad",
        "rule": "#5b6672",
        "track": "#39424c",
        "history": "#4289b3",
        "good": "#56b4e9",
        "warn": "#f0e442",
        "bad": "#ff7a33",
        "accent": "#56b4e9",
        "second": "#e2a3c7",
        "series.0": "#56b4e9",
        "series.1": "#e69f00",
        "series.2": "#00b98a",
        "series.3": "#e2a3c7",
        "series.4": "#f0e442",
        "series.5": "#ff7a33",
    },
    background="#101418",
    selection="#243447",
    extra={"bad": Look("bad", bold=True, underline=True)},
)

MONO = Theme(
    "mono",
    "no colours",
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
    return THEMES.get(name, DARK if knows_all else ANSI)
