"""The page of one GPU: its values, charts, processes and driver events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partialmethod
from typing import ClassVar, NamedTuple

from msgspec.structs import replace

from gputui.core.text import clean
from gputui.core.units import UNKNOWN, celsius, count, count_of, duration, gibibytes, percent, rate, watts
from gputui.metrics.draw.chart import Gutters, draw_chart
from gputui.metrics.draw.parts import Chart, Curve, Line, Span, XAxis, YAxis
from gputui.metrics.progress import RankRow
from gputui.store.attempts import JOULES_PER_KWH
from gputui.store.hardware import GpuView
from gputui.store.rollups import GpuHistory
from gputui.store.runs import Run
from gputui.ui.tui.actions import Context, Scope
from gputui.ui.tui.actions.keymap import Keys
from gputui.ui.tui.layout.columns import (
    bar_spans,
    box,
    fill_height,
    fit_line,
    is_boxed,
    join_blocks,
    justify,
    paragraph,
    rule,
)
from gputui.ui.tui.layout.gpu_words import (
    GpuRow,
    gpu_row,
    health_spans,
    lost_spans,
    pcie_spans,
    throttle_spans,
    traffic_spans,
)
from gputui.ui.tui.layout.lists import next_choice
from gputui.ui.tui.layout.moments import right_end
from gputui.ui.tui.layout.sparklines import newest_value, time_bins, to_percent
from gputui.ui.tui.pages.processes.view import process_panel
from gputui.ui.tui.widgets.page import ActionScreen, Copyable
from gputui.ui.tui.widgets.pane import Pane
from gputui.ui.views.snapshot import GPU_SPANS_SECONDS, GpuPage, Interest
from gputui.ui.views.words import dated_clock, is_hot

FACTS_WIDTH = 64
"""Most cells of a line of facts: longer ones are hard to read."""

STATES = {"ok": ("● responding", "good"), "stale": ("○ silent", "dim"), "lost": ("✗ lost", "bad")}


class GpuScreen(ActionScreen):
    """Everything about one GPU in lines that scroll; the charts beside them or between them."""

    SCOPE: ClassVar[Scope] = "gpu"

    def __init__(self, uuid: str) -> None:
        super().__init__()
        self.uuid = uuid
        self.span_seconds = GPU_SPANS_SECONDS[0]
        self.top = 0
        self.lines = Pane(id="body")
        self.body = (self.lines,)

    def interest(self) -> Interest:
        return Interest(gpu_uuid=self.uuid, gpu_span_seconds=self.span_seconds)

    # --- drawing

    def draw(self, width: int, height: int) -> None:
        gpu = self.gpu_in_question
        snapshot = self.snapshot
        room = height - 1 - self.draw_frame(width)
        title: list[Span] = [(" GPU", "title")]
        if gpu is None:
            lines = [fit_line([("  This GPU has not been seen for a day; esc goes back.", "dim")], width)]
        else:
            state = STATES.get(gpu.state, ("✗ unreadable", "bad"))
            title = [(f" GPU {gpu.index}", "title"), (f" · {clean(gpu.name)} · ", "text"), state]
            arrange = self._wide_lines if is_boxed(width, height) else self._narrow_lines
            lines = arrange(gpu, width, room)
        end = right_end(snapshot.at, snapshot.past, self.key_words)
        self.head.show([self.with_trail(lambda cells: justify(title, end, cells), width)])
        self.lines.show(lines, height=room)

    def _narrow_lines(self, gpu: GpuView, width: int, room: int) -> list[Line]:
        row = gpu_row(self.snapshot, gpu)
        now = self.snapshot.at
        page = self._page
        charts: Sequence[Line] = ()
        if page is not None:
            charts = chart_lines(gpu, page, width, 14, across=2)
        lines = fact_lines(row, page, now, width, charts, keys=self.shell.keys)
        lines += self._processes(gpu, width) + report_lines(page, now, width)
        return self._visible_lines(lines, width, room)

    def _wide_lines(self, gpu: GpuView, width: int, room: int) -> list[Line]:
        """The facts in frames at the left, the charts at the right."""
        row = gpu_row(self.snapshot, gpu)
        now = self.snapshot.at
        page = self._page
        facts_width = min(FACTS_WIDTH, width * 8 // 15)
        inner = facts_width - 2
        charts_width = width - facts_width - 2
        facts = [rule("DEVICE", inner), *fact_lines(row, page, now, inner, keys=self.shell.keys)]
        processes = self._processes(gpu, inner)
        reports = report_lines(page, now, inner)
        # The last panel has the rows that are left.
        reports = fill_height(reports, inner, max(len(reports), room - len(facts) - len(processes) - 3))
        panels = [line for panel in (facts, processes, reports) for line in box(panel, facts_width)]
        charts: Sequence[Line] = ()
        if page is not None:
            across = 2 if charts_width >= 120 or room < 24 else 1
            charts = chart_lines(gpu, page, charts_width, room - 2, across=across)
        title = rule("HISTORY", charts_width, f"last {duration(self.span_seconds)}")
        history = box([title, *fill_height(charts, charts_width, room - 2)], width - facts_width)
        return join_blocks(self._visible_lines(panels, facts_width, room), history)

    def _processes(self, gpu: GpuView, width: int) -> list[Line]:
        only = replace(self.snapshot, gpus=(gpu,), processes=None)
        return process_panel(only, width, max(3, 2 + len(gpu.processes or ())))

    def _visible_lines(self, lines: list[Line], width: int, room: int) -> list[Line]:
        self.top = min(max(0, self.top), max(0, len(lines) - room))
        below = len(lines) - self.top - room
        visible = lines[self.top : self.top + room]
        if below > 0:
            key = self.shell.keys.word("down", "gpu")
            visible[-1] = fit_line([(f"  … {below + 1} more lines below, {key} scrolls", "dim")], width)
        return visible

    # --- what it is about

    @property
    def _page(self) -> GpuPage | None:
        page = self.snapshot.gpu_page
        if page is not None and page.uuid == self.uuid:
            return page
        return None

    @property
    def gpu_in_question(self) -> GpuView | None:
        return next((gpu for gpu in self.snapshot.gpus if gpu.uuid == self.uuid), None)

    @property
    def run_in_question(self) -> Run | None:
        if (gpu := self.gpu_in_question) is None:
            return None
        return self.snapshot.run_of(gpu.run_id)

    def context(self) -> Context:
        quarantined = frozenset(self.snapshot.machine.quarantined) & {self.uuid}
        return replace(super().context(), gpu=self.gpu_in_question, quarantined=quarantined)

    def copyable(self) -> list[Copyable]:
        return [Copyable("the GPU's UUID", self.uuid), *super().copyable()]

    # --- actions

    def do_open_run(self) -> None:
        if (run := self.run_in_question) is not None:
            self.shell.open_run(run.run_id)

    def _step_gpu(self, by: int) -> None:
        uuids = [gpu.uuid for gpu in self.snapshot.gpus]
        if uuids:
            self.show_gpu(next_choice(uuids, self.uuid, by))

    do_gpu_next = partialmethod(_step_gpu, 1)
    do_gpu_previous = partialmethod(_step_gpu, -1)

    def show_gpu(self, uuid: str) -> None:
        """Show another GPU."""
        if uuid != self.uuid:
            self.uuid = uuid
            self.top = 0
            self.changed()

    def _step_span(self, by: int) -> None:
        index = GPU_SPANS_SECONDS.index(self.span_seconds) + by
        self.span_seconds = GPU_SPANS_SECONDS[min(max(index, 0), len(GPU_SPANS_SECONDS) - 1)]
        self.changed()

    do_span_longer = partialmethod(_step_span, 1)
    do_span_shorter = partialmethod(_step_span, -1)

    def _scroll(self, lines: int = 0, pages: int = 0) -> None:
        self.top += lines + pages * max(1, self.lines.size.height - 2)
        self.changed()

    do_up = partialmethod(_scroll, -1)
    do_down = partialmethod(_scroll, 1)
    do_page_up = partialmethod(_scroll, pages=-1)
    do_page_down = partialmethod(_scroll, pages=1)


LABEL_WIDTH = 13
COLUMN_LEAST = 29
"""Least cells of a column of names and values."""

GAUGE_MOST = 40
GAUGE_WORDS = 26
"""Most cells of a bar, and cells of the text behind it."""

CHART_LEAST = 5


class Fact(NamedTuple):
    """A named value, and its style."""

    label: str
    text: str
    style: str = "text"

    @property
    def name(self) -> Span:
        """The label in cells of its own."""
        return f" {self.label:<{LABEL_WIDTH}} ", "dim"


# --- facts


def fact_lines(
    row: GpuRow, page: GpuPage | None, now: float, width: int, charts: Sequence[Line] = (), *, keys: Keys
) -> list[Line]:
    """The page's lines: facts in words, bars of values with a limit, charts, all values, and the device.

    Args:
        page: what is known beyond the row; None until it was read.
        charts: lines that stand between bars and values; none if the charts stand elsewhere.
        keys: the keys that the facts name.
    """
    values = _values(row.gpu)
    across = 2 if width >= 2 * COLUMN_LEAST else 1
    down = -(-len(values) // across)
    cells = [fit_line([fact.name, fact[1:]], width // across) for fact in values]
    table = [[span for cell in cells[number::down] for span in cell] for number in range(down)]
    states = _states(row, page, now, keys)
    facts = [*_memory_errors(row.gpu), *_identity(row.gpu)]
    return [
        *(line for fact in states for line in paragraph(fact.name, fact.text, fact.style, width)),
        *_gauges(row.gpu, width),
        *(charts or [fit_line([], width)]),
        *(fit_line(line, width) for line in table),
        *(line for fact in facts for line in paragraph(fact.name, fact.text, fact.style, width)),
    ]


def _states(row: GpuRow, page: GpuPage | None, now: float, keys: Keys) -> list[Fact]:
    """Whether the GPU works, its run, and what limits it."""
    facts = []
    if row.gpu.state == "lost":
        facts.append(Fact("state", f"{_plain(lost_spans(row, now))}; its last values are below", "bad"))
    if (failed := row.quarantined) is not None:
        remedy = f"No run gets it before {keys.word('clear_gpu', 'gpu')} clears it."
        text = f"since {dated_clock(failed.since, now)}: {failed.words}. {remedy}"
        facts.append(Fact("quarantine", clean(text), "warn"))
    if row.gpu.is_excluded:
        facts.append(Fact("runs", "none of this home: gpus.yaml leaves it to others", "dim"))
    throttled = Fact("throttled by", "nothing", "dim")
    if reasons := throttle_spans(row):
        throttled = Fact("throttled by", _plain(reasons), reasons[0][1])
    condition = health_spans(row)
    sound = Fact("health", _plain(condition), condition[0][1])
    return [*facts, _run(row, page, now), throttled, sound]


def _run(row: GpuRow, page: GpuPage | None, now: float) -> Fact:
    """The run on the GPU, for how long, and its progress there."""
    gpu = row.gpu
    rank = row.rank
    if gpu.run_id is None:
        processes = "no list of processes"
        if gpu.processes is not None:
            processes = count_of(len(gpu.processes), "process")
        ours = "none of ours" if row.promised is None else f"none yet, promised to {clean(row.promised)}"
        return Fact("run", f"{ours}; {processes}", "dim")
    if gpu.shared_with:
        text = f"{', '.join(clean(run_id) for run_id in gpu.run_ids)} share it"
    elif gpu.rank is not None:
        text = f"{clean(gpu.run_id)} rank {gpu.rank}"
    else:
        text = clean(gpu.run_id)
    if page is not None and page.leased_since is not None:
        seconds = max(0.0, now - page.leased_since)
        if seconds >= 120:
            seconds = seconds // 60 * 60
        text += f", for {duration(seconds)}"
    if rank is None:
        return Fact("run", text, "accent")
    style = "warn" if rank.is_slow else "accent"
    return Fact("run", text + _progress(rank), style)


def _progress(rank: RankRow) -> str:
    """``, step 4 310, 2.1 steps/s, waiting for data 3% of the time``: as far as it is known."""
    text = ""
    if rank.step is not None:
        text += f", step {count(rank.step)}"
    if rank.step_seconds:
        text += f", {rate(1 / rank.step_seconds)} steps/s"
    if rank.waiting_fraction is not None:
        text += f", waiting for data {percent(min(1.0, rank.waiting_fraction) * 100)} of the time"
    if rank.is_slow and rank.slowdown is not None:
        text += f"; slow: {rank.slowdown:.1f} times the median step"
    return text


def _gauges(gpu: GpuView, width: int) -> list[Line]:
    """Utilisation, memory, temperature and power as bars of their limits."""
    used = gpu.memory_used_bytes
    total = gpu.memory_total_bytes
    slowdown = gpu.facts.temperature_slowdown_celsius
    heat = celsius(gpu.temperature_celsius)
    if slowdown is not None:
        heat += f", throttles at {celsius(slowdown)}"
    heat_style = "warn" if is_hot(gpu) else "heat"
    memory = f"{gibibytes(used)} of {gibibytes(total)} GiB"
    if gpu.facts.memory_is_unified:
        memory += ", shared with the host"
    power = f"{watts(gpu.power_watts)} of {watts(gpu.power_limit_watts)}"
    cells = max(6, min(GAUGE_MOST, width - LABEL_WIDTH - 2 - GAUGE_WORDS))
    lines = []
    for label, value, limit, text, style in (
        ("utilisation", gpu.utilization_percent, 100.0, percent(gpu.utilization_percent), "bar"),
        ("memory", used, total, memory, "bar2"),
        ("temperature", gpu.temperature_celsius, slowdown, heat, heat_style),
        ("power", gpu.power_watts, gpu.power_limit_watts, power, "power"),
    ):
        text_style = "warn" if style == "warn" else _style(gpu)
        if _style(gpu) == "dim":
            style = "dim"
        share = None
        if value is not None and limit:
            share = value / limit
        fact = Fact(label, f" {text}", text_style)
        lines.append(fit_line([fact.name, *bar_spans(share, cells, style), fact[1:]], width))
    return lines


def _style(gpu: GpuView) -> str:
    """The style of its values, which may be old."""
    if gpu.state in ("lost", "stale"):
        return "dim"
    return "text"


def _values(gpu: GpuView) -> list[Fact]:
    """The known values."""
    facts = gpu.facts
    slow = gpu.slow
    free = None
    if gpu.memory_total_bytes is not None and gpu.memory_used_bytes is not None:
        # A driver that does not report reserved memory counts it as used.
        used = gpu.memory_used_bytes + (gpu.memory_reserved_bytes or 0)
        free = max(0, gpu.memory_total_bytes - used)
    state = UNKNOWN
    if gpu.performance_state is not None:
        state = f"P{gpu.performance_state}"
    texts = {
        "free": _in_unit(free, 2**30, "GiB", decimals=1),
        "reserved": _in_unit(gpu.memory_reserved_bytes, 2**30, "GiB", decimals=1),
        "memory BW": percent(gpu.memory_utilization_percent),
        "memory temp": celsius(slow.memory_temperature_celsius),
        "shuts down at": celsius(facts.temperature_shutdown_celsius),
        "fan": percent(slow.fan_percent),
        "video encoder": percent(slow.encoder_percent),
        "video decoder": percent(slow.decoder_percent),
        "SM clock": _in_unit(gpu.sm_clock_mhz, 1, "MHz"),
        "memory clock": _in_unit(gpu.memory_clock_mhz, 1, "MHz"),
        "state": state,
        "default power": _other_limit(gpu, facts.power_limit_default_watts),
        "most power": _other_limit(gpu, facts.power_limit_max_watts),
        "energy": _in_unit(slow.energy_joules, JOULES_PER_KWH, "kWh", decimals=1),
    }
    values = [Fact(label, text, _style(gpu)) for label, text in texts.items() if text != UNKNOWN]
    style = "warn" if pcie_spans(gpu)[0][1] == "warn" else "text"
    link = pcie_words(gpu)
    if slow.pcie_replays:
        link += f", {slow.pcie_replays} packets sent again"
    values.append(Fact("PCIe", link, style))
    pcie = traffic_spans(slow.pcie_received_bytes_per_second, slow.pcie_sent_bytes_per_second)
    values.append(Fact("PCIe B/s", _plain(pcie)))
    if slow.nvlink_received_bytes_per_second is not None:
        nvlink = traffic_spans(slow.nvlink_received_bytes_per_second, slow.nvlink_sent_bytes_per_second)
        values.append(Fact("NVLink B/s", _plain(nvlink)))
    return values


def _other_limit(gpu: GpuView, limit: float | None) -> str:
    """A limit of power that is not the current one, which the power's bar has."""
    if limit == gpu.power_limit_watts:
        return UNKNOWN
    return watts(limit)


def _memory_errors(gpu: GpuView) -> list[Fact]:
    corrected = gpu.slow.ecc_corrected
    uncorrected = gpu.slow.ecc_uncorrected
    if corrected is None and uncorrected is None:
        return []
    text = f"{count(corrected)} corrected, {count(uncorrected)} uncorrected"
    pending = gpu.slow.row_remap_pending
    failed = gpu.slow.row_remap_failed
    style = "text"
    if failed:
        text += "; a row remap failed"
    elif pending:
        text += "; a row remap is pending until a reset"
    elif pending is not None:
        text += "; no row remap pending"
    if uncorrected or failed:
        style = "bad"
    elif pending:
        style = "warn"
    return [Fact("ECC", text, style)]


def _identity(gpu: GpuView) -> list[Fact]:
    facts = gpu.facts
    readings = {"instant": "instantaneous power", "driver": "power averaged by the driver"}
    modes: dict[object, str] = {True: "on", False: "off"}
    texts = {
        "PCI": facts.pci_bus_id,
        "compute": facts.compute_capability,
        "persistence": modes.get(facts.persistence_mode),
        "MIG": modes.get(facts.mig_mode),
    }
    parts = [f"{name} {text}" for name, text in texts.items() if text]
    if facts.power_reading is not None:
        parts.append(readings[facts.power_reading])
    device = Fact("device", clean(", ".join(parts)) or UNKNOWN, "dim")
    return [device, Fact("UUID", clean(gpu.uuid), "dim")]


def pcie_words(gpu: GpuView) -> str:
    """The PCIe link as ``gen 5, 16 lanes``, or ``gen 1 of 5, 8 of 16 lanes`` where it is less than the GPU can have."""
    if gpu.slow.pcie_generation is None and gpu.slow.pcie_width is None:
        return UNKNOWN
    generation = _of_most(gpu.slow.pcie_generation, gpu.facts.pcie_generation_max)
    lanes = _of_most(gpu.slow.pcie_width, gpu.facts.pcie_width_max)
    return f"gen {generation}, {lanes} lanes"


def _of_most(value: int | None, most: int | None) -> str:
    """A number, with the highest that is possible where that is another."""
    if value is None or most is None or value == most:
        return count(value)
    return f"{value} of {most}"


def _in_unit(value: float | None, size: float, unit: str, decimals: int = 0) -> str:
    if value is None:
        return UNKNOWN
    return f"{value / size:.{decimals}f} {unit}"


def _plain(spans: Sequence[Span]) -> str:
    return "".join(text for text, _ in spans)


# --- driver events and charts


def report_lines(page: GpuPage | None, now: float, width: int) -> list[Line]:
    """The driver's own reports about the GPU, the newest first."""
    lines = [rule("DRIVER EVENTS (XID)", width)]
    if page is None or not page.events:
        return [*lines, fit_line([("  None.", "dim")], width)]
    for event in page.events:
        name = {"xid": f"XID {event.code}", "returned": "back"}.get(event.event, event.event)
        style = "text" if event.event == "returned" else "bad"
        lead = (f" {dated_clock(event.at, now):<12}{name:<9} ", style)
        lines += paragraph(lead, clean(event.text or ""), "text", width) or [fit_line([lead], width)]
    return lines


def chart_lines(gpu: GpuView, page: GpuPage, width: int, height: int, *, across: int) -> list[Line]:
    """Charts of utilisation, memory, power and temperature, ``across`` side by side."""
    if page.history is None:
        sentence = f"  No sample in the last {duration(page.span_seconds)}."
        return [fit_line([(sentence, "dim")], width)]
    charts = _charts(gpu, page, page.history)
    chart_width = (width - across + 1) // across
    chart_height = max(CHART_LEAST, height * across // len(charts))
    drawn = [draw_chart(chart, chart_width, chart_height, gutters=Gutters(labels=4)) for chart in charts]
    gap: list[Line] = [[(" ", "text")]] * len(drawn[0])
    lines: list[Line] = []
    for first in range(0, len(drawn), across):
        blocks = []
        for chart_block in drawn[first : first + across]:
            blocks += [chart_block, gap]
        lines += [fit_line(line, width) for line in join_blocks(*blocks)]
    return lines


def _charts(gpu: GpuView, page: GpuPage, history: GpuHistory) -> list[Chart]:
    """The charts of a GPU over its page's span."""
    time_unit = "min"
    unit_seconds = 60.0
    if page.span_seconds > 3600:
        time_unit = "h"
        unit_seconds = 3600.0
    x_axis = XAxis(time_unit, -page.span_seconds / unit_seconds, 0.0)

    def curve(values: Sequence[float | None], style: str, label: str, shape: str = "") -> Curve:
        return Curve(time_bins(values, page.span_seconds, unit_seconds), style, label, shape=shape)

    def chart(curves: Sequence[Curve], *, low: float = 0.0, high: float | None = None) -> Chart:
        return Chart(curves, x_axis=x_axis, y_axis=YAxis(low=low, high=high))

    memory = to_percent(history.memory_used_bytes, gpu.memory_total_bytes)
    limit = gpu.power_limit_watts
    power_unit, unit_watts = _power_unit([limit, *history.power_watts])
    power = [value and value / unit_watts for value in history.power_watts]
    heat = [curve(history.temperature_celsius, "heat", "temperature °C", "●")]
    if newest_value(page.memory_temperatures) is not None:
        heat.append(curve(page.memory_temperatures, "dim", "memory °C", "■"))
    return [
        chart([curve(history.utilization_percent, "bar", "utilisation %")], high=100.0),
        chart([curve(memory, "bar2", "memory %")], high=100.0),
        chart([curve(power, "power", f"power {power_unit}")], high=limit and limit / unit_watts),
        chart(heat, low=20.0),
    ]


def _power_unit(powers: Iterable[float | None]) -> tuple[str, float]:
    """The unit in which powers in watts are shown, and its watts."""
    highest = max((power for power in powers if power is not None), default=0.0)
    if highest >= 1000.0:
        return "kW", 1000.0
    return "W", 1.0
