"""The lists of processes on GPUs that the driver gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from ctypes import byref, c_uint, c_ulonglong
from functools import partial
from typing import Any, Literal

from msgspec.structs import replace

from gputui.machine.gpu_model import GpuProcess, say
from gputui.machine.gpu_processes import GpuProcessReader
from gputui.machine.nvml_calls import ERROR_INSUFFICIENT_SIZE, ERROR_NOT_FOUND, Calls

Kind = Literal["C", "G", "M"]

# The version of these calls since driver release 510.
_FUNCTIONS: dict[Kind, str] = {
    "C": "nvmlDeviceGetComputeRunningProcesses_v3",
    "G": "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "M": "nvmlDeviceGetMPSComputeRunningProcesses_v3",
}
# The compute list is read each time. Graphics and MPS lists seldom change during training, and the
# graphics list is the most expensive of the usual calls (4.5 ms on an RTX 4090 laptop).
_SELDOM_EVERY = 5
_ROOM_FOR = 32  # processes of a GPU that one call has room for; it grows with need
# The kernel's PID_MAX_LIMIT on 64 bits (include/linux/threads.h): no PID is larger.
_PID_MAX = 4 * 1024 * 1024


class ProcessLists:
    """Reads the lists of any number of GPUs and caches what is read seldom."""

    def __init__(self, calls: Calls, reader: GpuProcessReader) -> None:
        self._calls = calls
        self._reader = reader
        self._reads: dict[str, int] = {}
        self._seldom: dict[str, list[GpuProcess]] = {}
        self._shares_until: dict[str, int] = {}
        self._reported_invalid: set[str] = set()
        self._room = _ROOM_FOR

    def read(self, gpu: str, handle: Any, memory_total_bytes: int | None) -> tuple[GpuProcess, ...] | None:
        """The processes of one GPU, largest first; None if the driver has no list or an invalid
        one. Raises GpuGoneError, DriverGoneError."""
        listed = self._listed(gpu, handle, "C")
        if listed is None:
            return None
        listed = [*listed, *self._seldom_listed(gpu, handle)]
        doubt = invalid_reason(listed, memory_total_bytes)
        if doubt is not None:
            if gpu not in self._reported_invalid:
                self._reported_invalid.add(gpu)
                say(f"process list of {gpu} discarded: {doubt}")
            return None
        self._reported_invalid.discard(gpu)
        shares = None
        if listed:
            shares = self._calls.run(gpu, "nvmlDeviceGetProcessUtilization", partial(self._shares, gpu, handle))
        processes = [self._named(process, shares) for process in merged(listed)]
        return tuple(sorted(processes, key=lambda process: (-(process.memory_bytes or 0), process.pid)))

    def _seldom_listed(self, gpu: str, handle: Any) -> list[GpuProcess]:
        """The graphics and MPS lists, often cached: then without processes that have ended
        since."""
        reads = self._reads[gpu] = self._reads.get(gpu, 0) + 1
        if reads % _SELDOM_EVERY == 1:
            listed = [*(self._listed(gpu, handle, "G") or ()), *(self._listed(gpu, handle, "M") or ())]
            self._seldom[gpu] = [self._named(process, None) for process in listed]
            return listed
        return [
            process
            for process in self._seldom[gpu]
            if process.start_ticks is None or self._reader.identify(process.pid) is not None
        ]

    def _named(self, process: GpuProcess, shares: dict[int, int] | None) -> GpuProcess:
        """The process with its owner and its share of the GPU."""
        share = None
        if shares is not None:
            share = shares.get(process.pid, 0)
        owner = self._reader.identify(process.pid)
        if owner is None:
            return replace(process, sm_percent=share)
        return replace(process, user=owner.user, command=owner.command, start_ticks=owner.start_ticks, sm_percent=share)

    def _listed(self, gpu: str, handle: Any, kind: Kind) -> list[GpuProcess] | None:
        """One list, read in one call. The binding makes two calls to learn the size."""
        nvml = self._calls.nvml

        def read() -> list[GpuProcess]:
            pointer = nvml._nvmlGetFunctionPointer(_FUNCTIONS[kind])
            rows = self._filled(nvml.c_nvmlProcessInfo_v2_t, lambda count, rows: pointer(handle, count, rows))
            blank = nvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value
            listed = []
            for row in rows:
                memory_bytes = None if row.usedGpuMemory == blank else row.usedGpuMemory
                listed.append(GpuProcess(row.pid, memory_bytes, kind))
            return listed

        processes: list[GpuProcess] | None = self._calls.run(gpu, _FUNCTIONS[kind], read)
        return processes

    def _shares(self, gpu: str, handle: Any) -> dict[int, int]:
        """PID → SM share since the previous call, in percent, without idle PIDs."""
        nvml = self._calls.nvml
        pointer = nvml._nvmlGetFunctionPointer("nvmlDeviceGetProcessUtilization")
        measured_until = self._shares_until.get(gpu, 0)
        samples = self._filled(
            nvml.c_nvmlProcessUtilizationSample_t,
            lambda count, samples: pointer(handle, samples, count, c_ulonglong(measured_until)),
        )
        # The driver sometimes reports stale samples and shares above 100.
        fresh = [sample for sample in samples if sample.timeStamp > measured_until and sample.smUtil <= 100]
        self._shares_until[gpu] = max((sample.timeStamp for sample in fresh), default=measured_until)
        return {sample.pid: sample.smUtil for sample in sorted(fresh, key=lambda sample: sample.timeStamp)}

    def _filled(self, row_type: Any, fill: Callable[[Any, Any], int]) -> Any:
        """The rows that a function of the driver writes into a buffer, which grows until they fit.
        Raises NVMLError."""
        while True:
            count = c_uint(self._room)
            rows = (row_type * self._room)()
            code = fill(byref(count), rows)
            if code == ERROR_NOT_FOUND:  # no process worked since the last call
                return []
            if code != ERROR_INSUFFICIENT_SIZE:
                self._calls.nvml._nvmlCheckReturn(code)
                return rows[: count.value]
            self._room = max(self._room * 2, count.value + _ROOM_FOR)


def invalid_reason(processes: Iterable[GpuProcess], memory_total_bytes: int | None) -> str | None:
    """The reason why the lists cannot be valid, or None. Some drivers' rows have another layout
    than their version, which scrambles PIDs and memory."""
    for process in processes:
        pid = process.pid
        memory_bytes = process.memory_bytes
        if not 0 < pid <= _PID_MAX:
            return f"{pid} cannot be a PID"
        if memory_bytes is not None and memory_total_bytes is not None and memory_bytes > memory_total_bytes:
            return f"PID {pid} would hold {memory_bytes} bytes of {memory_total_bytes}"
    return None


def merged(processes: Iterable[GpuProcess]) -> list[GpuProcess]:
    """One entry per PID. A process that computes and draws is in both lists, each time with all of
    its memory."""
    by_pid: dict[int, GpuProcess] = {}
    for process in processes:
        first = by_pid.get(process.pid, process)
        sizes = [entry.memory_bytes for entry in (process, first) if entry.memory_bytes is not None]
        kind: Kind = first.kind
        if process.kind == "C":
            kind = "C"
        by_pid[process.pid] = replace(first, memory_bytes=max(sizes, default=None), kind=kind)
    return list(by_pid.values())
