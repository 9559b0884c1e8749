"""The table of a run's ranks."""

from __future__ import annotations

from collections.abc import Mapping

from gputui.core.units import UNKNOWN, bytes_text, count, duration, percent, short_number
from gputui.metrics.draw.parts import Line
from gputui.metrics.draw.raster import Span
from gputui.ui.tui.data.snapshot import RankRow
from gputui.ui.tui.layout.columns import Column, fit_line, head_line, place, row_line


def ranks_lines(ranks: Mapping[int, RankRow], width: int, height: int) -> list[Line]:
    """A head and a row per rank; slow ranks are marked."""
    if not ranks:
        return [fit_line([("  No rank has reported yet.", "dim")], width)][:height]
    placed = place(_COLUMNS, width - 1)
    lines: list[Line] = [[(" ", "text"), *head_line(placed, width - 1)]]
    rows = sorted(ranks.values(), key=lambda rank: rank.rank)
    room = height - len(lines)
    if len(rows) > room > 1:
        # The slowest ranks matter most; the number left out is shown.
        rows = sorted(sorted(rows, key=lambda rank: -(rank.slowdown or 0.0))[: room - 1], key=lambda rank: rank.rank)
    lines += [[(" ", "text"), *row_line(placed, rank, width - 1)] for rank in rows]
    if len(rows) < len(ranks):
        lines.append(fit_line([(f"  … {len(ranks) - len(rows)} more, none slower", "dim")], width))
    return lines[:height]


def _work(rank: RankRow, width: int) -> list[Span]:
    """The part of a step not spent waiting for other ranks. In lock-step all ranks have the same step time; this shows
    which one sets it."""
    seconds = rank.own_seconds
    if seconds is None:
        return [(UNKNOWN, "text")]
    return [(f"{seconds * 1000:.0f} ms" if seconds < 9.995 else duration(seconds), "text")]


def _data_wait(rank: RankRow, width: int) -> list[Span]:
    share = rank.waiting_fraction
    return [(percent(None if share is None else min(share, 1.0) * 100), "warn" if (share or 0) >= 0.2 else "text")]


def _slowness(rank: RankRow, width: int) -> list[Span]:
    if rank.is_slow and rank.slowdown is not None:
        return [(f"▲ slow, {rank.slowdown:.1f}× the median", "warn")]
    return []


_COLUMNS: tuple[Column[RankRow], ...] = (
    Column("RANK", 4, lambda rank, _: [(f"r{rank.rank}", "text")]),
    Column("STEP", 9, lambda rank, _: [(count(rank.step), "text")], ">", gap=1),
    Column("WORK", 7, _work, ">"),
    Column("SAMPLES/S", 9, lambda rank, _: [(short_number(rank.samples_per_second), "text")], ">", importance=1),
    Column("DATA", 4, _data_wait, ">"),
    Column("PEAK", 9, lambda rank, _: [(bytes_text(rank.memory_bytes), "text")], ">", importance=2),
    Column("", 6, _slowness, grow=1),
)
