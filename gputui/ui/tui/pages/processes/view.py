"""Processes as rows and lines: their list, the panel on the overview, and the details of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.text import clean, clip_middle
from gputui.core.units import UNKNOWN, age, bytes_text, count_of, duration, gibibytes, index_ranges, percent
from gputui.metrics.draw.parts import Line
from gputui.metrics.draw.raster import Span
from gputui.runs.processes import HostProcess
from gputui.store.hardware import LOOK_BACK_SECONDS, GpuView, ProcessView
from gputui.ui.tui.data.snapshot import Snapshot
from gputui.ui.tui.layout.columns import Column, fit_line, rule, wrap
from gputui.ui.tui.layout.lists import Listing, ListSection, ListState, RowOrder, order_named
from gputui.ui.tui.layout.process_words import script_of
from gputui.ui.tui.layout.run_words import run_style

Grouping = Literal["", "gpu", "run"]
GROUPINGS: tuple[Grouping, ...] = ("", "gpu", "run")

IDLE_SECONDS = 300.0
"""A process that has held memory of a GPU at 0 % for this long is marked as idle."""

Key = tuple[int, int | None]
"""A process for as long as it lives: PID and start ticks."""


class ProcessRow(Struct, frozen=True):
    """One process, on any number of GPUs. ``start_ticks`` is None if its PID is not visible here,
    ``idle_seconds`` is how long its GPUs were idle, ``tree`` the branches before its command."""

    pid: int
    start_ticks: int | None
    parent_pid: int | None = None
    user: str | None = None
    command: str | None = None
    run_id: str | None = None
    rank: int | None = None
    gpus: tuple[int, ...] = ()
    gpu_memory_bytes: int | None = None
    gpu_memory_percent: float | None = None
    sm_percent: float | None = None
    cpu_percent: float | None = None
    memory_bytes: int | None = None
    state: str | None = None
    idle_seconds: float | None = None
    tree: str = ""
    running_seconds: float | None = None

    @property
    def key(self) -> Key:
        """The identity of the process while it lives."""
        return self.pid, self.start_ticks


def _down(value: float | None) -> float | None:
    return None if value is None else -value


ORDERS: tuple[RowOrder[ProcessRow], ...] = (
    RowOrder("GPU memory", "m", "by GPU memory", lambda row: _down(row.gpu_memory_bytes)),
    RowOrder("SM", "s", "by SM", lambda row: _down(row.sm_percent)),
    RowOrder("CPU", "c", "by CPU", lambda row: _down(row.cpu_percent)),
    RowOrder("RAM", "r", "by RAM", lambda row: _down(row.memory_bytes)),
    RowOrder("PID", "p", "by PID", lambda row: row.pid),
    RowOrder("user", "u", "by user", lambda row: row.user),
    RowOrder("time", "t", "by time", lambda row: _down(row.running_seconds)),
    RowOrder("command", "n", "by command", lambda row: row.command),
)


class ProcessesState(ListState, frozen=True):
    """State of the list beyond the snapshot."""

    is_tree: bool = False
    grouping: Grouping = ""


def process_rows(snapshot: Snapshot) -> list[ProcessRow]:
    """All processes of a snapshot, each once: those on the GPUs, and those of our runs here."""
    hosts = dict(snapshot.processes or {})
    held: dict[Key, list[tuple[GpuView, ProcessView]]] = {}
    for gpu in snapshot.gpus:
        for process in gpu.processes or ():
            held.setdefault((process.pid, process.start_ticks), []).append((gpu, process))
    rows = []
    for (pid, ticks), places in held.items():
        is_same = pid in hosts and hosts[pid].start_ticks == ticks
        row = _row(pid, ticks, places, hosts.pop(pid) if is_same else None)
        idle = [snapshot.idle_since.get((gpu.uuid, pid)) for gpu, _ in places]
        since = [at for at in idle if at is not None]
        # A process is idle only if all its GPUs are.
        seconds = snapshot.at - max(since) if len(since) == len(places) and not row.sm_percent else 0.0
        rows.append(replace(row, idle_seconds=seconds) if seconds >= IDLE_SECONDS else row)
    return [*rows, *(_row(host.pid, host.start_ticks, (), host) for host in hosts.values())]


def _row(
    pid: int, ticks: int | None, places: Sequence[tuple[GpuView, ProcessView]], host: HostProcess | None
) -> ProcessRow:
    listed = [process for _, process in places]
    sources: list[HostProcess | ProcessView] = [*([host] if host else []), *listed]
    user = next((each.user for each in sources if each.user), None)
    command = next((each.command for each in sources if each.command), None)
    # The driver's list knows the run of a process that has overwritten its environment.
    owned = next((each for each in [*listed, *sources] if each.run_id is not None), None)
    sizes = [each.memory_bytes for each in listed if each.memory_bytes is not None]
    total = sum(gpu.memory_total_bytes or 0 for gpu, _ in places)
    return ProcessRow(
        pid=pid,
        start_ticks=ticks,
        parent_pid=host.parent_pid if host else None,
        user=None if user is None else clean(user),
        command=None if command is None else clean(command),
        run_id=None if owned is None or owned.run_id is None else clean(owned.run_id),
        rank=None if owned is None else owned.rank,
        gpus=tuple(sorted({gpu.index for gpu, _ in places})),
        gpu_memory_bytes=sum(sizes) if sizes else None,
        gpu_memory_percent=100 * sum(sizes) / total if sizes and total else None,
        sm_percent=max((each.sm_percent for each in listed if each.sm_percent is not None), default=None),
        cpu_percent=host.cpu_percent if host else None,
        memory_bytes=host.memory_bytes if host else None,
        state=host.state if host else None,
        running_seconds=host.running_seconds if host else None,
    )


def arranged(rows: Sequence[ProcessRow], state: ProcessesState) -> list[ListSection[ProcessRow]]:
    """The rows that match the filter, sorted, in groups, and as a tree if ``state`` says so."""
    words = state.filter_text.lower().split()
    matching = [row for row in rows if all(word in _haystack(row) for word in words)]
    found = order_named(ORDERS, state.order).sorted(sorted(matching, key=lambda row: row.pid))
    groups: dict[tuple[bool, tuple[int, ...], str], list[ProcessRow]] = {}
    for row in found:
        groups.setdefault(_group(row, state.grouping), []).append(row)
    return [
        ListSection(heading and f"{heading} · {len(group)}", _as_tree(group) if state.is_tree else group)
        for (_, _, heading), group in sorted(groups.items())
    ]


def _group(row: ProcessRow, grouping: Grouping) -> tuple[bool, tuple[int, ...], str]:
    """Groups sort by GPU or run; processes without one come last."""
    if grouping == "gpu":
        return not row.gpus, row.gpus, f"GPU {index_ranges(row.gpus)}" if row.gpus else "no GPU"
    if grouping == "run":
        return row.run_id is None, (), row.run_id or "no run of ours"
    return False, (), ""


def _haystack(row: ProcessRow) -> str:
    rank = "" if row.rank is None else f"r{row.rank}"
    gpus = " ".join(f"gpu{index}" for index in row.gpus)
    idle = "idle" if row.idle_seconds is not None else ""
    return f"{row.pid} {row.user or ''} {row.command or ''} {row.run_id or ''} {rank} {gpus} {idle}".lower()


def _as_tree(rows: Sequence[ProcessRow]) -> list[ProcessRow]:
    """Children behind their parents. Trees are ordered by the first of their rows."""
    by_pid = {row.pid: row for row in rows}
    children: dict[int, list[ProcessRow]] = {}
    roots: dict[Key, ProcessRow] = {}
    for row in rows:
        root, seen = row, {row.pid}
        while (parent := by_pid.get(root.parent_pid or 0)) is not None and parent.pid not in seen:
            root = parent
            seen.add(parent.pid)
        roots.setdefault(root.key, root)
        if root is not row:
            children.setdefault(row.parent_pid or 0, []).append(row)
    shown: list[ProcessRow] = []
    waiting = [(root, "", "") for root in reversed(roots.values())]
    while waiting:
        row, own, below = waiting.pop()
        shown.append(replace(row, tree=own))
        listed = children.pop(row.pid, [])
        for number, child in reversed(list(enumerate(listed))):
            is_last = number == len(listed) - 1
            waiting.append((child, below + ("└ " if is_last else "├ "), below + ("  " if is_last else "│ ")))
    return shown


_STATES = {"T": "stopped", "t": "traced", "Z": "ended", "D": "waits in the kernel"}

DETAIL_LINES = 5
"""Lines of the details below the list; half of them are the command's at most."""


def process_panel(snapshot: Snapshot, width: int, height: int) -> list[Line]:
    """The processes on the GPUs in exactly ``height`` lines, those with the most memory first."""
    rows = process_rows(snapshot)
    state = ProcessesState()
    return listing(snapshot, rows, arranged(rows, state), state).lines(state, width, height)


def listing(
    snapshot: Snapshot, rows: Sequence[ProcessRow], sections: Sequence[ListSection[ProcessRow]], state: ProcessesState
) -> Listing[ProcessRow]:
    """The list. ``rows`` are all processes, ``sections`` those that the filter leaves."""
    order = order_named(ORDERS, state.order).words
    words = [f"PROCESSES {order}" if snapshot.processes is not None else "PROCESSES"]
    words += ["as a tree"] * state.is_tree
    words += [{"gpu": "per GPU", "run": "per run"}[state.grouping]] if state.grouping else []
    colours = {row.run.run_id: run_style(row.run) for row in snapshot.runs}
    columns = (
        *_COLUMNS,
        Column("RUN", 13, partial(_run, colours), importance=2, gap=2, grow=1, most=26),
        Column("COMMAND", 14, _command, gap=2, grow=8),
    )
    known = [column for column in columns if _is_known(column.head, rows)]
    ours = sum(row.run_id is not None for row in rows)
    notes: list[Span] = [(f"{ours} of runs, {count_of(len(rows) - ours, 'other')}", "dim")] if rows else []
    hidden = sum(gpu.processes is None and gpu.state == "ok" for gpu in snapshot.gpus)
    if hidden:
        notes.insert(0, (f"no list of {count_of(hidden, 'GPU')} from the driver", "warn"))
    empty = "No process is on a GPU, and no run of ours has any."
    if snapshot.past is not None:
        empty = "No process is recorded of that moment."
    return Listing(", ".join(words), known, sections, lambda row: row.key, notes, empty)


def _is_known(head: str, rows: Sequence[ProcessRow]) -> bool:
    """Whether a column has a value: CPU, RAM and TIME are read only for the page, and now."""
    values: dict[str, Callable[[ProcessRow], object]] = {
        "SM": lambda row: row.sm_percent,
        "CPU": lambda row: row.memory_bytes,
        "RAM": lambda row: row.memory_bytes,
        "TIME": lambda row: row.running_seconds,
        "RUN": lambda row: row.run_id,
    }
    return head not in values or any(values[head](row) is not None for row in rows)


def totals(rows: Sequence[ProcessRow]) -> list[Span]:
    """How many processes, and their CPU and RAM as far as known."""
    text = f" · {len(rows)}"
    if cpu := [row.cpu_percent for row in rows if row.cpu_percent is not None]:
        text += f" · CPU {percent(sum(cpu))}"
    if ram := [row.memory_bytes for row in rows if row.memory_bytes is not None]:
        text += f" · RAM {bytes_text(sum(ram))}"
    return [(text, "text")]


def facts(row: ProcessRow) -> list[tuple[str, str]]:
    """What is known of a process, by name."""
    unseen = "" if row.start_ticks is not None else " (not visible on this machine: a container's, or outside of ours)"
    rank = "" if row.rank is None else f" rank {row.rank}"
    # Samples reach back a day.
    is_capped = row.idle_seconds is not None and row.idle_seconds >= 0.99 * LOOK_BACK_SECONDS
    known = {
        "PID": f"{row.pid}{unseen}",
        "command": row.command or UNKNOWN,
        "parent": str(row.parent_pid or UNKNOWN),
        "user": row.user or UNKNOWN,
        "run": UNKNOWN if row.run_id is None else row.run_id + rank,
        "GPU" if len(row.gpus) == 1 else "GPUs": index_ranges(row.gpus) or UNKNOWN,
        "GPU memory": bytes_text(row.gpu_memory_bytes),
        "of its GPUs": percent(row.gpu_memory_percent),
        "SM": percent(row.sm_percent),
        "idle": "over a day" if is_capped else age(row.idle_seconds),
        "CPU": percent(row.cpu_percent),
        "RAM": bytes_text(row.memory_bytes),
        "running for": duration(row.running_seconds),
        "state": _STATES.get(row.state, "runs or sleeps") if row.state else UNKNOWN,
    }
    return [(name, text) for name, text in known.items() if text != UNKNOWN]


def detail_lines(row: ProcessRow, width: int) -> list[Line]:
    """The command and the details of a process below a heading, in `DETAIL_LINES` lines."""
    known = " · ".join(f"{name} {text}" for name, text in facts(row) if name not in ("PID", "command"))
    command = wrap(row.command or "its command cannot be read", width - 2)[: DETAIL_LINES // 2]
    lines = [rule(f"PROCESS {row.pid}", width), *(fit_line([(f" {part}", "text")], width) for part in command)]
    lines += [fit_line([(f" {part}", "dim")], width) for part in wrap(known, width - 2)]
    return [*lines[:DETAIL_LINES], *[fit_line([], width)] * (DETAIL_LINES - len(lines))]


def _pid(row: ProcessRow, width: int) -> list[Span]:
    return [(str(row.pid), "text" if row.start_ticks is not None else "dim")]


def _size(value: int | None) -> str:
    """A size with fixed decimals: ``29.2G``, ``8M``."""
    if value is None:
        return UNKNOWN
    return f"{gibibytes(value)}G" if value >= 0.95 * 2**30 else f"{value / 2**20:.0f}M"


def _gpu_value(row: ProcessRow, text: str) -> list[Span]:
    """A value that only a process on a GPU has."""
    return [(text, "dim" if text == UNKNOWN else "text")] if row.gpus else []


def _host_value(text: str) -> list[Span]:
    return [(text, "dim" if text == UNKNOWN else "text")]


def _run(colours: Mapping[str, str], row: ProcessRow, width: int) -> list[Span]:
    if row.run_id is None:
        return []
    rank = "" if row.rank is None else f" r{row.rank}"
    name = clip_middle(row.run_id, max(1, width - len(rank)))
    return [(name, colours.get(row.run_id, "accent")), (rank, "text")]


def _command(row: ProcessRow, width: int) -> list[Span]:
    parts: list[Span] = [(row.tree, "dim")]
    if (word := _STATES.get(row.state or "")) is not None:
        parts.append((f"[{word}] ", "warn"))
    if row.idle_seconds is not None:
        parts.append((f"[idle {age(row.idle_seconds)}] ", "warn"))
    script = script_of(row.command or "")
    return [*parts, (script, "text") if script else ("cannot be read", "dim")]


_COLUMNS: tuple[Column[ProcessRow], ...] = (
    Column("PID", 8, _pid, ">"),
    Column("USER", 7, lambda row, _: [(row.user or UNKNOWN, "dim")], gap=1, grow=1, most=12),
    Column("GPU", 3, lambda row, _: [(index_ranges(row.gpus), "text")], ">", gap=1),
    Column("GPU MEM", 7, lambda row, _: _gpu_value(row, _size(row.gpu_memory_bytes)), ">", gap=1),
    Column("%", 4, lambda row, _: _gpu_value(row, percent(row.gpu_memory_percent)), ">", gap=1),
    Column("SM", 4, lambda row, _: _gpu_value(row, percent(row.sm_percent)), ">", importance=3, gap=1),
    Column("CPU", 5, lambda row, _: _host_value(percent(row.cpu_percent)), ">", importance=1, gap=1),
    Column("RAM", 6, lambda row, _: _host_value(_size(row.memory_bytes)), ">", importance=4, gap=1),
    Column("TIME", 6, lambda row, _: [(age(row.running_seconds), "dim")], ">", importance=5, gap=1),
)
