"""The rows of the table of processes: filtered, sorted, grouped and arranged as a tree."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gputui.core.text import clean
from gputui.core.units import index_ranges
from gputui.runs.processes import HostProcess
from gputui.store.hardware import ProcessView
from gputui.ui.tui.data.snapshot import Snapshot

Grouping = Literal["", "gpu", "run"]
GROUPINGS: tuple[Grouping, ...] = ("", "gpu", "run")

IDLE_SECONDS = 300.0
"""A process that has held memory of a GPU at 0 % for this long is marked as idle."""

_GroupKey = tuple[bool, tuple[int, ...], str]
Key = tuple[int, int | None]
"""A process for as long as it lives: PID and start ticks."""


class ProcessRow(Struct, frozen=True):
    """One process, on any number of GPUs.

    Attributes:
        start_ticks: None if the PID is not visible on this machine.
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

    name: str
    words: str
    letter: str
    key: Callable[[ProcessRow], float | str | None]


def _down(value: float | None) -> float | None:
    return None if value is None else -value


ORDERS: tuple[ProcessOrder, ...] = (
    ProcessOrder("memory", "by GPU memory", "m", lambda row: _down(row.gpu_memory_bytes)),
    ProcessOrder("sm", "by SM", "s", lambda row: _down(row.sm_percent)),
    ProcessOrder("cpu", "by CPU", "c", lambda row: _down(row.cpu_percent)),
    ProcessOrder("ram", "by RAM", "r", lambda row: _down(row.memory_bytes)),
    ProcessOrder("pid", "by PID", "p", lambda row: row.pid),
    ProcessOrder("user", "by user", "u", lambda row: row.user),
    ProcessOrder("time", "by time", "t", lambda row: _down(row.running_seconds)),
    ProcessOrder("command", "by command", "n", lambda row: row.command),
)


class TableState(Struct, frozen=True):
    """State of the table beyond the snapshot."""

    cursor: Key | None = None
    top: int = 0
    filter_text: str = ""
    order: str = "memory"
    is_reversed: bool = False
    is_tree: bool = False
    grouping: Grouping = ""


class ProcessGroup(Struct, frozen=True):
    """Rows under a heading; the heading is empty where nothing is grouped."""

    heading: str
    rows: tuple[ProcessRow, ...] = msgspec.field(default=())


def order_named(name: str) -> ProcessOrder:
    """The order of this name; the first for an unknown name."""
    return next((order for order in ORDERS if order.name == name), ORDERS[0])


def order_of_letter(letter: str) -> ProcessOrder | None:
    """The order that a column's letter chooses."""
    return next((order for order in ORDERS if order.letter == letter), None)


_FLAG_WITH_VALUE = ("-X", "-W")


def short_command(command: str) -> str:
    """A command line without the program's folder and the flags of the Python interpreter:
    ``/opt/env/bin/python3.11 -u -m trainer`` → ``python -m trainer``."""
    program, _, rest = command.partition(" ")
    name = program.rsplit("/", 1)[-1] or program
    if not re.fullmatch(r"python[\d.]*", name):
        return f"{name} {rest}" if rest else name
    words = rest.split(" ")
    while words and re.fullmatch(r"-[BEIOPSbdqsuvx]+|-[XW].*", words[0]):
        words = words[2:] if words[0] in _FLAG_WITH_VALUE else words[1:]
    return " ".join(["python", *words])


def process_rows(snapshot: Snapshot) -> list[ProcessRow]:
    """All processes of a snapshot, each once: those on the GPUs, and those of our runs on this machine."""
    hosts = dict(snapshot.processes.hosts) if snapshot.processes is not None else {}
    held: dict[Key, list[tuple[int, ProcessView]]] = {}
    idle: dict[Key, list[float | None]] = {}
    for gpu in snapshot.gpus:
        for process in gpu.processes or ():
            key = (process.pid, process.start_ticks)
            held.setdefault(key, []).append((gpu.index, process))
            idle.setdefault(key, []).append(snapshot.idle_since.get((gpu.uuid, process.pid)))
    rows = []
    for (pid, ticks), places in held.items():
        host = hosts.get(pid)
        is_same = host is not None and host.start_ticks == ticks
        row = _row(pid, ticks, places, hosts.pop(pid) if is_same else None)
        since = [at for at in idle[pid, ticks] if at is not None]
        # A process is idle only if all its GPUs are.
        is_idle = len(since) == len(places) and not row.sm_percent
        rows.append(replace(row, idle_seconds=snapshot.at - max(since)) if is_idle else row)
    return [*rows, *(_row(host.pid, host.start_ticks, (), host) for host in hosts.values())]


def _row(
    pid: int, ticks: int | None, places: Sequence[tuple[int, ProcessView]], host: HostProcess | None
) -> ProcessRow:
    listed = [process for _, process in places]
    run_id, rank = next(((each.run_id, each.rank) for each in listed if each.run_id is not None), (None, None))
    return ProcessRow(
        pid=pid,
        start_ticks=ticks,
        parent_pid=host.parent_pid if host else None,
        user=_text((host.user if host else None) or next((each.user for each in listed if each.user), None)),
        command=_text(
            (host.command if host else None) or next((each.command for each in listed if each.command), None)
        ),
        run_id=_text(run_id if run_id is not None else host.run_id if host else None),
        rank=rank if run_id is not None else host.rank if host else None,
        gpus=tuple(sorted({index for index, _ in places})),
        gpu_memory_bytes=_sum(each.memory_bytes for each in listed),
        sm_percent=max((each.sm_percent for each in listed if each.sm_percent is not None), default=None),
        cpu_percent=host.cpu_percent if host else None,
        memory_bytes=host.memory_bytes if host else None,
        state=host.state if host else None,
        running_seconds=host.running_seconds if host else None,
    )


def arranged(rows: Iterable[ProcessRow], state: TableState) -> list[ProcessGroup]:
    """The rows that match the filter, sorted, in groups; within a group as a tree if ``state`` says so."""
    order = order_named(state.order)
    words = state.filter_text.lower().split()
    matching = [row for row in rows if all(word in _haystack(row) for word in words)]
    found = _sorted(matching, order.key, reverse=state.is_reversed)
    shape = _as_tree if state.is_tree else tuple
    if state.grouping == "":
        return [ProcessGroup("", shape(found))] if found else []
    groups: dict[_GroupKey, list[ProcessRow]] = {}
    for row in found:
        groups.setdefault(_group(row, state.grouping), []).append(row)
    return [ProcessGroup(key[2], shape(groups[key])) for key in sorted(groups)]


def _group(row: ProcessRow, grouping: Grouping) -> _GroupKey:
    """Groups sort by GPU or run; processes without one come last."""
    if grouping == "gpu":
        return not row.gpus, tuple(row.gpus), f"GPU {index_ranges(row.gpus)}" if row.gpus else "no GPU"
    return row.run_id is None, (), row.run_id if row.run_id is not None else "no run of ours"


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


def _as_tree(rows: Sequence[ProcessRow]) -> tuple[ProcessRow, ...]:
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
    return tuple(shown)


def _text(text: str | None) -> str | None:
    return None if text is None else clean(text)


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
