"""The processes of a snapshot as rows: filtered, sorted, grouped and arranged as a tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.text import clean
from gputui.core.units import index_ranges
from gputui.runs.processes import HostProcess
from gputui.store.hardware import GpuView, ProcessView
from gputui.ui.tui.data.snapshot import Snapshot
from gputui.ui.tui.layout.lists import ListSection, ListState

Grouping = Literal["", "gpu", "run"]
GROUPINGS: tuple[Grouping, ...] = ("", "gpu", "run")

IDLE_SECONDS = 300.0
"""A process that has held memory of a GPU at 0 % for this long is marked as idle."""

Key = tuple[int, int | None]
"""A process for as long as it lives: PID and start ticks."""


class ProcessRow(Struct, frozen=True):
    """One process, on any number of GPUs.

    Attributes:
        start_ticks: None if the PID is not visible on this machine.
        gpu_memory_percent: of the memory of its GPUs.
        idle_seconds: how long it has held memory of GPUs that compute nothing.
        tree: the branches before its command in the tree.
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
    def is_idle(self) -> bool:
        """Whether it has been idle long enough to be marked."""
        return self.idle_seconds is not None and self.idle_seconds >= IDLE_SECONDS

    @property
    def key(self) -> Key:
        """The identity of the process while it lives."""
        return self.pid, self.start_ticks


class ProcessOrder(NamedTuple):
    """A sort order and the letter that chooses it. Rows whose ``key`` is None go to the end."""

    words: str
    letter: str
    key: Callable[[ProcessRow], float | str | None]


def _down(value: float | None) -> float | None:
    return None if value is None else -value


ORDERS: tuple[ProcessOrder, ...] = (
    ProcessOrder("by GPU memory", "m", lambda row: _down(row.gpu_memory_bytes)),
    ProcessOrder("by SM", "s", lambda row: _down(row.sm_percent)),
    ProcessOrder("by CPU", "c", lambda row: _down(row.cpu_percent)),
    ProcessOrder("by RAM", "r", lambda row: _down(row.memory_bytes)),
    ProcessOrder("by PID", "p", lambda row: row.pid),
    ProcessOrder("by user", "u", lambda row: row.user),
    ProcessOrder("by time", "t", lambda row: _down(row.running_seconds)),
    ProcessOrder("by command", "n", lambda row: row.command),
)


class ProcessesState(ListState, frozen=True):
    """State of the list beyond the snapshot."""

    order: ProcessOrder = ORDERS[0]
    is_reversed: bool = False
    is_tree: bool = False
    grouping: Grouping = ""


def process_rows(snapshot: Snapshot) -> list[ProcessRow]:
    """All processes of a snapshot, each once: those on the GPUs, and those of our runs on this machine."""
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
        is_idle = len(since) == len(places) and not row.sm_percent
        rows.append(replace(row, idle_seconds=snapshot.at - max(since)) if is_idle else row)
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
    """The rows that match the filter, sorted, in groups; within a group as a tree if ``state`` says so."""
    words = state.filter_text.lower().split()
    matching = [row for row in rows if all(word in _haystack(row) for word in words)]
    found = _sorted(matching, state.order.key, reverse=state.is_reversed)
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
    idle = "idle" if row.is_idle else ""
    return f"{row.pid} {row.user or ''} {row.command or ''} {row.run_id or ''} {rank} {gpus} {idle}".lower()


def _sorted(
    rows: Sequence[ProcessRow], key: Callable[[ProcessRow], float | str | None], *, reverse: bool
) -> list[ProcessRow]:
    by_pid = sorted(rows, key=lambda row: row.pid)
    known = [(value, row) for row in by_pid if (value := key(row)) is not None]
    known.sort(key=lambda pair: pair[0], reverse=reverse)
    return [row for _, row in known] + [row for row in by_pid if key(row) is None]


def _as_tree(rows: Sequence[ProcessRow]) -> list[ProcessRow]:
    """Children behind their parents. Trees are ordered by the first of their rows; a row without a parent among the
    rows is a root."""
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
