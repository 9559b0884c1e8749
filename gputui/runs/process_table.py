"""A table of the processes of this home's runs, and of others by PID, with their CPU, memory and owner, from procfs."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from msgspec import Struct

from gputui.core.redaction import redact_command_line
from gputui.runs.attempt_processes import is_tagged, rank_by_output
from gputui.runs.identity import Owner, all_pids, environment_of, owner_in

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_COMMAND_MAX_CHARACTERS = 500

# Fields of /proc/PID/stat after the command's closing parenthesis, counted from 0: proc_pid_stat(5).
_STATE, _PARENT, _USER_TIME, _SYSTEM_TIME, _START = 0, 1, 11, 12, 19

# A launcher forks before it gives the child its environment: the mark of a younger process is read again.
_YOUNG_SECONDS = 10.0
# Deeper than any process tree of a training.
_DEEPEST = 64


class HostProcess(Struct, frozen=True):
    """One process. ``cpu_percent`` is of one core, since the previous reading (None in the first); ``memory_bytes`` is
    unshared resident memory. ``run_id`` and ``rank`` come from its own tag or its ancestors'. ``running_seconds`` is
    since its start."""

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


@dataclass(slots=True)
class _Known:
    """The constant facts of a process, and its CPU time at the last reading."""

    start_ticks: int
    owner: Owner | None = None
    is_tagged: bool = False
    is_settled: bool = False
    user: str | None = None
    command: str | None = None
    cpu_seconds: float | None = None


class ProcessTable:
    """Reads the processes repeatedly; one per thread. ``runs`` is the folder of this home's runs."""

    def __init__(self, runs: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._runs = runs
        self._clock = clock
        self._known: dict[int, _Known] = {}
        self._read_at: float | None = None

    def read(self, wanted: Iterable[int]) -> dict[int, HostProcess]:
        """The processes of this home's runs and the visible ones of the ``wanted`` PIDs, by PID."""
        now = self._clock()
        elapsed = None if self._read_at is None else now - self._read_at
        self._read_at = now
        asked = set(wanted)
        up_seconds = time.clock_gettime(time.CLOCK_BOOTTIME)
        before, self._known = self._known, {}
        stats: dict[int, list[bytes]] = {}
        unsettled = []
        for pid in all_pids():
            fields = _stat(pid)
            if fields is None:
                continue
            stats[pid] = fields
            known = before.get(pid)
            if known is None or known.start_ticks != int(fields[_START]):
                known = _Known(int(fields[_START]))
            if not known.is_settled:
                environment = environment_of(pid) or {}
                # A tag seen before the process overwrote its environment still counts.
                if is_tagged(environment, self._runs):
                    known.is_tagged, known.owner = True, owner_in(pid, environment, self._runs)
                known.is_settled = up_seconds - known.start_ticks / _TICKS > _YOUNG_SECONDS
                known.command = None
                unsettled.append(pid)
            self._known[pid] = known
        for pid in unsettled:
            known = self._known[pid]
            if not known.is_tagged:
                known.owner = self._owner_above(pid, stats)
        return {
            pid: _reading(pid, fields, self._known[pid], elapsed, up_seconds)
            for pid, fields in stats.items()
            if self._known[pid].owner is not None or pid in asked
        }

    def _owner_above(self, pid: int, stats: Mapping[int, list[bytes]]) -> Owner | None:
        """The run of an untagged process, by its nearest tagged ancestor, and the rank, by the log that it writes."""
        above = int(stats[pid][_PARENT])
        for _ in range(_DEEPEST):
            known = self._known.get(above)
            if known is None:
                return None
            if known.owner is not None or known.is_tagged:
                break
            above = int(stats[above][_PARENT])
        else:
            return None
        if known.owner is None:
            return None
        rank = rank_by_output(pid, self._runs)
        return known.owner if rank is None else (known.owner[0], rank)


def _reading(pid: int, fields: list[bytes], known: _Known, elapsed: float | None, up_seconds: float) -> HostProcess:
    if known.command is None:
        known.command, known.user = _command(pid), _user(pid)
    cpu_seconds = (int(fields[_USER_TIME]) + int(fields[_SYSTEM_TIME])) / _TICKS
    percent = None
    if known.cpu_seconds is not None and elapsed:
        percent = max(0.0, cpu_seconds - known.cpu_seconds) / elapsed * 100
    known.cpu_seconds = cpu_seconds
    run_id, rank = known.owner or (None, None)
    return HostProcess(
        pid=pid,
        parent_pid=int(fields[_PARENT]),
        start_ticks=known.start_ticks,
        state=fields[_STATE].decode("ascii", "replace"),
        user=known.user,
        command=known.command,
        cpu_percent=percent,
        memory_bytes=_private_bytes(pid),
        run_id=run_id,
        rank=rank,
        running_seconds=max(0.0, up_seconds - known.start_ticks / _TICKS),
    )


def core_times(path: Path = Path("/proc/stat")) -> list[tuple[int, int]]:
    """(busy, all) clock ticks of each core since boot; empty if unknown."""
    found = []
    try:
        lines = path.read_text("ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    for line in lines:
        name, *fields = line.split()
        if name.startswith("cpu") and name != "cpu":
            ticks = [int(field) for field in fields[:8]]
            # Fields 3 and 4 are idle and iowait.
            found.append((sum(ticks) - sum(ticks[3:5]), sum(ticks)))
    return found


def core_percents(before: Sequence[tuple[int, int]], now: Sequence[tuple[int, int]]) -> tuple[float | None, ...]:
    """The busy percent of each core between two readings, None if no time passed; empty if the number of cores
    changed."""
    if len(before) != len(now):
        return ()
    return tuple(
        100.0 * (busy - busy_before) / (total - total_before) if total > total_before else None
        for (busy_before, total_before), (busy, total) in zip(before, now, strict=True)
    )


def _stat(pid: int) -> list[bytes] | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - for every process of the machine, again and again
            text = file.read()
    except OSError:
        return None
    # The command may hold spaces and parentheses; nothing after the last ')' does.
    fields = text[text.rfind(b")") + 2 :].split()
    return fields if len(fields) > _START else None


def _command(pid: int) -> str | None:
    for name in ("cmdline", "comm"):  # a zombie has no command line
        try:
            raw = Path(f"/proc/{pid}/{name}").read_bytes()
        except OSError:
            return None
        text = redact_command_line(raw)
        if text:
            return text[:_COMMAND_MAX_CHARACTERS]
    return None


def _user(pid: int) -> str | None:
    try:
        return _user_name(os.stat(f"/proc/{pid}").st_uid)  # noqa: PTH116
    except OSError:
        return None


@lru_cache(maxsize=256)
def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _private_bytes(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:  # noqa: PTH123
            _, resident, shared, *_ = map(int, file.read().split())
    except (OSError, ValueError):
        return None
    return max(resident - shared, 0) * _PAGE_BYTES
