"""What each column of the GPU table says about a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from gputui.charts.bars import bar, sparkline
from gputui.charts.raster import Span
from gputui.charts.safe_text import clean
from gputui.charts.units import UNKNOWN, byte_rate, bytes_text, gibibytes, percent, short_number
from gputui.store.quarantine import Quarantined
from gputui.store.views import GpuView, ProcessView
from gputui.tui.render.columns import Column
from gputui.tui.render.histories import thinned
from gputui.tui.render.words import clock, is_alarming, is_hot
from gputui.tui.snapshot import RankRow, Snapshot

FREE_BELOW_BYTES = 2**30
"""Less memory in use than this and no process: the GPU is free."""

WIDE = 150
"""From this width on the bars are longer."""

WAITING_FRACTION = 0.2
"""A rank that waits longer than this share of its step for data is pointed out."""


@dataclass(frozen=True, slots=True)
class GpuRow:
    """A GPU with what its rank tells about itself, its last minutes, why it is in quarantine, its XIDs of a day."""

    gpu: GpuView
    rank: RankRow | None = None
    utilizations: tuple[float | None, ...] = ()
    quarantined: Quarantined | None = None
    xids: int = 0


def gpu_row(snapshot: Snapshot, gpu: GpuView) -> GpuRow:
    """The row of a GPU."""
    history = snapshot.gpu_history.get(gpu.uuid)
    rank = None
    if gpu.run_id is not None and gpu.rank is not None:
        for candidate in snapshot.runs:
            if candidate.run.run_id == gpu.run_id:
                rank = candidate.progress.ranks.get(gpu.rank)
    machine = snapshot.machine
    return GpuRow(
        gpu,
        rank,
        history.utilization_percent if history else (),
        machine.quarantined.get(gpu.uuid),
        machine.xids.get(gpu.uuid, 0),
    )


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


def who(row: GpuRow, width: int) -> list[Span]:
    """The run and rank on this GPU, or the strangers, or ``free``."""
    gpu = row.gpu
    if gpu.state == "lost":
        return [("✗ lost", "bad")]
    if gpu.state == "error":
        return [("✗ unreadable", "bad")]
    slow: list[Span] = [(" slow", "warn")] if row.rank is not None and row.rank.is_slow else []
    if gpu.run_id is not None:
        rank = f" r{gpu.rank}" if gpu.rank is not None else ""
        name = clean(gpu.run_name or gpu.run_id)
        room = width - len(rank) - sum(len(text) for text, _ in slow)
        shown = name if len(name) <= room else name[: max(1, room - 1)] + "…"
        return [(shown, "accent"), (rank, "text"), *slow]
    if row.quarantined is not None:
        return [("⊘ quarantine", "warn")]
    is_used = (gpu.memory_used_bytes or 0) >= FREE_BELOW_BYTES
    if gpu.processes is None:
        return [(UNKNOWN, "dim")] if is_used else [("free", "dim")]
    if not gpu.processes:
        return [("no visible process", "warn")] if is_used else [("free", "dim")]
    first = max(gpu.processes, key=lambda process: process.memory_bytes or 0)
    more = f" +{len(gpu.processes) - 1}" if len(gpu.processes) > 1 else ""
    return [(f"{owner(first)} · {program(first)}{more}", "text")]


def owner(process: ProcessView) -> str:
    """Whose process it is, as harmless text."""
    return clean(process.user) if process.user else f"pid {process.pid}"


def program(process: ProcessView) -> str:
    """The program's name without its path, as harmless text."""
    words = clean(process.command or "").split()
    return words[0].rsplit("/", 1)[-1] if words else f"pid {process.pid}"


def _step_rate(row: GpuRow, width: int) -> list[Span]:
    seconds = row.rank.step_seconds if row.rank else None
    return [(short_number(1 / seconds), "text")] if seconds else []


def _wait(row: GpuRow, width: int) -> list[Span]:
    share = row.rank.waiting_fraction if row.rank else None
    if share is None:
        return []
    return [(percent(min(share, 1.0) * 100), "warn" if share >= WAITING_FRACTION else "text")]


def _history(row: GpuRow, width: int) -> list[Span]:
    return [(sparkline(thinned(row.utilizations, width), width, 0.0, 100.0), "bar")]


def _clock(row: GpuRow, width: int) -> list[Span]:
    value = row.gpu.sm_clock_mhz
    return _dash(width) if value is None else [(f"{value:>{width}}", "text")]


def _performance_state(row: GpuRow, width: int) -> list[Span]:
    value = row.gpu.performance_state
    return _dash(width) if value is None else [(f"P{value}", "dim")]


def held_back(row: GpuRow, width: int = 0) -> list[Span]:
    """What keeps the clocks down, in words."""
    reasons = row.gpu.throttle_reasons
    if not reasons:
        return [] if reasons is not None else [(UNKNOWN, "dim")]
    style = "warn" if any(is_alarming(reason) for reason in reasons) else "dim"
    return [(clean(", ".join(reasons)), style)]


def _pcie_link(row: GpuRow, width: int) -> list[Span]:
    return pcie_link(row.gpu)


def pcie_link(gpu: GpuView) -> list[Span]:
    """The PCIe link as ``5×16``: generation and lanes; pointed out where it has fewer lanes than it could. An idle GPU
    lowers the generation to save power, so that says nothing."""
    generation, lanes = gpu.slow.get("pcie_generation"), gpu.slow.get("pcie_width")
    if generation is None and lanes is None:
        return [(UNKNOWN, "dim")]
    most = gpu.facts.get("pcie_width_max")
    is_narrow = lanes is not None and most is not None and lanes < most
    text = f"{UNKNOWN if generation is None else generation}×{UNKNOWN if lanes is None else lanes}"
    return [(f"▲{text}", "warn")] if is_narrow else [(text, "dim")]


def _pcie(row: GpuRow, width: int) -> list[Span]:
    return traffic(row.gpu, "pcie")


def _nvlink(row: GpuRow, width: int) -> list[Span]:
    return traffic(row.gpu, "nvlink")


def traffic(gpu: GpuView, link: str) -> list[Span]:
    """What goes over ``pcie`` or ``nvlink``: ``↓1.2G ↑400M`` bytes a second."""
    received = gpu.slow.get(f"{link}_received_bytes_per_second")
    sent = gpu.slow.get(f"{link}_sent_bytes_per_second")
    if received is None and sent is None:
        return [(UNKNOWN, "dim")]
    return [(f"↓{_short_rate(received)} ↑{_short_rate(sent)}", "text")]


def _short_rate(rate: float | None) -> str:
    return byte_rate(rate).replace("B/s", "").replace(" ", "")


def health(row: GpuRow, width: int = 0) -> list[Span]:
    """What is wrong with the hardware, the worst first; ``ok`` where the driver says that nothing is."""
    gpu, slow = row.gpu, row.gpu.slow
    parts: list[Span] = []
    if slow.get("row_remap_failed"):
        parts.append(("row remap failed", "bad"))
    uncorrected = slow.get("ecc_uncorrected")
    if uncorrected:
        parts.append((f"{uncorrected} ECC uncorr.", "bad"))
    if row.xids:
        parts.append((f"XID {gpu.event_code}" if row.xids == 1 and gpu.event_code else f"{row.xids} XIDs", "warn"))
    if slow.get("row_remap_pending"):
        parts.append(("remap due", "warn"))
    if parts:
        return [piece for number, part in enumerate(parts) for piece in ((" · ", "dim"), part)[number == 0 :]]
    known = [slow.get(name) for name in ("ecc_uncorrected", "row_remap_failed", "row_remap_pending")]
    return [("ok", "dim")] if any(value is not None for value in known) else [(UNKNOWN, "dim")]


def _processes(row: GpuRow, width: int) -> list[Span]:
    held = sorted(row.gpu.processes or (), key=lambda process: -(process.memory_bytes or 0))
    words = [f"{process.pid} {owner(process)} {bytes_text(process.memory_bytes)}" for process in held]
    return [(" · ".join(words), "dim")]


def lost(row: GpuRow, now: float) -> list[Span]:
    """When a GPU was lost and what the driver said last."""
    gpu = row.gpu
    at = gpu.event_at if gpu.event_at is not None else gpu.last_seen_at
    words = f"✗ lost {clock(at)}" if now - at < 86_400 else f"✗ lost {_days(now - at)} ago"
    spans: list[Span] = [(words, "bad")]
    if gpu.event_text:
        code = f"XID {gpu.event_code}: " if gpu.event_code is not None else ""
        text = clean(gpu.event_text)
        spans.append((" · " + (text if text.startswith(code) else code + text), "text"))
    return spans


def _days(seconds: float) -> str:
    days = int(seconds // 86_400)
    return f"{days} day" + ("" if days == 1 else "s")


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
