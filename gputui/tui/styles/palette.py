"""From the style keys of lines to styles.

The terminal's own sixteen colours: they cost the fewest bytes, follow the user's theme, and survive a terminal that
knows no more. Whatever a colour says is also said by a glyph or a word, so that the monochrome palette loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from rich.style import Style

PLAIN = Style()

COLOURS: Mapping[str, Style] = {
    "text": PLAIN,
    "dim": Style(dim=True),
    "stale": Style(dim=True),
    "title": Style(bold=True),
    "label": Style(bold=True),
    "head": Style(dim=True),
    "rule": Style(dim=True),
    "axis": Style(dim=True),
    "marker": Style(color="yellow"),
    "good": Style(color="green"),
    "warn": Style(color="yellow"),
    "bad": Style(color="red", bold=True),
    "accent": Style(color="cyan"),
    "cursor": Style(color="cyan", bold=True),
    "key": Style(bold=True),
    "bar": Style(color="cyan"),
    "bar2": Style(color="blue"),
    "input": Style(underline=True),
    "caret": Style(reverse=True),
    "selected": Style(reverse=True),
    "tab": Style(bold=True, underline=True),
    "series.0": Style(color="cyan"),
    "series.1": Style(color="magenta"),
    "series.2": Style(color="green"),
    "series.3": Style(color="yellow"),
    "shadow": Style(dim=True),
}

MONOCHROME: Mapping[str, Style] = {
    key: Style(bold=style.bold, dim=style.dim, reverse=style.reverse, underline=style.underline)
    for key, style in COLOURS.items()
} | {"warn": Style(bold=True), "bad": Style(bold=True, underline=True)}


def palette(environ: Mapping[str, str]) -> Mapping[str, Style]:
    """The palette for an environment: without colours where NO_COLOR is set (no-color.org)."""
    return MONOCHROME if environ.get("NO_COLOR") else COLOURS
