"""The columns of the GPU table: the cell of each for one GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from gputui.core.units import UNKNOWN, bytes_text, gibibytes, percent, rate
from gputui.metrics.draw.raster import Span
from gputui.store.hardware import GpuView
from gputui.ui.tui.layout.columns import Column, Placed, bar_spans
from gputui.ui.tui.layout.gpu_words import GpuRow, health, held_back, owner, pcie_link, traffic, who
from gputui.ui.tui.layout.sparklines import spark
from gputui.ui.tui.layout.words import is_hot

WIDE = 150
"""From this width on the bars are longer."""

FULL_FRACTION = 0.95
"""A larger share of memory in use is marked: the next allocation may fail."""

WAITING_FRACTION = 0.2
"""A rank that waits longer than this share of its step for data is marked."""

_BARS = {"UTIL": 5, "MEMORY": 9}
"""Columns with a bar, and the cells before it."""

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
    return [(f"{value:3.0f}% ", "text"), *bar_spans(value / 100, width - 5, "bar")]


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
    of_total: list[Span] = [] if total is None else [(f"/{_gigabytes(total)}G", "dim")]
    return [(_gigabytes(row.gpu.memory_used_bytes), "text"), *of_total]


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
    return [(spark(row.utilizations, width, 0.0, 100.0), "bar")]


def _processes(row: GpuRow, width: int) -> list[Span]:
    held = sorted(row.gpu.processes or (), key=lambda process: -(process.memory_bytes or 0))
    words = [f"{process.pid} {owner(process)} {bytes_text(process.memory_bytes)}" for process in held]
    return [(" · ".join(words), "dim")]


_INDEX: Column[GpuRow] = Column("#", 2, lambda row, width: [(f"{row.gpu.index:>{width}}", "text")], ">")

COLUMNS: tuple[Column[GpuRow], ...] = (
    _INDEX,
    Column("UTIL", 11, _utilization, grow=1, most=23),
    Column("MEMORY", 15, _memory, grow=1, most=27),
    Column("RSVD", 4, _number(OPTIONAL["RSVD"], gibibytes, "dim"), ">", importance=14, gap=1),
    Column("MEM BW", 6, _number(OPTIONAL["MEM BW"], "{:.0f}%".format), ">", importance=7, gap=1),
    Column("TEMP", 4, _temperature, ">", gap=1),
    Column("LIMIT", 5, _number(OPTIONAL["LIMIT"], "{:.0f}".format, "dim"), ">", importance=13, gap=1),
    Column("MEM TEMP", 8, _number(OPTIONAL["MEM TEMP"], "{:.0f}".format), ">", importance=9, gap=1),
    Column("POWER", 8, _power, ">", gap=1),
    Column("RUN / USER", 18, who, grow=3, most=30),
    Column("STEP/S", 6, _step_rate, ">", importance=1),
    Column("DATA", 4, _wait, ">", importance=2, gap=1),
    Column("LAST 10 MIN", 12, _history, importance=3),
    Column("CLOCK", 8, _number(lambda gpu: gpu.sm_clock_mhz, "{} MHz".format), ">", importance=5),
    Column("P", 3, _number(lambda gpu: gpu.performance_state, "P{}".format, "dim"), importance=12, gap=1),
    Column("THROTTLED BY", 16, held_back, importance=4, grow=1, most=30),
    Column("HEALTH", 13, health, importance=6),
    Column("PCIE", 13, lambda row, _: traffic(row.gpu, "pcie"), importance=8),
    Column("LINK", 6, lambda row, _: pcie_link(row.gpu), importance=15, gap=1),
    Column("NVLINK", 13, lambda row, _: traffic(row.gpu, "nvlink"), importance=10),
    Column("PROCESSES", 24, _processes, importance=16, grow=4),
)
"""A row per GPU. The least important columns have the highest numbers."""

_WIDER = {"UTIL": ("UTIL", 19), "MEMORY": ("MEMORY", 23), "DATA": ("DATA WAIT", 9)}
WIDE_COLUMNS = tuple(
    replace(column, head=_WIDER[column.head][0], width=_WIDER[column.head][1]) if column.head in _WIDER else column
    for column in COLUMNS
)

SHORT_COLUMNS: tuple[Column[GpuRow], ...] = (
    _INDEX,
    Column("UTIL", 9, _utilization, gap=1, grow=1, most=17),
    Column("MEMORY", 7, _short_memory, ">", gap=1),
    Column("TEMP", 4, _temperature, ">", gap=1),
    Column("POWER", 6, _number(lambda gpu: gpu.power_watts, "{:.0f} W".format), ">", importance=2, gap=1),
    Column("RUN / USER", 12, who, grow=1, most=30),
    Column("STEP/S", 6, _step_rate, ">", importance=1, gap=1),
    Column("DATA", 4, _wait, ">", importance=3, gap=1),
    Column("LAST 10 MIN", 12, _history, importance=4, gap=1),
)
"""Short rows, for two columns of GPUs side by side."""


def with_equal_bars(placed: Placed[GpuRow]) -> Placed[GpuRow]:
    """Give the bars of utilisation and memory the same length, so that they can be compared; the spare cells go to the
    run's column."""
    widths = {column.head: width for column, width in placed}
    bars = {head: widths[head] - text for head, text in _BARS.items() if head in widths}
    shortest = min(bars.values())
    spare = sum(bars.values()) - shortest * len(bars)
    equal = {head: _BARS[head] + shortest for head in bars} | {"RUN / USER": widths["RUN / USER"] + spare}
    return [(column, equal.get(column.head, width)) for column, width in placed]
