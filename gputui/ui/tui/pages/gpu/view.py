"""The page of one GPU as lines: facts, charts, processes and driver events."""

from __future__ import annotations

from collections.abc import Sequence

from gputui.core.text import clean
from gputui.core.units import UNKNOWN, bytes_text, duration
from gputui.metrics.draw.chart import chart
from gputui.metrics.draw.parts import Curve, Line, XAxis, YAxis
from gputui.metrics.draw.raster import Span
from gputui.store.hardware import GpuView, ProcessView
from gputui.ui.tui.data.snapshot import GpuPage, Snapshot
from gputui.ui.tui.layout.columns import bar_spans, between, fit_line, rule, wrap
from gputui.ui.tui.layout.gpu_words import GpuRow
from gputui.ui.tui.layout.moments import right_end
from gputui.ui.tui.layout.sparklines import newest, shares, time_bins
from gputui.ui.tui.layout.strips import power_unit
from gputui.ui.tui.layout.words import dated_clock
from gputui.ui.tui.pages.gpu.facts import Fact, Gauge, gauges, hardware_facts, state_facts, values

LABEL_WIDTH = 13
COLUMN_LEAST = 29
"""Least cells of a column of names and values."""

GAUGE_MOST = 40
GAUGE_WORDS = 26
"""Most cells of a bar, and cells of the text behind it."""

CHART_LEAST = 5
CHART_MOST = 16


def page_head(snapshot: Snapshot, gpu: GpuView, width: int) -> Line:
    """Index, name and state of the GPU, and the time."""
    state = {"ok": ("● responding", "good"), "stale": ("○ silent", "dim"), "lost": ("✗ lost", "bad")}.get(
        gpu.state, ("✗ unreadable", "bad")
    )
    left: list[Span] = [(f" GPU {gpu.index}", "title"), (f" · {clean(gpu.name)} · ", "text"), state]
    return between(left, right_end(snapshot.at, snapshot.past), width)


def fact_lines(row: GpuRow, page: GpuPage | None, now: float, width: int) -> list[Line]:
    """What matters in words; bars of what has a limit; a value to each name, in two columns where they fit; which
    device it is."""
    gpu = row.gpu
    return [
        *(line for fact in state_facts(row, page, now) for line in _wrapped(fact, width)),
        *(_gauge_line(gauge, width, is_past=gpu.state in ("lost", "stale")) for gauge in gauges(gpu)),
        fit_line([], width),
        *_in_columns(values(gpu), width),
        *(line for fact in hardware_facts(gpu) for line in _wrapped(fact, width)),
    ]


def _in_columns(facts: Sequence[Fact], width: int) -> list[Line]:
    across = 2 if width >= 2 * COLUMN_LEAST else 1
    down = -(-len(facts) // across)
    lines = []
    for number in range(down):
        spans: Line = []
        for fact in facts[number::down]:
            spans += fit_line([_label(fact.label), (fact.text, fact.style)], width // across)
        lines.append(fit_line(spans, width))
    return lines


def _wrapped(fact: Fact, width: int) -> list[Line]:
    parts = wrap(fact.text, max(10, width - LABEL_WIDTH - 2)) or [UNKNOWN]
    labels = [fact.label, *[""] * (len(parts) - 1)]
    return [fit_line([_label(label), (part, fact.style)], width) for label, part in zip(labels, parts, strict=True)]


def _label(text: str) -> Span:
    return f" {text:<{LABEL_WIDTH}} ", "dim"


def _gauge_line(gauge: Gauge, width: int, *, is_past: bool) -> Line:
    cells = max(6, min(GAUGE_MOST, width - LABEL_WIDTH - 2 - GAUGE_WORDS))
    text_style = "warn" if gauge.style == "warn" else "dim" if is_past else "text"
    bar_style = "dim" if is_past else gauge.style
    spans = [_label(gauge.label), *bar_spans(gauge.fraction, cells, bar_style), (f" {gauge.text}", text_style)]
    return fit_line(spans, width)


def process_lines(gpu: GpuView, width: int) -> list[Line]:
    """The processes on the GPU, the largest first."""
    lines = [rule("PROCESSES", width)]
    if gpu.processes is None:
        return [*lines, fit_line([("  The driver gives no list of processes.", "dim")], width)]
    if not gpu.processes:
        return [*lines, fit_line([("  None.", "dim")], width)]
    largest_first = sorted(
        gpu.processes, key=lambda process: -1 if (size := process.memory_bytes) is None else size, reverse=True
    )
    lines += [fit_line(_process(process), width) for process in largest_first]
    return lines


def _process(process: ProcessView) -> list[Span]:
    load = UNKNOWN if process.sm_percent is None else f"{process.sm_percent:.0f} %"
    owner = clean(process.user) if process.user else UNKNOWN
    run = f"{clean(process.run_id)}{'' if process.rank is None else f' r{process.rank}'} " if process.run_id else ""
    return [
        (f" {process.pid:>8} ", "text"),
        (f"{owner:<10.10} ", "dim"),
        (f"{bytes_text(process.memory_bytes):>9} ", "text"),
        (f"{load:>6} ", "text"),
        (run, "accent"),
        (clean(process.command or UNKNOWN), "text"),
    ]


def report_lines(page: GpuPage | None, now: float, width: int) -> list[Line]:
    """The driver's own reports about the GPU, the newest first."""
    lines = [rule("DRIVER EVENTS (XID)", width)]
    if page is None or not page.events:
        return [*lines, fit_line([("  None.", "dim")], width)]
    for event in page.events:
        words = {"xid": f"XID {event.code}", "lost": "lost", "returned": "back"}.get(event.event, event.event)
        style = "text" if event.event == "returned" else "bad"
        text = f" {clean(event.text)}" if event.text else ""
        for number, part in enumerate(wrap(text, max(10, width - 24)) or [""]):
            head = f" {dated_clock(event.at, now)}" if number == 0 else ""
            name = f"{words:<9} " if number == 0 else ""
            lines.append(fit_line([(f"{head:<13}", "dim"), (f"{name:<10}", style), (part, "text")], width))
    return lines


def chart_lines(gpu: GpuView, page: GpuPage, width: int, height: int, *, across: int) -> list[Line]:
    """Charts of utilisation, memory, power and temperature over the page's span, ``across`` side by side."""
    down = -(-4 // across)
    each_width, each_height = (width - across + 1) // across, max(CHART_LEAST, min(CHART_MOST, height // down))
    history = page.history
    if history is None:
        return [fit_line([(f"  No sample in the last {duration(page.span_seconds)}.", "dim")], width)]
    name, scale = ("min", 60.0) if page.span_seconds <= 3600 else ("h", 3600.0)
    axis = XAxis(name, -page.span_seconds / scale, 0.0)

    def curve(values: Sequence[float | None], style: str, label: str, shape: str = "") -> Curve:
        return Curve(time_bins(values, page.span_seconds, scale), style, label, shape=shape)

    full = shares(history.memory_used_bytes, gpu.memory_total_bytes)
    warm, memory_warm = history.temperature_celsius, page.memory_temperatures
    heat = [curve(warm, "series.3", "temperature °C", shape="●")]
    if newest(memory_warm) is not None:
        heat.append(curve(memory_warm, "series.1", "memory °C", shape="■"))
    limit, power = gpu.power_limit_watts, history.power_watts
    size, unit = power_unit([limit, *power])
    watts_now = [None if value is None else value / size for value in power]
    percents, from_zero = YAxis(low=0.0, high=100.0), YAxis(low=0.0, high=None if limit is None else limit / size)
    busy = history.utilization_percent
    panes = [
        ([curve(busy, "series.0", "utilisation %")], percents),
        ([curve(full, "series.1", "memory %")], percents),
        ([curve(watts_now, "series.2", f"power {unit}")], from_zero),
        (heat, YAxis(low=20.0)),
    ]
    drawn = [
        chart(curves, width=each_width, height=each_height, x_axis=axis, y_axis=y_axis) for curves, y_axis in panes
    ]
    lines: list[Line] = []
    for row in range(down):
        for parts in zip(*drawn[row * across : (row + 1) * across], strict=True):
            lines.append(fit_line([span for part in parts for span in [*part, (" ", "text")]], width))
    return lines
