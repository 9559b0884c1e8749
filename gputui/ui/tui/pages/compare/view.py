"""The page that compares runs, as lines: charts with a curve per run, and the table of the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from os.path import commonprefix

from msgspec import Struct

from gputui.core.text import cell_width, clean, clip_middle
from gputui.core.units import aligned, count, count_of, duration, metric_value, short_number
from gputui.metrics.curves.model import ChartData, Frame
from gputui.metrics.curves.names import is_more_better
from gputui.metrics.curves.plot import values_at
from gputui.metrics.draw.chart import chart
from gputui.metrics.draw.parts import Curve, Line, XAxis
from gputui.metrics.draw.raster import Span
from gputui.ui.tui.layout.chart_settings import ChartSettings
from gputui.ui.tui.layout.charts import (
    AXIS_KINDS,
    AXIS_NAMES,
    GUTTER,
    SHAPES,
    metric_axis,
    place_words,
    within,
)
from gputui.ui.tui.layout.columns import Column, fit_line, fitting, head_line, place, row_line, rule, selected
from gputui.ui.tui.layout.panels import metric_title, param_text
from gputui.ui.tui.layout.run_words import run_title
from gputui.ui.tui.layout.words import run_state_text, sign_of
from gputui.ui.tui.pages.compare.comparison import UNSET, ComparedRun, Comparison, best_of

HEAD_LINES = 2
"""Lines of the table above its rows."""

LEAST_CELL_WIDTH = 56
LEAST_CELL_HEIGHT = 7
MOST_CELLS = 9
MOST_END = 26
"""Most cells at a chart's right side for the curves' names."""

_SIGN_CELLS = 4
"""Cells at a curve's end beside its name and value: its sign and spaces."""

_REACHES_END = 0.97
"""Part of the window beyond which a curve ends beside its name, and needs no other sign."""


class CompareLook(Struct, frozen=True):
    """What is drawn, and how. ``is_cut``: the x axis ends with the shortest run."""

    comparison: Comparison
    settings: ChartSettings
    window: tuple[float, float] | None
    cursor: float | None
    is_cut: bool = False


def compare_head(look: CompareLook, width: int) -> Line:
    comparison, settings = look.comparison, look.settings
    words = count_of(len(comparison.run_ids), "run")
    if comparison.curve_count < len(comparison.run_ids):
        words += f", {comparison.curve_count} shown"
    parts: list[list[Span]] = [
        [(" Compare ", "title"), (words, "text")],
        [(" · ", "dim"), (metric_title(comparison.metric or "–"), "accent")],
        [(f" by {AXIS_NAMES[settings.axis]}", "dim")],
    ]
    notes = [f"smoothing {settings.smoothing:g}"] if settings.smoothing else []
    notes += ["log x"] if settings.is_log_x else []
    notes += ["cut to the shortest"] if look.is_cut else []
    notes += ["log y"] if comparison.metric in settings.logs else []
    if comparison.sort != "chosen" or comparison.is_reversed:
        notes.append(f"sorted by {clean(comparison.sort)}" + (", reversed" if comparison.is_reversed else ""))
    notes += [f"grouped by {clean(comparison.group)}"] if comparison.group is not None else []
    return fitting([*parts, *([(" · ", "dim"), (note, "accent")] for note in notes)], width)


def grid_size(width: int, height: int, metrics: int) -> tuple[int, int]:
    """Columns and rows of charts that fit, at most one chart per metric."""
    columns = max(1, min(3, width // LEAST_CELL_WIDTH, metrics))
    rows = max(1, min(height // LEAST_CELL_HEIGHT, -(-metrics // columns), MOST_CELLS // columns))
    return columns, rows


def cell_columns(width: int, columns: int) -> tuple[int, int]:
    """Cells of one chart of a grid, and of its plotting area."""
    cell = (width - columns + 1) // columns
    return cell, max(8, cell - GUTTER - 2 - end_gutter(cell))


def end_gutter(width: int) -> int:
    return min(MOST_END, max(0, width - GUTTER - 2) * 2 // 5)


def grid_lines(
    runs: Sequence[ComparedRun],
    data: Mapping[str, ChartData],
    metrics: Sequence[str],
    look: CompareLook,
    size: tuple[int, int],
    columns: int,
) -> list[Line]:
    """A chart for each metric, row by row; of several, the current metric's is marked."""
    width, height = size
    if len(metrics) <= 1:
        return overlay_lines(runs, data, look.comparison.metric, look, width, height)
    lines: list[Line] = []
    rows = -(-len(metrics) // columns)
    cell, _ = cell_columns(width, columns)
    for row in range(rows):
        tall = height * (row + 1) // rows - height * row // rows
        some = metrics[row * columns : (row + 1) * columns]
        charts = [overlay_lines(runs, data, metric, look, cell, tall, is_one_of_many=True) for metric in some]
        for parts in zip(*charts, strict=True):
            lines.append(fit_line([span for part in parts for span in [*part, (" ", "text")]][:-1], width))
    return lines


def overlay_lines(
    runs: Sequence[ComparedRun],
    data: Mapping[str, ChartData],
    metric: str | None,
    look: CompareLook,
    width: int,
    height: int,
    *,
    is_one_of_many: bool = False,
) -> list[Line]:
    """The curves of a metric for all runs that are not hidden, each with the run's name at its end; that of the run
    under the cursor is on top."""
    settings, cursor = look.settings, look.cursor
    shown = [(run, run.colour) for run in runs if run.colour is not None]
    shown.sort(key=lambda each: each[0].run_id == look.comparison.cursor)
    start, end = look.window or (None, None)
    curves: list[Curve] = []
    gutter, problem = end_gutter(width), None
    drawn = []
    for run, colour in shown:
        found = data.get(run.run_id)
        curve = found.curves.get(metric or "") if found is not None else None
        if curve is None or not curve.bins:
            problem = curve.problem if curve is not None else problem
            continue
        drawn.append((run, colour, curve, run_title(run.row.run), metric_value(curve.last)))
    # If they are too long, what all names (they are no paths) begin with is left out.
    common = commonprefix([name for *_, name, _ in drawn]).rpartition("-")[0] + "-"  # noqa: RUF071
    is_long = any(cell_width(name) + len(text) + _SIGN_CELLS > gutter for *_, name, text in drawn)
    for run, colour, curve, name, text in drawn:
        bins, smooth = within(curve.bins, look.window), within(curve.smooth, look.window)
        if smooth:
            curves.append(Curve(bins, "shadow", is_shadow=True))
        bins = smooth or bins
        sign = SHAPES[colour]
        if is_long:
            name = clip_middle(f"…{name.removeprefix(common)}", max(4, gutter - len(text) - _SIGN_CELLS))
        reaches_end = bool(bins and end and bins[-1].last_x >= _REACHES_END * end)
        [at] = values_at([bins], cursor or 0.0)
        is_pointed = cursor is not None
        curves.append(
            Curve(
                bins,
                f"series.{colour}",
                sign if is_pointed else "",
                at.value if is_pointed else None,
                is_strong=run.run_id == look.comparison.cursor,
                shape="" if reaches_end and not is_pointed else sign,
                end=f"{sign} {name} {text}",
            )
        )
    where = f" at {place_words(Frame(settings.axis), cursor)}" if cursor is not None else ""
    pointer = "▸" if is_one_of_many and metric == look.comparison.metric else " "
    return chart(
        curves,
        width=width,
        height=height,
        title=f"{pointer}{metric_title(metric or '')}{where}",
        x_axis=XAxis(AXIS_NAMES[settings.axis], start, end, AXIS_KINDS[settings.axis],
                     "log" if settings.is_log_x else "linear"),
        y_axis=metric_axis(metric or "", settings.logs),
        cursor=cursor,
        least_gutter=GUTTER,
        end_gutter=gutter,
        empty_text=problem or _empty_text(shown, data, metric),
    )  # fmt: skip


def _empty_text(shown: Sequence[object], data: Mapping[str, ChartData], metric: str | None) -> str:
    if not shown:
        return "all runs are hidden"
    is_read = metric is None or any(metric in each.request.names for each in data.values())
    return "none of the runs measured it" if data and is_read else "reading…"


# --- the table


def table_lines(runs: Sequence[ComparedRun], comparison: Comparison, width: int, height: int) -> list[Line]:
    """A row per run, under headings of groups; the cursor stays in sight."""
    metric = comparison.metric or ""
    placed = place(_columns(runs, metric), width - 2)
    lines: list[Line] = []
    for item in table_items(runs, comparison.group):
        if isinstance(item, ComparedRun):
            is_current = item.run_id == comparison.cursor
            cells = row_line(placed, item, width - 2, "dim" if item.colour is None else None)
            line: Line = [("▸ " if is_current else "  ", "cursor"), *cells]
            lines.append(selected(line) if is_current else line)
        else:
            members = [run for run in runs if run.params.get(comparison.group or "") == item]
            best = best_of(members, metric)
            words = "nothing measured" if best is None else f"best {metric_value(best)}"
            title = (f" {clean(comparison.group or '')} {item}", "label")
            lines.append(fit_line([title, (f" · {count_of(len(members), 'run')} · {words}", "dim")], width))
    if not lines:
        return [fit_line([("  None of these runs is there any more; esc goes back.", "dim")], width)][:height]
    room = max(1, height - HEAD_LINES)
    top = first_shown(runs, comparison, room)
    notes = [f"{top + 1}–{min(top + room, len(lines))} of {len(lines)}"] if len(lines) > room else []
    if left_out := runs[0].params.keys() - {column.head for column, _ in placed}:
        notes.append(f"{count_of(len(left_out), 'more parameter')}: i")
    head: Line = [("  ", "text"), *head_line(placed, width - 2)]
    return [rule("RUNS", width, " · ".join(notes)), head, *lines[top : top + room]][:height]


def table_items(runs: Sequence[ComparedRun], group: str | None) -> list[str | ComparedRun]:
    """The table's items: each value of the grouping parameter, for its heading, and its runs."""
    items: list[str | ComparedRun] = []
    for value, members in groupby(runs, lambda run: run.params.get(group or "")):
        items += [*([value] if value is not None else []), *members]
    return items


def first_shown(runs: Sequence[ComparedRun], comparison: Comparison, room: int) -> int:
    """The index of the first item shown, so that the cursor is in sight."""
    items = table_items(runs, comparison.group)
    ids = [item.run_id if isinstance(item, ComparedRun) else None for item in items]
    cursor = ids.index(comparison.cursor) if comparison.cursor in ids else 0
    return min(max(0, cursor - room + 1), max(0, len(items) - room))


def _columns(runs: Sequence[ComparedRun], metric: str) -> list[Column[ComparedRun]]:
    ids = [run.run_id for run in runs]
    leading = best_of(runs, metric) if sum(run.best is not None for run in runs) > 1 else None
    bests = dict(zip(ids, aligned([metric_value(run.best) for run in runs]), strict=True))
    lasts = dict(zip(ids, aligned([metric_value(run.last) for run in runs]), strict=True))

    def mark(run: ComparedRun, _: int) -> list[Span]:
        return [("·", "dim") if run.colour is None else (SHAPES[run.colour], f"series.{run.colour}")]

    def best(run: ComparedRun, _: int) -> list[Span]:
        is_leading = run.best is not None and run.best == leading
        return [("★ " if is_leading else "", "good"), (bests[run.run_id], "good" if is_leading else "accent")]

    def at(run: ComparedRun, _: int) -> list[Span]:
        return [("" if run.is_best_x_exact else "~", "dim"), (short_number(run.best_x), "dim")]

    def state(run: ComparedRun, _: int) -> list[Span]:
        return [(run_state_text(run.row.run), sign_of(run.row.run).style)]

    columns: list[Column[ComparedRun]] = [
        Column("", 1, mark),
        Column("run", 16, lambda run, room: [(clip_middle(run_title(run.row.run), room), "text")], grow=2, most=40),
        Column("max" if is_more_better(metric) else "min", 10, best, ">"),
        Column("at", 8, at, ">", importance=3),
        Column("last", 9, lambda run, _: [(lasts[run.run_id], "text")], ">", importance=1),
        Column("step", 9, lambda run, _: [(count(run.row.progress.step), "text")], ">", importance=2),
        Column("state", 12, state, importance=4),
        Column("took", 11, lambda run, _: [(duration(run.seconds), "text")], ">", importance=5),
    ]
    return [*columns, *(_parameter(name, runs, 3 + place) for place, name in enumerate(runs[0].params if runs else ()))]


def _parameter(name: str, runs: Sequence[ComparedRun], importance: int) -> Column[ComparedRun]:
    texts = {run.run_id: param_text(run.params.get(name, UNSET)) for run in runs}
    width = min(max(len(name), *map(len, texts.values()), 3), 18)
    return Column(name, width, lambda run, _: [(texts[run.run_id], "text")], ">", importance)
