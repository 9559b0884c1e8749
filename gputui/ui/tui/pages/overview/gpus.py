"""The panel of GPUs: all of them in its heading, a row per GPU in one or two columns, and the host at its foot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gputui.core.text import clean
from gputui.metrics.draw.parts import Line
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

    def index_at(self, x: int, y: int, width: int) -> int:
        """The index of the GPU in a cell of the panel of ``width`` cells; -1 beside the rows."""
        row = y - HEAD_ROWS
        column = x * self.across // max(1, width)
        if 0 <= row < self.down:
            return self.top + column * self.down + row
        return -1


def gpu_grid(snapshot: Snapshot, width: int, height: int, top: int, cursor: str | None = None) -> GpuGrid:
    """The grid of a panel of this size that shows the GPU under the cursor, scrolled as little as needed."""
    uuids = [gpu.uuid for gpu in snapshot.gpus]
    count = len(uuids)
    room = max(1, height - HEAD_ROWS - _has_host(count, height))
    across = 2 if count > room and width >= 2 * SHORT_ROW_WIDTH else 1
    down = min(room, -(-count // across))
    visible = across * down
    index = index_of(uuids, cursor, top)
    top = max(min(top, index), index - visible + 1)
    return GpuGrid(across, down, max(0, min(top, count - visible)))


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
    if snapshot.gpus:
        grid = gpu_grid(snapshot, inner, height, top, cursor)
        rows = _rows(snapshot, grid, inner, cursor)
        hidden = len(snapshot.gpus) - grid.across * grid.down
        figures = gpu_figures(snapshot)
        if hidden > 0:
            last = grid.top + grid.across * grid.down
            figures.insert(0, [(f"{grid.top + 1}–{last} of {len(snapshot.gpus)}", "warn")])
    else:
        rows = no_gpu_lines(snapshot, inner)
        figures = []
    has_host = is_framed or _has_host(len(snapshot.gpus), height)
    lines = [rule("GPUS", inner, figures=figures), *rows[: max(0, height - 1 - has_host)]]
    if not has_host:
        return lines[:height]
    host = host_figures(snapshot, inner)
    if is_framed:
        return box(lines, width, rule("HOST", inner, figures=host))
    spans = [[("  ", "label"), *figure] for figure in host]
    spans[0][0] = (" host  ", "label")
    return [*lines, fit_parts(spans, width)][:height]


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
    visible = rows[grid.top : grid.top + grid.across * grid.down]
    lines = [_gpu_line(fitted, row, snapshot.at, row_width, cursor) for row in visible]
    head = _with_cursor(head_line(fitted, row_width - 1))
    if grid.across == 1:
        return [head, *lines]
    gap = ("  ", "text")
    second: Sequence[Line] = [*lines[grid.down :], *[[] for _ in range(2 * grid.down - len(lines))]]
    pairs = zip([head, *lines[: grid.down]], [head, *second], strict=True)
    return [fit_line([*line, gap, *beside], width) for line, beside in pairs]


def _gpu_line(fitted: FittedColumns[GpuRow], row: GpuRow, now: float, width: int, cursor: str | None) -> Line:
    gpu = row.gpu
    failed = row.quarantined
    style = "stale" if gpu.state == "stale" else None
    if gpu.state == "lost":
        line = fit_line([(f"{gpu.index:>2} ", "text"), *lost_spans(row, now)], width - 1)
    elif failed is not None and gpu.run_id is None:
        # Beside its values, in place of a run's.
        values = fitted[: next(number for number, (column, _) in enumerate(fitted) if column.cell is user_spans)]
        values_width = sum(room + column.gap for column, room in values)
        why = [(f"⊘ since {dated_clock(failed.since, now)}: ", "warn"), (clean(failed.words), "text")]
        line = [*row_line(values, row, values_width, style), *fit_line(why, width - 1 - values_width)]
    else:
        line = row_line(fitted, row, width - 1, style)
    return _with_cursor(line, gpu.uuid == cursor)


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
