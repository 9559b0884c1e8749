"""Costs of processes: CPU time, memory and descent, from /proc."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# counted from the state, the first field after the command's name (proc(5))
_PPID = 1
_CUTIME = 13
_CSTIME = 14
_TICKS_PER_SECOND = 100.0  # USER_HZ, the unit of /proc/<pid>/stat on every Linux platform that gputui runs on


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory of several processes, summed. ``rss_bytes`` counts a page that two of them share twice,
    ``pss_bytes`` counts it once, and only in part where other processes of the machine share it as well."""

    rss_bytes: int
    pss_bytes: int


def family(roots: Iterable[int]) -> list[int]:
    """The given processes and all their living descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields is not None:
                children.setdefault(int(fields[_PPID]), []).append(int(entry.name))
    pids: list[int] = []
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in pids and _stat(pid) is not None:
            pids.append(pid)
            waiting += children.get(pid, [])
    return pids


def cpu_seconds(pid: int) -> float:
    """User and system time of a living process since its start, with that of its children that have ended.

    All its threads, in nanoseconds, from the process's CPU clock, whose number follows from its PID
    (clock_getcpuclockid(3)); /proc/<pid>/stat has the same figure in steps of 10 ms. Raises OSError when it has ended.
    """
    running = time.clock_gettime((~pid << 3) | 2)
    fields = _stat(pid)
    if fields is None:
        raise ProcessLookupError(pid)
    return running + (int(fields[_CUTIME]) + int(fields[_CSTIME])) / _TICKS_PER_SECOND


def memory(pids: Iterable[int]) -> Memory:
    """Resident memory of all of them. Raises OSError when one has ended."""
    rss = pss = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "Rss":
                rss += int(value.split()[0]) << 10
            elif name == "Pss":
                pss += int(value.split()[0]) << 10
    return Memory(rss, pss)


class CpuMeter:
    """CPU time of groups of processes between two moments. A group is named and may hold one process or several."""

    def __init__(self, groups: dict[str, list[int]]) -> None:
        self._groups = groups
        self._began_at = time.monotonic()
        self._before = {name: _sum(pids) for name, pids in groups.items()}

    def percent(self) -> dict[str, float]:
        """Share of one core that each group has used since the meter was made; ``sum`` is all of them together."""
        seconds = time.monotonic() - self._began_at
        shares = {name: 100.0 * (_sum(pids) - self._before[name]) / seconds for name, pids in self._groups.items()}
        return {**shares, "sum": sum(shares.values())}


def machine_load() -> float:
    """The load average of the last minute: how busy the machine was otherwise."""
    return float(Path("/proc/loadavg").read_text().split()[0])


def _sum(pids: Iterable[int]) -> float:
    return sum(cpu_seconds(pid) for pid in pids)


def _stat(pid: int) -> list[str] | None:
    """The fields after the command's name, or None when the process has ended or is a zombie."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/stat").read_text()
        fields = text[text.rfind(")") + 2 :].split()
        if fields[0] != "Z":
            return fields
    return None
