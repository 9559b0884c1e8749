"""The table that GPUs are chosen from: how much room each has, who is on it, and why not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gputui.charts.chart import Line
from gputui.charts.raster import Span
from gputui.charts.units import celsius, gibibytes, percent
from gputui.tui.layout.columns import Column, head_line, place, row_line


@dataclass(frozen=True, slots=True)
class GpuChoice:
    """One row. ``state`` says in words who has it or what is wrong; ``style`` how that is shown."""

    index: int
    name: str
    free_bytes: int | None
    total_bytes: int | None
    utilization_percent: float | None
    temperature_celsius: float | None
    state: str
    style: str
    is_chosen: bool
    is_recommended: bool


def picker_lines(choices: Sequence[GpuChoice], cursor: int, top: int, rows: int, width: int) -> list[Line]:
    """The head and the rows from ``top`` on."""
    placed = place(_COLUMNS, width - 2)
    lines: list[Line] = [[("  ", "text"), *head_line(placed, width - 2)]]
    for number, choice in enumerate(choices[top : top + rows], top):
        mark: Span = ("▸ " if number == cursor else "  ", "cursor")
        lines.append([mark, *row_line(placed, choice, width - 2)])
    return lines


_COLUMNS: tuple[Column[GpuChoice], ...] = (
    Column("", 3, lambda row, _: [("[x]" if row.is_chosen else "[ ]", "accent" if row.is_chosen else "dim")]),
    Column("#", 3, lambda row, _: [(str(row.index), "label")], align=">"),
    Column(
        "free GiB",
        11,
        lambda row, _: [(gibibytes(row.free_bytes), "text"), (f" / {gibibytes(row.total_bytes, 0)}", "dim")],
        align=">",
    ),
    Column("util", 5, lambda row, _: [(percent(row.utilization_percent), "text")], align=">", importance=2),
    Column("temp", 6, lambda row, _: [(celsius(row.temperature_celsius), "text")], align=">", importance=3),
    Column("who", 16, lambda row, _: [(row.state, row.style)], grow=2, most=60),
    Column("", 11, lambda row, _: [("recommended" if row.is_recommended else "", "good")], importance=1),
    Column("model", 18, lambda row, _: [(row.name, "dim")], importance=4, grow=1, most=32),
)
