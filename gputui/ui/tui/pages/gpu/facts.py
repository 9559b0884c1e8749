"""The facts of a GPU as names, texts and gauges. Values that the driver does not give are left out or shown as "–"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gputui.core.text import clean
from gputui.core.units import UNKNOWN, celsius, count, duration, gibibytes, percent, short_number, watts
from gputui.metrics.draw.raster import Span
from gputui.store.attempts import JOULES_PER_KWH
from gputui.store.hardware import GpuView
from gputui.ui.tui.data.snapshot import GpuPage, RankRow
from gputui.ui.tui.layout.gpu_words import GpuRow, health, held_back, lost, pcie_link, traffic
from gputui.ui.tui.layout.words import dated_clock, is_hot


class Fact(NamedTuple):
    """A named value, and its style."""

    label: str
    text: str
    style: str = "text"


class Gauge(NamedTuple):
    """A value with a limit. ``fraction`` of the bar is full, None if the value or the limit is unknown; ``text`` names
    the limit."""

    label: str
    fraction: float | None
    text: str
    style: str


def state_facts(row: GpuRow, page: GpuPage | None, now: float) -> list[Fact]:
    """Whether the GPU works, its run, and what limits it."""
    facts = []
    if row.gpu.state == "lost":
        facts.append(Fact("state", f"{_plain(lost(row, now))}; its last values are below", "bad"))
    if row.quarantined is not None:
        facts.append(_quarantine(row, now))
    held, condition = held_back(row), health(row)
    return [
        *facts,
        _run(row, page, now),
        Fact("throttled by", _plain(held) or "nothing", held[0][1] if held else "dim"),
        Fact("health", _plain(condition), condition[0][1]),
    ]


def gauges(gpu: GpuView) -> list[Gauge]:
    """Utilisation, memory, temperature and power against their limits."""
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    slowdown = gpu.facts.get("temperature_slowdown_celsius")
    heat = celsius(gpu.temperature_celsius) + ("" if slowdown is None else f", throttles at {celsius(slowdown)}")
    power = f"{watts(gpu.power_watts)} of {watts(gpu.power_limit_watts)}"
    whose = ", shared with the host" if gpu.facts.get("memory_is_unified") else ""
    return [
        Gauge("utilisation", _share(gpu.utilization_percent, 100.0), percent(gpu.utilization_percent), "bar"),
        Gauge("memory", _share(used, total), f"{gibibytes(used)} of {gibibytes(total)} GiB{whose}", "bar2"),
        Gauge("temperature", _share(gpu.temperature_celsius, slowdown), heat, "warn" if is_hot(gpu) else "bar"),
        Gauge("power", _share(gpu.power_watts, gpu.power_limit_watts), power, "bar"),
    ]


def values(gpu: GpuView) -> list[Fact]:
    """The known values; dim if they are not current."""
    facts, slow = gpu.facts, gpu.slow
    known = [
        ("free", _in_unit(_free_bytes(gpu), 2**30, "GiB", decimals=1)),
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
        ("default power", _other_limit(gpu, "power_limit_default_watts")),
        ("most power", _other_limit(gpu, "power_limit_max_watts")),
        ("energy", _in_unit(slow.get("energy_joules"), JOULES_PER_KWH, "kWh", decimals=1)),
    ]
    style = "dim" if gpu.state in ("lost", "stale") else "text"
    return [*(Fact(label, text, style) for label, text in known if text != UNKNOWN), *_links(gpu)]


def hardware_facts(gpu: GpuView) -> list[Fact]:
    """The GPU's memory errors, if the driver counts them, and its identity."""
    return [*_memory_errors(gpu), *_identity(gpu)]


def _quarantine(row: GpuRow, now: float) -> Fact:
    failed = row.quarantined
    assert failed is not None
    where = f" under {failed.run_id}, attempt {failed.attempt}" if failed.run_id else ""
    since = f"since {dated_clock(failed.since, now)}{where}: {failed.reason}"
    remedy = f"No run gets it before C here or `gputui gpus --clear {row.gpu.index}` clears it."
    return Fact("quarantine", clean(f"{since}. {remedy}"), "warn")


def _run(row: GpuRow, page: GpuPage | None, now: float) -> Fact:
    gpu = row.gpu
    if gpu.run_id is None:
        count = None if gpu.processes is None else len(gpu.processes)
        words = "no list of processes" if count is None else f"{count} process{'' if count == 1 else 'es'}"
        return Fact("run", f"none of ours; {words}", "dim")
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
        text += f", {short_number(1 / rank.step_seconds)} step/s"
    if rank.waiting_fraction is not None:
        text += f", {percent(min(1.0, rank.waiting_fraction) * 100)} of it waiting for data"
    return text


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
    words = [
        f"PCI {clean(str(facts['pci_bus_id']))}" if facts.get("pci_bus_id") else "",
        f"compute {clean(str(facts['compute_capability']))}" if facts.get("compute_capability") else "",
        _switch("persistence", facts.get("persistence_mode")),
        _switch("MIG", facts.get("mig_mode")),
    ]
    reading = {"instant": "instantaneous power", "driver": "power averaged by the driver"}.get(
        facts.get("power_reading") or ""
    )
    if reading:
        words.append(reading)
    return [Fact("device", ", ".join(word for word in words if word), "dim"), Fact("UUID", clean(gpu.uuid), "dim")]


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _free_bytes(gpu: GpuView) -> int | None:
    total, used, reserved = gpu.memory_total_bytes, gpu.memory_used_bytes, gpu.memory_reserved_bytes
    if total is None or used is None:
        return None
    # A driver that does not report reserved memory counts it as used.
    return max(0, total - used if reserved is None else total - used - reserved)


def _other_limit(gpu: GpuView, name: str) -> str:
    """A power limit, unless it is the current one, which the gauge shows."""
    limit = gpu.facts.get(name)
    return UNKNOWN if limit == gpu.power_limit_watts else watts(limit)


def _in_unit(value: float | None, size: float, unit: str, decimals: int = 0) -> str:
    return UNKNOWN if value is None else f"{value / size:.{decimals}f} {unit}"


def _switch(name: str, value: object) -> str:
    return "" if value is None else f"{name} {'on' if value else 'off'}"


def _plain(spans: Sequence[Span]) -> str:
    return "".join(text for text, _ in spans)
