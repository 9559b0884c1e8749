"""The page of a GPU as lines: its values, its charts and what the driver reported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from typing import NamedTuple

from gputui.core.text import clean
from gputui.core.units import UNKNOWN, celsius, count, count_of, duration, gibibytes, percent, rate, watts
from gputui.metrics.draw.chart import Gutters, draw_chart
from gputui.metrics.draw.parts import Chart, Curve, Line, Span, XAxis, YAxis
from gputui.metrics.progress import RankRow
from gputui.store.attempts import JOULES_PER_KWH
from gputui.store.hardware import GpuView
from gputui.store.rollups import GpuHistory
from gputui.ui.tui.actions.keymap import Keys
from gputui.ui.tui.layout.columns import bar_spans, fit_line, join_blocks, paragraph, rule
from gputui.ui.tui.layout.gpu_words import (
    GpuRow,
    health_spans,
    lost_spans,
    pcie_spans,
    throttle_spans,
    traffic_spans,
)
from gputui.ui.tui.layout.sparklines import newest_value, time_bins, to_percent
from gputui.ui.views.snapshot import GpuPage
from gputui.ui.views.words import dated_clock, is_hot

STATES = {"ok": ("● responding", "good"), "stale": ("○ silent", "dim"), "lost": ("✗ lost", "bad")}

LABEL_WIDTH = 13
COLUMN_LEAST = 29
"""Least cells of a column of names and values."""

GAUGE_MOST = 40
GAUGE_WORDS = 26
"""Most cells of a bar, and cells of the text behind it."""

CHART_LEAST = 5
"""Least lines of a chart."""

READINGS = {"instant": "instantaneous power", "driver": "power averaged by the driver"}


class Fact(NamedTuple):
    """A named value, and its style."""

    label: str
    text: str
    style: str = "text"

    @property
    def name(self) -> Span:
        """The label in cells of its own."""
        return f" {self.label:<{LABEL_WIDTH}} ", "dim"

    @property
    def value(self) -> Span:
        """The text in its style."""
        return self.text, self.style

    def lines(self, width: int) -> list[Line]:
        """The name and its value, over as many lines as it needs."""
        return paragraph(self.name, self.text, self.style, width)


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
    states = _states(row, page, now, keys)
    rest = [*_memory_errors(row.gpu), *_identity(row.gpu)]
    return [
        *(line for fact in states for line in fact.lines(width)),
        *_gauges(row.gpu, width),
        *(charts or [fit_line([], width)]),
        *_table(_values(row.gpu), width),
        *(line for fact in rest for line in fact.lines(width)),
    ]


def _table(facts: Sequence[Fact], width: int) -> list[Line]:
    """Facts in one column or two, each column read from top to bottom."""
    across = 2 if width >= 2 * COLUMN_LEAST else 1
    down = ceil(len(facts) / across)
    cells = [fit_line([fact.name, fact.value], width // across) for fact in facts]
    lines = []
    for number in range(down):
        spans = [span for cell in cells[number::down] for span in cell]
        lines.append(fit_line(spans, width))
    return lines


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
    facts.append(_run(row, page, now))
    reasons = throttle_spans(row) or [("nothing", "dim")]
    for label, spans in (("throttled by", reasons), ("health", health_spans(row))):
        _, style = spans[0]
        facts.append(Fact(label, _plain(spans), style))
    return facts


def _run(row: GpuRow, page: GpuPage | None, now: float) -> Fact:
    """The run on the GPU, for how long, and its progress there."""
    gpu = row.gpu
    if gpu.run_id is None:
        return Fact("run", _no_run(row), "dim")
    if gpu.shared_with:
        text = f"{', '.join(clean(run_id) for run_id in gpu.run_ids)} share it"
    elif gpu.rank is not None:
        text = f"{clean(gpu.run_id)} rank {gpu.rank}"
    else:
        text = clean(gpu.run_id)
    if page is not None and page.leased_since is not None:
        text += f", for {_leased_words(max(0.0, now - page.leased_since))}"
    style = "accent"
    if row.rank is not None:
        text += _progress(row.rank)
        if row.rank.is_slow:
            style = "warn"
    return Fact("run", text, style)


def _no_run(row: GpuRow) -> str:
    """``none yet, promised to vit-2; 1 process``."""
    processes = "no list of processes"
    if row.gpu.processes is not None:
        processes = count_of(len(row.gpu.processes), "process")
    if row.promised is None:
        return f"none of ours; {processes}"
    return f"none yet, promised to {clean(row.promised)}; {processes}"


def _leased_words(seconds: float) -> str:
    """How long a run has had the GPU: from two minutes on in whole minutes."""
    if seconds >= 120:
        return duration(seconds // 60 * 60)
    return duration(seconds)


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
    facts = gpu.facts
    base = _style(gpu)
    memory = f"{gibibytes(gpu.memory_used_bytes)} of {gibibytes(gpu.memory_total_bytes)} GiB"
    if facts.memory_is_unified:
        memory += ", shared with the host"
    heat = celsius(gpu.temperature_celsius)
    if facts.temperature_slowdown_celsius is not None:
        heat += f", throttles at {celsius(facts.temperature_slowdown_celsius)}"
    heat_style = base
    heat_bar = "heat"
    if is_hot(gpu):
        heat_style = heat_bar = "warn"
    power = f"{watts(gpu.power_watts)} of {watts(gpu.power_limit_watts)}"
    cells = max(6, min(GAUGE_MOST, width - LABEL_WIDTH - 2 - GAUGE_WORDS))

    def gauge(fact: Fact, value: float | None, limit: float | None, style: str) -> Line:
        share = None
        if value is not None and limit:
            share = value / limit
        bar_style = "dim" if base == "dim" else style
        return fit_line([fact.name, *bar_spans(share, cells, bar_style), (f" {fact.text}", fact.style)], width)

    return [
        gauge(Fact("utilisation", percent(gpu.utilization_percent), base), gpu.utilization_percent, 100.0, "bar"),
        gauge(Fact("memory", memory, base), gpu.memory_used_bytes, gpu.memory_total_bytes, "bar2"),
        gauge(
            Fact("temperature", heat, heat_style),
            gpu.temperature_celsius,
            facts.temperature_slowdown_celsius,
            heat_bar,
        ),
        gauge(Fact("power", power, base), gpu.power_watts, gpu.power_limit_watts, "power"),
    ]


def _style(gpu: GpuView) -> str:
    """The style of its values, which may be old."""
    if gpu.state in ("lost", "stale"):
        return "dim"
    return "text"


def _values(gpu: GpuView) -> list[Fact]:
    """The known values."""
    slow = gpu.slow
    state = UNKNOWN
    if gpu.performance_state is not None:
        state = f"P{gpu.performance_state}"
    texts = {
        "free": _in_unit(_free_bytes(gpu), 2**30, "GiB", decimals=1),
        "reserved": _in_unit(gpu.memory_reserved_bytes, 2**30, "GiB", decimals=1),
        "memory BW": percent(gpu.memory_utilization_percent),
        "memory temp": celsius(slow.memory_temperature_celsius),
        "shuts down at": celsius(gpu.facts.temperature_shutdown_celsius),
        "fan": percent(slow.fan_percent),
        "video encoder": percent(slow.encoder_percent),
        "video decoder": percent(slow.decoder_percent),
        "SM clock": _in_unit(gpu.sm_clock_mhz, 1, "MHz"),
        "memory clock": _in_unit(gpu.memory_clock_mhz, 1, "MHz"),
        "state": state,
        "default power": _other_limit(gpu, gpu.facts.power_limit_default_watts),
        "most power": _other_limit(gpu, gpu.facts.power_limit_max_watts),
        "energy": _in_unit(slow.energy_joules, JOULES_PER_KWH, "kWh", decimals=1),
    }
    values = [Fact(label, text, _style(gpu)) for label, text in texts.items() if text != UNKNOWN]
    return [*values, *_links(gpu)]


def _free_bytes(gpu: GpuView) -> int | None:
    if gpu.memory_total_bytes is None or gpu.memory_used_bytes is None:
        return None
    # A driver that does not report reserved memory counts it as used.
    used = gpu.memory_used_bytes + (gpu.memory_reserved_bytes or 0)
    return max(0, gpu.memory_total_bytes - used)


def _links(gpu: GpuView) -> list[Fact]:
    """The PCIe link, and the traffic over PCIe and NVLink."""
    slow = gpu.slow
    link = pcie_words(gpu)
    if slow.pcie_replays:
        link += f", {slow.pcie_replays} packets sent again"
    is_marked = any(style == "warn" for _, style in pcie_spans(gpu))
    style = "warn" if is_marked else "text"
    pcie = traffic_spans(slow.pcie_received_bytes_per_second, slow.pcie_sent_bytes_per_second)
    facts = [Fact("PCIe", link, style), Fact("PCIe B/s", _plain(pcie))]
    if slow.nvlink_received_bytes_per_second is not None:
        nvlink = traffic_spans(slow.nvlink_received_bytes_per_second, slow.nvlink_sent_bytes_per_second)
        facts.append(Fact("NVLink B/s", _plain(nvlink)))
    return facts


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
    modes: dict[object, str] = {True: "on", False: "off"}
    texts = {
        "PCI": facts.pci_bus_id,
        "compute": facts.compute_capability,
        "persistence": modes.get(facts.persistence_mode),
        "MIG": modes.get(facts.mig_mode),
    }
    parts = [f"{name} {text}" for name, text in texts.items() if text]
    if facts.power_reading is not None:
        parts.append(READINGS[facts.power_reading])
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
    power = [_divided(value, unit_watts) for value in history.power_watts]
    heat = [curve(history.temperature_celsius, "heat", "temperature °C", "●")]
    if newest_value(page.memory_temperatures) is not None:
        heat.append(curve(page.memory_temperatures, "dim", "memory °C", "■"))
    return [
        chart([curve(history.utilization_percent, "bar", "utilisation %")], high=100.0),
        chart([curve(memory, "bar2", "memory %")], high=100.0),
        chart([curve(power, "power", f"power {power_unit}")], high=_divided(limit, unit_watts)),
        chart(heat, low=20.0),
    ]


def _divided(value: float | None, size: float) -> float | None:
    if value is None:
        return None
    return value / size


def _power_unit(powers: Iterable[float | None]) -> tuple[str, float]:
    """The unit in which powers in watts are shown, and its watts."""
    highest = max((power for power in powers if power is not None), default=0.0)
    if highest >= 1000.0:
        return "kW", 1000.0
    return "W", 1.0
