"""State, CPU, memory and I/O of an attempt's processes, from procfs."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from gputui.machine.procfs import TICKS_PER_SECOND, command_of, main_thread_seconds, private_bytes, read_stat
from gputui.runs.identity import ProcessIdentity
from gputui.runs.processes import AttemptProcess


class ProcessReading(Struct, frozen=True):
    """One process; None is unknown.

    Attributes:
        start_ticks: when it began, in clock ticks since the boot.
        state: a letter, see proc(5).
        cpu_seconds: CPU time, with that of reaped children.
        queued_seconds: how long its main thread waited for a core.
        io_bytes: bytes of read and write calls, and of disk transfers.
        private_bytes: unshared resident memory.
        is_program: it is another program than its parent, and no worker of Python's multiprocessing.
        age_seconds: the time since its start.
        main_seconds: CPU time of its main thread.
    """

    pid: int
    start_ticks: int
    state: str
    cpu_seconds: float
    queued_seconds: float | None
    io_bytes: int | None
    private_bytes: int | None
    is_program: bool = False
    age_seconds: float = math.inf
    main_seconds: float | None = None


def read_process(identity: ProcessIdentity) -> ProcessReading | None:
    """The reading of a process, or None if it has ended."""
    stat = read_stat(identity.pid)
    if stat is None or stat.is_dead or stat.start_ticks != identity.start_ticks:
        return None
    return ProcessReading(
        pid=identity.pid,
        start_ticks=identity.start_ticks,
        state=stat.state,
        cpu_seconds=stat.cpu_seconds + stat.children_seconds,
        queued_seconds=_queued(identity.pid),
        io_bytes=_io(identity.pid),
        private_bytes=private_bytes(identity.pid),
        is_program=_is_program(identity.pid, stat.parent_pid),
        age_seconds=time.clock_gettime(time.CLOCK_BOOTTIME) - stat.start_ticks / TICKS_PER_SECOND,
        main_seconds=main_thread_seconds(identity.pid),
    )


def describe(processes: Iterable[AttemptProcess]) -> str:
    """A table for a post-mortem: rank, state, kernel function it waits in, command."""
    rows = [f"{'pid':>8} {'rank':>5} state {'waits in':<24} command"]
    for process in processes:
        identity = process.identity
        rank = process.rank
        reading = read_process(identity)
        if reading is None:
            continue
        command = command_of(identity.pid)[:300]
        waits = ""
        with contextlib.suppress(OSError):
            waits = _text(identity.pid, "wchan").strip()
        text = "–" if rank is None else str(rank)
        rows.append(f"{identity.pid:>8} {text:>5} {reading.state:<5} {waits or '–':<24} {command}")
    return "\n".join(rows) + "\n"


def _is_program(pid: int, parent_pid: int) -> bool:
    """Return whether a process runs a command line of its own: a forked worker has its parent's."""
    try:
        command = _text(pid, "cmdline")
        parent = _text(parent_pid, "cmdline")
    except OSError:
        return False
    return command != parent and "from multiprocessing." not in command


def _text(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text("utf-8", "replace")


def _queued(pid: int) -> float | None:
    try:
        return int(_text(pid, "schedstat").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def _io(pid: int) -> int | None:
    """Bytes of read and write calls and, for mapped files, of disk transfers."""
    counted = ("rchar: ", "wchar: ", "read_bytes: ", "write_bytes: ")
    try:
        return sum(int(line.split()[1]) for line in _text(pid, "io").splitlines() if line.startswith(counted))
    except (OSError, ValueError):
        return None
