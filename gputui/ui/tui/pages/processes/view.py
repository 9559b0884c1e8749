"""The page of processes as lines: totals, CPU cores and the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gputui.core.units import UNKNOWN, age, bytes_text, count_of, duration, index_ranges, percent
from gputui.metrics.draw.glyphs import sparkline
from gputui.metrics.draw.parts import Line
from gputui.metrics.draw.raster import Span
from gputui.store.hardware import LOOK_BACK_SECONDS
from gputui.ui.tui.data.snapshot import Snapshot
from gputui.ui.tui.layout.columns import Column, fit_line, head_line, place, row_line, selected, styled_rule
from gputui.ui.tui.pages.processes.rows import ProcessGroup, ProcessRow, TableState, order_named, short_command

_STATES = {"T": "stopped", "t": "traced", "Z": "ended", "D": "waits in the kernel"}


class _Shown(NamedTuple):
    row: ProcessRow
    is_current: bool


def table_lines(
    snapshot: Snapshot, groups: Sequence[ProcessGroup], state: TableState, width: int, height: int, *, listed: int
) -> list[Line]:
    """A heading, the columns' names, then the rows from ``state.top`` on, under the headings of their groups.
    ``listed`` counts all processes, filtered or not."""
    items = items_of(groups)
    room = max(0, height - 2)
    shown = items[state.top : state.top + room]
    count = sum(len(group.rows) for group in groups)
    lines = [_heading(state, count, listed, state.top, len(shown), len(items), width)]
    has_runs = any(row.run_id is not None for group in groups for row in group.rows)
    placed = place([column for column in _COLUMNS if has_runs or column.head != "RUN"], width)
    lines.append(head_line(placed, width))
    if not items:
        lines.append(fit_line([("  " + _empty_text(snapshot, state), "dim")], width))
    for item in shown:
        if isinstance(item, str):
            lines.append(fit_line([(f" {item}", "label")], width))
        else:
            is_current = item.key == state.cursor
            line = row_line(placed, _Shown(item, is_current), width)
            lines.append(selected(line) if is_current else line)
    return lines[:height]


def items_of(groups: Sequence[ProcessGroup]) -> list[str | ProcessRow]:
    """The table's items: headings of groups, and rows."""
    items: list[str | ProcessRow] = []
    for group in groups:
        if group.heading:
            items.append(f"{group.heading} · {len(group.rows)}")
        items += group.rows
    return items


def total_line(rows: Sequence[ProcessRow], snapshot: Snapshot, width: int) -> Line:
    """Totals over all processes."""
    ours = sum(row.run_id is not None for row in rows)
    cpu = [row.cpu_percent for row in rows if row.cpu_percent is not None]
    ram = [row.memory_bytes for row in rows if row.memory_bytes is not None]
    hidden = sum(gpu.processes is None and gpu.state == "ok" for gpu in snapshot.gpus)
    parts: list[Span] = [
        (f" {len(rows)} process{'' if len(rows) == 1 else 'es'}", "label"),
        (f" · {ours} of gputui runs · {count_of(len(rows) - ours, 'other')}", "text"),
    ]
    if cpu:
        parts.append((f" · CPU {percent(sum(cpu))}", "text"))
    if ram:
        parts.append((f" · RAM {bytes_text(sum(ram))}", "text"))
    if hidden:
        parts.append((f" · {count_of(hidden, 'GPU')} without a list from the driver", "warn"))
    return fit_line(parts, width)


def cores_line(core_percents: Sequence[float | None], width: int) -> Line:
    """A bar for the load of each CPU core, as many as fit."""
    if not core_percents:
        return fit_line([(" cores", "label"), ("  reading…", "dim")], width)
    room = width - 20
    bars = sparkline(core_percents, min(len(core_percents), room), 0.0, 100.0)
    full = sum(percent >= BUSY_CORE_PERCENT for percent in core_percents if percent is not None)
    left = f" … {len(core_percents) - room} more" if len(core_percents) > room else ""
    return fit_line([(" cores ", "label"), (bars, "bar"), (f"{left} {full}/{len(core_percents)} full", "dim")], width)


BUSY_CORE_PERCENT = 90.0


def detail_texts(row: ProcessRow) -> list[str]:
    """Everything known of one process, one fact per line."""
    run = UNKNOWN if row.run_id is None else row.run_id + ("" if row.rank is None else f" rank {row.rank}")
    seen = "" if row.start_ticks is not None else " (not visible on this machine: a container's, or outside of ours)"
    idle = UNKNOWN
    if row.idle_seconds is not None:
        # Samples reach back a day.
        is_capped = row.idle_seconds >= 0.99 * LOOK_BACK_SECONDS
        idle_for = "over a day" if is_capped else duration(60 * (row.idle_seconds // 60))
        idle = f"{idle_for}: it holds memory of GPUs that compute nothing"
    facts = [
        ("PID", f"{row.pid}{seen}"),
        ("parent", UNKNOWN if row.parent_pid is None else str(row.parent_pid)),
        ("user", row.user or UNKNOWN),
        ("run", run),
        ("GPUs", index_ranges(row.gpus) if row.gpus else "none"),
        ("GPU memory", bytes_text(row.gpu_memory_bytes)),
        ("SM", UNKNOWN if row.sm_percent is None else percent(row.sm_percent)),
        ("idle", idle),
        ("CPU", UNKNOWN if row.cpu_percent is None else f"{percent(row.cpu_percent)} of a core"),
        ("running for", UNKNOWN if row.running_seconds is None else duration(row.running_seconds)),
        ("RAM (USS)", bytes_text(row.memory_bytes)),
        ("state", _STATES.get(row.state or "", "runs or sleeps") if row.state else UNKNOWN),
        ("command", row.command or UNKNOWN),
    ]
    return [f"{name:<12} {text}" for name, text in facts]


def _heading(state: TableState, count: int, listed: int, top: int, shown: int, items: int, width: int) -> Line:
    words = [f"PROCESSES {order_named(state.order).words}" + (" upwards" if state.is_reversed else "")]
    if state.is_tree:
        words.append("as a tree")
    if state.grouping:
        words.append({"gpu": "per GPU", "run": "per run"}[state.grouping])
    notes: list[Span] = []
    if state.filter_text:
        notes.append((f"/{state.filter_text}: {count} of {listed}", "accent"))
    if shown < items:
        notes.append((f"{top + 1}–{top + shown} of {items}", "dim"))
    return styled_rule(", ".join(words), width, notes)


def _empty_text(snapshot: Snapshot, state: TableState) -> str:
    """Why there is no row."""
    if state.filter_text:
        return "No process matches the filter; esc clears it."
    if snapshot.past is not None:
        return "No process is recorded of that moment."
    if snapshot.gpus and all(gpu.processes is None for gpu in snapshot.gpus):
        return "The driver gives no list of processes, and none of our runs has any."
    return "No process is on a GPU, and no run of ours has any."


def _pid(shown: _Shown, width: int) -> list[Span]:
    row = shown.row
    mark: Span = ("▸" if shown.is_current else " ", "cursor")
    style = "text" if row.start_ticks is not None else "dim"
    return [mark, (f"{row.pid:>{width - 1}}", style)]


def _gpu_value(row: ProcessRow, text: str) -> list[Span]:
    """A value that only a process on a GPU has."""
    if text == UNKNOWN:
        return [(text, "dim")] if row.gpus else []
    return [(text, "text")]


def _host_value(text: str) -> list[Span]:
    return [(text, "dim" if text == UNKNOWN else "text")]


def _run(shown: _Shown, width: int) -> list[Span]:
    row = shown.row
    if row.run_id is None:
        return []
    rank = "" if row.rank is None else f" r{row.rank}"
    room = width - len(rank)
    name = row.run_id if len(row.run_id) <= room else row.run_id[: max(1, room - 1)] + "…"
    return [(name, "accent"), (rank, "text")]


def _command(shown: _Shown, width: int) -> list[Span]:
    row = shown.row
    word = _STATES.get(row.state or "", "")
    parts: list[Span] = [(row.tree, "dim")]
    if word:
        parts.append((f"[{word}] ", "warn"))
    if row.idle_seconds is not None and row.is_idle:
        parts.append((f"[idle {age(row.idle_seconds)}] ", "warn"))
    if row.start_ticks is None:
        parts.append(("[unseen] ", "dim"))
    return [*parts, (UNKNOWN if row.command is None else short_command(row.command), "text")]


_COLUMNS: tuple[Column[_Shown], ...] = (
    Column("PID", 8, _pid, ">"),
    Column("USER", 8, lambda shown, _: [(shown.row.user or UNKNOWN, "dim")], gap=1, grow=1, most=12),
    Column("GPU", 4, lambda shown, _: [(index_ranges(shown.row.gpus), "text")], ">", gap=1),
    Column("GPU MEM", 8, lambda shown, _: _gpu_value(shown.row, bytes_text(shown.row.gpu_memory_bytes)), ">", gap=1),
    Column("SM", 4, lambda shown, _: _gpu_value(shown.row, percent(shown.row.sm_percent)), ">", importance=3, gap=1),
    Column("CPU", 5, lambda shown, _: _host_value(percent(shown.row.cpu_percent)), ">", importance=1, gap=1),
    Column("RAM", 8, lambda shown, _: _host_value(bytes_text(shown.row.memory_bytes)), ">", importance=2, gap=1),
    Column("TIME", 6, lambda shown, _: [(age(shown.row.running_seconds), "dim")], ">", importance=5, gap=1),
    Column("RUN", 13, _run, importance=4, gap=1, grow=1, most=26),
    Column("COMMAND", 14, _command, gap=1, grow=8),
)
