"""The columns of the GPU table: the cell of each for one GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gputui.core.units import UNKNOWN, gibibytes, percent, rate
from gputui.metrics.draw.raster import Span
from gputui.store.hardware import GpuView
from gputui.ui.tui.layout.columns import Column, bar_spans
from gputui.ui.tui.layout.gpu_words import GpuRow, health, held_back, pcie_link, traffic, who
from gputui.ui.tui.layout.sparklines import spark
from gputui.ui.tui.layout.words import is_hot

FULL_FRACTION = 0.95
"""A larger share of memory in use is marked: the next allocation may fail."""

WAITING_FRACTION = 0.2
"""A rank that waits longer than this share of its step for data is marked."""

WIDE = 150
"""From this width on, headings are whole words."""

OPTIONAL: Mapping[str, Callable[[GpuView], float | None]] = {
    "RSVD": lambda gpu: gpu.memory_reserved_bytes,
    "MEM BW": lambda gpu: gpu.memory_utilization_percent,
    "LIMIT": lambda gpu: gpu.facts.get("temperature_slowdown_celsius"),
    "MEM TEMP": lambda gpu: gpu.slow.get("memory_temperature_celsius"),
    "NVLINK": lambda gpu: gpu.slow.get("nvlink_received_bytes_per_second"),
    "PCIE": lambda gpu: gpu.slow.get("pcie_received_bytes_per_second"),
    "LINK": lambda gpu: gpu.slow.get("pcie_width"),
}
"""Columns that are left out if no GPU has their value: GeForce cards have no memory temperature, few machines have
NVLink. So a dash in one row means that only this GPU lacks it."""


def _dash(width: int) -> list[Span]:
    return [(f"{UNKNOWN:>{width}}", "dim")]


def _number(
    value: Callable[[GpuView], float | None], write: Callable[[float], str], style: str = "text"
) -> Callable[[GpuRow, int], list[Span]]:
    """A cell of one number; a dash if it is unknown."""

    def cell(row: GpuRow, width: int) -> list[Span]:
        number = value(row.gpu)
        return _dash(width) if number is None else [(write(number), style)]

    return cell


def _utilization(row: GpuRow, width: int) -> list[Span]:
    value = row.gpu.utilization_percent
    if value is None:
        return _dash(4)
    text: list[Span] = [(f"{value:3.0f}%", "text")]
    return text if width < 8 else [*text, (" ", "text"), *bar_spans(value / 100, width - 5, "bar")]


def _memory(row: GpuRow, width: int) -> list[Span]:
    used, total = row.gpu.memory_used_bytes, row.gpu.memory_total_bytes
    if used is None or not total:
        return _dash(3) if used is None else [(f"{_gigabytes(used):>3}G", "text")]
    is_full = used / total > FULL_FRACTION
    text: list[Span] = [
        (f"{_gigabytes(used):>3}", "warn" if is_full else "text"),
        (f"/{f'{_gigabytes(total)}G':<4} ", "dim"),
    ]
    return [*text, *bar_spans(used / total, width - 9, "warn" if is_full else "bar2")]


def _gigabytes(count_bytes: float | None) -> str:
    """``0.4`` or ``46``: GiB in three cells."""
    return gibibytes(count_bytes, 1 if count_bytes is not None and count_bytes < 9.95 * 2**30 else 0)


def _short_memory(row: GpuRow, width: int) -> list[Span]:
    total = row.gpu.memory_total_bytes
    of_total: list[Span] = [(f"/{_gigabytes(total)}G", "dim")] if total is not None and width >= 7 else []
    return [(f"{_gigabytes(row.gpu.memory_used_bytes):>3}", "text"), *of_total]


def _temperature(row: GpuRow, width: int) -> list[Span]:
    value = row.gpu.temperature_celsius
    if value is None:
        return _dash(width)
    if is_hot(row.gpu):
        return [(f"{f'▲{value:.0f}°':>{width}}", "warn")]
    return [(f"{value:{width - 1}.0f}°", "text")]


def _power(row: GpuRow, width: int) -> list[Span]:
    value, limit = row.gpu.power_watts, row.gpu.power_limit_watts
    if value is None:
        return _dash(width)
    return [(f"{value:.0f}", "text"), (" W" if limit is None else f"/{limit:.0f}W", "text" if limit is None else "dim")]


def _step_rate(row: GpuRow, width: int) -> list[Span]:
    seconds = row.rank.step_seconds if row.rank else None
    return [(rate(1 / seconds), "text")] if seconds else []


def _wait(row: GpuRow, width: int) -> list[Span]:
    share = row.rank.waiting_fraction if row.rank else None
    if share is None:
        return []
    return [(percent(min(share, 1.0) * 100), "warn" if share >= WAITING_FRACTION else "text")]


def _history(row: GpuRow, width: int) -> list[Span]:
    return [(spark(row.utilizations, width, 0.0, 100.0), "history")]


_INDEX: Column[GpuRow] = Column("#", 2, lambda row, width: [(f"{row.gpu.index:>{width}}", "text")], ">")


def columns(gpus: Sequence[GpuView], width: int) -> list[Column[GpuRow]]:
    """The columns of a row of so many cells, without those of `OPTIONAL` that no GPU has. The least important ones have
    the highest numbers; the bars of utilisation and memory have the same length, so that they can be compared."""
    bar = min(18, max(4, 6 + (width - 80) // 5))
    listed = [
        _INDEX,
        Column("UTIL", 5 + bar, _utilization),
        Column("MEMORY", 9 + bar, _memory),
        Column("RSVD", 4, _number(OPTIONAL["RSVD"], gibibytes, "dim"), ">", importance=14, gap=1),
        Column("MEM BW", 6, _number(OPTIONAL["MEM BW"], "{:.0f}%".format), ">", importance=7, gap=1),
        Column("TEMP", 4, _temperature, ">", gap=1),
        Column("LIMIT", 5, _number(OPTIONAL["LIMIT"], "{:.0f}°".format, "dim"), ">", importance=13, gap=1),
        Column("MEM TEMP", 8, _number(OPTIONAL["MEM TEMP"], "{:.0f}°".format), ">", importance=9, gap=1),
        Column("POWER", 8, _power, ">", gap=1),
        Column("RUN / USER", 26 if width >= WIDE else 18, who, grow=3, most=40),
        Column("STEP/S", 6, _step_rate, ">", importance=1),
        Column("DATA WAIT" if width >= WIDE else "DATA", 9 if width >= WIDE else 4, _wait, ">", importance=2, gap=1),
        Column("LAST 10 MIN", 12, _history, importance=3),
        Column("CLOCK", 8, _number(lambda gpu: gpu.sm_clock_mhz, "{} MHz".format), ">", importance=5),
        Column("P", 3, _number(lambda gpu: gpu.performance_state, "P{}".format, "dim"), importance=12, gap=1),
        Column("THROTTLED BY", 16, held_back, importance=4, grow=1, most=30),
        Column("HEALTH", 13, health, importance=6),
        Column("PCIE", 13, lambda row, _: traffic(row.gpu, "pcie"), importance=8),
        Column("LINK", 6, lambda row, _: pcie_link(row.gpu), importance=15, gap=1),
        Column("NVLINK", 13, lambda row, _: traffic(row.gpu, "nvlink"), importance=10),
    ]
    return [
        column
        for column in listed
        if column.head not in OPTIONAL or any(OPTIONAL[column.head](gpu) is not None for gpu in gpus)
    ]


SHORT_COLUMNS: tuple[Column[GpuRow], ...] = (
    _INDEX,
    Column("UTIL", 4, _utilization, ">", gap=1, grow=1, most=17),
    Column("MEM", 3, _short_memory, ">", gap=1, grow=1, most=7),
    Column("TEMP", 4, _temperature, ">", importance=1, gap=1),
    Column("POWER", 6, _number(lambda gpu: gpu.power_watts, "{:.0f} W".format), ">", importance=3, gap=1),
    Column("RUN / USER", 9, who, gap=1, grow=4, most=30),
    Column("STEP/S", 6, _step_rate, ">", importance=2, gap=1),
    Column("DATA", 4, _wait, ">", importance=4, gap=1),
    Column("LAST 10 MIN", 12, _history, importance=5, gap=1),
)
"""Short rows, for narrow screens and for two columns of GPUs side by side."""
