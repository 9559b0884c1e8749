"""GPU rows: what each one does and who sits on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gputui.charts.bars import bar, sparkline
from gputui.charts.chart import Line
from gputui.charts.raster import Span
from gputui.charts.safe_text import clean
from gputui.charts.units import UNKNOWN, age, byte_rate, bytes_text, gibibytes, percent, short_number
from gputui.store.views import GpuView, ProcessView
from gputui.tui.render.columns import Column, Placed, fit_line, head_line, place, row_line, wrap
from gputui.tui.render.histories import thinned
from gputui.tui.render.words import clock, is_alarming, is_hot
from gputui.tui.snapshot import RankRow, Snapshot

FREE_BELOW_BYTES = 2**30
"""Less memory in use than this and no process: the GPU is free."""

WIDE = 150
"""From this width on the bars are longer."""

SHORT_ROW_WIDTH = 38
"""Two columns of short rows need twice this."""


@dataclass(frozen=True, slots=True)
class GpuRow:
    """A GPU with what its rank tells about itself."""

    gpu: GpuView
    rank: RankRow | None
    utilizations: tuple[float | None, ...]


def gpu_lines(snapshot: Snapshot, width: int, height: int) -> list[Line]:
    """The GPU area: a head and a row per GPU; in two columns when they do not fit below each other.

    Without a GPU it says why in one sentence.
    """
    if not snapshot.gpus:
        return no_gpu_lines(snapshot, width, height)
    rows = [_row(snapshot, gpu) for gpu in snapshot.gpus]
    if len(rows) > height - 1 and width >= 2 * SHORT_ROW_WIDTH:
        return _two_columns(rows, snapshot.at, width, height)
    placed = place(_WIDE_COLUMNS if width >= WIDE else _COLUMNS, width - 1)
    lines = [_set_in(head_line(placed, width - 1))]
    lines += [_gpu_line(placed, row, snapshot.at, width) for row in rows]
    return _cut(lines, len(rows), width, height)


def no_gpu_lines(snapshot: Snapshot, width: int, height: int) -> list[Line]:
    """Why there is no GPU to show, and what to do."""
    if snapshot.past is not None:
        text = "No GPU was recorded at this moment."
    elif snapshot.agent is None:
        text = "Waiting for the first sample…" if snapshot.trouble is None else ""
    elif snapshot.agent.gpu_problem:
        problem = clean(snapshot.agent.gpu_problem).rstrip()
        text = problem if "--demo" in problem else f"{problem.rstrip('.')}. `gputui --demo` simulates eight GPUs."
    else:
        text = "Looking for GPUs…"
    lines = [fit_line([("  " + line, "text")], width) for line in wrap(text, width - 4)]
    return lines[:height]


def no_gpu_height(snapshot: Snapshot, width: int) -> int:
    """How many lines `no_gpu_lines` wants."""
    return max(1, len(no_gpu_lines(snapshot, width, 10)))


def _row(snapshot: Snapshot, gpu: GpuView) -> GpuRow:
    history = snapshot.gpu_history.get(gpu.uuid)
    rank = None
    if gpu.run_id is not None and gpu.rank is not None:
        for candidate in snapshot.runs:
            if candidate.run.run_id == gpu.run_id:
                rank = candidate.progress.ranks.get(gpu.rank)
    return GpuRow(gpu, rank, history.utilization_percent if history else ())


def _gpu_line(placed: Placed[GpuRow], row: GpuRow, now: float, width: int) -> Line:
    gpu = row.gpu
    if gpu.state == "lost":
        return fit_line([(f" {gpu.index:>2} ", "text"), *_lost(gpu, now)], width)
    base = "stale" if gpu.state == "stale" else None
    return _set_in(row_line(placed, row, width - 1, base))


def _lost(gpu: GpuView, now: float) -> list[Span]:
    at = gpu.event_at if gpu.event_at is not None else gpu.last_seen_at
    words = f"✗ lost {clock(at)}" if now - at < 86_400 else f"✗ lost {age(now - at)} ago"
    spans: list[Span] = [(words, "bad")]
    if gpu.event_text:
        code = f"XID {gpu.event_code}: " if gpu.event_code is not None else ""
        text = clean(gpu.event_text)
        spans.append((" · " + (text if text.startswith(code) else code + text), "text"))
    return spans


def _two_columns(rows: Sequence[GpuRow], now: float, width: int, height: int) -> list[Line]:
    """Short rows, numbered down the left column and on down the right."""
    half = (width - 2) // 2
    placed = place(_SHORT_COLUMNS, half - 1)
    head = _set_in(head_line(placed, half - 1))
    lines: list[Line] = [fit_line([*head, ("  ", "text"), *head], width)]
    depth = max(1, min((len(rows) + 1) // 2, height - 1))
    for number in range(depth):
        left = _gpu_line(placed, rows[number], now, half)
        right = rows[number + depth] if number + depth < len(rows) else None
        line = [*left, ("  ", "text"), *(_gpu_line(placed, right, now, half) if right else [])]
        lines.append(fit_line(line, width))
    hidden = len(rows) - 2 * depth
    if hidden > 0:
        lines[-1] = fit_line([(f"  … {hidden + 2} more GPUs; a shows all together", "dim")], width)
    return lines


def _cut(lines: list[Line], count: int, width: int, height: int) -> list[Line]:
    if len(lines) <= height:
        return lines
    hidden = count - (height - 2)
    return [*lines[: height - 1], fit_line([(f"  … {hidden} more GPUs; a shows all together", "dim")], width)]


def _set_in(line: Line) -> Line:
    return [(" ", "text"), *line]


# --- cells ----------------------------------------------------------------------------------------------------------


def _index(row: GpuRow, width: int) -> list[Span]:
    return [(f"{row.gpu.index:>{width}}", "text")]


def _utilization(row: GpuRow, width: int) -> list[Span]:
    value = row.gpu.utilization_percent
    if value is None:
        return [(f"{UNKNOWN:>3}", "dim")]
    return [(f"{value:3.0f} ", "text"), (bar(value / 100, width - 4), "bar")]


def _memory(row: GpuRow, width: int) -> list[Span]:
    used, total = row.gpu.memory_used_bytes, row.gpu.memory_total_bytes
    text = f"{gibibytes(used):>5} "
    if used is None or not total:
        return [(text, "text" if used is not None else "dim")]
    return [(text, "text"), (bar(used / total, width - 6), "bar2")]


def _temperature(row: GpuRow, width: int) -> list[Span]:
    value = row.gpu.temperature_celsius
    if value is None:
        return [(f"{UNKNOWN:>{width}}", "dim")]
    if is_hot(row.gpu):
        return [(f"{f'▲{value:.0f}':>{width}}", "warn")]
    return [(f"{value:{width}.0f}", "text")]


def _power(row: GpuRow, width: int) -> list[Span]:
    value = row.gpu.power_watts
    return [(f"{UNKNOWN:>{width}}", "dim")] if value is None else [(f"{value:{width - 2}.0f} W", "text")]


def _who(row: GpuRow, width: int) -> list[Span]:
    """The run and rank on this GPU, or the strangers, or ``free``."""
    gpu = row.gpu
    if gpu.state == "error":
        return [("✗ unreadable", "bad")]
    slow: list[Span] = [(" slow", "warn")] if row.rank is not None and row.rank.is_slow else []
    if gpu.run_id is not None:
        rank = f" r{gpu.rank}" if gpu.rank is not None else ""
        name = clean(gpu.run_name or gpu.run_id)
        room = width - len(rank) - sum(len(text) for text, _ in slow)
        shown = name if len(name) <= room else name[: max(1, room - 1)] + "…"
        return [(shown, "accent"), (rank, "text"), *slow]
    if gpu.processes is None:
        return [(UNKNOWN, "dim")] if (gpu.memory_used_bytes or 0) >= FREE_BELOW_BYTES else [("free", "dim")]
    if not gpu.processes:
        busy = (gpu.memory_used_bytes or 0) >= FREE_BELOW_BYTES
        return [("no visible process", "warn")] if busy else [("free", "dim")]
    first = max(gpu.processes, key=lambda process: process.memory_bytes or 0)
    more = f" +{len(gpu.processes) - 1}" if len(gpu.processes) > 1 else ""
    return [(f"{_owner(first)} · {_program(first)}{more}", "text")]


def _owner(process: ProcessView) -> str:
    return clean(process.user) if process.user else f"pid {process.pid}"


def _program(process: ProcessView) -> str:
    """The program's name without its path."""
    if not process.command:
        return f"pid {process.pid}"
    words = clean(process.command).split()
    return words[0].rsplit("/", 1)[-1] if words else f"pid {process.pid}"


def _step_rate(row: GpuRow, width: int) -> list[Span]:
    seconds = row.rank.step_seconds if row.rank else None
    return [(short_number(1 / seconds), "text")] if seconds else []


def _wait(row: GpuRow, width: int) -> list[Span]:
    share = row.rank.waiting_fraction if row.rank else None
    if share is None:
        return []
    return [(percent(min(share, 1.0) * 100), "warn" if share >= 0.2 else "text")]


def _history(row: GpuRow, width: int) -> list[Span]:
    return [(sparkline(thinned(row.utilizations, width), width, 0.0, 100.0), "bar")]


def _clock(row: GpuRow, width: int) -> list[Span]:
    value = row.gpu.sm_clock_mhz
    return [(f"{UNKNOWN if value is None else value:>{width}}", "dim" if value is None else "text")]


def _throttle(row: GpuRow, width: int) -> list[Span]:
    reasons = row.gpu.throttle_reasons
    if not reasons:
        return [] if reasons is not None else [(UNKNOWN, "dim")]
    style = "warn" if any(is_alarming(reason) for reason in reasons) else "dim"
    return [(", ".join(reasons), style)]


def _pcie(row: GpuRow, width: int) -> list[Span]:
    slow = row.gpu.slow
    return _link(slow.get("pcie_received_bytes_per_second"), slow.get("pcie_sent_bytes_per_second"))


def _nvlink(row: GpuRow, width: int) -> list[Span]:
    slow = row.gpu.slow
    return _link(slow.get("nvlink_received_bytes_per_second"), slow.get("nvlink_sent_bytes_per_second"))


def _link(received: float | None, sent: float | None) -> list[Span]:
    if received is None and sent is None:
        return [(UNKNOWN, "dim")]
    return [(f"↓{_short_rate(received)} ↑{_short_rate(sent)}", "text")]


def _short_rate(rate: float | None) -> str:
    return byte_rate(rate).replace("B/s", "").replace(" ", "")


def _memory_temperature(row: GpuRow, width: int) -> list[Span]:
    value = row.gpu.slow.get("memory_temperature_celsius")
    return [(UNKNOWN if value is None else f"{value:.0f}", "dim" if value is None else "text")]


def _errors(row: GpuRow, width: int) -> list[Span]:
    slow = row.gpu.slow
    if slow.get("row_remap_failed"):
        return [("remap failed", "bad")]
    if slow.get("row_remap_pending"):
        return [("remap due", "warn")]
    errors = slow.get("ecc_uncorrected")
    if errors is None:
        return [(UNKNOWN, "dim")]
    return [(f"{errors} uncorr.", "bad")] if errors else [("0", "dim")]


def _processes(row: GpuRow, width: int) -> list[Span]:
    held = sorted(row.gpu.processes or (), key=lambda process: -(process.memory_bytes or 0))
    words = [f"{process.pid} {_owner(process)} {bytes_text(process.memory_bytes)}" for process in held]
    return [(" · ".join(words), "dim")]


_COLUMNS: tuple[Column[GpuRow], ...] = (
    Column("#", 2, _index, ">"),
    Column("util", 10, _utilization, grow=1, most=20),
    Column("memory GiB", 12, _memory, grow=1, most=22),
    Column("°C", 4, _temperature, ">", gap=1),
    Column("power", 6, _power, ">"),
    Column("who", 14, _who, grow=3, most=28),
    Column("step/s", 6, _step_rate, ">", importance=1),
    Column("wait", 4, _wait, ">", importance=2, gap=1),
    Column("last 10 min", 12, _history, importance=3),
    Column("MHz", 4, _clock, ">", importance=4),
    Column("held back by", 16, _throttle, importance=5, grow=1, most=30),
    Column("PCIe", 13, _pcie, importance=6),
    Column("NVLink", 13, _nvlink, importance=7),
    Column("mem °C", 6, _memory_temperature, ">", importance=10),
    Column("ECC", 10, _errors, importance=9),
    Column("processes", 24, _processes, importance=8, grow=4),
)

_WIDE_COLUMNS = tuple(
    replace(column, width={"util": 18, "memory GiB": 20}.get(column.head, column.width)) for column in _COLUMNS
)

_SHORT_COLUMNS: tuple[Column[GpuRow], ...] = (
    Column("#", 2, _index, ">", gap=1),
    Column("util", 8, _utilization, gap=1),
    Column("GiB", 5, lambda row, width: [(gibibytes(row.gpu.memory_used_bytes), "text")], ">", gap=1),
    Column("°C", 3, _temperature, ">", gap=1),
    Column("who", 12, _who, grow=1),
)
