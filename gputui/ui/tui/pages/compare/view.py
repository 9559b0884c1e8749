"""The page that compares runs, as lines: charts with a curve per run, and the table of the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from gputui.core.text import clean, clip_middle
from gputui.core.units import aligned, count, duration, metric_value, short_number
from gputui.metrics.curves.model import Axis, ChartData, Frame
from gputui.metrics.curves.names import is_more_better
from gputui.metrics.curves.plot import values_at
from gputui.metrics.draw.chart import chart
from gputui.metrics.draw.parts import Curve, Line, XAxis
from gputui.metrics.draw.raster import Span
from gputui.ui.tui.layout.charts import (
    AXIS_KINDS,
    AXIS_NAMES,
    GUTTER,
    SHAPES,
    log_note,
    metric_axis,
    place_words,
    within,
)
from gputui.ui.tui.layout.columns import Column, fit_line, fitting, head_line, place, row_line, rule, selected
from gputui.ui.tui.layout.panels import metric_title
from gputui.ui.tui.layout.run_words import run_title
from gputui.ui.tui.layout.words import run_sign, run_state_text
from gputui.ui.tui.pages.compare.comparison import ComparedRun, Comparison, Group, best_of, best_words

HEAD_LINES = 2
"""Lines of the table above its rows."""


class CompareLook(Struct, frozen=True):
    """The settings of the charts. ``logs`` are metrics on a logarithmic axis; ``is_cut``: the x axis ends with the
    shortest run."""

    axis: Axis
    window: tuple[float, float] | None
    cursor: float | None
    smoothing: float
    logs: frozenset[str] = frozenset()
    is_log_x: bool = False
    is_cut: bool = False


def compare_head(comparison: Comparison, look: CompareLook, number: int, width: int) -> Line:
    """What is compared, and how."""
    runs = "1 run" if len(comparison.run_ids) == 1 else f"{len(comparison.run_ids)} runs"
    runs += f", {comparison.curve_count} shown" if comparison.hidden else ""
    parts: list[list[Span]] = [
        [(" Compare ", "title"), (runs, "text")],
        [(" · ", "dim"), (metric_title(comparison.metric or "–"), "accent"), (f" by {AXIS_NAMES[look.axis]}", "dim")],
    ]
    if number:
        parts.append([(f" · {number} metrics", "dim")])
    if look.smoothing:
        parts.append([(f" · smoothing {look.smoothing:g}", "accent")])
    if look.is_log_x:
        parts.append([(" · log x", "accent")])
    if look.is_cut:
        parts.append([(" · cut to the shortest", "accent")])
    if comparison.metric in look.logs:
        parts.append([(" · log y", "accent")])
    order = "" if comparison.sort == "chosen" else f" · by {clean(comparison.sort_param or comparison.sort)}"
    if order or comparison.is_reversed:
        parts.append([((order or " · ") + (" reversed" if comparison.is_reversed else ""), "dim")])
    if comparison.group is not None:
        parts.append([(f" · grouped by {clean(comparison.group)}", "accent")])
    return fitting(parts, width)


LEAST_CELL_WIDTH = 50
LEAST_CELL_HEIGHT = 7
MOST_CELLS = 6
MOST_END = 26
"""Most cells at a chart's right side for the curves' names."""


def grid_size(width: int, height: int, metrics: int) -> tuple[int, int]:
    """Columns and rows of charts that fit, at most one chart per metric."""
    columns = max(1, min(2, width // LEAST_CELL_WIDTH, metrics))
    rows = max(1, min(height // LEAST_CELL_HEIGHT, -(-metrics // columns), MOST_CELLS // columns))
    return columns, rows


def cell_columns(width: int, columns: int) -> tuple[int, int]:
    """Cells of one chart of a grid, and of its plotting area."""
    cell = (width - columns + 1) // columns
    return cell, max(8, cell - GUTTER - 2 - end_gutter(cell))


def end_gutter(width: int) -> int:
    return min(MOST_END, max(0, width - GUTTER - 2) // 3)


def grid_lines(
    runs: Sequence[ComparedRun],
    data: Mapping[str, ChartData],
    comparison: Comparison,
    metrics: Sequence[str],
    look: CompareLook,
    width: int,
    height: int,
    columns: int,
) -> list[Line]:
    """A chart for each metric, row by row; of several, the current metric's is marked."""
    if len(metrics) <= 1:
        return overlay_lines(runs, data, comparison, comparison.metric, look, width, height)
    lines: list[Line] = []
    rows = -(-len(metrics) // columns)
    cell, _ = cell_columns(width, columns)
    for row in range(rows):
        tall = height * (row + 1) // rows - height * row // rows
        charts = [
            overlay_lines(runs, data, comparison, metric, look, cell, tall, is_one_of_many=True)
            for metric in metrics[row * columns : (row + 1) * columns]
        ]
        for y in range(tall):
            spans = [span for chart_of in charts for span in [*chart_of[y], (" ", "text")]]
            lines.append(fit_line(spans[:-1], width))
    return lines


def overlay_lines(
    runs: Sequence[ComparedRun],
    data: Mapping[str, ChartData],
    comparison: Comparison,
    metric: str | None,
    look: CompareLook,
    width: int,
    height: int,
    *,
    is_one_of_many: bool = False,
) -> list[Line]:
    """The curves of a metric for all runs that are not hidden, each with the run's name at its end; that of the run
    under the cursor is on top."""
    shown = [(run, run.colour) for run in runs if run.colour is not None]
    shown.sort(key=lambda each: each[0].row.run.run_id == comparison.cursor)
    curves: list[Curve] = []
    gutter = end_gutter(width)
    problem = None
    for run, colour in shown:
        found = data.get(run.row.run.run_id)
        curve = found.curves.get(metric) if found is not None and metric is not None else None
        if curve is None or not curve.bins:
            problem = curve.problem if curve is not None else problem
            continue
        bins, smooth = within(curve.bins, look.window), within(curve.smooth, look.window)
        style = f"series.{colour}"
        value = curve.last
        if look.cursor is not None:
            [at] = values_at([smooth or bins], look.cursor)
            value = at.value
        if smooth:
            curves.append(Curve(bins, "shadow", is_shadow=True))
        is_current = run.row.run.run_id == comparison.cursor
        text = metric_value(curve.last)
        name = clip_middle(run_title(run.row.run), max(4, gutter - len(text) - 4))
        curves.append(
            Curve(smooth or bins, style, SHAPES[colour] if look.cursor is not None else "",
                  value if look.cursor is not None else None, is_strong=is_current, shape=SHAPES[colour],
                  end=f"{SHAPES[colour]} {name} {text}")
        )  # fmt: skip
    start, end = look.window or (None, None)
    where = f" at {place_words(Frame(look.axis), look.cursor)}" if look.cursor is not None else ""
    is_log = metric in look.logs
    pointer = "▸" if is_one_of_many and metric == comparison.metric else " "
    return chart(
        curves,
        width=width,
        height=height,
        title=f"{pointer}{metric_title(metric or '')}{where}",
        x_axis=XAxis(AXIS_NAMES[look.axis], start, end, AXIS_KINDS[look.axis],
                     "log" if look.is_log_x else "linear"),
        y_axis=metric_axis(metric or "", look.logs),
        cursor=look.cursor,
        least_gutter=GUTTER,
        end_gutter=gutter,
        note="" if is_log else log_note(curves),
        empty_text=problem or _empty_text(shown, data, metric),
    )  # fmt: skip


def _empty_text(shown: Sequence[object], data: Mapping[str, ChartData], metric: str | None) -> str:
    if not shown:
        return "all runs are hidden"
    is_read = metric is None or any(metric in each.request.names for each in data.values())
    return "none of the runs measured it" if data and is_read else "reading…"


def table_lines(groups: Sequence[Group], comparison: Comparison, width: int, height: int) -> list[Line]:
    """A row per run with the differing parameters, under headings of groups. The cursor stays in sight."""
    metric = comparison.metric or ""
    placed = place(_columns(groups, metric), width - 2)
    items = _items(groups)
    lines: list[Line] = []
    for item in items:
        if isinstance(item, Group):
            runs = "1 run" if len(item.runs) == 1 else f"{len(item.runs)} runs"
            title = f"{clean(comparison.group or '')} {item.value}"
            lines.append(
                fit_line([(f" {title}", "label"), (f" · {runs} · {best_words([item], metric)}", "dim")], width)
            )
        else:
            is_current = item.row.run.run_id == comparison.cursor
            mark: Span = ("▸ " if is_current else "  ", "cursor")
            line = [mark, *row_line(placed, item, width - 2, "dim" if item.colour is None else None)]
            lines.append(selected(line) if is_current else line)
    if not lines:
        return [fit_line([("  None of these runs is there any more; esc goes back.", "dim")], width)][:height]
    room = max(1, height - HEAD_LINES)
    top = _first_shown(items, comparison, room)
    notes = [f"{top + 1}–{min(top + room, len(lines))} of {len(lines)}"] if len(lines) > room else []
    params = {name for group in groups for run in group.runs for name in run.params}
    if left_out := params - {column.head for column, _ in placed}:
        words = "parameter" if len(left_out) == 1 else "parameters"
        notes.append(f"{len(left_out)} more {words}: i")
    note = " · ".join(notes)
    head: Line = [("  ", "text"), *head_line(placed, width - 2)]
    return [rule("RUNS", width, note), head, *lines[top : top + room]][:height]


def run_at(groups: Sequence[Group], comparison: Comparison, height: int, y: int) -> str | None:
    """The run in line ``y`` of the table; None if there is none."""
    items = _items(groups)
    place = _first_shown(items, comparison, max(1, height - HEAD_LINES)) + y - HEAD_LINES
    item = items[place] if y >= HEAD_LINES and place < len(items) else None
    return item.row.run.run_id if isinstance(item, ComparedRun) else None


def _items(groups: Sequence[Group]) -> list[Group | ComparedRun]:
    """The table's items: groups, for their headings, and runs."""
    items: list[Group | ComparedRun] = []
    for group in groups:
        items += [group] if group.value is not None else []
        items += group.runs
    return items


def _first_shown(items: Sequence[Group | ComparedRun], comparison: Comparison, room: int) -> int:
    """The index of the first item shown, so that the cursor is in sight."""
    places = (
        number
        for number, item in enumerate(items)
        if isinstance(item, ComparedRun) and item.row.run.run_id == comparison.cursor
    )
    return min(max(0, next(places, 0) - room + 1), max(0, len(items) - room))


def _columns(groups: Sequence[Group], metric: str) -> list[Column[ComparedRun]]:
    best = "max" if is_more_better(metric) else "min"
    leading = best_of(groups, metric)
    runs = [run for group in groups for run in group.runs]
    ids = [run.row.run.run_id for run in runs]
    bests = dict(zip(ids, aligned([metric_value(run.best) for run in runs]), strict=True))
    lasts = dict(zip(ids, aligned([metric_value(run.last) for run in runs]), strict=True))
    columns: list[Column[ComparedRun]] = [
        Column("", 1, _mark),
        Column("run", 16, lambda run, room: [(clip_middle(run_title(run.row.run), room), "text")], grow=2, most=40),
        Column(best, 10, lambda run, _: _best(run, bests[run.row.run.run_id], leading), align=">"),
        Column(
            "at",
            8,
            lambda run, _: [("" if run.is_best_x_exact else "~", "dim"), (short_number(run.best_x), "dim")],
            align=">",
            importance=3,
        ),
        Column("last", 9, lambda run, _: [(lasts[run.row.run.run_id], "text")], align=">", importance=1),
        Column("step", 9, lambda run, _: [(count(run.row.progress.step), "text")], align=">", importance=2),
        Column("state", 12, _state, importance=4),
        Column("took", 11, lambda run, _: [(duration(run.seconds), "text")], align=">", importance=5),
    ]
    names = next((tuple(run.params) for group in groups for run in group.runs), ())
    for number, name in enumerate(names):
        columns.append(_parameter(name, groups, 3 + number))
    return columns


def _parameter(name: str, groups: Sequence[Group], importance: int) -> Column[ComparedRun]:
    widest = max(len(run.params.get(name, "")) for group in groups for run in group.runs)
    width = min(max(len(name), widest, 3), 18)
    return Column(name, width, lambda run, _: [(run.params.get(name, "–"), "text")], align=">", importance=importance)


def _best(run: ComparedRun, text: str, leading: float | None) -> list[Span]:
    is_leading = run.best is not None and run.best == leading
    return [("★ " if is_leading else "", "good"), (text, "good" if is_leading else "accent")]


def _mark(run: ComparedRun, _: int) -> list[Span]:
    if run.colour is None:
        return [("·", "dim")]
    return [(SHAPES[run.colour], f"series.{run.colour}")]


def _state(run: ComparedRun, _: int) -> list[Span]:
    return [(run_state_text(run.row.run), run_sign(run.row.run.state).style)]
