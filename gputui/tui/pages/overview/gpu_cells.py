"""What each column of the GPU table says about a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from gputui.charts.bars import bar
from gputui.charts.raster import Span
from gputui.charts.units import UNKNOWN, bytes_text, gibibytes, percent, short_number
from gputui.tui.layout.columns import Column, Placed
from gputui.tui.layout.gpu_words import TRACK, GpuRow, health, held_back, owner, pcie_link, traffic, who
from gputui.tui.layout.sparklines import spark
from gputui.tui.layout.words import is_hot

WIDE = 150
"""From this width on the bars are longer."""

FULL_FRACTION = 0.95
"""Memory above this share is pointed out: the next allocation may fail."""


WAITING_FRACTION = 0.2
"""A rank that waits longer than this share of its step for data is pointed out."""


def _dash(width: int) -> list[Span]:
    return [(f"{UNKNOWN:>{width}}", "dim")]


def _index(row: GpuRow, width: int) -> list[Span]:
    return [(f"{row.gpu.index:>{width}}", "text")]


_BARS = {"UTIL": 5, "MEMORY": 9}
"""Columns with a bar, and the cells before it."""


def _utilization(row: GpuRow, width: int) -> list[Span]:
    value = row.gpu.utilization_percent
    if value is None:
        return _dash(4)
    return [(f"{value:3.0f}% ", "text"), *_tracked(value / 100, width - 5, "bar")]


def _memory(row: GpuRow, width: int) -> list[Span]:
    used, total = row.gpu.memory_used_bytes, row.gpu.memory_total_bytes
    if used is None or not total:
        return _dash(3) if used is None else [(f"{_gigabytes(used):>3}G", "text")]
    is_full = used / total > FULL_FRACTION
    text: list[Span] = [
        (f"{_gigabytes(used):>3}", "warn" if is_full else "text"),
        (f"/{f'{_gigabytes(total)}G':<4} ", "dim"),
    ]
    return [*text, *_tracked(used / total, width - 9, "warn" if is_full else "bar2")]


def _gigabytes(count_bytes: float | None) -> str:
    """``0.4`` or ``46``: GiB in three cells."""
    return gibibytes(count_bytes, 1 if count_bytes is not None and count_bytes < 9.95 * 2**30 else 0)


def _tracked(fraction: float, width: int, style: str) -> list[Span]:
    """A bar on a track that shows how long a full one is."""
    text = bar(fraction, width).rstrip(" ")
    return [(text, style), (TRACK * (width - len(text)), "track")]


def _short_memory(row: GpuRow, width: int) -> list[Span]:
    total = row.gpu.memory_total_bytes
    of_total: list[Span] = [] if total is None else [(f"/{_gigabytes(total)}G", "dim")]
    return [(_gigabytes(row.gpu.memory_used_bytes), "text"), *of_total]


def _reserved(row: GpuRow, width: int) -> list[Span]:
    value = row.gpu.memory_reserved_bytes
    return _dash(width) if value is None else [(gibibytes(value), "dim")]


def _memory_load(row: GpuRow, width: int) -> list[Span]:
    value = row.gpu.memory_utilization_percent
    return _dash(width) if value is None else [(f"{value:.0f}%", "text")]


def _temperature(row: GpuRow, width: int) -> list[Span]:
    value = row.gpu.temperature_celsius
    if value is None:
        return _dash(width)
    if is_hot(row.gpu):
        return [(f"{f'▲{value:.0f}°':>{width}}", "warn")]
    return [(f"{value:{width - 1}.0f}°", "text")]


def _temperature_limit(row: GpuRow, width: int) -> list[Span]:
    value = row.gpu.facts.get("temperature_slowdown_celsius")
    return _dash(width) if value is None else [(f"{value:.0f}", "dim")]


def _memory_temperature(row: GpuRow, width: int) -> list[Span]:
    value = row.gpu.slow.get("memory_temperature_celsius")
    return _dash(width) if value is None else [(f"{value:.0f}", "text")]


def _power(row: GpuRow, width: int) -> list[Span]:
    value, limit = row.gpu.power_watts, row.gpu.power_limit_watts
    if value is None:
        return _dash(width)
    return [(f"{value:.0f}", "text"), (" W" if limit is None else f"/{limit:.0f}W", "text" if limit is None else "dim")]


def _short_power(row: GpuRow, width: int) -> list[Span]:
    value = row.gpu.power_watts
    return _dash(width) if value is None else [(f"{value:.0f} W", "text")]


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
    return _dash(width) if value is None else [(f"{value} MHz", "text")]


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
    Column("UTIL", 11, _utilization, grow=1, most=23),
    Column("MEMORY", 15, _memory, grow=1, most=27),
    Column("RSVD", 4, _reserved, ">", importance=14, gap=1),
    Column("MEM BW", 6, _memory_load, ">", importance=7, gap=1),
    Column("TEMP", 4, _temperature, ">", gap=1),
    Column("LIMIT", 5, _temperature_limit, ">", importance=13, gap=1),
    Column("MEM TEMP", 8, _memory_temperature, ">", importance=9, gap=1),
    Column("POWER", 8, _power, ">", gap=1),
    Column("RUN / USER", 18, who, grow=3, most=30),
    Column("STEP/S", 6, _step_rate, ">", importance=1),
    Column("DATA", 4, _wait, ">", importance=2, gap=1),
    Column("LAST 10 MIN", 12, _history, importance=3),
    Column("CLOCK", 8, _clock, ">", importance=5),
    Column("P", 3, _performance_state, importance=12, gap=1),
    Column("THROTTLED BY", 16, held_back, importance=4, grow=1, most=30),
    Column("HEALTH", 13, health, importance=6),
    Column("PCIE", 13, _pcie, importance=8),
    Column("LINK", 6, _pcie_link, importance=15, gap=1),
    Column("NVLINK", 13, _nvlink, importance=10),
    Column("PROCESSES", 24, _processes, importance=16, grow=4),
)
"""The table below each other. What matters least has the highest importance."""

_WIDER = {"UTIL": ("UTIL", 19), "MEMORY": ("MEMORY", 23), "DATA": ("DATA WAIT", 9)}
WIDE_COLUMNS = tuple(
    replace(column, head=_WIDER[column.head][0], width=_WIDER[column.head][1]) if column.head in _WIDER else column
    for column in COLUMNS
)

SHORT_COLUMNS: tuple[Column[GpuRow], ...] = (
    Column("#", 2, _index, ">", gap=1),
    Column("UTIL", 9, _utilization, gap=1, grow=1, most=17),
    Column("MEMORY", 7, _short_memory, ">", gap=1),
    Column("TEMP", 4, _temperature, ">", gap=1),
    Column("POWER", 6, _short_power, ">", importance=2, gap=1),
    Column("RUN / USER", 12, who, grow=1, most=30),
    Column("STEP/S", 6, _step_rate, ">", importance=1, gap=1),
    Column("DATA", 4, _wait, ">", importance=3, gap=1),
    Column("LAST 10 MIN", 12, _history, importance=4, gap=1),
)
"""The rows of two columns side by side."""


def with_equal_bars(placed: Placed[GpuRow]) -> Placed[GpuRow]:
    """The columns with bars of one length for utilisation and memory, so that they can be compared; what is left over
    goes to whoever is on the GPU."""
    widths = {column.head: width for column, width in placed}
    bars = {head: widths[head] - text for head, text in _BARS.items() if head in widths}
    shortest = min(bars.values())
    spare = sum(bars.values()) - shortest * len(bars)
    equal = {head: _BARS[head] + shortest for head in bars} | {"RUN / USER": widths["RUN / USER"] + spare}
    return [(column, equal.get(column.head, width)) for column, width in placed]


NEEDED: Mapping[str, Callable[[GpuRow], bool]] = {
    "RSVD": lambda row: row.gpu.memory_reserved_bytes is not None,
    "MEM BW": lambda row: row.gpu.memory_utilization_percent is not None,
    "LIMIT": lambda row: row.gpu.facts.get("temperature_slowdown_celsius") is not None,
    "MEM TEMP": lambda row: row.gpu.slow.get("memory_temperature_celsius") is not None,
    "NVLINK": lambda row: row.gpu.slow.get("nvlink_received_bytes_per_second") is not None,
    "PCIE": lambda row: row.gpu.slow.get("pcie_received_bytes_per_second") is not None,
    "LINK": lambda row: row.gpu.slow.get("pcie_width") is not None,
}
"""Columns that are left out where no GPU has what they show: GeForce cards have no memory temperature, few machines
have NVLink. A dash in one row says that this GPU alone lacks it."""
