"""Self-contained HTML pages: no script, no other file, all text escaped; light or dark as the reader's system."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from gputui.core.text import clean
from gputui.core.units import UNKNOWN

_STYLE = """
:root { color-scheme: light dark; --text: #202020; --dim: #606060; --line: #e4e4e4; --code: #f4f4f4;
  --good: #006b4f; --bad: #c00000 }
@media (prefers-color-scheme: dark) {
  :root { --text: #dcdcdc; --dim: #a0a0a0; --line: #3a3a3a; --code: #262626; --good: #4fd1a5; --bad: #ff7b72 }
  body { background: #181818 }
  /* Pictures are drawn on a white sheet: lightness is turned round, hues stay. */
  svg { filter: invert(.905) hue-rotate(180deg) }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); max-width: 72rem; margin: 2rem auto; padding: 0 1rem }
h1 { overflow-wrap: anywhere; line-height: 1.2 } h2 { margin-top: 2.5rem }
table { border-collapse: collapse } .wide { overflow-x: auto; margin: .5rem 0 1.5rem }
svg { max-width: 100%; min-width: 26rem; height: auto; display: block } svg[width="1000"] { min-width: 44rem }
.beside { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 0 1rem }
th, td { text-align: left; padding: .2rem 1rem .2rem 0; border-bottom: 1px solid var(--line); vertical-align: top }
th, td:not(:last-child) { white-space: nowrap } td:last-child { min-width: 10rem }
td, dd { font-variant-numeric: tabular-nums } th.number, td.number { text-align: right; min-width: 0 }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 26rem), 1fr)); gap: 0 2rem;
  margin: .5rem 0 1.5rem }
dl div { display: flex; gap: 1rem; padding: .2rem 0; border-bottom: 1px solid var(--line) }
dt { font-weight: bold; flex: 0 0 13rem } dd { margin: 0; overflow-wrap: anywhere }
code { font-family: ui-monospace, monospace; font-size: .92em }
pre { background: var(--code); padding: .7rem 1rem; border-radius: 4px; white-space: pre-wrap; overflow-wrap: anywhere }
.dim { color: var(--dim) } .skip { color: var(--dim) } .pass { color: var(--good) }
.fail { color: var(--bad); font-weight: bold }
@media print {
  /* Paper is white and does not scroll. */
  :root { color-scheme: light; --text: #202020; --dim: #606060; --line: #e4e4e4; --code: #f4f4f4;
    --good: #006b4f; --bad: #c00000 }
  body { background: none; font-size: 11px; max-width: none; margin: 0 }
  .wide { overflow: visible; font-size: 9px } th, td, td:not(:last-child) { white-space: normal; padding-right: .4rem }
  td:last-child { min-width: 0 } tr, dl div { break-inside: avoid } dl { grid-template-columns: 1fr 1fr }
  dt { flex-basis: 9rem }
  h2 { break-after: avoid } svg { break-inside: avoid; filter: none }
}
"""


def document(title: str, note: str, parts: Iterable[str]) -> str:
    """A page. ``title`` and ``note`` are plain text, ``parts`` HTML."""
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width">',
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            f"<title>{plain(title)}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{plain(title)}</h1>",
            f'<p class="dim">{plain(note)}</p>',
            *parts,
            "</body></html>",
            "",
        ]
    )


def plain(text: str) -> str:
    """Text, escaped and without control characters."""
    return escape(clean(text))


def pairs(rows: Iterable[tuple[str, str]]) -> str:
    """Names and values, in as many columns as fit."""
    body = "".join(f"<div><dt>{plain(name)}</dt><dd>{plain(value)}</dd></div>" for name, value in rows)
    return f"<dl>{body}</dl>"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of plain text with a heading for each column. Columns of numbers are right-aligned."""
    kinds = ["number" if rows and all(_is_number(row[place]) for row in rows) else "" for place in range(len(heads))]
    head = _cells("th", heads, kinds)
    body = "".join(f"<tr>{_cells('td', row, kinds)}</tr>" for row in rows)
    return wide(f"<table><tr>{head}</tr>{body}</table>")


def _cells(tag: str, texts: Sequence[str], kinds: Sequence[str]) -> str:
    marks = [f' class="{kind}"' if kind else "" for kind in kinds]
    return "".join(f"<{tag}{mark}>{plain(text)}</{tag}>" for text, mark in zip(texts, marks, strict=True))


def _is_number(text: str) -> bool:
    return text == UNKNOWN or text[:1].isdecimal() or (text[:1] in "-−+" and text[1:2].isdecimal())


def table_of(heads: Iterable[str], rows: Iterable[str]) -> str:
    """A table whose rows are HTML cells."""
    head = "".join(f"<th>{plain(text)}</th>" for text in heads)
    return wide(f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>")


def wide(part: str) -> str:
    """HTML that scrolls if it is wider than the page."""
    return f'<div class="wide">{part}</div>'
