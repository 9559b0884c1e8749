"""The GPUs of this machine, read through NVML.

NVML answers "not supported" for what a GPU, driver or mode lacks, at the cost of a call. Such
answers are cached per GPU and call; temporary errors are not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from ctypes import c_void_p, cast
from functools import partial
from typing import Any, TypeVar

from gputui.machine.gpu_model import (
    FastTick,
    FreshProcessNeededError,
    GpuEvent,
    GpuFacts,
    GpuProcess,
    Inventory,
    Occupant,
    ProcessTick,
    SlowTick,
)
from gputui.machine.gpu_processes import GpuProcessReader
from gputui.machine.nvml_calls import (
    ERROR_LIB_RM_VERSION_MISMATCH,
    Calls,
    DriverGoneError,
    GpuGoneError,
    problem_of,
)
from gputui.machine.nvml_processes import ProcessLists
from gputui.machine.nvml_readings import Gpu, read_facts
from gputui.machine.xid import FALLEN_OFF_THE_BUS, FIRMWARE_SILENT, xid_text
from gputui.store.series import GpuSample

_XID_CRITICAL_ERROR = 0x8  # nvmlEventTypeXidCriticalError in nvml.h
_AT_ONCE_MAX = 64  # a flood of events must not hold up the samples

CLOCKS_SECONDS = 1.5
"""Least time between two readings of the clocks and of what throttles them, a quarter of all calls: each second tick at
the default interval. A held-back clock matters only when it lasts."""

RECHECK_SECONDS = 10.0  # a GPU that was lost may come back at any time
RECHECK_RARELY_SECONDS = 300.0  # few GPUs come back after the first minutes

_NO_BINDING = "The Python package nvidia-ml-py is missing. Install it with: pip install nvidia-ml-py"
_NO_GPU = "The NVIDIA driver is loaded but shows no GPU. Check lspci, and in a container that it was given GPUs"
_UNLOADED = "The NVIDIA driver was unloaded. Load it again with: sudo modprobe nvidia"
# In place of the UUID, until the driver opens the GPU.
_UNOPENED = "GPU-unopened-{}"
_VANISHED = "the driver does not list this GPU any more"

T = TypeVar("T")


class XidEvents:
    """An event set over all GPUs of a session. Drivers without events (old ones, WSL) report
    none."""

    def __init__(self, nvml: Any, handles: dict[str, Any]) -> None:
        self._nvml = nvml
        self._uuids: dict[int | None, str] = {}
        self._set: Any = None
        with contextlib.suppress(nvml.NVMLError):
            self._set = nvml.nvmlEventSetCreate()
        if self._set is None:
            return
        for uuid, handle in handles.items():
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlDeviceRegisterEvents(handle, _XID_CRITICAL_ERROR, self._set)
                self._uuids[_address(handle)] = uuid

    def read(self) -> list[tuple[str, int]]:
        """Return (UUID, XID) of the events since the last call, without waiting."""
        events: list[tuple[str, int]] = []
        if not self._uuids:
            return events
        # Any error ends the reading: usually a timeout. The fast tier reports a lost GPU.
        with contextlib.suppress(self._nvml.NVMLError):
            while len(events) < _AT_ONCE_MAX:
                data = self._nvml.nvmlEventSetWait_v2(self._set, 0)
                uuid = self._uuids.get(_address(data.device))
                if uuid is not None and data.eventType & _XID_CRITICAL_ERROR:
                    events.append((uuid, int(data.eventData)))
        return events

    def close(self) -> None:
        if self._set is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlEventSetFree(self._set)
            self._set = None
            self._uuids.clear()


def _address(handle: Any) -> int | None:
    return cast(handle, c_void_p).value


class NvmlSource:
    """The source of real GPUs. Nothing is opened before ``inventory`` is called. Every GPU that was
    seen is kept by its UUID, so that a lost one stays visible."""

    def __init__(self, reader: GpuProcessReader | None = None) -> None:
        self._reader = reader or GpuProcessReader()
        self._gpus: dict[str, Gpu] = {}
        self._session: Calls | None = None
        self._lists: ProcessLists | None = None
        self._xids: XidEvents | None = None
        self._events: list[GpuEvent] = []
        self._mismatched = self._mismatched_before = False
        self._unopened = False
        self._link_turn = 0
        self._clocks_read_at = float("-inf")

    def inventory(self, at: float) -> Inventory:
        # Events in the driver's queue are lost with the session.
        self._take_xids(at)
        self._end_session()
        try:
            import pynvml
        except ImportError:
            return self._without_driver(at, _NO_BINDING)
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self._mismatched = error.value == ERROR_LIB_RM_VERSION_MISMATCH
            if self._mismatched:
                # This process keeps the library that it has loaded, whatever is installed later.
                if self._mismatched_before:
                    raise FreshProcessNeededError from error
                self._mismatched_before = True
            return self._without_driver(at, problem_of(error.value, str(error)))
        self._mismatched = self._mismatched_before = False
        session = self._session = Calls(pynvml)
        try:
            return self._enumerate(at, session)
        except DriverGoneError:
            return self._without_driver(at, _UNLOADED)

    def recheck_after_seconds(self) -> float | None:
        if self._mismatched:
            return RECHECK_RARELY_SECONDS
        if self._session is None or any(gpu.state == "lost" for gpu in self._gpus.values()):
            return RECHECK_SECONDS
        # A GPU whose firmware is silent seldom comes back, and each try may block for 45 s.
        if self._unopened or any(gpu.handle is None for gpu in self._gpus.values()):
            return RECHECK_RARELY_SECONDS
        return None

    def fast(self, at: float) -> FastTick:
        # A wall clock that was set back counts as time that has passed.
        with_clocks = not 0.0 <= at - self._clocks_read_at < CLOCKS_SECONDS
        if with_clocks:
            self._clocks_read_at = at
        samples = self._read_each(at, partial(Gpu.read_fast, with_clocks=with_clocks))
        return FastTick(
            at=at,
            gpus=tuple(
                samples.get(uuid) or GpuSample(uuid=uuid, state=gpu.state, detail=gpu.detail)
                for uuid, gpu in self._gpus.items()
            ),
        )

    def slow(self, at: float) -> SlowTick:
        return SlowTick(at=at, gpus=tuple(self._read_each(at, Gpu.read_slow).values()))

    def processes(self, at: float) -> ProcessTick:
        def read(gpu: Gpu, _session: Calls) -> tuple[GpuProcess, ...] | None:
            if self._lists:
                return self._lists.read(gpu.uuid, gpu.handle, gpu.facts.memory_total_bytes)
            return None

        unknown: dict[str, tuple[GpuProcess, ...] | None] = dict.fromkeys(self._gpus)
        by_uuid = unknown | self._read_each(at, read)
        self._reader.keep_only(process.pid for listed in by_uuid.values() for process in listed or ())
        return ProcessTick(at=at, processes=by_uuid)

    def link_step(self) -> None:
        answering = [gpu for gpu in self._gpus.values() if gpu.handle is not None]
        if self._session is None or not answering:
            return
        self._link_turn = (self._link_turn + 1) % len(answering)
        # If the GPU or the driver is gone, the next fast tick reports it.
        with contextlib.suppress(GpuGoneError, DriverGoneError):
            answering[self._link_turn].read_link(self._session)

    def events(self, at: float) -> list[GpuEvent]:
        self._take_xids(at)
        happened = self._events
        self._events = []
        return happened

    def occupy(self, occupants: Sequence[Occupant]) -> None:
        """Nothing to do: the driver lists the processes."""

    def close(self) -> None:
        self._end_session()

    def _take_xids(self, at: float) -> None:
        if self._xids is None:
            return
        for uuid, code in self._xids.read():
            self._events.append(GpuEvent(at=at, uuid=uuid, event="xid", code=code, text=xid_text(code)))
            if code == FALLEN_OFF_THE_BUS:
                self._mark_lost(at, self._gpus[uuid], xid_text(code))
            elif code in FIRMWARE_SILENT:
                gpu = self._gpus[uuid]
                gpu.handle = None
                gpu.state = "error"
                gpu.detail = xid_text(code)

    def _read_each(self, at: float, read: Callable[[Gpu, Calls], T]) -> dict[str, T]:
        """The result of ``read`` for each GPU that answers. GPUs that are gone are marked."""
        results: dict[str, T] = {}
        for gpu in self._gpus.values():
            if self._session is None:
                break
            if gpu.handle is None:
                continue
            try:
                results[gpu.uuid] = read(gpu, self._session)
            except GpuGoneError as gone:
                self._mark_lost(at, gpu, str(gone))
            except DriverGoneError:
                self._mark_driver_lost(at, _UNLOADED)
        return results

    def _enumerate(self, at: float, session: Calls) -> Inventory:
        """Raises DriverGoneError."""
        nvml = session.nvml
        driver_version = session.run("", "nvmlSystemGetDriverVersion", nvml.nvmlSystemGetDriverVersion)
        cuda = session.run("", "nvmlSystemGetCudaDriverVersion", nvml.nvmlSystemGetCudaDriverVersion_v2)
        if driver_version is not None:
            driver_version = str(driver_version) or None
        cuda_version = None
        if cuda:
            cuda_version = f"{cuda // 1000}.{cuda % 1000 // 10}"
        handles: dict[str, Any] = {}
        unopened: list[str] = []
        for index in range(session.run("", "nvmlDeviceGetCount", nvml.nvmlDeviceGetCount) or 0):
            name = f"GPU {index}"
            try:
                handle = session.ask(name, "nvmlDeviceGetHandleByIndex", index)
                if handle is None or (uuid := session.text(name, "nvmlDeviceGetUUID", handle)) is None:
                    raise GpuGoneError(session.last_error.get(name, "not supported"))
                self._admit(at, session, index, uuid, handle)
                handles[uuid] = handle
            except GpuGoneError as gone:
                unopened.append(f"{name} cannot be opened: {gone}")
                self._miss(at, index, str(gone))
        for uuid, gpu in self._gpus.items():
            if uuid not in handles:
                self._mark_lost(at, gpu, _VANISHED)
        self._gpus = dict(sorted(self._gpus.items(), key=lambda item: item[1].facts.index))
        self._xids = XidEvents(nvml, handles)
        self._lists = ProcessLists(session, self._reader)
        self._unopened = bool(unopened) or not self._gpus
        problem = "; ".join(unopened) or None
        if problem is None and not self._gpus:
            problem = _NO_GPU
        return self._inventory(at, problem, driver_version, cuda_version)

    def _miss(self, at: float, index: int, reason: str) -> None:
        """Keep a GPU that cannot be opened as a lost one, unless the one in its place was seen
        before."""
        if all(gpu.facts.index != index for gpu in self._gpus.values()):
            gpu = Gpu(GpuFacts(_UNOPENED.format(index), index, "unknown GPU"), None)
            self._gpus[gpu.uuid] = gpu
            self._mark_lost(at, gpu, reason)

    def _admit(self, at: float, session: Calls, index: int, uuid: str, handle: Any) -> None:
        """Raises GpuGoneError, DriverGoneError."""
        gpu = Gpu(read_facts(session, index, uuid, handle), handle)
        gpu.read_settings(session)
        before = self._gpus.get(uuid)
        if before is not None and before.state != "ok":
            self._events.append(GpuEvent(at=at, uuid=uuid, event="returned", text="the driver lists this GPU again"))
        self._gpus[uuid] = gpu
        self._gpus.pop(_UNOPENED.format(index), None)

    def _without_driver(self, at: float, problem: str) -> Inventory:
        self._mark_driver_lost(at, problem)
        return self._inventory(at, problem)

    def _inventory(
        self, at: float, problem: str | None, driver_version: str | None = None, cuda_version: str | None = None
    ) -> Inventory:
        return Inventory(
            at=at,
            source="nvml",
            driver_version=driver_version,
            cuda_version=cuda_version,
            gpus=tuple(gpu.facts for gpu in self._gpus.values()),
            problem=problem,
        )

    def _mark_lost(self, at: float, gpu: Gpu, reason: str) -> None:
        gpu.handle = None
        if gpu.state != "lost":
            gpu.state = "lost"
            gpu.detail = reason
            self._events.append(GpuEvent(at=at, uuid=gpu.uuid, event="lost", text=reason))

    def _mark_driver_lost(self, at: float, reason: str) -> None:
        self._end_session()
        for gpu in self._gpus.values():
            self._mark_lost(at, gpu, reason)

    def _end_session(self) -> None:
        """Close everything, so that a GPU can be reset."""
        session = self._session
        self._session = None
        xids = self._xids
        self._xids = None
        self._lists = None
        if xids is not None:
            xids.close()
        if session is not None:
            with contextlib.suppress(session.nvml.NVMLError):
                session.nvml.nvmlShutdown()
