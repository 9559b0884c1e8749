"""Processes as rows and lines: their list, the panel on the overview, and the details of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.text import cell_width, clean, clip_middle
from gputui.core.units import UNKNOWN, age, bytes_text, count_of, duration, gibibytes, index_ranges, percent
from gputui.metrics.draw.parts import Line, Span
from gputui.runs.process_words import script_words
from gputui.runs.processes import HostProcess
from gputui.store.hardware import LOOK_BACK_SECONDS, GpuView, ProcessView
from gputui.ui.tui.layout.columns import (
    Column,
    drop_empty,
    fill_height,
    paragraph,
    rule,
    shrink,
)
from gputui.ui.tui.layout.lists import Listing, ListState, RowOrder, filter_rows, order_named
from gputui.ui.views.run_words import run_style
from gputui.ui.views.snapshot import Snapshot

Grouping = Literal["", "gpu", "run"]
GROUPINGS: tuple[Grouping, ...] = ("", "gpu", "run")

IDLE_SECONDS = 300.0
"""A process that has held memory of a GPU at 0 % for this long is marked as idle."""

DETAIL_LINES = 5
"""Lines of the details below the list; half of them are the command's at most."""

_STATES = {"T": "stopped", "t": "traced", "Z": "ended", "D": "waits for a disk or device"}
"""States worth a word: others change all the time."""

Key = tuple[int, int | None]
"""A process for as long as it lives: PID and start ticks."""


class ProcessRow(Struct, frozen=True):
    """One process, on any number of GPUs. What is not known is None.

    Attributes:
        pid: the PID that the driver reports, which may be another container's.
        start_ticks: the kernel's start time; None if the PID is not visible here.
        run_id: the run that it belongs to; None for a process of nobody's run.
        rank: the rank that it is or belongs to; None outside of ranks.
        gpus: the indices of the GPUs that it uses.
        gpu_memory_bytes: the memory that it holds on all of its GPUs.
        gpu_memory_percent: the share that it holds of the memory of all of its GPUs.
        sm_percent: its use of the GPU that it uses most.
        cpu_percent: 100 for one core.
        memory_bytes: the memory that it holds on the host.
        state: the kernel's letter.
        idle_seconds: how long all of its GPUs have been idle, from `IDLE_SECONDS` on.
        tree: the branches before its command.
        running_seconds: the time since its start.
    """

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


def _largest(name: str, letter: str, value: Callable[[ProcessRow], float | None]) -> RowOrder[ProcessRow]:
    """An order with the largest value first."""

    def key(row: ProcessRow) -> float | None:
        number = value(row)
        if number is None:
            return None
        return -number

    return RowOrder(name, letter, f"by {name}", key)


ORDERS: tuple[RowOrder[ProcessRow], ...] = (
    _largest("GPU memory", "m", lambda row: row.gpu_memory_bytes),
    _largest("SM", "s", lambda row: row.sm_percent),
    _largest("CPU", "c", lambda row: row.cpu_percent),
    _largest("RAM", "r", lambda row: row.memory_bytes),
    RowOrder("PID", "p", "by PID", lambda row: row.pid),
    RowOrder("user", "u", "by user", lambda row: row.user),
    _largest("time", "t", lambda row: row.running_seconds),
    RowOrder("command", "n", "by command", lambda row: row.command),
)


class ProcessesState(ListState, frozen=True):
    """State of the list beyond the snapshot."""

    order: str = "GPU memory"
    is_tree: bool = False
    grouping: Grouping = ""


def process_rows(snapshot: Snapshot) -> list[ProcessRow]:
    """All processes of a snapshot, each once: those on the GPUs, and those of our runs here."""
    hosts = dict(snapshot.processes or {})
    on_gpus: dict[Key, list[tuple[GpuView, ProcessView]]] = {}
    for gpu in snapshot.gpus:
        for process in gpu.processes or ():
            on_gpus.setdefault((process.pid, process.start_ticks), []).append((gpu, process))
    rows = []
    for (pid, ticks), uses in on_gpus.items():
        host = None
        if pid in hosts and hosts[pid].start_ticks == ticks:
            host = hosts.pop(pid)
        row = _row((pid, ticks), uses, host)
        # A process is idle only if all its GPUs are.
        idle_since = max(snapshot.idle_since.get((gpu.uuid, pid), snapshot.at) for gpu, _ in uses)
        if not row.sm_percent and snapshot.at - idle_since >= IDLE_SECONDS:
            row = replace(row, idle_seconds=snapshot.at - idle_since)
        rows.append(row)
    return [*rows, *(_row((host.pid, host.start_ticks), (), host) for host in hosts.values())]


def _row(key: Key, uses: Sequence[tuple[GpuView, ProcessView]], host: HostProcess | None) -> ProcessRow:
    """A process from the driver's list of each of its GPUs, and from the host."""
    on_gpus = [process for _, process in uses]
    sources: list[HostProcess | ProcessView] = [*on_gpus]
    if host is not None:
        sources.insert(0, host)
    # The driver's list knows the run of a process that has overwritten its environment.
    owners = [(clean(source.run_id), source.rank) for source in (*on_gpus, *sources) if source.run_id]
    run_id, rank = next(iter(owners), (None, None))
    row = ProcessRow(
        *key,
        user=next((clean(source.user) for source in sources if source.user), None),
        command=next((clean(source.command) for source in sources if source.command), None),
        run_id=run_id,
        rank=rank,
        gpus=tuple(sorted({gpu.index for gpu, _ in uses})),
        sm_percent=max((process.sm_percent for process in on_gpus if process.sm_percent is not None), default=None),
    )
    sizes = [process.memory_bytes for process in on_gpus if process.memory_bytes is not None]
    total = sum(gpu.memory_total_bytes or 0 for gpu, _ in uses)
    if sizes:
        row = replace(row, gpu_memory_bytes=sum(sizes))
    if sizes and total:
        row = replace(row, gpu_memory_percent=100 * sum(sizes) / total)
    if host is None:
        return row
    of_host = ("parent_pid", "cpu_percent", "memory_bytes", "state", "running_seconds")
    return replace(row, **{name: getattr(host, name) for name in of_host})


def arrange(rows: Sequence[ProcessRow], state: ProcessesState) -> dict[str, list[ProcessRow]]:
    """The rows that match the filter, sorted, in groups, and as a tree if ``state`` says so."""
    matches = filter_rows(sorted(rows, key=lambda row: row.pid), state.filter_text, _search_text)
    groups: dict[tuple[bool, tuple[int, ...], str], list[ProcessRow]] = {}
    for row in order_named(ORDERS, state.order).sorted(matches):
        groups.setdefault(_group(row, state.grouping), []).append(row)
    if state.is_tree:
        groups = {group: _as_tree(members) for group, members in groups.items()}
    return {heading and f"{heading} · {len(members)}": members for (_, _, heading), members in sorted(groups.items())}


def _group(row: ProcessRow, grouping: Grouping) -> tuple[bool, tuple[int, ...], str]:
    """The group of a row, and its heading. Groups sort by GPU or run; processes without one come last."""
    if grouping == "gpu" and not row.gpus:
        return True, (), "no GPU"
    if grouping == "gpu":
        return False, row.gpus, f"GPU {index_ranges(row.gpus)}"
    if grouping == "run":
        return row.run_id is None, (), row.run_id or "no run of ours"
    return False, (), ""


def _search_text(row: ProcessRow) -> str:
    """The texts that a filter searches."""
    texts = [str(row.pid), row.user or "", row.command or "", row.run_id or ""]
    if row.rank is not None:
        texts.append(f"r{row.rank}")
    texts += [f"gpu{index}" for index in row.gpus]
    if row.idle_seconds is not None:
        texts.append("idle")
    return " ".join(texts)


def _as_tree(rows: Sequence[ProcessRow]) -> list[ProcessRow]:
    """Children behind their parents. Trees are ordered by the first of their rows."""
    by_pid = {row.pid: row for row in rows}
    children: dict[int, list[ProcessRow]] = {}
    roots: dict[Key, ProcessRow] = {}
    for row in rows:
        root = row
        lineage = {row.pid}
        while (parent := by_pid.get(root.parent_pid or 0)) is not None and parent.pid not in lineage:
            root = parent
            lineage.add(parent.pid)
        roots.setdefault(root.key, root)
        if root is not row:
            children.setdefault(row.parent_pid or 0, []).append(row)
    ordered: list[ProcessRow] = []

    def add(row: ProcessRow, branch: str, indent: str) -> None:
        ordered.append(replace(row, tree=branch))
        family = children.pop(row.pid, [])
        for child in family[:-1]:
            add(child, f"{indent}├ ", f"{indent}│ ")
        for child in family[-1:]:
            add(child, f"{indent}└ ", f"{indent}  ")

    for root in roots.values():
        add(root, "", "")
    return ordered


def process_panel(snapshot: Snapshot, width: int, height: int) -> list[Line]:
    """The processes on the GPUs in exactly ``height`` lines: those of no run, then those with the most memory first."""
    state = ProcessesState(order="")
    listing = process_listing(snapshot, process_rows(snapshot), state)
    # The rows of the GPUs tell of those of runs.
    others_first = sorted(listing.rows, key=lambda row: row.run_id is not None)
    return replace(listing, sections={"": others_first}).lines(state, width, height)


def process_listing(snapshot: Snapshot, rows: Sequence[ProcessRow], state: ProcessesState) -> Listing[ProcessRow]:
    """The list of those of all ``rows`` that the filter leaves."""
    title = "PROCESSES" + " as a tree" * state.is_tree
    title += {"": "", "gpu": " per GPU", "run": " per run"}[state.grouping]
    ours = sum(row.run_id is not None for row in rows)
    notes: list[Span] = []
    if hidden := sum(gpu.processes is None and gpu.state == "ok" for gpu in snapshot.gpus):
        notes.append((f"no list of {count_of(hidden, 'GPU')} from the driver", "warn"))
    if rows:
        notes.append((f"{ours} of runs, {count_of(len(rows) - ours, 'other')}", "dim"))
    empty = "No process is on a GPU, and no run of ours has any."
    if snapshot.past is not None:
        empty = "No process is recorded of that moment."
    sections = arrange(rows, state)
    columns = _columns(snapshot, rows)
    return Listing(title, columns, sections, key=lambda row: row.key, notes=notes, empty=empty)


def total_words(rows: Sequence[ProcessRow]) -> str:
    """The number of processes, and their CPU and RAM as far as known."""
    cpu = [row.cpu_percent for row in rows if row.cpu_percent is not None]
    ram = [row.memory_bytes for row in rows if row.memory_bytes is not None]
    parts = [str(len(rows))]
    if cpu:
        parts.append(f"CPU {percent(sum(cpu))}")
    if ram:
        parts.append(f"RAM {bytes_text(sum(ram))}")
    return " · ".join(parts)


def process_facts(row: ProcessRow) -> list[tuple[str, str]]:
    """Facts about a process, by name."""
    pid = str(row.pid)
    if row.start_ticks is None:
        pid += " (not visible on this machine: a container's, or outside of ours)"
    run = row.run_id or UNKNOWN
    if row.run_id is not None and row.rank is not None:
        run += f" rank {row.rank}"
    gpu_label = "GPU" if len(row.gpus) == 1 else "GPUs"
    memory = bytes_text(row.gpu_memory_bytes)
    if row.gpu_memory_percent is not None:
        memory += f" ({percent(row.gpu_memory_percent)} of the GPU's)"
    idle = age(row.idle_seconds)
    if row.idle_seconds is not None and row.idle_seconds >= 0.99 * LOOK_BACK_SECONDS:
        # Samples reach back a day.
        idle = "over a day"
    texts = {
        "PID": pid,
        "command": row.command or UNKNOWN,
        "parent": str(row.parent_pid or UNKNOWN),
        "user": row.user or UNKNOWN,
        "run": run,
        gpu_label: index_ranges(row.gpus) or UNKNOWN,
        "GPU memory": memory,
        "SM": percent(row.sm_percent),
        "idle": idle,
        "CPU": percent(row.cpu_percent),
        "RAM": bytes_text(row.memory_bytes),
        "running for": duration(row.running_seconds),
        "state": _STATES.get(row.state or "", UNKNOWN),
    }
    return [(name, text) for name, text in texts.items() if text != UNKNOWN]


def detail_lines(row: ProcessRow, width: int) -> list[Line]:
    """The command and the details of a process below a heading, in `DETAIL_LINES` lines."""
    text = " · ".join(f"{name} {text}" for name, text in process_facts(row) if name not in ("PID", "command"))
    command = paragraph((" ", "text"), row.command or _unseen(row), "text", width)
    details = paragraph((" ", "dim"), text, "dim", width)
    return fill_height(
        [rule(f"PROCESS {row.pid}", width), *command[: DETAIL_LINES // 2], *details], width, DETAIL_LINES
    )


# --- columns


def _columns(snapshot: Snapshot, rows: Sequence[ProcessRow]) -> list[Column[ProcessRow]]:
    """The columns that tell anything: CPU, RAM and TIME are read only for the page, and now."""
    colours = {row.run.run_id: run_style(row.run) for row in snapshot.runs}
    user = max((cell_width(row.user or UNKNOWN) for row in rows), default=0)

    def pid(row: ProcessRow, width: int) -> list[Span]:
        style = "dim" if row.start_ticks is None else "text"
        return [(str(row.pid), style)]

    def run(row: ProcessRow, width: int) -> list[Span]:
        if row.run_id is None:
            return []
        rank = "" if row.rank is None else f" r{row.rank}"
        name = clip_middle(row.run_id, max(1, width - len(rank)))
        return [(name, colours.get(row.run_id, "accent")), (rank, "text")]

    columns: list[Column[ProcessRow]] = [
        Column("PID", 8, pid, ">"),
        Column("USER", min(12, max(4, user)), lambda row, _: [(row.user or UNKNOWN, "dim")], gap=1),
        Column("GPU", 3, lambda row, _: [(index_ranges(row.gpus), "text")], ">", gap=1),
        Column("GPU MEM", 7, lambda row, _: _gpu_value(row, _size(row.gpu_memory_bytes)), ">", gap=1),
        Column("%", 4, lambda row, _: _gpu_value(row, percent(row.gpu_memory_percent)), ">", gap=1),
        Column(
            "SM", 4, lambda row, _: _gpu_value(row, percent(row.sm_percent)), ">", 3, gap=1,
            value=lambda row: row.sm_percent,
        ),
        Column(
            "CPU", 5, lambda row, _: _value(percent(row.cpu_percent)), ">", 1, gap=1, value=lambda row: row.memory_bytes
        ),
        Column(
            "RAM", 6, lambda row, _: _value(_size(row.memory_bytes)), ">", 4, gap=1, value=lambda row: row.memory_bytes
        ),
        Column(
            "TIME", 6, lambda row, _: [(age(row.running_seconds), "dim")], ">", 5, gap=1,
            value=lambda row: row.running_seconds,
        ),
        shrink(Column("RUN", 14, run, importance=2, most=26, value=lambda row: row.run_id), rows),
        Column("COMMAND", 14, _command, grow=8),
    ]  # fmt: skip
    if len(snapshot.gpus) < 2:
        columns = [column for column in columns if column.head != "GPU"]
    return drop_empty(columns, rows)


def _gpu_value(row: ProcessRow, text: str) -> list[Span]:
    """A value on a GPU; blank for a process on none."""
    if not row.gpus:
        return []
    return _value(text)


def _value(text: str) -> list[Span]:
    style = "dim" if text == UNKNOWN else "text"
    return [(text, style)]


def _size(value: int | None) -> str:
    """A size with fixed decimals: ``29.2G``, ``8M``."""
    if value is None:
        return UNKNOWN
    if value >= 0.95 * 2**30:
        return f"{gibibytes(value)}G"
    return f"{value / 2**20:.0f}M"


def _command(row: ProcessRow, width: int) -> list[Span]:
    parts: list[Span] = [(row.tree, "dim")]
    if (word := _STATES.get(row.state or "")) is not None:
        parts.append((f"[{word}] ", "warn"))
    if row.idle_seconds is not None:
        parts.append((f"[idle {age(row.idle_seconds)}] ", "warn"))
    if script := script_words(row.command or "", row.run_id):
        return [*parts, (script, "text")]
    return [*parts, (_unseen(row), "dim")]


def _unseen(row: ProcessRow) -> str:
    """The text in place of an unknown command."""
    if row.start_ticks is None:
        return "process not visible here"
    return UNKNOWN
