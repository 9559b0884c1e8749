"""Plain columns for standard output."""

from __future__ import annotations

from collections.abc import Sequence


def columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Left-aligned columns two spaces apart; the last one is as long as it is."""
    table = [tuple(header), *(tuple(row) for row in rows)]
    widths = [max(len(row[index]) for row in table) for index in range(len(header) - 1)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in table
    ]
