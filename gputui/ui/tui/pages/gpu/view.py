"""The page of one GPU as lines: facts, charts, processes and driver events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gputui.core.text import clean
from gputui.core.units import UNKNOWN, celsius, count, duration, gibibytes, percent, rate, watts
from gputui.metrics.draw.chart import chart
from gputui.metrics.draw.parts import Curve, Line, XAxis, YAxis
from gputui.metrics.draw.raster import Span
from gputui.store.attempts import JOULES_PER_KWH
from gputui.store.hardware import GpuView
from gputui.ui.tui.data.snapshot import GpuPage, RankRow, Snapshot
from gputui.ui.tui.layout.columns import bar_spans, between, fit_line, rule, wrap
from gputui.ui.tui.layout.gpu_words import GpuRow, health, held_back, lost, pcie_link, traffic
from gputui.ui.tui.layout.moments import right_end
from gputui.ui.tui.layout.process_words import process_words
from gputui.ui.tui.layout.sparklines import newest, shares, time_bins
from gputui.ui.tui.layout.strips import power_unit
from gputui.ui.tui.layout.words import dated_clock, is_hot

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


def page_head(snapshot: Snapshot, gpu: GpuView, width: int) -> Line:
    """Index, name and state of the GPU, and the time."""
    state = {"ok": ("● responding", "good"), "stale": ("○ silent", "dim"), "lost": ("✗ lost", "bad")}.get(
        gpu.state, ("✗ unreadable", "bad")
    )
    left: list[Span] = [(f" GPU {gpu.index}", "title"), (f" · {clean(gpu.name)} · ", "text"), state]
    return between(left, right_end(snapshot.at, snapshot.past), width)


# --- facts


def fact_lines(row: GpuRow, page: GpuPage | None, now: float, width: int) -> list[Line]:
    """What matters in words, bars of what has a limit, all values, and which device it is."""
    gpu = row.gpu
    facts = [*_memory_errors(gpu), *_identity(gpu)]
    return [
        *(line for fact in _state_facts(row, page, now) for line in _wrapped(fact, width)),
        *_gauges(gpu, width),
        fit_line([], width),
        *_in_columns(_values(gpu), width),
        *(line for fact in facts for line in _wrapped(fact, width)),
    ]


def _in_columns(facts: Sequence[Fact], width: int) -> list[Line]:
    across = 2 if width >= 2 * COLUMN_LEAST else 1
    down = -(-len(facts) // across)
    lines = []
    for number in range(down):
        cells = [[_label(fact.label), (fact.text, fact.style)] for fact in facts[number::down]]
        lines.append(fit_line([span for cell in cells for span in fit_line(cell, width // across)], width))
    return lines


def _wrapped(fact: Fact, width: int) -> list[Line]:
    parts = wrap(fact.text, max(10, width - LABEL_WIDTH - 2)) or [UNKNOWN]
    labels = [fact.label, *[""] * (len(parts) - 1)]
    return [fit_line([_label(label), (part, fact.style)], width) for label, part in zip(labels, parts, strict=True)]


def _label(text: str) -> Span:
    return f" {text:<{LABEL_WIDTH}} ", "dim"


def _state_facts(row: GpuRow, page: GpuPage | None, now: float) -> list[Fact]:
    """Whether the GPU works, its run, and what limits it."""
    facts = []
    if row.gpu.state == "lost":
        facts.append(Fact("state", f"{_plain(lost(row, now))}; its last values are below", "bad"))
    if (failed := row.quarantined) is not None:
        where = f" under {failed.run_id}, attempt {failed.attempt}" if failed.run_id else ""
        remedy = f"No run gets it before C here or `gputui gpus --clear {row.gpu.index}` clears it."
        text = f"since {dated_clock(failed.since, now)}{where}: {failed.reason}. {remedy}"
        facts.append(Fact("quarantine", clean(text), "warn"))
    held, condition = held_back(row), health(row)
    throttled = Fact("throttled by", _plain(held) or "nothing", held[0][1] if held else "dim")
    return [*facts, _run(row, page, now), throttled, Fact("health", _plain(condition), condition[0][1])]


def _run(row: GpuRow, page: GpuPage | None, now: float) -> Fact:
    gpu = row.gpu
    if gpu.run_id is None:
        listed = "no list of processes"
        if gpu.processes is not None:
            listed = f"{len(gpu.processes)} process{'' if len(gpu.processes) == 1 else 'es'}"
        return Fact("run", f"none of ours; {listed}", "dim")
    text = clean(gpu.run_id) + (f" rank {gpu.rank}" if gpu.rank is not None else "")
    if gpu.shared_with:
        text = f"{', '.join(clean(run_id) for run_id in gpu.run_ids)} share it"
    if page is not None and page.leased_since is not None:
        held = max(0.0, now - page.leased_since)
        text += f", for {duration(held if held < 120 else held // 60 * 60)}"
    if row.rank is None:
        return Fact("run", text, "accent")
    text += _progress(row.rank)
    if row.rank.is_slow and row.rank.slowdown is not None:
        return Fact("run", f"{text}; slow: {row.rank.slowdown:.1f} times the median step", "warn")
    return Fact("run", text, "accent")


def _progress(rank: RankRow) -> str:
    text = "" if rank.step is None else f", step {count(rank.step)}"
    if rank.step_seconds:
        text += f", {rate(1 / rank.step_seconds)} step/s"
    if rank.waiting_fraction is not None:
        text += f", {percent(min(1.0, rank.waiting_fraction) * 100)} of it waiting for data"
    return text


def _gauges(gpu: GpuView, width: int) -> list[Line]:
    """Utilisation, memory, temperature and power as bars of their limits."""
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    slowdown = gpu.facts.get("temperature_slowdown_celsius")
    heat = celsius(gpu.temperature_celsius) + ("" if slowdown is None else f", throttles at {celsius(slowdown)}")
    whose = ", shared with the host" if gpu.facts.get("memory_is_unified") else ""
    memory = f"{gibibytes(used)} of {gibibytes(total)} GiB{whose}"
    power = f"{watts(gpu.power_watts)} of {watts(gpu.power_limit_watts)}"
    is_past = gpu.state in ("lost", "stale")
    cells = max(6, min(GAUGE_MOST, width - LABEL_WIDTH - 2 - GAUGE_WORDS))
    lines = []
    for label, value, limit, text, style in (
        ("utilisation", gpu.utilization_percent, 100.0, percent(gpu.utilization_percent), "bar"),
        ("memory", used, total, memory, "bar2"),
        ("temperature", gpu.temperature_celsius, slowdown, heat, "warn" if is_hot(gpu) else "bar"),
        ("power", gpu.power_watts, gpu.power_limit_watts, power, "bar"),
    ):
        bar = bar_spans(None if value is None or not limit else value / limit, cells, "dim" if is_past else style)
        text_style = "warn" if style == "warn" else "dim" if is_past else "text"
        lines.append(fit_line([_label(label), *bar, (f" {text}", text_style)], width))
    return lines


def _values(gpu: GpuView) -> list[Fact]:
    """The known values; dim if they are not current."""
    facts, slow = gpu.facts, gpu.slow
    free = None
    if gpu.memory_total_bytes is not None and gpu.memory_used_bytes is not None:
        # A driver that does not report reserved memory counts it as used.
        used = gpu.memory_used_bytes + (gpu.memory_reserved_bytes or 0)
        free = max(0, gpu.memory_total_bytes - used)
    limits = {name: facts.get(f"power_limit_{name}_watts") for name in ("default", "max")}
    # The current limit is that of the power's bar.
    other = {name: None if limit == gpu.power_limit_watts else limit for name, limit in limits.items()}
    known = [
        ("free", _in_unit(free, 2**30, "GiB", decimals=1)),
        ("reserved", _in_unit(gpu.memory_reserved_bytes, 2**30, "GiB", decimals=1)),
        ("memory BW", percent(gpu.memory_utilization_percent)),
        ("memory temp", celsius(slow.get("memory_temperature_celsius"))),
        ("shuts down at", celsius(facts.get("temperature_shutdown_celsius"))),
        ("fan", percent(slow.get("fan_percent"))),
        ("video encoder", percent(slow.get("encoder_percent"))),
        ("video decoder", percent(slow.get("decoder_percent"))),
        ("SM clock", _in_unit(gpu.sm_clock_mhz, 1, "MHz")),
        ("memory clock", _in_unit(gpu.memory_clock_mhz, 1, "MHz")),
        ("state", UNKNOWN if gpu.performance_state is None else f"P{gpu.performance_state}"),
        ("default power", watts(other["default"])),
        ("most power", watts(other["max"])),
        ("energy", _in_unit(slow.get("energy_joules"), JOULES_PER_KWH, "kWh", decimals=1)),
    ]
    style = "dim" if gpu.state in ("lost", "stale") else "text"
    return [*(Fact(label, text, style) for label, text in known if text != UNKNOWN), *_links(gpu)]


def _links(gpu: GpuView) -> list[Fact]:
    link = pcie_link(gpu)
    generation, lanes = gpu.facts.get("pcie_generation_max"), gpu.facts.get("pcie_width_max")
    best = "" if generation is None or lanes is None else f" of {generation}×{lanes}"
    replays = gpu.slow.get("pcie_replays")
    resent = f", {replays} packets sent again" if replays else ""
    facts = [
        Fact("PCIe", f"{_plain(link)}{best}{resent}", "warn" if link[0][1] == "warn" else "text"),
        Fact("PCIe B/s", _plain(traffic(gpu, "pcie"))),
    ]
    if gpu.slow.get("nvlink_received_bytes_per_second") is not None:
        facts.append(Fact("NVLink B/s", _plain(traffic(gpu, "nvlink"))))
    return facts


def _memory_errors(gpu: GpuView) -> list[Fact]:
    corrected, uncorrected = gpu.slow.get("ecc_corrected"), gpu.slow.get("ecc_uncorrected")
    if corrected is None and uncorrected is None:
        return []
    text = f"{count(corrected)} corrected, {count(uncorrected)} uncorrected"
    pending, failed = gpu.slow.get("row_remap_pending"), gpu.slow.get("row_remap_failed")
    if failed:
        text += "; a row remap failed"
    elif pending is not None:
        text += "; a row remap is pending until a reset" if pending else "; no row remap pending"
    return [Fact("ECC", text, "bad" if uncorrected or failed else "warn" if pending else "text")]


def _identity(gpu: GpuView) -> list[Fact]:
    facts = gpu.facts
    readings = {"instant": "instantaneous power", "driver": "power averaged by the driver"}
    words = [f"PCI {facts['pci_bus_id']}"] if facts.get("pci_bus_id") else []
    words += [f"compute {facts['compute_capability']}"] if facts.get("compute_capability") else []
    for name, mode in (("persistence", facts.get("persistence_mode")), ("MIG", facts.get("mig_mode"))):
        words += [] if mode is None else [f"{name} {'on' if mode else 'off'}"]
    words += [readings[facts["power_reading"]]] if facts.get("power_reading") in readings else []
    return [Fact("device", clean(", ".join(words)), "dim"), Fact("UUID", clean(gpu.uuid), "dim")]


def _in_unit(value: float | None, size: float, unit: str, decimals: int = 0) -> str:
    return UNKNOWN if value is None else f"{value / size:.{decimals}f} {unit}"


def _plain(spans: Sequence[Span]) -> str:
    return "".join(text for text, _ in spans)


# --- processes, driver events and charts


def process_lines(gpu: GpuView, width: int) -> list[Line]:
    """The processes on the GPU, the largest first."""
    lines = [rule("PROCESSES", width)]
    if not gpu.processes:
        words = "None." if gpu.processes is not None else "The driver gives no list of processes."
        return [*lines, fit_line([(f"  {words}", "dim")], width)]
    for process in sorted(gpu.processes, key=lambda each: -(each.memory_bytes or 0)):
        rank = "" if process.rank is None else f" r{process.rank}"
        run = f"{clean(process.run_id)}{rank} " if process.run_id else ""
        used = _in_unit(process.memory_bytes, 2**30, "GiB", decimals=1)
        figures = f" {process.pid:>8} {used:>9} {percent(process.sm_percent):>4} "
        lines.append(fit_line([(figures, "text"), (run, "accent"), (process_words(process), "text")], width))
    return lines


def report_lines(page: GpuPage | None, now: float, width: int) -> list[Line]:
    """The driver's own reports about the GPU, the newest first."""
    lines = [rule("DRIVER EVENTS (XID)", width)]
    if page is None or not page.events:
        return [*lines, fit_line([("  None.", "dim")], width)]
    for event in page.events:
        words = {"xid": f"XID {event.code}", "lost": "lost", "returned": "back"}.get(event.event, event.event)
        style = "text" if event.event == "returned" else "bad"
        for number, part in enumerate(wrap(clean(event.text or ""), max(10, width - 24)) or [""]):
            head, name = (f" {dated_clock(event.at, now)}", f"{words:<9} ") if number == 0 else ("", "")
            lines.append(fit_line([(f"{head:<13}", "dim"), (f"{name:<10}", style), (part, "text")], width))
    return lines


def chart_lines(gpu: GpuView, page: GpuPage, width: int, height: int, *, across: int) -> list[Line]:
    """Charts of utilisation, memory, power and temperature, ``across`` side by side."""
    down = -(-4 // across)
    each_width, each_height = (width - across + 1) // across, max(CHART_LEAST, height // down)
    history = page.history
    if history is None:
        return [fit_line([(f"  No sample in the last {duration(page.span_seconds)}.", "dim")], width)]
    name, scale = ("min", 60.0) if page.span_seconds <= 3600 else ("h", 3600.0)
    axis = XAxis(name, -page.span_seconds / scale, 0.0)

    def curve(values: Sequence[float | None], style: str, label: str, shape: str = "") -> Curve:
        return Curve(time_bins(values, page.span_seconds, scale), style, label, shape=shape)

    full = shares(history.memory_used_bytes, gpu.memory_total_bytes)
    heat = [curve(history.temperature_celsius, "text", "temperature °C", "●")]
    if newest(page.memory_temperatures) is not None:
        heat.append(curve(page.memory_temperatures, "dim", "memory °C", "■"))
    limit, power = gpu.power_limit_watts, history.power_watts
    size, unit = power_unit([limit, *power])
    watts_now = [None if value is None else value / size for value in power]
    percents, from_zero = YAxis(low=0.0, high=100.0), YAxis(low=0.0, high=None if limit is None else limit / size)
    panes = [
        ([curve(history.utilization_percent, "bar", "utilisation %")], percents),
        ([curve(full, "bar2", "memory %")], percents),
        ([curve(watts_now, "text", f"power {unit}")], from_zero),
        (heat, YAxis(low=20.0)),
    ]
    drawn = [
        chart(curves, width=each_width, height=each_height, x_axis=axis, y_axis=y_axis, least_gutter=4)
        for curves, y_axis in panes
    ]
    lines: list[Line] = []
    for row in range(down):
        for parts in zip(*drawn[row * across : (row + 1) * across], strict=True):
            lines.append(fit_line([span for part in parts for span in [*part, (" ", "text")]], width))
    return lines
