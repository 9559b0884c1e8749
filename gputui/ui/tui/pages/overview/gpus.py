"""The panel of GPUs: all of them in its heading, a row per GPU in one or two columns, and the host at its foot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gputui.core.text import clean
from gputui.metrics.draw.parts import Line
from gputui.ui.tui.layout.columns import (
    Placed,
    box,
    fit_line,
    fitting,
    head_line,
    place,
    row_line,
    rule,
    selected,
    telling,
    wrap,
)
from gputui.ui.tui.layout.gpu_words import GpuRow, gpu_row, lost, who
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
    """The place of each GPU shown: ``down`` rows in each of ``across`` columns, from index ``top`` on."""

    across: int
    down: int
    top: int

    def index_at(self, x: int, y: int, width: int) -> int:
        """The index of the GPU in a cell of the panel of ``width`` cells; -1 beside the rows."""
        row, column = y - HEAD_ROWS, x * self.across // max(1, width)
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
    shown, place_of = across * down, uuids.index(cursor) if cursor in uuids else top
    return GpuGrid(across, down, max(0, min(max(min(top, place_of), place_of - shown + 1), count - shown)))


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
    """The panel in ``height`` lines, with the GPU of the UUID ``cursor`` marked; where not all fit, from the index
    ``top`` on. Without a GPU, a sentence that says why."""
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
        rows, figures = no_gpu_lines(snapshot, inner), []
    has_host = is_framed or _has_host(len(snapshot.gpus), height)
    lines = [rule("GPUS", inner, figures=figures), *rows[: max(0, height - 1 - has_host)]]
    if not has_host:
        return lines[:height]
    host = host_figures(snapshot, inner)
    if is_framed:
        return box(lines, width, rule("HOST", inner, figures=host))
    spans = [[("  " if number else " host  ", "label"), *figure] for number, figure in enumerate(host)]
    return [*lines, fitting(spans, width)][:height]


def _rows(snapshot: Snapshot, grid: GpuGrid, width: int, cursor: str | None) -> list[Line]:
    """The columns' heads and the rows of the GPUs shown."""
    half = width if grid.across == 1 else (width - 2) // 2
    rows = [gpu_row(snapshot, gpu) for gpu in snapshot.gpus]
    listed = SHORT_COLUMNS if grid.across > 1 or width < NARROW else columns(rows, width)
    placed = place(telling(listed, rows), half - 1)
    shown = rows[grid.top : grid.top + grid.across * grid.down]
    cells = [_gpu_line(placed, row, snapshot.at, half, cursor) for row in shown]
    head = _indented(head_line(placed, half - 1))
    if grid.across == 1:
        return [head, *cells]
    gap = ("  ", "text")
    beside: Sequence[Line] = [*cells[grid.down :], *[[] for _ in range(2 * grid.down - len(cells))]]
    pairs = zip(cells[: grid.down], beside, strict=True)
    return [fit_line([*left, gap, *right], width) for left, right in ((head, head), *pairs)]


def _gpu_line(placed: Placed[GpuRow], row: GpuRow, now: float, width: int, cursor: str | None) -> Line:
    gpu, failed = row.gpu, row.quarantined
    style = "stale" if gpu.state == "stale" else None
    if gpu.state == "lost":
        line = fit_line([(f"{gpu.index:>2} ", "text"), *lost(row, now)], width - 1)
    elif failed is not None and gpu.run_id is None:
        # Beside its values, in place of a run's.
        own = placed[: next(number for number, (column, _) in enumerate(placed) if column.cell is who)]
        left = sum(room + column.gap for column, room in own)
        why = [(f"⊘ since {dated_clock(failed.since, now)}: ", "warn"), (clean(failed.words), "text")]
        line = [*row_line(own, row, left, style), *fit_line(why, width - 1 - left)]
    else:
        line = row_line(placed, row, width - 1, style)
    return _indented(line, gpu.uuid == cursor)


def _indented(line: Line, is_current: bool = False) -> Line:
    if is_current:
        return selected([("▸", "cursor"), *line])
    return [(" ", "text"), *line]


def no_gpu_lines(snapshot: Snapshot, width: int) -> list[Line]:
    """Lines in place of GPUs: why there are none, and what to do."""
    if snapshot.past is not None:
        text = "No GPU was recorded at this moment."
    elif snapshot.agent is None:
        text = "Waiting for the first sample…" if snapshot.problem is None else ""
    elif snapshot.agent.gpu_problem:
        problem = clean(snapshot.agent.gpu_problem).rstrip()
        text = problem if "--demo" in problem else f"{problem.rstrip('.')}. `gputui --demo` simulates eight GPUs."
    else:
        text = "Looking for GPUs…"
    return [fit_line([("  " + line, "text")], width) for line in wrap(text, width - 4)]
