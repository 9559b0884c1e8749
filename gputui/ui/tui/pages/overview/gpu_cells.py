"""The columns of the GPU table: the cell of each for one GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from msgspec.structs import replace

from gputui.core.units import UNKNOWN, gibibytes, percent, rate
from gputui.metrics.draw.glyphs import SPARK
from gputui.metrics.draw.parts import Span
from gputui.store.hardware import GpuView
from gputui.store.series import GpuSlowSample
from gputui.ui.tui.layout.columns import Column, bar_spans, line_width
from gputui.ui.tui.layout.gpu_words import (
    WAITING_FRACTION,
    GpuRow,
    fault_spans,
    health_spans,
    pcie_spans,
    throttle_spans,
    traffic_spans,
    user_spans,
)
from gputui.ui.tui.layout.sparklines import spark
from gputui.ui.views.words import is_hot

FULL_PERCENT = 95.0
"""Memory that is used more is marked: the next allocation may fail."""


WIDE = 150
"""From this width on, headings are whole words."""


LOAD_STEPS = {"load": (10.0, 75.0), "memory": (10.0, 80.0)}
"""Percent from which a GPU, or its memory, counts as used, and as full: as nvitop has them."""

WHO_LEAST = 18
WHO_MOST = 60
"""Cells of the column that says whose a GPU is."""


def load_style(kind: str, load: float) -> str:
    """The style of a ``load`` in percent: one of three steps, or a warning of full memory."""
    if kind == "memory" and load > FULL_PERCENT:
        return "warn"
    return f"{kind}.{sum(load >= step for step in LOAD_STEPS[kind])}"


def _dash(width: int) -> list[Span]:
    return [(f"{UNKNOWN:>{width}}", "dim")]


def _number(
    head: str,
    width: int,
    importance: int,
    value: Callable[[GpuView], float | None],
    write: Callable[[float], str],
    style: str = "text",
) -> Column[GpuRow]:
    """A column of numbers, with a dash for an unknown one.

    It is left out if no GPU has any: GeForce cards have no memory temperature, few machines have NVLink. So a dash in
    one row means that only this GPU lacks the value.

    Args:
        head, width, importance: those of the column.
        value: the number of a GPU; None if unknown.
        write: the number as text.
    """

    def cell(row: GpuRow, room: int) -> list[Span]:
        number = value(row.gpu)
        if number is None:
            return _dash(room)
        return [(write(number), style)]

    return Column(head, width, cell, ">", importance, gap=1, value=lambda row: value(row.gpu))


def _utilization(row: GpuRow, width: int) -> list[Span]:
    value = row.gpu.utilization_percent
    if value is None:
        return _dash(4)
    style = load_style("load", value)
    text: list[Span] = [(f"{value:3.0f}%", style)]
    if width < 8:
        return text
    return [*text, (" ", "text"), *bar_spans(value / 100, width - 5, style)]


def _memory(row: GpuRow, width: int) -> list[Span]:
    used = row.gpu.memory_used_bytes
    total = row.gpu.memory_total_bytes
    if used is None:
        return _dash(3)
    if not total:
        return [(f"{gigabytes(used):>3}G", "text")]
    style = load_style("memory", 100 * used / total)
    text: list[Span] = [(f"{gigabytes(used):>3}", style), (f"/{f'{gigabytes(total)}G':<4} ", "dim")]
    return [*text, *bar_spans(used / total, width - 9, style)]


def gigabytes(count_bytes: float | None) -> str:
    """``0.4`` or ``46``: GiB in three cells."""
    if count_bytes is not None and count_bytes < 9.95 * 2**30:
        return gibibytes(count_bytes, 1)
    return gibibytes(count_bytes, 0)


def _short_memory(row: GpuRow, width: int) -> list[Span]:
    total = row.gpu.memory_total_bytes
    used: Span = (f"{gigabytes(row.gpu.memory_used_bytes):>3}", "text")
    if total is None or width < 7:
        return [used]
    return [used, (f"/{gigabytes(total)}G", "dim")]


def _temperature(row: GpuRow, width: int) -> list[Span]:
    value = row.gpu.temperature_celsius
    if value is None:
        return _dash(width)
    if is_hot(row.gpu):
        return [(f"{f'▲{value:.0f}°':>{width}}", "warn")]
    return [(f"{value:{width - 1}.0f}°", "text")]


def _power(row: GpuRow, width: int) -> list[Span]:
    value = row.gpu.power_watts
    limit = row.gpu.power_limit_watts
    if value is None:
        return _dash(width)
    if limit is None:
        return [(f"{value:.0f}", "text"), (" W", "text")]
    return [(f"{value:.0f}", "text"), (f"/{limit:.0f}W", "dim")]


def _step_rate(row: GpuRow, width: int) -> list[Span]:
    seconds = _step_seconds(row)
    if seconds:
        return [(rate(1 / seconds), "text")]
    return []


def _wait(row: GpuRow, width: int) -> list[Span]:
    share = _waiting(row)
    if share is None:
        return []
    style = "warn" if share >= WAITING_FRACTION else "text"
    return [(percent(min(share, 1.0) * 100), style)]


def _history(row: GpuRow, width: int) -> list[Span]:
    levels = spark(row.utilizations, width, 0.0, 100.0)
    steps = groupby(levels, lambda level: load_style("load", 100 * SPARK.find(level) / len(SPARK)))
    return [("".join(level), style) for style, level in steps]


def _link(
    head: str, traffic: Callable[[GpuSlowSample], tuple[float | None, float | None]], importance: int
) -> Column[GpuRow]:
    """The traffic over a link, of which ``traffic`` gives the bytes per second that are received and sent."""
    return Column(
        head, 13, lambda row, _: traffic_spans(*traffic(row.gpu.slow)), importance=importance,
        value=lambda row: traffic(row.gpu.slow)[0],
    )  # fmt: skip


def _step_seconds(row: GpuRow) -> float | None:
    if row.rank:
        return row.rank.step_seconds
    return None


def _waiting(row: GpuRow) -> float | None:
    if row.rank:
        return row.rank.waiting_fraction
    return None


_INDEX: Column[GpuRow] = Column("#", 2, lambda row, width: [(f"{row.gpu.index:>{width}}", "text")], ">")


def columns(rows: Sequence[GpuRow], width: int) -> list[Column[GpuRow]]:
    """The columns of rows of so many cells. The least important ones have the highest numbers, and whose a GPU is comes
    before all of them; the bars of utilisation and memory have the same length, so that they can be compared."""
    bar = min(18, max(4, 6 + (width - 80) // 5))
    waiting: Column[GpuRow] = Column("DATA", 4, _wait, ">", importance=2, gap=1, value=_waiting)
    if width >= WIDE:
        waiting = replace(waiting, head="DATA WAIT", width=9)
    longest = max((line_width(user_spans(row, WHO_MOST)) for row in rows), default=0)
    name = max(WHO_LEAST, min(longest, WHO_LEAST + (width - 80) // 2))
    return [
        _INDEX,
        Column("UTIL", 5 + bar, _utilization),
        Column("MEMORY", 9 + bar, _memory),
        _number("RSVD", 4, 14, value=lambda gpu: gpu.memory_reserved_bytes, write=gibibytes, style="dim"),
        _number("MEM BW", 6, 7, lambda gpu: gpu.memory_utilization_percent, "{:.0f}%".format),
        Column("TEMP", 4, _temperature, ">", gap=1),
        _number("LIMIT", 5, 13, value=lambda gpu: gpu.facts.temperature_slowdown_celsius,
                write="{:.0f}°".format, style="dim"),
        _number("MEM TEMP", 8, 9, lambda gpu: gpu.slow.memory_temperature_celsius, "{:.0f}°".format),
        Column("POWER", 8, _power, ">", gap=1),
        Column("RUN / USER", name, user_spans, grow=3, most=WHO_MOST),
        Column("STEP/S", 6, _step_rate, ">", importance=1, value=_step_seconds),
        waiting,
        Column("LAST 10 MIN", 12, _history, importance=3),
        replace(_number("CLOCK", 8, 5, lambda gpu: gpu.sm_clock_mhz, "{} MHz".format), gap=2),
        replace(_number("P", 3, 12, value=lambda gpu: gpu.performance_state, write="P{}".format, style="dim"),
                align="<"),
        Column(
            "THROTTLED BY", 16, throttle_spans, importance=4, grow=1, most=30,
            value=lambda row: row.gpu.throttle_reasons or None,
        ),
        Column("HEALTH", 13, health_spans, importance=6, value=fault_spans),
        _link("PCIE", lambda slow: (slow.pcie_received_bytes_per_second, slow.pcie_sent_bytes_per_second), 8),
        Column("LINK", 6, lambda row, _: pcie_spans(row.gpu), importance=15, gap=1,
               value=lambda row: row.gpu.slow.pcie_width),
        _link("NVLINK", lambda slow: (slow.nvlink_received_bytes_per_second, slow.nvlink_sent_bytes_per_second), 10),
    ]  # fmt: skip


SHORT_COLUMNS: tuple[Column[GpuRow], ...] = (
    _INDEX,
    Column("UTIL", 4, _utilization, ">", gap=1, grow=1, most=17),
    Column("MEM", 3, _short_memory, ">", gap=1, grow=1, most=7),
    Column("TEMP", 4, _temperature, ">", importance=1, gap=1),
    _number("POWER", 6, 3, lambda gpu: gpu.power_watts, "{:.0f} W".format),
    Column("RUN/USER", 9, user_spans, gap=1, grow=4, most=30),
    Column("STEP/S", 6, _step_rate, ">", importance=2, gap=1, value=_step_seconds),
    Column("DATA", 4, _wait, ">", importance=4, gap=1, value=_waiting),
    Column("LAST 10 MIN", 12, _history, importance=5, gap=1),
)
"""Short rows, for narrow screens and for two columns of GPUs side by side."""
