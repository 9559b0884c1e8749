"""The processes of runs, wherever they are watched, ended, counted or shown.

A process is found by the shim's list (``processes.json``, also when the shim is gone), by the
process tree below the known processes, and by the tag in its environment. Each finds what the
others miss: a program that sets its title overwrites its environment, and that of sudo's child
cannot be read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from msgspec import Struct

from gputui.machine.procfs import TICKS_PER_SECOND, ProcessStat, command_of, private_bytes, read_stat, user_of
from gputui.runs import shim_processes
from gputui.runs.foreign_json import read_foreign_json
from gputui.runs.identity import ProcessIdentity, boot_id
from gputui.store.hardware import GpuView

READ_AGAIN_SECONDS = 1.8
"""Least time between two reads of all processes: every second snapshot of a screen with one snapshot per second."""

_LIST_BYTES = 8 << 20  # some 80 000 processes
# Deeper than any process tree of a training.
_DEEPEST = 64
_COMMAND_MAX_CHARACTERS = 500  # the widest terminal

# A forked process has its parent's environment until it calls exec.
_YOUNG_SECONDS = 10.0
_TAG = b"GPUTUI_RUN_DIR"


class AttemptProcess(Struct, frozen=True):
    """A living process of an attempt.

    Attributes:
        rank: None for those without one, such as torchrun.
        local_world_size: the number of ranks on this machine; None if unknown.
    """

    identity: ProcessIdentity
    rank: int | None = None
    local_world_size: int | None = None

    @property
    def pid(self) -> int:
        return self.identity.pid


class Owner(NamedTuple):
    """The run that a process belongs to, with what else is known of it."""

    run_id: str
    rank: int | None
    attempt: int | None
    local_world_size: int | None = None


class ProcessScanner:
    """Scans all processes of the machine repeatedly. A tag is read while its process is young and
    then remembered, for the process may overwrite its environment later."""

    def __init__(self) -> None:
        self._tags: dict[tuple[int, int], Mapping[bytes, bytes]] = {}

    def scan(self) -> ProcessScan:
        """All living processes."""
        up_seconds = time.clock_gettime(time.CLOCK_BOOTTIME)
        before = self._tags
        self._tags = {}
        stats = {}
        tags = {}
        for pid in shim_processes.all_pids():
            stat = read_stat(pid)
            if stat is None or stat.is_dead:
                continue
            stats[pid] = stat
            key = (pid, stat.start_ticks)
            tag = before.get(key)
            if tag is None:
                environment = shim_processes.environment_of(pid)
                tag = environment if _TAG in environment else {}
            if up_seconds - stat.start_ticks / TICKS_PER_SECOND > _YOUNG_SECONDS:
                self._tags[key] = tag
            if tag:
                tags[pid] = tag
        return ProcessScan(stats, tags)


@dataclass(frozen=True)
class ProcessScan:
    """The living processes of the machine and the environments of the tagged ones, by PID."""

    stats: Mapping[int, ProcessStat]
    environments: Mapping[int, Mapping[bytes, bytes]]

    @cached_property
    def _children(self) -> dict[int, list[int]]:
        children: dict[int, list[int]] = {}
        for pid, stat in self.stats.items():
            children.setdefault(stat.parent_pid, []).append(pid)
        return children

    def processes_of(self, run_dir: Path, attempt: int | None = None) -> list[AttemptProcess]:
        """Every process of a run or of one ``attempt``, with its shim, in PID order."""
        owners = self.owned(run_dir.parent, _listed(run_dir, attempt, self.stats))
        return [
            AttemptProcess(self.identity(pid), owner.rank, owner.local_world_size)
            for pid, owner in sorted(owners.items())
            if owner.run_id == run_dir.name and attempt in (None, owner.attempt)
        ]

    def owned(self, runs: Path, listed: Mapping[int, Owner] = MappingProxyType({})) -> dict[int, Owner]:
        """The owner of each process of the runs in the folder ``runs``, by PID: by its own tag, by
        what the shims ``listed``, or that of its nearest ancestor that has one."""
        roots: dict[int, Owner | None] = dict(listed)
        for pid, environment in self.environments.items():
            owner = _owner_in(environment, runs)
            listed_owner = listed.get(pid)
            if owner is not None and listed_owner is not None and owner.rank is None:
                owner = owner._replace(rank=listed_owner.rank, local_world_size=listed_owner.local_world_size)
            roots[pid] = owner
        owners: dict[int, Owner] = {}
        waiting = [(pid, owner) for pid, owner in roots.items() if owner is not None]
        while waiting:
            pid, owner = waiting.pop()
            if owner.rank is None:
                owner = owner._replace(rank=shim_processes.rank_by_output(pid, str(runs)))
            owners[pid] = owner
            waiting += [(child, owner) for child in self._children.get(pid, ()) if child not in roots]
        return owners

    def identity(self, pid: int) -> ProcessIdentity:
        """The identity of a process of the scan."""
        return ProcessIdentity(pid, self.stats[pid].start_ticks, boot_id())


def processes_of(run_dir: Path, attempt: int | None = None) -> list[AttemptProcess]:
    """Every living process of a run or of one ``attempt``, with its shim, in PID order."""
    return ProcessScanner().scan().processes_of(run_dir, attempt)


def owner_of(pid: int, runs: Path | str) -> Owner | None:
    """The owner of one process, as `ProcessScan.owned` finds those of all."""
    rank = None
    for _ in range(_DEEPEST):
        environment = shim_processes.environment_of(pid)
        if rank is None:
            rank = shim_processes.rank_by_output(pid, str(runs))
        if _TAG in environment:
            owner = _owner_in(environment, runs)
            if owner is None or owner.rank is not None:
                return owner
            return owner._replace(rank=rank)
        stat = read_stat(pid)
        if stat is None or stat.parent_pid <= 1:
            return None
        pid = stat.parent_pid
    return None


def _owner_in(environment: Mapping[bytes, bytes], runs: Path | str) -> Owner | None:
    """The owner in a tagged environment; None if that is no run in the folder ``runs``."""
    folder, run_id = os.path.split(os.fsdecode(environment.get(_TAG, b"")))
    if folder != str(runs) or not run_id:
        return None
    attempt = environment.get(b"GPUTUI_ATTEMPT", b"")
    rank, size = shim_processes.rank_in(environment)
    number = int(attempt) if attempt.isdigit() else None
    return Owner(run_id, rank, number, size)


def _listed(run_dir: Path, attempt: int | None, living: Mapping[int, ProcessStat]) -> dict[int, Owner]:
    """The living processes that the shims of a run have listed."""
    owners: dict[int, Owner] = {}
    pattern = "*" if attempt is None else str(attempt)
    folders = (run_dir / "attempts").glob(pattern)
    # started.json names the command alone, and exists even if a full disk left no room for the
    # list.
    for path in (folder / name for folder in folders for name in ("started.json", "processes.json")):
        try:
            record = read_foreign_json(path, _LIST_BYTES)
            if record["boot_id"] != boot_id():
                continue
            for entry in record.get("processes", [record]):
                stat = living.get(entry["pid"])
                if stat is not None and stat.start_ticks == entry["start_ticks"]:
                    number = int(path.parent.name)
                    size = entry.get("local_world_size")
                    owners[stat.pid] = Owner(run_dir.name, entry.get("rank"), number, size)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            # A living shim rewrites it within a second; the tree and the tags cover most of it.
            continue
    return owners


# --- the table of the screen -------------------------------------------------------------------


class HostProcess(Struct, frozen=True):
    """One process of the screen's table.

    Attributes:
        cpu_percent: of one core, since the previous reading; None in the first.
        memory_bytes: unshared resident memory.
        run_id: the run that it or an ancestor is tagged with; None for none.
        rank: the rank that it or an ancestor is tagged with; None for none.
        running_seconds: since its start; None if unknown.
    """

    pid: int
    parent_pid: int
    start_ticks: int
    state: str
    user: str | None
    command: str | None
    cpu_percent: float | None
    memory_bytes: int | None
    run_id: str | None = None
    rank: int | None = None
    running_seconds: float | None = None


class ProcessTable:
    """Reads the processes of the runs in the folder ``runs`` repeatedly; one per thread."""

    def __init__(self, runs: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._runs = runs
        self._clock = clock
        self._scanner = ProcessScanner()
        self._cpu_seconds: dict[tuple[int, int], float] = {}
        self._read_at: float | None = None

    def read(self, pids: Iterable[int]) -> dict[int, HostProcess]:
        """The processes of this home's runs and the visible ones of ``pids``, by PID."""
        now = self._clock()
        elapsed = None if self._read_at is None else now - self._read_at
        self._read_at = now
        up_seconds = time.clock_gettime(time.CLOCK_BOOTTIME)
        scan = self._scanner.scan()
        owned = scan.owned(self._runs)
        before = self._cpu_seconds
        self._cpu_seconds = {}
        processes = {}
        for pid in owned.keys() | (set(pids) & scan.stats.keys()):
            stat = scan.stats[pid]
            owner = owned.get(pid)
            key = (pid, stat.start_ticks)
            self._cpu_seconds[key] = stat.cpu_seconds
            cpu_percent = None
            if key in before and elapsed:
                cpu_percent = 100 * (stat.cpu_seconds - before[key]) / elapsed
            processes[pid] = HostProcess(
                pid=pid,
                parent_pid=stat.parent_pid,
                start_ticks=stat.start_ticks,
                state=stat.state,
                user=user_of(pid),
                command=command_of(pid)[:_COMMAND_MAX_CHARACTERS] or None,
                cpu_percent=cpu_percent,
                memory_bytes=private_bytes(pid),
                run_id=owner and owner.run_id,
                rank=owner and owner.rank,
                running_seconds=max(0.0, up_seconds - stat.start_ticks / TICKS_PER_SECOND),
            )
        return processes


class ProcessReader:
    """Reads processes, at most every `READ_AGAIN_SECONDS`."""

    def __init__(self, runs: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._table = ProcessTable(runs)
        self._clock = clock
        self._read_at = float("-inf")
        self._newest: Mapping[int, HostProcess] = {}

    def read(self, gpus: Sequence[GpuView]) -> Mapping[int, HostProcess]:
        """The processes of our runs and the visible ones on these GPUs, by PID."""
        now = self._clock()
        # The first reading knows no load yet: the second follows with the next snapshot.
        has_load = any(process.cpu_percent is not None for process in self._newest.values())
        if not has_load or now - self._read_at >= READ_AGAIN_SECONDS:
            self._read_at = now
            listed = (process for gpu in gpus for process in gpu.processes or ())
            visible = (process.pid for process in listed if process.start_ticks is not None)
            self._newest = self._table.read(visible)
        return self._newest
