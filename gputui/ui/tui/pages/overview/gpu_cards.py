"""A card per busy GPU with a chart of its last minutes, for screens with room below the table."""

from __future__ import annotations

from typing import NamedTuple

from gputui.metrics.draw.chart import chart
from gputui.metrics.draw.parts import Curve, Line, XAxis, YAxis
from gputui.store.hardware import GpuView
from gputui.ui.tui.data.snapshot import HISTORY_SECONDS, Snapshot
from gputui.ui.tui.layout.columns import fit_line
from gputui.ui.tui.layout.gpu_words import gpu_row, who
from gputui.ui.tui.layout.sparklines import shares, time_bins
from gputui.ui.tui.layout.strips import no_samples

CARD_WIDTH = 46
CARD_HEIGHT = 6
CARD_HEIGHT_MOST = 8
BUSY_PERCENT = 5.0
"""Least peak of utilisation in the last minutes that earns a GPU a card."""


class Grid(NamedTuple):
    """The layout of the cards: how many side by side and below each other, and the lines of one."""

    across: int
    down: int
    height: int


def card_grid(count: int, width: int, lines: int) -> Grid | None:
    """The layout of ``count`` cards in at most ``lines`` lines; None if they do not all fit."""
    if not count:
        return None
    across = min(count, max(1, width // CARD_WIDTH))
    down = -(-count // across)
    across = -(-count // down)
    height = min(CARD_HEIGHT_MOST, lines // down)
    return Grid(across, down, height) if height >= CARD_HEIGHT else None


def busy_gpus(snapshot: Snapshot) -> list[GpuView]:
    """The GPUs that have a card: those with a run or with load in the last minutes."""
    busy = []
    for gpu in snapshot.gpus:
        history = snapshot.gpu_history.get(gpu.uuid)
        peak = max((value or 0.0 for value in history.utilization_percent), default=0.0) if history else 0.0
        if gpu.run_id is not None or peak > BUSY_PERCENT:
            busy.append(gpu)
    return busy


def card_lines(snapshot: Snapshot, width: int, grid: Grid) -> list[Line]:
    """The cards of the busy GPUs. Without samples a card is empty."""
    each = (width - 1) // grid.across
    cards = [_card(snapshot, gpu, each - 1, grid.height) for gpu in busy_gpus(snapshot)]
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
        words = "lost" if gpu.state == "lost" else no_samples(snapshot)
        return [title, fit_line([(f"  {words}", "dim")], width), *[fit_line([], width)] * (height - 2)]
    full = shares(history.memory_used_bytes, gpu.memory_total_bytes)
    # The values now are in the GPU's row, folded in the lines of all GPUs.
    busy = time_bins(history.utilization_percent, HISTORY_SECONDS)
    curves = [
        Curve(busy, "series.0", "utilisation %", area="area.0", shape="●"),
        Curve(time_bins(full, HISTORY_SECONDS), "series.1", "memory %", shape="■"),
    ]
    axis = XAxis("min", -HISTORY_SECONDS / 60, 0.0, newest=0.0)
    scale = YAxis(low=0.0, high=100.0)
    return [title, *chart(curves, width=width, height=height - 1, x_axis=axis, y_axis=scale)]
