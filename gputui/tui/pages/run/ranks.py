"""How each rank of a run does."""

from __future__ import annotations

from collections.abc import Mapping

from gputui.charts.chart import Line
from gputui.charts.raster import Span
from gputui.charts.units import UNKNOWN, bytes_text, count, duration, percent, short_number
from gputui.tui.data.snapshot import RankRow
from gputui.tui.layout.columns import Column, fit_line, head_line, place, row_line


def ranks_lines(ranks: Mapping[int, RankRow], now: float, width: int, height: int) -> list[Line]:
    """A row per rank; those that hold the others up are named so."""
    if not ranks:
        return [fit_line([("  No rank has reported yet.", "dim")], width)][:height]
    lines: list[Line] = []
    placed = place(_RANK_COLUMNS, width - 1)
    lines.append([(" ", "text"), *head_line(placed, width - 1)])
    rows = sorted(ranks.values(), key=lambda rank: rank.rank)
    room = height - len(lines)
    if len(rows) > room > 1:
        # The slowest are worth more than the first; the number left out is shown.
        rows = sorted(sorted(rows, key=lambda rank: -(rank.slowdown or 0.0))[: room - 1], key=lambda rank: rank.rank)
    lines += [[(" ", "text"), *row_line(placed, (rank, now), width - 1)] for rank in rows]
    if len(rows) < len(ranks):
        lines.append(fit_line([(f"  … {len(ranks) - len(rows)} more, none slower", "dim")], width))
    return lines[:height]


_Rank = tuple[RankRow, float]


def _rank_number(item: _Rank, width: int) -> list[Span]:
    return [(f"r{item[0].rank}", "text")]


def _rank_step(item: _Rank, width: int) -> list[Span]:
    return [(count(item[0].step), "text")]


def _rank_work(item: _Rank, width: int) -> list[Span]:
    """Of a step what is not waiting for the other ranks: in lock-step all have the same pace, and this tells who sets
    it."""
    seconds = item[0].own_seconds
    if seconds is None:
        return [(UNKNOWN, "text")]
    return [(f"{seconds * 1000:.0f} ms" if seconds < 9.995 else duration(seconds), "text")]


def _rank_samples(item: _Rank, width: int) -> list[Span]:
    return [(short_number(item[0].samples_per_second), "text")]


def _rank_wait(item: _Rank, width: int) -> list[Span]:
    share = item[0].waiting_fraction
    return [(percent(None if share is None else min(share, 1.0) * 100), "warn" if (share or 0) >= 0.2 else "text")]


def _rank_memory(item: _Rank, width: int) -> list[Span]:
    return [(bytes_text(item[0].memory_bytes), "text")]


def _rank_remark(item: _Rank, width: int) -> list[Span]:
    rank = item[0]
    if rank.is_slow and rank.slowdown is not None:
        return [(f"▲ slow, {rank.slowdown:.1f}× the median", "warn")]
    return []


_RANK_COLUMNS: tuple[Column[_Rank], ...] = (
    Column("RANK", 4, _rank_number),
    Column("STEP", 9, _rank_step, ">", gap=1),
    Column("WORK", 7, _rank_work, ">"),
    Column("SAMPLES/S", 9, _rank_samples, ">", importance=1),
    Column("DATA", 4, _rank_wait, ">"),
    Column("PEAK", 9, _rank_memory, ">", importance=2),
    Column("", 6, _rank_remark, grow=1),
)
