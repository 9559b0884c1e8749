"""A chart of each GPU over the last minutes, and one of all: utilisation and memory, both of 100 %."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import ceil
from statistics import fmean
from typing import NamedTuple

from gputui.core.units import percent
from gputui.metrics.draw.parts import Curve, Line, Span
from gputui.metrics.draw.raster import Canvas
from gputui.metrics.draw.scales import LinearScale
from gputui.store.hardware import GpuView
from gputui.store.rollups import GpuHistory
from gputui.ui.tui.layout.columns import box, fit_line, join_blocks, line_width
from gputui.ui.tui.layout.sparklines import History, merge_histories, time_bins, to_percent
from gputui.ui.tui.layout.strips import gpu_totals
from gputui.ui.tui.pages.overview.gpu_cells import gigabytes, load_style
from gputui.ui.views.snapshot import HISTORY_SECONDS, Snapshot
from gputui.ui.views.words import is_hot

CHART_WIDTH = 15
CHART_HEIGHT = 2
"""Least cells of a chart, for its heading in a frame, and its least lines."""

ALL_FIGURES = 4
"""The figures of a whole heading: name, utilisation, memory and temperature."""

_WIDEST_UTILIZATION = len(" 100%")
_WIDEST_TEMPERATURE = len(" 99°")

BOXED_FROM = 4
"""Least lines of a chart with a frame."""

_MINUTES = LinearScale(-HISTORY_SECONDS / 60, 0.0)
_PERCENT = LinearScale(0.0, 100.0)


class ChartSubject(NamedTuple):
    """What a chart is about: a GPU, or all of them. Values are those of now; None if unknown.

    Attributes:
        name: the index of the GPU, or ``all``.
        utilizations: the utilisation over time, in percent; None while nothing is known.
        memories: the used memory over time, in percent; None while nothing is known.
        is_hot: whether heat throttles the GPU, or would soon.
        state: the state of the GPU, ``ok`` for all of them.
    """

    name: str
    utilization_percent: float | None
    memory_used_bytes: float | None
    memory_total_bytes: float | None
    temperature_celsius: float | None
    utilizations: History | None
    memories: History | None
    is_hot: bool = False
    state: str = "ok"

    @classmethod
    def of_gpu(cls, gpu: GpuView, history: GpuHistory | None) -> ChartSubject:
        """One GPU; its history is None while nothing is known."""
        utilizations = None
        memories = None
        if history is not None:
            utilizations = history.utilization_percent
            memories = to_percent(history.memory_used_bytes, gpu.memory_total_bytes)
        return cls(
            f"{gpu.index}",
            utilization_percent=gpu.utilization_percent,
            memory_used_bytes=gpu.memory_used_bytes,
            memory_total_bytes=gpu.memory_total_bytes,
            temperature_celsius=gpu.temperature_celsius,
            utilizations=utilizations,
            memories=memories,
            is_hot=is_hot(gpu),
            state=gpu.state,
        )

    @classmethod
    def of_all(cls, gpus: Sequence[GpuView], charted: Sequence[ChartSubject]) -> ChartSubject:
        """All GPUs, from what is charted of each: means of utilisation and memory, and the highest temperature."""
        total = gpu_totals(gpus)
        return cls(
            "all",
            utilization_percent=total.utilization_percent,
            memory_used_bytes=total.memory_used_bytes,
            memory_total_bytes=total.memory_total_bytes,
            temperature_celsius=total.hottest_celsius,
            utilizations=merge_histories(
                [subject.utilizations for subject in charted if subject.utilizations is not None], fmean
            ),
            memories=merge_histories([subject.memories for subject in charted if subject.memories is not None], fmean),
            is_hot=any(is_hot(gpu) for gpu in gpus),
        )

    @property
    def styles(self) -> tuple[str, str]:
        """The styles of utilisation and memory: the steps of load that the table has."""
        if self.state != "ok":
            return "stale", "stale"
        (memory,) = to_percent([self.memory_used_bytes], self.memory_total_bytes)
        return load_style("load", self.utilization_percent or 0.0), load_style("memory", memory or 0.0)

    @property
    def figures(self) -> list[Span]:
        """The words of its heading, the most important first."""
        name: Span = (self.name, "title")
        if self.state == "lost":
            return [name, (" ✗ lost", "bad")]
        load, memory = self.styles
        figures: list[Span] = [
            name,
            (f" {percent(self.utilization_percent)}", load),
            (f" {gigabytes(self.memory_used_bytes).strip()}G", memory),
        ]
        if self.temperature_celsius is not None:
            heat = "warn" if self.is_hot else "text"
            figures.append((f" {self.temperature_celsius:.0f}°", heat))
        return figures

    def figures_in(self, width: int) -> int:
        """How many `figures` fit into a chart of this width, whatever they will be: a heading that fits today and not
        in a second would flicker. The name is always there."""
        most_memory = max(len("0.4"), len(gigabytes(self.memory_total_bytes).strip()))
        widest_memory = len(" G") + most_memory
        inner, _ = _inner(width, BOXED_FROM)
        room = inner - len(f" {self.name} ")
        widths = accumulate((_WIDEST_UTILIZATION, widest_memory, _WIDEST_TEMPERATURE))
        return 1 + sum(needed <= room for needed in widths)


class GpuCharts:
    """The charts of all GPUs. Headings follow each sample; curves are drawn again when a point was added."""

    def __init__(self) -> None:
        self._drawn_for: tuple[object, ...] = ()
        self._plots: list[list[Line]] = []

    def lines(self, snapshot: Snapshot, width: int, height: int) -> list[Line]:
        """The charts in ``height`` lines, in rows of equally many. The last GPUs are left out if not all have room;
        the chart of all is there if it has room without another row or shorter headings."""
        most_across = max(1, width // CHART_WIDTH)
        most_down = max(1, height // CHART_HEIGHT)
        gpus = snapshot.gpus[: most_across * most_down]
        down = max(1, ceil(len(gpus) / most_across))
        subjects, figures = _chart_subjects(snapshot, gpus, width, down)
        across = max(1, ceil(len(subjects) / down))
        sizes = [(columns, rows) for rows in _shared(height, down) for columns in _shared(width, across)]
        drawn_for = (width, height, [gpu.uuid for gpu in gpus], snapshot.gpu_history)
        if drawn_for != self._drawn_for:
            self._drawn_for = drawn_for
            self._plots = [_plot(subject, *_inner(*size)) for subject, size in zip(subjects, sizes, strict=False)]
        charts = [
            _chart(subject, plot, *size, figures)
            for subject, plot, size in zip(subjects, self._plots, sizes, strict=False)
        ]
        blanks = [[fit_line([], columns)] * rows for columns, rows in sizes[len(charts) :]]
        blocks = [*charts, *blanks]
        lines: list[Line] = []
        for first in range(0, len(blocks), across):
            lines += join_blocks(*blocks[first : first + across])
        return lines


def _chart_subjects(
    snapshot: Snapshot, gpus: Sequence[GpuView], width: int, down: int
) -> tuple[list[ChartSubject], int]:
    """What is charted in ``down`` rows: each GPU, and first all of them together where that costs neither another row
    nor figures; and the number of figures in each heading."""
    of_each = [ChartSubject.of_gpu(gpu, snapshot.gpu_history.get(gpu.uuid)) for gpu in gpus]
    figures = _figures_in_all(of_each, width, max(1, ceil(len(of_each) / down)))
    if len(gpus) < 2:
        return of_each, figures
    with_all = [ChartSubject.of_all(gpus, of_each), *of_each]
    across = ceil(len(with_all) / down)
    has_room = across <= max(1, width // CHART_WIDTH)
    if has_room and _figures_in_all(with_all, width, across) >= figures:
        return with_all, figures
    return of_each, figures


def _shared(cells: int, parts: int) -> list[int]:
    """Cells shared among parts as equally as possible."""
    return [cells * (number + 1) // parts - cells * number // parts for number in range(parts)]


def _inner(width: int, height: int) -> tuple[int, int]:
    """The cells of the plot of a chart of this size."""
    if height >= BOXED_FROM:
        return (width - 2, height - 2)
    return (width - 1, height - 1)


def _figures_in_all(charted: Sequence[ChartSubject], width: int, across: int) -> int:
    """How many figures every heading has room for, so that all have the same."""
    narrowest = width // across
    return min((subject.figures_in(narrowest) for subject in charted), default=0)


def _chart(subject: ChartSubject, plot: Sequence[Line], width: int, height: int, figures: int) -> list[Line]:
    """A chart with the first ``figures`` in its heading, whose words have the styles of the curves."""
    inner, _ = _inner(width, height)
    spans: list[Span] = [(" ", "text"), *subject.figures[:figures], (" ", "text")]
    heading = [*spans, ("─" * (inner - line_width(spans)), "rule")]
    if height < BOXED_FROM:
        return [[*line, (" ", "text")] for line in [heading, *plot]]
    if figures < ALL_FIGURES:
        return box([heading, *plot], width)
    return box([heading, *plot], width, [(" 10 min ", "dim")])


def _plot(subject: ChartSubject, width: int, height: int) -> list[Line]:
    """The curves in a plot of so many cells; blank without a history."""
    canvas = Canvas(width, height)
    for history, style in zip((subject.utilizations, subject.memories), subject.styles, strict=True):
        if history is not None:
            canvas.draw(Curve(time_bins(history, HISTORY_SECONDS), style), _MINUTES, _PERCENT)
    return canvas.lines()
