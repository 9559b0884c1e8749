"""What each column of the GPU table says about a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from gputui.charts.bars import bar
from gputui.charts.raster import Span
from gputui.charts.units import UNKNOWN, bytes_text, gibibytes, percent, short_number
from gputui.tui.layout.columns import Column
from gputui.tui.layout.gpu_words import GpuRow, health, held_back, owner, pcie_link, traffic, who
from gputui.tui.layout.sparklines import spark
from gputui.tui.layout.words import is_hot

WIDE = 150
"""From this width on the bars are longer."""

WAITING_FRACTION = 0.2
"""A rank that waits longer than this share of its step for data is pointed out."""


def _dash(width: int) -> list[Span]:
    return [(f"{UNKNOWN:>{width}}", "dim")]


def _index(row: GpuRow, width: int) -> list[Span]:
    return [(f"{row.gpu.index:>{width}}", "text")]


def _utilization(row: GpuRow, width: int) -> list[Span]:
    value = row.gpu.utilization_percent
    if value is None:
        return _dash(3)
    return [(f"{value:3.0f} ", "text"), (bar(value / 100, width - 4), "bar")]


def _memory(row: GpuRow, width: int) -> list[Span]:
    used, total = row.gpu.memory_used_bytes, row.gpu.memory_total_bytes
    text = f"{gibibytes(used):>5} "
    if used is None or not total:
        return [(text, "text" if used is not None else "dim")]
    return [(text, "text"), (bar(used / total, width - 6), "bar2")]


def _short_memory(row: GpuRow, width: int) -> list[Span]:
    return [(gibibytes(row.gpu.memory_used_bytes), "text")]


def _reserved(row: GpuRow, width: int) -> list[Span]:
    value = row.gpu.memory_reserved_bytes
    return _dash(width) if value is None else [(gibibytes(value), "dim")]


def _memory_load(row: GpuRow, width: int) -> list[Span]:
    value = row.gpu.memory_utilization_percent
    return _dash(width) if value is None else [(f"{value:.0f}", "text")]


def _temperature(row: GpuRow, width: int) -> list[Span]:
    value = row.gpu.temperature_celsius
    if value is None:
        return _dash(width)
    if is_hot(row.gpu):
        return [(f"{f'▲{value:.0f}':>{width}}", "warn")]
    return [(f"{value:{width}.0f}", "text")]


def _temperature_limit(row: GpuRow, width: int) -> list[Span]:
    value = row.gpu.facts.get("temperature_slowdown_celsius")
    return _dash(width) if value is None else [(f"{value:.0f}", "dim")]


def _memory_temperature(row: GpuRow, width: int) -> list[Span]:
    value = row.gpu.slow.get("memory_temperature_celsius")
    return _dash(width) if value is None else [(f"{value:.0f}", "text")]


def _power(row: GpuRow, width: int) -> list[Span]:
    value = row.gpu.power_watts
    return _dash(width) if value is None else [(f"{value:{width - 2}.0f} W", "text")]


def _power_cap(row: GpuRow, width: int) -> list[Span]:
    value = row.gpu.power_limit_watts
    return _dash(width) if value is None else [(f"{value:.0f}", "dim")]


def _step_rate(row: GpuRow, width: int) -> list[Span]:
    seconds = row.rank.step_seconds if row.rank else None
    return [(short_number(1 / seconds), "text")] if seconds else []


def _wait(row: GpuRow, width: int) -> list[Span]:
    share = row.rank.waiting_fraction if row.rank else None
    if share is None:
        return []
    return [(percent(min(share, 1.0) * 100), "warn" if share >= WAITING_FRACTION else "text")]


def _history(row: GpuRow, width: int) -> list[Span]:
    return [(spark(row.utilizations, width, 0.0, 100.0), "bar")]


def _clock(row: GpuRow, width: int) -> list[Span]:
    value = row.gpu.sm_clock_mhz
    return _dash(width) if value is None else [(f"{value:>{width}}", "text")]


def _performance_state(row: GpuRow, width: int) -> list[Span]:
    value = row.gpu.performance_state
    return _dash(width) if value is None else [(f"P{value}", "dim")]


def _pcie_link(row: GpuRow, width: int) -> list[Span]:
    return pcie_link(row.gpu)


def _pcie(row: GpuRow, width: int) -> list[Span]:
    return traffic(row.gpu, "pcie")


def _nvlink(row: GpuRow, width: int) -> list[Span]:
    return traffic(row.gpu, "nvlink")


def _processes(row: GpuRow, width: int) -> list[Span]:
    held = sorted(row.gpu.processes or (), key=lambda process: -(process.memory_bytes or 0))
    words = [f"{process.pid} {owner(process)} {bytes_text(process.memory_bytes)}" for process in held]
    return [(" · ".join(words), "dim")]


COLUMNS: tuple[Column[GpuRow], ...] = (
    Column("#", 2, _index, ">"),
    Column("util", 10, _utilization, grow=1, most=20),
    Column("memory GiB", 12, _memory, grow=1, most=22),
    Column("rsvd", 4, _reserved, ">", importance=14, gap=1),
    Column("ctl", 3, _memory_load, ">", importance=6, gap=1),
    Column("°C", 4, _temperature, ">", gap=1),
    Column("slows at", 8, _temperature_limit, ">", importance=13, gap=1),
    Column("mem °C", 6, _memory_temperature, ">", importance=9, gap=1),
    Column("power", 6, _power, ">"),
    Column("cap", 4, _power_cap, ">", importance=11, gap=1),
    Column("who", 14, who, grow=3, most=28),
    Column("step/s", 6, _step_rate, ">", importance=1),
    Column("wait", 4, _wait, ">", importance=2, gap=1),
    Column("last 10 min", 12, _history, importance=3),
    Column("MHz", 4, _clock, ">", importance=4),
    Column("P", 3, _performance_state, importance=12, gap=1),
    Column("held back by", 16, held_back, importance=5, grow=1, most=30),
    Column("health", 13, health, importance=7),
    Column("PCIe", 13, _pcie, importance=8),
    Column("link", 6, _pcie_link, importance=15, gap=1),
    Column("NVLink", 13, _nvlink, importance=10),
    Column("processes", 24, _processes, importance=16, grow=4),
)
"""The table below each other. What matters least has the highest importance."""

WIDE_COLUMNS = tuple(
    replace(column, width={"util": 18, "memory GiB": 20}.get(column.head, column.width)) for column in COLUMNS
)

SHORT_COLUMNS: tuple[Column[GpuRow], ...] = (
    Column("#", 2, _index, ">", gap=1),
    Column("util", 8, _utilization, gap=1, grow=1, most=16),
    Column("GiB", 5, _short_memory, ">", gap=1),
    Column("°C", 3, _temperature, ">", gap=1),
    Column("power", 6, _power, ">", importance=2, gap=1),
    Column("who", 12, who, grow=1, most=28),
    Column("step/s", 6, _step_rate, ">", importance=1, gap=1),
    Column("wait", 4, _wait, ">", importance=3, gap=1),
    Column("last 10 min", 12, _history, importance=4, gap=1),
)
"""The rows of two columns side by side."""

NEEDED: Mapping[str, Callable[[GpuRow], bool]] = {
    "rsvd": lambda row: row.gpu.memory_reserved_bytes is not None,
    "ctl": lambda row: row.gpu.memory_utilization_percent is not None,
    "slows at": lambda row: row.gpu.facts.get("temperature_slowdown_celsius") is not None,
    "mem °C": lambda row: row.gpu.slow.get("memory_temperature_celsius") is not None,
    "cap": lambda row: row.gpu.power_limit_watts is not None,
    "NVLink": lambda row: row.gpu.slow.get("nvlink_received_bytes_per_second") is not None,
    "PCIe": lambda row: row.gpu.slow.get("pcie_received_bytes_per_second") is not None,
    "link": lambda row: row.gpu.slow.get("pcie_width") is not None,
}
"""Columns that are left out where no GPU has what they show: GeForce cards have no memory temperature, few machines
have NVLink. A dash in one row says that this GPU alone lacks it."""
