"""A chart of each GPU over the last minutes: its utilisation and its memory, both of 100 %."""

from __future__ import annotations

from collections.abc import Sequence

from gputui.core.units import percent
from gputui.metrics.draw.axes import LinearScale
from gputui.metrics.draw.parts import Curve, Line
from gputui.metrics.draw.raster import Canvas, Span
from gputui.store.hardware import GpuView
from gputui.store.rollups import GpuHistory
from gputui.ui.tui.data.snapshot import HISTORY_SECONDS, Snapshot
from gputui.ui.tui.layout.columns import beside, box, fit_line, rule
from gputui.ui.tui.layout.sparklines import shares, time_bins
from gputui.ui.tui.layout.words import is_hot
from gputui.ui.tui.pages.overview.gpu_cells import gigabytes, load_style

CHART_WIDTH, CHART_HEIGHT = 15, 2
"""Least cells of a chart, for its heading in a frame, and its least lines."""

NAMED_FROM = 18
"""Least cells of a chart whose heading has the temperature, and whose frame says how long the curves are."""

BOXED_FROM = 4
"""Least lines of a chart with a frame."""

_MINUTES = LinearScale(-HISTORY_SECONDS / 60, 0.0)
_PERCENT = LinearScale(0.0, 100.0)


class GpuCharts:
    """The charts of all GPUs. Headings follow each sample; curves are drawn again when a point was added."""

    def __init__(self) -> None:
        self._drawn_for: tuple[object, ...] = ()
        self._plots: list[list[Line]] = []

    def lines(self, snapshot: Snapshot, width: int, height: int) -> list[Line]:
        """The charts in ``height`` lines, in rows of equally many; the last GPUs are left out if not all have room."""
        most = max(1, width // CHART_WIDTH)
        gpus = snapshot.gpus[: most * max(1, height // CHART_HEIGHT)]
        down = max(1, -(-len(gpus) // most))
        across = max(1, -(-len(gpus) // down))
        widths, heights = _shared(width, across), _shared(height, down)
        sizes = [(columns, rows) for rows in heights for columns in widths]
        drawn_for = (width, height, [gpu.uuid for gpu in gpus], snapshot.gpu_history)
        if drawn_for != self._drawn_for:
            self._drawn_for = drawn_for
            self._plots = [
                _plot(gpu, snapshot.gpu_history.get(gpu.uuid), *_inner(*size))
                for gpu, size in zip(gpus, sizes, strict=False)
            ]
        charts = [_chart(gpu, plot, *size) for gpu, plot, size in zip(gpus, self._plots, sizes, strict=False)]
        charts += [[fit_line([], columns)] * rows for columns, rows in sizes[len(charts) :]]
        return [line for first in range(0, len(charts), across) for line in beside(*charts[first : first + across])]


def _shared(cells: int, parts: int) -> list[int]:
    return [cells * (number + 1) // parts - cells * number // parts for number in range(parts)]


def _inner(width: int, height: int) -> tuple[int, int]:
    """The cells of the plot of a chart of this size."""
    return (width - 2, height - 2) if height >= BOXED_FROM else (width - 1, height - 1)


def _styles(gpu: GpuView) -> tuple[str, str]:
    """The styles of utilisation and memory: the steps of load that the table has."""
    if gpu.state != "ok":
        return "stale", "stale"
    memory = shares([gpu.memory_used_bytes], gpu.memory_total_bytes)[0]
    return load_style("load", gpu.utilization_percent or 0.0), load_style("memory", memory or 0.0)


def _chart(gpu: GpuView, plot: Sequence[Line], width: int, height: int) -> list[Line]:
    """A chart with its heading, whose words have the styles of the curves."""
    inner, _ = _inner(width, height)
    load, memory = _styles(gpu)
    figure: list[Span] = [(f"{gpu.index}", "title")]
    if gpu.state == "lost":
        figure.append((" ✗ lost", "bad"))
    else:
        figure += [
            (f" {percent(gpu.utilization_percent)}", load),
            (f" {gigabytes(gpu.memory_used_bytes).strip()}G", memory),
        ]
        if width >= NAMED_FROM and gpu.temperature_celsius is not None:
            heat = "warn" if is_hot(gpu) else "text"
            figure.append((f" {gpu.temperature_celsius:.0f}°", heat))
    heading = rule("", inner, figures=[figure])
    if height < BOXED_FROM:
        return [[*line, (" ", "text")] for line in [heading, *plot]]
    span: list[Span] = [("╴10 min", "dim")] if width >= NAMED_FROM else []
    return box([heading, *plot], width, span)


def _plot(gpu: GpuView, history: GpuHistory | None, width: int, height: int) -> list[Line]:
    """The curves in a plot of so many cells; blank without a history."""
    canvas = Canvas(width, height)
    if history is None:
        return [fit_line([], width)] * height
    load, memory = _styles(gpu)
    used = shares(history.memory_used_bytes, gpu.memory_total_bytes)
    busy = Curve(time_bins(history.utilization_percent, HISTORY_SECONDS), load)
    for curve in (busy, Curve(time_bins(used, HISTORY_SECONDS), memory)):
        canvas.draw(curve, _MINUTES, _PERCENT)
    return canvas.lines()
