"""The page of processes: a table of what runs on the GPUs and for our runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gputui.charts.bars import sparkline
from gputui.charts.chart import Line
from gputui.charts.raster import Span
from gputui.charts.units import UNKNOWN, age, bytes_text, duration, index_ranges, percent
from gputui.store.hardware import LOOK_BACK_SECONDS
from gputui.tui.data.snapshot import Snapshot
from gputui.tui.layout.columns import Column, fit_line, head_line, place, row_line, selected, styled_rule
from gputui.tui.pages.processes.rows import ProcessGroup, ProcessRow, TableState, order_named, short_command

_STATES = {"T": "stopped", "t": "traced", "Z": "ended", "D": "waits in the kernel"}


def idle_words(seconds: float) -> str:
    """For how long; samples are looked through for a day."""
    return "over a day" if seconds >= 0.99 * LOOK_BACK_SECONDS else duration(60 * (seconds // 60))


class _Shown(NamedTuple):
    row: ProcessRow
    is_current: bool


def table_lines(
    snapshot: Snapshot, groups: Sequence[ProcessGroup], state: TableState, width: int, height: int, *, listed: int
) -> list[Line]:
    """A heading, the names of the columns, then the rows from ``state.top`` on, groups under their headings.
    ``listed`` is how many processes there are whatever the filter hides."""
    items = items_of(groups)
    room = max(0, height - 2)
    shown = items[state.top : state.top + room]
    count = sum(len(group.rows) for group in groups)
    lines = [_heading(state, count, listed, state.top, len(shown), len(items), width)]
    has_runs = any(row.run_id is not None for group in groups for row in group.rows)
    placed = place([column for column in _COLUMNS if has_runs or column.head != "RUN"], width)
    lines.append(head_line(placed, width))
    if not items:
        lines.append(fit_line([("  " + _nothing(snapshot, state), "dim")], width))
    for item in shown:
        if isinstance(item, str):
            lines.append(fit_line([(f" {item}", "label")], width))
        else:
            is_current = item.key == state.cursor
            line = row_line(placed, _Shown(item, is_current), width)
            lines.append(selected(line) if is_current else line)
    return lines[:height]


def items_of(groups: Sequence[ProcessGroup]) -> list[str | ProcessRow]:
    """Headings and rows below each other."""
    items: list[str | ProcessRow] = []
    for group in groups:
        if group.heading:
            items.append(f"{group.heading} · {len(group.rows)}")
        items += group.rows
    return items


def total_line(rows: Sequence[ProcessRow], snapshot: Snapshot, width: int) -> Line:
    """All processes together."""
    ours = sum(row.run_id is not None for row in rows)
    cpu = [row.cpu_percent for row in rows if row.cpu_percent is not None]
    ram = [row.memory_bytes for row in rows if row.memory_bytes is not None]
    hidden = sum(gpu.processes is None and gpu.state == "ok" for gpu in snapshot.gpus)
    parts: list[Span] = [
        (f" {len(rows)} process{'' if len(rows) == 1 else 'es'}", "label"),
        (f" · {ours} of our runs · {len(rows) - ours} others", "text"),
    ]
    if cpu:
        parts.append((f" · CPU {percent(sum(cpu))}", "text"))
    if ram:
        parts.append((f" · RAM {bytes_text(sum(ram))}", "text"))
    if hidden:
        parts.append((f" · {hidden} GPU{'' if hidden == 1 else 's'} without a list from the driver", "warn"))
    return fit_line(parts, width)


def cores_line(core_percents: Sequence[float | None], width: int) -> Line:
    """How busy each CPU core is, a bar for each; of more cores than there is room for, the first."""
    if not core_percents:
        return fit_line([(" cores", "label"), ("  reading…", "dim")], width)
    room = width - 20
    bars = sparkline(core_percents, min(len(core_percents), room), 0.0, 100.0)
    full = sum(percent >= BUSY_CORE_PERCENT for percent in core_percents if percent is not None)
    left = f" … {len(core_percents) - room} more" if len(core_percents) > room else ""
    return fit_line([(" cores ", "label"), (bars, "bar"), (f"{left} {full}/{len(core_percents)} full", "dim")], width)


BUSY_CORE_PERCENT = 90.0


def detail_texts(row: ProcessRow) -> list[str]:
    """Everything known of one process, a fact a line."""
    run = UNKNOWN if row.run_id is None else row.run_id + ("" if row.rank is None else f" rank {row.rank}")
    seen = "" if row.start_ticks is not None else " (not visible on this machine: a container's, or outside of ours)"
    facts = [
        ("PID", f"{row.pid}{seen}"),
        ("parent", UNKNOWN if row.parent_pid is None else str(row.parent_pid)),
        ("user", row.user or UNKNOWN),
        ("run", run),
        ("GPUs", index_ranges(row.gpus) if row.gpus else "none"),
        ("GPU memory", bytes_text(row.gpu_memory_bytes)),
        ("SM", UNKNOWN if row.sm_percent is None else percent(row.sm_percent)),
        (
            "idle",
            UNKNOWN
            if row.idle_seconds is None
            else f"{idle_words(row.idle_seconds)}: it holds memory of GPUs that compute nothing",
        ),
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


def _nothing(snapshot: Snapshot, state: TableState) -> str:
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


def _user(shown: _Shown, width: int) -> list[Span]:
    return [(shown.row.user or UNKNOWN, "dim")]


def _gpus(shown: _Shown, width: int) -> list[Span]:
    return [(index_ranges(shown.row.gpus), "text")]


def _gpu_memory(shown: _Shown, width: int) -> list[Span]:
    value = shown.row.gpu_memory_bytes
    if value is None:
        return [(UNKNOWN, "dim")] if shown.row.gpus else []
    return [(bytes_text(value), "text")]


def _sm(shown: _Shown, width: int) -> list[Span]:
    value = shown.row.sm_percent
    if value is None:
        return [(UNKNOWN, "dim")] if shown.row.gpus else []
    return [(percent(value), "text")]


def _cpu(shown: _Shown, width: int) -> list[Span]:
    value = shown.row.cpu_percent
    return [(UNKNOWN, "dim")] if value is None else [(percent(value), "text")]


def _ram(shown: _Shown, width: int) -> list[Span]:
    value = shown.row.memory_bytes
    return [(UNKNOWN, "dim")] if value is None else [(bytes_text(value), "text")]


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


def _time(shown: _Shown, width: int) -> list[Span]:
    return [(age(shown.row.running_seconds), "dim")]


_COLUMNS: tuple[Column[_Shown], ...] = (
    Column("PID", 8, _pid, ">"),
    Column("USER", 8, _user, gap=1, grow=1, most=12),
    Column("GPU", 4, _gpus, ">", gap=1),
    Column("GPU MEM", 8, _gpu_memory, ">", gap=1),
    Column("SM", 4, _sm, ">", importance=3, gap=1),
    Column("CPU", 5, _cpu, ">", importance=1, gap=1),
    Column("RAM", 8, _ram, ">", importance=2, gap=1),
    Column("TIME", 6, _time, ">", importance=5, gap=1),
    Column("RUN", 13, _run, importance=4, gap=1, grow=1, most=26),
    Column("COMMAND", 14, _command, gap=1, grow=8),
)
