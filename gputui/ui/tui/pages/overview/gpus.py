"""The GPU area of the overview: a row per GPU, in one or two columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gputui.core.text import clean
from gputui.metrics.draw.parts import Line
from gputui.ui.tui.data.snapshot import Snapshot
from gputui.ui.tui.layout.columns import Placed, fit_line, head_line, place, row_line, selected, wrap
from gputui.ui.tui.layout.gpu_words import GpuRow, gpu_row, lost
from gputui.ui.tui.layout.words import dated_clock
from gputui.ui.tui.pages.overview.gpu_cells import COLUMNS, OPTIONAL, SHORT_COLUMNS, WIDE, WIDE_COLUMNS, with_equal_bars

NO_GPU_MOST = 10
"""Lines of the sentence that says why there is no GPU."""

SHORT_ROW_WIDTH = 38
"""Two columns of short rows need twice this."""

NARROW = 60
"""Below this width rows are short, so that the run stays in sight."""


class GpuCursor(NamedTuple):
    """State of the area beyond the snapshot.

    Attributes:
        uuid: the GPU under the cursor; None while the cursor is in another section.
        top: index of the first GPU shown where not all fit.
        has_keys: whether there are keys to press; off for printed frames.
    """

    uuid: str | None = None
    top: int = 0
    has_keys: bool = True


def gpu_lines(snapshot: Snapshot, width: int, height: int, cursor: GpuCursor = GpuCursor()) -> list[Line]:  # noqa: B008
    """A head and a row per GPU, in two columns if they do not fit below each other; then the GPUs in quarantine.

    Without a GPU, a sentence that says why.
    """
    if not snapshot.gpus:
        return no_gpu_lines(snapshot, width)[:height]
    notes = quarantine_lines(snapshot, width, has_keys=cursor.has_keys)
    count = len(snapshot.gpus)
    least = 1 + ((count + 1) // 2 if width >= 2 * SHORT_ROW_WIDTH else count)
    notes = notes[: max(0, height - least)]
    room = height - len(notes)
    rows = [gpu_row(snapshot, gpu) for gpu in snapshot.gpus]
    if len(rows) > room - 1 and width >= 2 * SHORT_ROW_WIDTH:
        return [*_two_columns(rows, snapshot.at, width, room, cursor.uuid), *notes]
    columns = WIDE_COLUMNS if width >= WIDE else COLUMNS if width >= NARROW else SHORT_COLUMNS
    shown = [
        column
        for column in columns
        if column.head not in OPTIONAL or any(OPTIONAL[column.head](gpu) is not None for gpu in snapshot.gpus)
    ]
    placed = place(shown, width - 1)
    if columns is not SHORT_COLUMNS:
        placed = with_equal_bars(placed)
    lines = [_indented(head_line(placed, width - 1))]
    lines += [_gpu_line(placed, row, snapshot.at, width, cursor.uuid) for row in rows]
    return [*_cut(lines, width, room, cursor.top), *notes]


def gpu_height(snapshot: Snapshot, width: int, most: int) -> int:
    """How many lines the area takes if it may have ``most``."""
    if not snapshot.gpus:
        return min(most, max(1, len(no_gpu_lines(snapshot, width))))
    count = len(snapshot.gpus)
    notes = len(quarantine_lines(snapshot, width))
    if count + 1 + notes <= most or width < 2 * SHORT_ROW_WIDTH:
        return min(most, count + 1 + notes)
    return min(most, (count + 1) // 2 + 1 + notes)


def no_gpu_lines(snapshot: Snapshot, width: int) -> list[Line]:
    """Why there is no GPU to show, and what to do."""
    if snapshot.past is not None:
        text = "No GPU was recorded at this moment."
    elif snapshot.agent is None:
        text = "Waiting for the first sample…" if snapshot.trouble is None else ""
    elif snapshot.agent.gpu_problem:
        problem = clean(snapshot.agent.gpu_problem).rstrip()
        text = problem if "--demo" in problem else f"{problem.rstrip('.')}. `gputui --demo` simulates eight GPUs."
    else:
        text = "Looking for GPUs…"
    return [fit_line([("  " + line, "text")], width) for line in wrap(text, width - 4)][:NO_GPU_MOST]


def quarantine_lines(snapshot: Snapshot, width: int, *, has_keys: bool = True) -> list[Line]:
    """A line for each GPU in quarantine; more than two share one."""
    listed = [(gpu.index, snapshot.machine.quarantined.get(gpu.uuid)) for gpu in snapshot.gpus]
    held = [(index, failed) for index, failed in listed if failed is not None]
    if len(held) > 2:
        names = ", ".join(str(index) for index, _ in held)
        text = f" ⊘ GPUs {names} are in quarantine: no run gets them"
        how = "i says why, C clears one" if has_keys else "gputui gpus --clear GPU clears one"
        return [fit_line([(text, "warn"), (f" · {how}", "dim")], width)]
    lines = []
    for index, failed in held:
        head = f" ⊘ GPU {index} in quarantine since {dated_clock(failed.since, snapshot.at)}: "
        tail = " · C clears it" if has_keys else f" · gputui gpus --clear {index}"
        reason = clean(failed.reason)
        room = max(8, width - len(head) - len(tail))
        cut = reason if len(reason) <= room else reason[: room - 1] + "…"
        lines.append(fit_line([(head, "warn"), (cut, "text"), (tail, "dim")], width))
    return lines


def row_at(count: int, width: int, height: int, top: int, x: int, y: int) -> int | None:
    """The index of the GPU in this cell of the area, of ``count``; None in the head, a note or a gap."""
    if y < 1:
        return None
    depth = (count + 1) // 2
    if count > height - 1 and width >= 2 * SHORT_ROW_WIDTH:
        place = y - 1 + (depth if x >= width // 2 else 0)
        return place if y <= depth and place < count else None
    place = top + y - 1
    return place if place < count and (count <= height - 1 or y < height - 1) else None


def first_shown(count: int, place_of_cursor: int, top: int, height: int, width: int) -> int:
    """The index of the first GPU to show so that the one under the cursor is in sight."""
    room = height - 1
    if count <= room or width >= 2 * SHORT_ROW_WIDTH:
        return 0
    room = max(1, room - 1)
    return max(0, min(max(min(top, place_of_cursor), place_of_cursor - room + 1), count - room))


def _gpu_line(placed: Placed[GpuRow], row: GpuRow, now: float, width: int, cursor: str | None) -> Line:
    gpu = row.gpu
    is_current = gpu.uuid == cursor
    if gpu.state == "lost":
        return _indented(fit_line([(f"{gpu.index:>2} ", "text"), *lost(row, now)], width - 1), is_current)
    base = "stale" if gpu.state == "stale" else None
    return _indented(row_line(placed, row, width - 1, base), is_current)


def _two_columns(rows: Sequence[GpuRow], now: float, width: int, height: int, cursor: str | None) -> list[Line]:
    """Short rows, down the left column, then down the right."""
    half = (width - 2) // 2
    placed = place(SHORT_COLUMNS, half - 1)
    head = _indented(head_line(placed, half - 1))
    lines: list[Line] = [fit_line([*head, ("  ", "text"), *head], width)]
    depth = max(1, min((len(rows) + 1) // 2, height - 1))
    for number in range(depth):
        left = _gpu_line(placed, rows[number], now, half, cursor)
        right = rows[number + depth] if number + depth < len(rows) else None
        line = [*left, ("  ", "text"), *(_gpu_line(placed, right, now, half, cursor) if right else [])]
        lines.append(fit_line(line, width))
    hidden = len(rows) - 2 * depth
    if hidden > 0:
        lines[-1] = fit_line([(f"  … {hidden + 2} more GPUs; a shows all together", "dim")], width)
    return lines


def _cut(lines: list[Line], width: int, height: int, top: int) -> list[Line]:
    if len(lines) <= height:
        return lines
    rows = lines[1:]
    room = max(0, height - 2)
    hidden = len(rows) - room
    return [
        lines[0],
        *rows[top : top + room],
        fit_line([(f"  … {hidden} more GPUs; a shows all together", "dim")], width),
    ]


def _indented(line: Line, is_current: bool = False) -> Line:
    return selected([("▸", "cursor"), *line]) if is_current else [(" ", "text"), *line]
