"""The panel of GPUs: all of them in its heading, a row per GPU in one or two columns, and the host at its foot."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from math import ceil
from typing import NamedTuple

from gputui.core.text import clean
from gputui.metrics.draw.parts import Line, Span
from gputui.ui.tui.layout.columns import (
    Column,
    FittedColumns,
    box,
    drop_empty,
    fit_columns,
    fit_line,
    fit_parts,
    head_line,
    highlight,
    row_line,
    rule,
    wrap,
)
from gputui.ui.tui.layout.gpu_words import GpuRow, gpu_row, lost_spans, user_spans
from gputui.ui.tui.layout.lists import index_of
from gputui.ui.tui.layout.strips import gpu_figures, host_figures
from gputui.ui.tui.pages.overview.gpu_cells import SHORT_COLUMNS, columns
from gputui.ui.views.snapshot import Snapshot
from gputui.ui.views.words import dated_clock

SHORT_ROW_WIDTH = 24
"""Least width of a short row; two columns of GPUs need twice this."""

NARROW = 60
"""Below this width rows are short, so that the run stays in sight."""

HEAD_ROWS = 2
"""Lines above the rows: the panel's heading, and the columns' heads."""

HOST_FROM_HEIGHT = 6
"""Least height of a panel with a line for the host although not all GPUs fit."""


class GpuGrid(NamedTuple):
    """Where the rows of the GPUs are.

    Attributes:
        across: how many columns of rows there are.
        down: how many rows a column has.
        top: the index of the first GPU shown.
    """

    across: int
    down: int
    top: int

    @property
    def visible(self) -> slice:
        """Which GPUs are shown."""
        return slice(self.top, self.top + self.across * self.down)

    def index_at(self, x: int, y: int, width: int) -> int:
        """The index of the GPU in a cell of the panel of ``width`` cells; -1 beside the rows."""
        row = y - HEAD_ROWS
        column = x * self.across // max(1, width)
        if 0 <= row < self.down:
            return self.top + column * self.down + row
        return -1


def gpu_grid(snapshot: Snapshot, width: int, height: int, top: int, cursor: str | None = None) -> GpuGrid:
    """The grid of a panel of this size that shows the GPU under the cursor.

    Args:
        top: the index of the GPU at the top until now; it changes as little as needed.
        cursor: the UUID of the GPU under the cursor.
    """
    uuids = [gpu.uuid for gpu in snapshot.gpus]
    count = len(uuids)
    room = max(1, height - HEAD_ROWS - _has_host(count, height))
    across = 2 if count > room and width >= 2 * SHORT_ROW_WIDTH else 1
    down = min(room, ceil(count / across))
    visible = across * down
    index = index_of(uuids, cursor, top)
    top_of_cursor = max(min(top, index), index - visible + 1)
    return GpuGrid(across, down, max(0, min(top_of_cursor, count - visible)))


def gpu_height(snapshot: Snapshot, width: int, most: int) -> int:
    """The number of lines that the panel takes of at most ``most``."""
    if not snapshot.gpus:
        return min(most, 2 + len(no_gpu_lines(snapshot, width)))
    return min(most, HEAD_ROWS + gpu_grid(snapshot, width, most, 0).down + _has_host(len(snapshot.gpus), most))


def _has_host(gpus: int, height: int) -> bool:
    return height >= min(HOST_FROM_HEIGHT, HEAD_ROWS + gpus + 1)


def gpu_panel(
    snapshot: Snapshot, width: int, height: int, cursor: str | None = None, top: int = 0, *, is_framed: bool = False
) -> list[Line]:
    """The panel in ``height`` lines; without a GPU, a sentence that says why.

    Args:
        cursor: the UUID of the GPU under the cursor.
        top: where not all fit, the index of the first GPU shown.
        is_framed: whether it has a frame.
    """
    inner = width - 2 if is_framed else width
    figures: list[list[Span]] = []
    if not snapshot.gpus:
        rows = no_gpu_lines(snapshot, inner)
    else:
        grid = gpu_grid(snapshot, inner, height, top, cursor)
        rows = _rows(snapshot, grid, inner, cursor)
        figures = [*_position(grid, len(snapshot.gpus)), *gpu_figures(snapshot)]
    has_host = is_framed or _has_host(len(snapshot.gpus), height)
    lines = [rule("GPUS", inner, figures=figures), *rows[: max(0, height - 1 - has_host)]]
    if is_framed:
        return box(lines, width, rule("HOST", inner, figures=host_figures(snapshot, inner)))
    if has_host:
        lines.append(_host_line(snapshot, width))
    return lines[:height]


def _position(grid: GpuGrid, count: int) -> list[list[Span]]:
    """``1–8 of 12``, where not all GPUs are shown."""
    visible = grid.visible
    if grid.across * grid.down >= count:
        return []
    return [[(f"{visible.start + 1}–{visible.stop} of {count}", "warn")]]


def _host_line(snapshot: Snapshot, width: int) -> Line:
    first, *others = host_figures(snapshot, width)
    parts = [[(" host  ", "label"), *first], *([("  ", "label"), *figure] for figure in others)]
    return fit_parts(parts, width)


def _rows(snapshot: Snapshot, grid: GpuGrid, width: int, cursor: str | None) -> list[Line]:
    """The columns' heads and the rows of the GPUs shown."""
    row_width = width
    if grid.across > 1:
        row_width = (width - 2) // 2
    rows = [gpu_row(snapshot, gpu) for gpu in snapshot.gpus]
    listed: Sequence[Column[GpuRow]] = SHORT_COLUMNS
    if grid.across == 1 and width >= NARROW:
        listed = columns(rows, width)
    fitted = fit_columns(drop_empty(listed, rows), row_width - 1)
    lines = [_gpu_line(fitted, row, snapshot.at, row_width, cursor) for row in rows[grid.visible]]
    head = _with_cursor(head_line(fitted, row_width - 1))
    if grid.across == 1:
        return [head, *lines]
    first_column = [head, *lines[: grid.down]]
    second_column = [head, *lines[grid.down :]]
    gap = ("  ", "text")
    blank: Line = []
    pairs = zip_longest(first_column, second_column, fillvalue=blank)
    return [fit_line([*first, gap, *second], width) for first, second in pairs]


def _gpu_line(fitted: FittedColumns[GpuRow], row: GpuRow, now: float, width: int, cursor: str | None) -> Line:
    gpu = row.gpu
    style = "stale" if gpu.state == "stale" else None
    if gpu.state == "lost":
        line = fit_line([(f"{gpu.index:>2} ", "text"), *lost_spans(row, now)], width - 1)
    elif row.quarantined is not None and gpu.run_id is None:
        # Beside its values, in place of a run's.
        values = _columns_before_user(fitted)
        values_width = sum(room + column.gap for column, room in values)
        since = f"⊘ since {dated_clock(row.quarantined.since, now)}: "
        reason = fit_line([(since, "warn"), (clean(row.quarantined.words), "text")], width - 1 - values_width)
        line = [*row_line(values, row, values_width, style), *reason]
    else:
        line = row_line(fitted, row, width - 1, style)
    return _with_cursor(line, gpu.uuid == cursor)


def _columns_before_user(fitted: FittedColumns[GpuRow]) -> FittedColumns[GpuRow]:
    cells = [column.cell for column, _ in fitted]
    return fitted[: cells.index(user_spans)]


def _with_cursor(line: Line, is_current: bool = False) -> Line:
    """A line behind the cell of the cursor."""
    if is_current:
        return highlight([("▸", "cursor"), *line])
    return [(" ", "text"), *line]


def no_gpu_lines(snapshot: Snapshot, width: int) -> list[Line]:
    """Lines in place of GPUs: why there are none, and what to do."""
    if snapshot.past is not None:
        text = "No GPU was recorded at this moment."
    elif snapshot.agent is None:
        text = "Waiting for the first sample…" if snapshot.problem is None else ""
    elif snapshot.agent.gpu_problem:
        text = clean(snapshot.agent.gpu_problem).rstrip()
        if "--demo" not in text:
            text = f"{text.rstrip('.')}. `gputui --demo` simulates eight GPUs."
    else:
        text = "Looking for GPUs…"
    return [fit_line([("  " + line, "text")], width) for line in wrap(text, width - 4)]
