"""A card per GPU with its last minutes as a chart, for screens with room below the table."""

from __future__ import annotations

from typing import NamedTuple

from gputui.charts.chart import Curve, Line, XAxis, YAxis, chart
from gputui.charts.units import percent
from gputui.store.hardware import GpuView
from gputui.tui.data.snapshot import HISTORY_SECONDS, Snapshot
from gputui.tui.layout.columns import fit_line
from gputui.tui.layout.gpu_words import gpu_row, who
from gputui.tui.layout.sparklines import newest, shares, time_bins

CARD_WIDTH = 46
CARD_HEIGHT = 6
CARD_HEIGHT_MOST = 9


class Grid(NamedTuple):
    """How cards are laid out: how many beside and below each other, and the lines of one."""

    across: int
    down: int
    height: int


def card_grid(count: int, width: int, lines: int) -> Grid | None:
    """The cards of ``count`` GPUs in at most ``lines`` lines, all of them or none."""
    if not count:
        return None
    across = min(count, max(1, width // CARD_WIDTH))
    down = -(-count // across)
    across = -(-count // down)
    height = min(CARD_HEIGHT_MOST, lines // down)
    return Grid(across, down, height) if height >= CARD_HEIGHT else None


def card_lines(snapshot: Snapshot, width: int, grid: Grid) -> list[Line]:
    """The cards; a GPU without samples has an empty one."""
    each = (width - 1) // grid.across
    cards = [_card(snapshot, gpu, each - 1, grid.height) for gpu in snapshot.gpus]
    lines: list[Line] = []
    for row in range(grid.down):
        beside = cards[row * grid.across : (row + 1) * grid.across]
        for number in range(grid.height):
            line = [span for card in beside for span in [(" ", "text"), *card[number]]]
            lines.append(fit_line(line, width))
    return lines


def _card(snapshot: Snapshot, gpu: GpuView, width: int, height: int) -> list[Line]:
    history = snapshot.gpu_history.get(gpu.uuid)
    title = fit_line([(f"{gpu.index} ", "label"), *who(gpu_row(snapshot, gpu), width - 2)], width)
    if history is None:
        words = "lost" if gpu.state == "lost" else "no samples in the last ten minutes"
        return [title, fit_line([(f"  {words}", "dim")], width), *[fit_line([], width)] * (height - 2)]
    full = shares(history.memory_used_bytes, gpu.memory_total_bytes)
    memory = Curve(time_bins(full, HISTORY_SECONDS), "series.1", f"memory {percent(newest(full))}")
    busy = history.utilization_percent
    utilization = Curve(time_bins(busy, HISTORY_SECONDS), "series.0", f"utilisation {percent(newest(busy))}")
    axis = XAxis("min", -HISTORY_SECONDS / 60, 0.0)
    scale = YAxis(low=0.0, high=100.0)
    return [title, *chart([memory, utilization], width=width, height=height - 1, x_axis=axis, y_axis=scale)]
