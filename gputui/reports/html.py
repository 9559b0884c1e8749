"""Parts of pages for reports that make their own HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from markupsafe import Markup

from gputui.core.text import clean
from gputui.reports.pages import render


def document(title: str, note: str, parts: Iterable[str]) -> str:
    """A page. ``title`` and ``note`` are plain text, ``parts`` HTML."""
    content = Markup("\n").join(map(Markup, parts))
    return render("document.html.j2", title=title, note=note, content=content)


def plain(text: str) -> str:
    """Text, escaped and without control characters."""
    return escape(clean(text))


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of plain text with a heading for each column."""
    return render("table.html.j2", heads=heads, rows=rows)


def wide(part: str) -> str:
    """HTML that scrolls if it is wider than the page."""
    return f'<div class="wide">{part}</div>'
