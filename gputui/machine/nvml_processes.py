"""The processes on a GPU: the driver's lists, checked, merged and named."""

from __future__ import annotations

from collections.abc import Iterable
from ctypes import byref, c_uint, c_ulonglong
from functools import partial
from typing import Any, Literal

from msgspec import Struct

from gputui.machine.gpu_model import GpuProcess
from gputui.machine.gpu_processes import GpuProcessReader
from gputui.machine.gpu_source import say
from gputui.machine.nvml_calls import ERROR_INSUFFICIENT_SIZE, ERROR_NOT_FOUND, Calls

Kind = Literal["C", "G", "M"]

# The compute list is read each time. Graphics and MPS lists seldom change during training, and the graphics list is the
# most expensive of the usual calls (a median of 4.5 ms on an RTX 4090 laptop).
_FUNCTIONS: dict[Kind, str] = {
    "C": "nvmlDeviceGetComputeRunningProcesses",
    "G": "nvmlDeviceGetGraphicsRunningProcesses",
    "M": "nvmlDeviceGetMPSComputeRunningProcesses",
}
_SELDOM_EVERY = 5
_ROOM_FOR = 32

# The kernel's PID_MAX_LIMIT on 64 bits (include/linux/threads.h): no PID is larger.
_PID_MAX = 4 * 1024 * 1024


class Row(Struct, frozen=True):
    """A row of the driver's lists. ``memory_bytes`` is None if unknown."""

    pid: int
    memory_bytes: int | None
    kind: Kind


class ProcessLists:
    """Reads the lists of any number of GPUs and caches what is read seldom."""

    def __init__(self, calls: Calls, reader: GpuProcessReader) -> None:
        self._calls = calls
        self._reader = reader
        self._turn: dict[str, int] = {}
        self._seldom: dict[str, list[tuple[Row, bool]]] = {}
        self._utilization_seen: dict[str, int] = {}
        self._reported_invalid: set[str] = set()
        self._room = _ROOM_FOR

    def read(self, gpu: str, handle: Any, memory_total_bytes: int | None) -> tuple[GpuProcess, ...] | None:
        """The processes of one GPU, largest first; None if the driver has no list or an invalid one. Raises
        GpuGoneError, DriverGoneError."""
        rows = self._list(gpu, handle, "C")
        if rows is None:
            return None
        rows = rows + self._seldom_rows(gpu, handle)
        doubt = invalid_reason(rows, memory_total_bytes)
        if doubt is not None:
            if gpu not in self._reported_invalid:
                self._reported_invalid.add(gpu)
                say(f"process list of {gpu} discarded: {doubt}")
            return None
        self._reported_invalid.discard(gpu)
        if not rows:
            return ()
        sm_percent = self._utilization(gpu, handle)
        return self._named(merged(rows), sm_percent)

    def _seldom_rows(self, gpu: str, handle: Any) -> list[Row]:
        """Graphics and MPS rows, often cached. Cached rows of processes that have ended are left out, if the process
        was visible here."""
        turn = self._turn.get(gpu, 0)
        if turn % _SELDOM_EVERY == 0:
            rows = [*(self._list(gpu, handle, "G") or ()), *(self._list(gpu, handle, "M") or ())]
            self._seldom[gpu] = [(row, self._reader.identify(row.pid) is not None) for row in rows]
            self._turn[gpu] = turn + 1
            return rows
        self._turn[gpu] = turn + 1
        return [row for row, visible in self._seldom[gpu] if not visible or self._reader.identify(row.pid) is not None]

    def _named(self, rows: list[Row], sm_percent: dict[int, int] | None) -> tuple[GpuProcess, ...]:
        processes = []
        for row in rows:
            who = self._reader.identify(row.pid)
            processes.append(
                GpuProcess(
                    pid=row.pid,
                    memory_bytes=row.memory_bytes,
                    kind=row.kind,
                    user=who.user if who else None,
                    command=who.command if who else None,
                    start_ticks=who.start_ticks if who else None,
                    sm_percent=None if sm_percent is None else sm_percent.get(row.pid, 0),
                )
            )
        processes.sort(key=lambda process: (-(process.memory_bytes or 0), process.pid))
        return tuple(processes)

    def _list(self, gpu: str, handle: Any, kind: Kind) -> list[Row] | None:
        name = _FUNCTIONS[kind]
        for version in ("_v3", "_v2"):
            function = name + version
            if self._calls.answers(gpu, function):
                read = partial(self._rows, function, handle, kind)
                found: list[Row] | None = self._calls.run(gpu, function, read)
                if found is not None or self._calls.answers(gpu, function):
                    return found
        return None

    def _rows(self, function: str, handle: Any, kind: Kind) -> list[Row]:
        """Read a list in one call. The binding makes two calls to learn the size; a large buffer needs only one."""
        nvml = self._calls.nvml
        pointer = nvml._nvmlGetFunctionPointer(function)
        while True:
            count = c_uint(self._room)
            buffer = (nvml.c_nvmlProcessInfo_v2_t * self._room)()
            code = pointer(handle, byref(count), buffer)
            if code != ERROR_INSUFFICIENT_SIZE:
                break
            self._room = max(self._room * 2, count.value + _ROOM_FOR)
        nvml._nvmlCheckReturn(code)
        blank = nvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value
        rows = []
        for item in buffer[: count.value]:
            memory = item.usedGpuMemory
            rows.append(Row(item.pid, None if memory == blank else memory, kind))
        return rows

    def _utilization(self, gpu: str, handle: Any) -> dict[int, int] | None:
        """PID → SM share since the previous call, in percent, without idle PIDs. None if unknown."""
        found: dict[int, int] | None = self._calls.run(
            gpu, "nvmlDeviceGetProcessUtilization", partial(self._samples, gpu, handle)
        )
        return found

    def _samples(self, gpu: str, handle: Any) -> dict[int, int]:
        nvml = self._calls.nvml
        pointer = nvml._nvmlGetFunctionPointer("nvmlDeviceGetProcessUtilization")
        seen = self._utilization_seen.get(gpu, 0)
        while True:
            count = c_uint(self._room)
            buffer = (nvml.c_nvmlProcessUtilizationSample_t * self._room)()
            code = pointer(handle, buffer, byref(count), c_ulonglong(seen))
            if code != ERROR_INSUFFICIENT_SIZE:
                break
            self._room = max(self._room * 2, count.value + _ROOM_FOR)
        if code == ERROR_NOT_FOUND:  # no process worked since then
            return {}
        nvml._nvmlCheckReturn(code)
        newest: dict[int, tuple[int, int]] = {}
        for item in buffer[: count.value]:
            stamp, share = item.timeStamp, item.smUtil
            # The driver sometimes reports stale samples and shares above 100.
            if stamp > seen and share <= 100 and stamp >= newest.get(item.pid, (0, 0))[0]:
                newest[item.pid] = (stamp, share)
        if newest:
            self._utilization_seen[gpu] = max(stamp for stamp, _ in newest.values())
        return {pid: share for pid, (_, share) in newest.items()}


def invalid_reason(rows: Iterable[Row], memory_total_bytes: int | None) -> str | None:
    """Why the lists cannot be valid, or None. Some drivers' rows have another layout than their version, which
    scrambles PIDs and memory."""
    for row in rows:
        if not 0 < row.pid <= _PID_MAX:
            return f"{row.pid} cannot be a PID"
        if row.memory_bytes is not None and memory_total_bytes is not None and row.memory_bytes > memory_total_bytes:
            return f"PID {row.pid} would hold {row.memory_bytes} bytes of {memory_total_bytes}"
    return None


def merged(rows: Iterable[Row]) -> list[Row]:
    """One row per PID. A process that computes and draws is in both lists, each time with all of its memory."""
    by_pid: dict[int, Row] = {}
    for row in rows:
        other = by_pid.get(row.pid)
        if other is None:
            by_pid[row.pid] = row
            continue
        known = [memory for memory in (row.memory_bytes, other.memory_bytes) if memory is not None]
        kind: Kind = "C" if "C" in (row.kind, other.kind) else other.kind
        by_pid[row.pid] = Row(row.pid, max(known) if known else None, kind)
    return list(by_pid.values())
