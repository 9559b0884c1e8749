"""Lines in a frame, for what opens above a screen."""

from __future__ import annotations

from collections.abc import Sequence

from gputui.charts.cells import cell_width, clip
from gputui.charts.chart import Line
from gputui.tui.layout.columns import fit_line


def box(title: str, lines: Sequence[Line], width: int, note: str = "") -> list[Line]:
    """``lines`` in a frame of ``width`` cells with a title above and a note below."""
    inner = width - 2
    head = clip(f" {title} ", inner)
    foot = clip(f" {note} ", inner) if note else ""
    top: Line = [("╭", "rule"), (head, "title"), ("─" * (inner - cell_width(head)) + "╮", "rule")]
    bottom: Line = [("╰" + "─" * (inner - cell_width(foot)), "rule"), (foot, "dim"), ("╯", "rule")]
    body: list[Line] = [[("│ ", "rule"), *fit_line(line, inner - 2), (" │", "rule")] for line in lines]
    return [top, *body, bottom]
