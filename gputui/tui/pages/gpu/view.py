"""The page of one GPU: everything known about it, its last minutes or hours as charts, its processes, its reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gputui.charts.bars import bar
from gputui.charts.chart import Curve, Line, XAxis, YAxis, chart
from gputui.charts.raster import Span
from gputui.charts.safe_text import clean
from gputui.charts.units import UNKNOWN, bytes_text, celsius, count, duration, gibibytes, percent, short_number, watts
from gputui.store.hardware import GpuView, ProcessView
from gputui.tui.data.snapshot import GpuPage, Snapshot
from gputui.tui.layout.columns import between, fit_line, rule, wrap
from gputui.tui.layout.gpu_words import TRACK, GpuRow, health, held_back, lost, pcie_link, traffic
from gputui.tui.layout.moments import right_end
from gputui.tui.layout.sparklines import newest, shares, time_bins
from gputui.tui.layout.strips import power_unit
from gputui.tui.layout.words import dated_clock, is_hot, moment

LABEL_WIDTH = 13
COLUMN_LEAST = 29
"""Cells of a column of names and values."""

GAUGE_MOST = 40
GAUGE_WORDS = 26
"""Cells of a bar at most, and of the words behind it."""

CHART_LEAST = 5
CHART_MOST = 16


class Fact(NamedTuple):
    """One thing known: what it is, its parts, and how the whole is pointed out."""

    label: str
    text: str
    style: str = "text"


def page_head(snapshot: Snapshot, gpu: GpuView, width: int) -> Line:
    """Which GPU it is, how it stands, what time it is."""
    state = {"ok": ("● answers", "good"), "stale": ("○ silent", "dim"), "lost": ("✗ lost", "bad")}.get(
        gpu.state, ("✗ unreadable", "bad")
    )
    left: list[Span] = [(f" GPU {gpu.index}", "title"), (f" · {clean(gpu.name)} · ", "text"), state]
    return between(left, right_end(snapshot.at, snapshot.past), width)


def fact_lines(row: GpuRow, page: GpuPage | None, now: float, width: int) -> list[Line]:
    """What matters in words; bars of what has a limit; then a value to each name, in two columns where they fit. What
    the driver does not give is left out."""
    gpu = row.gpu
    lines = [line for fact in _sentences(row, page, now) for line in _wrapped(fact, width)]
    lines += [_gauge(gauge, width, is_past=gpu.state in ("lost", "stale")) for gauge in _gauges(gpu)]
    lines.append(fit_line([], width))
    values = [*_values(gpu), *_links(gpu)]
    across = 2 if width >= 2 * COLUMN_LEAST else 1
    each = width // across
    down = -(-len(values) // across)
    for number in range(down):
        spans: Line = []
        for value in values[number::down]:
            label = f" {value.label:<{LABEL_WIDTH}} "
            spans += fit_line([(label, "dim"), (value.text, value.style)], each)
        lines.append(fit_line(spans, width))
    return [*lines, *(line for fact in [*_memory_errors(gpu), *_identity(gpu)] for line in _wrapped(fact, width))]


def _wrapped(fact: Fact, width: int) -> list[Line]:
    parts = wrap(fact.text, max(10, width - LABEL_WIDTH - 2)) or [UNKNOWN]
    labels = [fact.label, *[""] * (len(parts) - 1)]
    return [
        fit_line([(f" {label:<{LABEL_WIDTH}} ", "dim"), (part, fact.style)], width)
        for label, part in zip(labels, parts, strict=True)
    ]


class Gauge(NamedTuple):
    """A value with a limit: what a full bar means is in the words."""

    label: str
    fraction: float | None
    text: str
    style: str


def _gauges(gpu: GpuView) -> list[Gauge]:
    def share(part: float | None, whole: float | None) -> float | None:
        return None if part is None or not whole else part / whole

    slowdown = gpu.facts.get("temperature_slowdown_celsius")
    heat = celsius(gpu.temperature_celsius) + ("" if slowdown is None else f", throttles at {celsius(slowdown)}")
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    return [
        Gauge("utilisation", share(gpu.utilization_percent, 100.0), percent(gpu.utilization_percent), "bar"),
        Gauge("memory", share(used, total), f"{gibibytes(used)} of {gibibytes(total)} GiB", "bar2"),
        Gauge("temperature", share(gpu.temperature_celsius, slowdown), heat, "warn" if is_hot(gpu) else "bar"),
        Gauge("power", share(gpu.power_watts, gpu.power_limit_watts),
              f"{watts(gpu.power_watts)} of {watts(gpu.power_limit_watts)}", "bar"),
    ]  # fmt: skip


def _gauge(gauge: Gauge, width: int, *, is_past: bool) -> Line:
    cells = max(6, min(GAUGE_MOST, width - LABEL_WIDTH - 2 - GAUGE_WORDS))
    style = "warn" if gauge.style == "warn" else "dim" if is_past else "text"
    filled = bar(gauge.fraction, cells).rstrip(" ")
    track = TRACK * (cells - len(filled)) if gauge.fraction is not None else " " * (cells - len(filled))
    return fit_line(
        [(f" {gauge.label:<{LABEL_WIDTH}} ", "dim"), (filled, "dim" if is_past else gauge.style), (track, "track"),
         (f" {gauge.text}", style)], width,
    )  # fmt: skip


def _sentences(row: GpuRow, page: GpuPage | None, now: float) -> list[Fact]:
    gpu = row.gpu
    facts = []
    if gpu.state == "lost":
        facts.append(Fact("state", f"{_plain(lost(row, now))}; what it told before stands below", "bad"))
    if row.quarantined is not None:
        failed = row.quarantined
        where = f" under {failed.run_id}, attempt {failed.attempt}" if failed.run_id else ""
        facts.append(
            Fact(
                "quarantine",
                clean(f"since {dated_clock(failed.since, now)}{where}: {failed.reason}. No run gets it before C "
                      f"here or `gputui gpus --clear {gpu.index}` clears it."),
                "warn",
            )
        )  # fmt: skip
    facts.append(_run(row, page, now))
    held = held_back(row)
    facts.append(Fact("throttled by", _plain(held) or "nothing", held[0][1] if held else "dim"))
    return [*facts, Fact("health", _plain(health(row)), health(row)[0][1])]


def _values(gpu: GpuView) -> list[Fact]:
    """A value to each name, those that are known; dim where they are not of now."""
    used, reserved, total = gpu.memory_used_bytes, gpu.memory_reserved_bytes, gpu.memory_total_bytes
    facts, slow = gpu.facts, gpu.slow
    joules, shutdown = slow.get("energy_joules"), facts.get("temperature_shutdown_celsius")
    default, most = facts.get("power_limit_default_watts"), facts.get("power_limit_max_watts")
    style = "dim" if gpu.state in ("lost", "stale") else "text"
    known: list[tuple[str, object, str]] = [
        ("free", used if total is not None else None,
         f"{gibibytes(max(0, (total or 0) - (used or 0) - (reserved or 0)))} GiB"),
        ("reserved", reserved, f"{gibibytes(reserved)} GiB"),
        ("memory BW", gpu.memory_utilization_percent, percent(gpu.memory_utilization_percent)),
        ("memory temp", slow.get("memory_temperature_celsius"), celsius(slow.get("memory_temperature_celsius"))),
        ("shuts down at", shutdown, celsius(shutdown)),
        ("fan", slow.get("fan_percent"), percent(slow.get("fan_percent"))),
        ("SM clock", gpu.sm_clock_mhz, f"{_number(gpu.sm_clock_mhz)} MHz"),
        ("memory clock", gpu.memory_clock_mhz, f"{_number(gpu.memory_clock_mhz)} MHz"),
        ("state", gpu.performance_state, f"P{_number(gpu.performance_state)}"),
        ("default power", default if default != gpu.power_limit_watts else None, watts(default)),
        ("most power", most if most != gpu.power_limit_watts else None, watts(most)),
        ("energy", joules, f"{(joules or 0.0) / 3.6e6:.1f} kWh"),
    ]  # fmt: skip
    return [Fact(label, text, style) for label, value, text in known if value is not None]


def _run(row: GpuRow, page: GpuPage | None, now: float) -> Fact:
    gpu = row.gpu
    if gpu.run_id is None:
        others = len(gpu.processes or ())
        words = "no list of processes" if gpu.processes is None else f"{others} process{'' if others == 1 else 'es'}"
        return Fact("run", f"none of ours; {words}", "dim")
    text = clean(gpu.run_id) + (f" rank {gpu.rank}" if gpu.rank is not None else "")
    if page is not None and page.leased_since is not None:
        held = max(0.0, now - page.leased_since)
        text += f", for {duration(held if held < 120 else held // 60 * 60)}"
    rank = row.rank
    if rank is not None:
        if rank.step is not None:
            text += f", step {count(rank.step)}"
        if rank.step_seconds:
            text += f", {short_number(1 / rank.step_seconds)} step/s"
        if rank.waiting_fraction is not None:
            text += f", {percent(min(1.0, rank.waiting_fraction) * 100)} of it waiting for data"
        if rank.is_slow and rank.slowdown is not None:
            return Fact("run", f"{text}; slow: {rank.slowdown:.1f} times the median step", "warn")
    return Fact("run", text, "accent")


def _links(gpu: GpuView) -> list[Fact]:
    link = pcie_link(gpu)
    most = [gpu.facts.get("pcie_generation_max"), gpu.facts.get("pcie_width_max")]
    best = f" of {most[0]}×{most[1]}" if None not in most else ""
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
    slow = gpu.slow
    if slow.get("ecc_corrected") is None and slow.get("ecc_uncorrected") is None:
        return []
    text = f"{_number(slow.get('ecc_corrected'))} corrected, {_number(slow.get('ecc_uncorrected'))} uncorrected"
    pending, failed = slow.get("row_remap_pending"), slow.get("row_remap_failed")
    remap = "" if pending is None else "a row remap waits for a reset" if pending else "no row remap waits"
    remap = "a row remap failed" if failed else remap
    bad = bool(slow.get("ecc_uncorrected") or failed)
    return [Fact("ECC", text + (f"; {remap}" if remap else ""), "bad" if bad else "warn" if pending else "text")]


def _identity(gpu: GpuView) -> list[Fact]:
    facts = gpu.facts
    words = [
        f"PCI {clean(str(facts['pci_bus_id']))}" if facts.get("pci_bus_id") else "",
        f"compute {clean(str(facts['compute_capability']))}" if facts.get("compute_capability") else "",
        "" if facts.get("persistence_mode") is None else f"persistence {_switch(facts['persistence_mode'])}",
        "" if facts.get("mig_mode") is None else f"MIG {_switch(facts['mig_mode'])}",
    ]
    reading = {"instant": "at the instant", "driver": "a mean of the driver's"}.get(facts.get("power_reading") or "")
    if reading:
        words.append(f"power is read {reading}")
    return [Fact("is", ", ".join(word for word in words if word), "dim"), Fact("UUID", clean(gpu.uuid), "dim")]


def process_lines(gpu: GpuView, width: int) -> list[Line]:
    """The processes on the GPU, the largest first."""
    lines = [rule("PROCESSES", width)]
    if gpu.processes is None:
        return [*lines, fit_line([("  The driver gives no list of processes.", "dim")], width)]
    if not gpu.processes:
        return [*lines, fit_line([("  None.", "dim")], width)]
    for process in sorted(gpu.processes, key=lambda each: -(each.memory_bytes or 0)):
        lines.append(fit_line(_process(process), width))
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
    """What the driver reported about the GPU by itself, the newest first."""
    lines = [rule("DRIVER EVENTS (XID)", width)]
    if page is None or not page.events:
        return [*lines, fit_line([("  None.", "dim")], width)]
    for event in page.events:
        words = {"xid": f"XID {event.code}", "lost": "lost", "returned": "back"}.get(event.event, event.event)
        style = "text" if event.event == "returned" else "bad"
        text = f" {clean(event.text)}" if event.text else ""
        for number, part in enumerate(wrap(text, max(10, width - 21)) or [""]):
            head = f" {moment(event.at, now)}" if number == 0 else ""
            name = f"{words:<9} " if number == 0 else ""
            lines.append(fit_line([(f"{head:<10}", "dim"), (f"{name:<10}", style), (part, "text")], width))
    return lines


def chart_lines(gpu: GpuView, page: GpuPage, width: int, height: int, *, across: int) -> list[Line]:
    """Utilisation, memory, power and temperature over the page's span, ``across`` beside each other."""
    down = -(-4 // across)
    each_width, each_height = (width - across + 1) // across, max(CHART_LEAST, min(CHART_MOST, height // down))
    history = page.history
    if history is None:
        return [fit_line([(f"  No sample in the last {duration(page.span_seconds)}.", "dim")], width)]
    name, scale = ("min", 60.0) if page.span_seconds <= 3600 else ("h", 3600.0)
    axis = XAxis(name, -page.span_seconds / scale, 0.0, newest=0.0)

    def curve(values: Sequence[float | None], style: str, label: str, area: str = "", shape: str = "") -> Curve:
        return Curve(time_bins(values, page.span_seconds, scale), style, label, area=area, shape=shape)

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
        ([curve(busy, "series.0", "utilisation %", "area.0")], percents),
        ([curve(full, "series.1", "memory %")], percents),
        ([curve(watts_now, "series.2", f"power {unit}", "area.2")], from_zero),
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


def _plain(spans: Sequence[Span]) -> str:
    return "".join(text for text, _ in spans)


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0f}"


def _switch(value: object) -> str:
    return "on" if value else "off"
