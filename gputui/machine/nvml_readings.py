"""The values and processes of one GPU, read through NVML. A call to the driver gives a value, None or an error."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from ctypes import byref, c_uint, c_ulonglong
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import psutil
from msgspec import Struct

from gputui.machine.gpu_model import GpuFacts, GpuProcess, say
from gputui.machine.gpu_processes import GpuProcessReader
from gputui.machine.throttle import throttle_words
from gputui.store.series import GpuSample, GpuSlowSample, GpuState

# nvmlReturn_t, from nvml.h; written out so that nothing here needs the binding at import time.
ERROR_UNINITIALIZED = 1
ERROR_INVALID_ARGUMENT = 2
ERROR_NOT_SUPPORTED = 3
ERROR_NO_PERMISSION = 4
ERROR_NOT_FOUND = 6
ERROR_INSUFFICIENT_SIZE = 7
ERROR_DRIVER_NOT_LOADED = 9
ERROR_LIBRARY_NOT_FOUND = 12
ERROR_FUNCTION_NOT_FOUND = 13
ERROR_GPU_IS_LOST = 15
ERROR_RESET_REQUIRED = 16
ERROR_LIB_RM_VERSION_MISMATCH = 18
ERROR_DEPRECATED = 26

_NEVER = frozenset({ERROR_NOT_SUPPORTED, ERROR_FUNCTION_NOT_FOUND, ERROR_DEPRECATED})
_GPU_GONE = {
    ERROR_GPU_IS_LOST: "the driver lost this GPU (it has fallen off the bus or does not answer)",
    ERROR_RESET_REQUIRED: "the driver wants this GPU reset before it can be used again",
}
_DRIVER_GONE = frozenset({ERROR_UNINITIALIZED, ERROR_DRIVER_NOT_LOADED})

# nvmlFieldValue_t.valueType → the member of nvmlValue_t that holds the value (nvmlValueType_t in nvml.h).
_FIELD_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_FIELD_NEVER = _NEVER | {ERROR_INVALID_ARGUMENT}  # an older driver does not know the id

# NVML_VALUE_NOT_AVAILABLE, as 32 and as 64 bits.
_BLANK = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})


class GpuGoneError(Exception):
    """The GPU's handle is invalid. The text says why."""


class DriverGoneError(Exception):
    """The driver was unloaded."""


class Calls:
    """Calls to NVML about GPUs. ``gpu`` is a key for the cache, usually the UUID."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self.last_error: dict[str, str] = {}
        self._never: set[tuple[object, ...]] = set()

    def ask(self, gpu: str, function: str, handle: Any, *args: object) -> Any:
        """The result of ``pynvml.<function>(handle, *args)``, or None. Raises GpuGoneError, DriverGoneError."""
        key = (gpu, function, *args)
        if key in self._never:
            return None
        return self._guarded(gpu, key, getattr(self.nvml, function), handle, *args)

    def run(self, gpu: str, name: str, function: Callable[[], Any]) -> Any:
        """The result of a function that makes several calls; "not supported" is cached under ``name``. Raises
        GpuGoneError, DriverGoneError."""
        key = (gpu, name)
        return None if key in self._never else self._guarded(gpu, key, function)

    def number(self, gpu: str, function: str, handle: Any, *args: object) -> int | None:
        """An integer, or None if NVML leaves it blank. Raises GpuGoneError, DriverGoneError."""
        value = self.ask(gpu, function, handle, *args)
        return None if value is None or value in _BLANK else int(value)

    def text(self, gpu: str, function: str, handle: Any) -> str | None:
        """A string without control characters. Raises GpuGoneError, DriverGoneError."""
        value = self.ask(gpu, function, handle)
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if not isinstance(value, str):
            return None
        return "".join(character for character in value if character.isprintable()).strip() or None

    def answers(self, gpu: str, function: str, *args: object) -> bool:
        """Whether the GPU has not answered "not supported" to this call."""
        return (gpu, function, *args) not in self._never

    def fields(self, gpu: str, handle: Any, wanted: list[tuple[int, int]]) -> dict[int, tuple[float, int]]:
        """Several field values in one call: ID → (value, timestamp of the driver in microseconds), without unknown
        ones. ``wanted`` holds (field ID, scope) pairs; unsupported ones are removed from it. Raises GpuGoneError,
        DriverGoneError."""
        if not wanted:
            return {}
        answers = self.ask(gpu, "nvmlDeviceGetFieldValues", handle, tuple(wanted))
        found: dict[int, tuple[float, int]] = {}
        for pair, answer in zip(tuple(wanted), answers or (), strict=False):
            status = answer.nvmlReturn
            if status == 0:
                kind = answer.valueType
                if 0 <= kind < len(_FIELD_MEMBERS):
                    value = getattr(answer.value, _FIELD_MEMBERS[kind])
                    if value not in _BLANK:
                        found[pair[0]] = (value, answer.timestamp)
            elif status in _FIELD_NEVER:
                wanted.remove(pair)
            elif status in _GPU_GONE:
                raise GpuGoneError(_GPU_GONE[status])
        return found

    def _guarded(self, gpu: str, key: tuple[object, ...], function: Callable[..., Any], *args: object) -> Any:
        try:
            return function(*args)
        except self.nvml.NVMLError as error:
            code = error.value
            if code in _NEVER:
                self._never.add(key)
            elif code in _GPU_GONE:
                raise GpuGoneError(_GPU_GONE[code]) from error
            elif code in _DRIVER_GONE:
                raise DriverGoneError from error
            else:
                self.last_error[gpu] = f"{key[1]}: {error}"
            return None
        except UnicodeDecodeError as error:
            # nvidia-ml-py decodes strictly, and some drivers return text that is not UTF-8.
            return error.object
        except Exception as error:
            # No reading of one GPU may cost the others.
            self.last_error[gpu] = f"{key[1]}: {type(error).__name__}: {error}"
            return None


def problem_of(code: int, text: str) -> str:
    """Why NVML cannot be opened and the remedy, in one line."""
    if code == ERROR_LIBRARY_NOT_FOUND:
        return (
            "No NVIDIA driver found (libnvidia-ml.so.1 is missing). Install the driver, or try simulated GPUs with: "
            "gputui --demo"
        )
    if code == ERROR_DRIVER_NOT_LOADED:
        return "The NVIDIA driver is installed but not loaded. Load it with: sudo modprobe nvidia"
    if code == ERROR_LIB_RM_VERSION_MISMATCH:
        return (
            "The NVIDIA driver was updated while in use: its library and its kernel module differ in version. "
            "Reboot, or stop all GPU work and reload the nvidia kernel modules"
        )
    if code == ERROR_NO_PERMISSION:
        return "The NVIDIA driver refuses this user. Check the permissions of /dev/nvidia* (often the group video)"
    if code == ERROR_FUNCTION_NOT_FOUND:
        return "The NVIDIA driver is too old for gputui. Install release 470 or later"
    return f"The NVIDIA driver cannot be used ({text}). See what it says in the kernel log: dmesg | grep -i nvrm"


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


# nvml.h: nvmlTemperatureSensors_t, nvmlClockType_t, nvmlPcieUtilCounter_t; P32 of nvmlPstates_t means unknown.
_SENSOR_GPU = 0
_CLOCK_SM = 1
_CLOCK_MEMORY = 2
_PCIE_SENT = 0
_PCIE_RECEIVED = 1
_LAST_PERFORMANCE_STATE = 15

# Field IDs of nvml.h with their scope: one link, or all.
_ECC_CORRECTED = 3
_ECC_UNCORRECTED = 4
_MEMORY_TEMPERATURE = 82
_ENERGY_MILLIJOULES = 83
_PCIE_REPLAYS = 94
_NVLINK_SENT_KIB = 138
_NVLINK_RECEIVED_KIB = 139
_REMAP_PENDING = 144
_REMAP_FAILED = 145
_ALL_LINKS = 0xFFFFFFFF
_SLOW_FIELDS = (
    (_ECC_CORRECTED, 0),
    (_ECC_UNCORRECTED, 0),
    (_MEMORY_TEMPERATURE, 0),
    (_ENERGY_MILLIJOULES, 0),
    (_PCIE_REPLAYS, 0),
    (_REMAP_PENDING, 0),
    (_REMAP_FAILED, 0),
    (_NVLINK_SENT_KIB, _ALL_LINKS),
    (_NVLINK_RECEIVED_KIB, _ALL_LINKS),
)


class Link(Struct, frozen=True):
    """The PCIe link of one GPU. Rates are measured over 20 ms."""

    generation: int | None = None
    width: int | None = None
    received_bytes_per_second: float | None = None
    sent_bytes_per_second: float | None = None


@dataclass(slots=True)
class Gpu:
    """A GPU that was seen at least once, and its state between readings. Without a handle it is not read."""

    facts: GpuFacts
    handle: Any
    state: GpuState = "ok"
    detail: str | None = None
    memory_clock_mhz: int | None = None
    performance_state: int | None = None
    power_limit_watts: float | None = None
    link: Link = field(default_factory=Link)
    encoder_percent: float | None = None
    decoder_percent: float | None = None
    _power_fields: list[tuple[int, int]] = field(default_factory=lambda: [(FIELD_POWER_INSTANT, 0)])
    _slow_fields: list[tuple[int, int]] = field(default_factory=lambda: list(_SLOW_FIELDS))
    _counters: dict[int, tuple[float, int]] = field(default_factory=dict)

    @property
    def uuid(self) -> str:
        return self.facts.uuid

    def read_fast(self, calls: Calls) -> GpuSample:
        """Raises GpuGoneError, DriverGoneError."""
        uuid, handle = self.facts.uuid, self.handle
        calls.last_error.pop(uuid, None)
        utilization = calls.ask(uuid, "nvmlDeviceGetUtilizationRates", handle)
        memory = read_memory(calls, uuid, handle)
        temperature = calls.number(uuid, "nvmlDeviceGetTemperature", handle, _SENSOR_GPU)
        power = self._power_watts(calls)
        clock = calls.number(uuid, "nvmlDeviceGetClockInfo", handle, _CLOCK_SM)
        reasons = calls.number(uuid, "nvmlDeviceGetCurrentClocksEventReasons", handle)
        if reasons is None and not calls.answers(uuid, "nvmlDeviceGetCurrentClocksEventReasons"):
            reasons = calls.number(uuid, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        own_memory = None if isinstance(memory, UnifiedMemory) else memory
        silent = all(value is None for value in (utilization, own_memory, temperature, power, clock, reasons))
        error = calls.last_error.get(uuid) if silent else None
        return GpuSample(
            uuid=uuid,
            state="error" if error else "ok",
            detail=error,
            utilization_percent=_percent(utilization.gpu) if utilization is not None else None,
            memory_utilization_percent=_percent(utilization.memory) if utilization is not None else None,
            memory_used_bytes=memory.used if memory is not None else None,
            memory_reserved_bytes=getattr(memory, "reserved", None),
            memory_total_bytes=memory.total if memory is not None else None,
            temperature_celsius=None if temperature is None else float(temperature),
            power_watts=power,
            power_limit_watts=self.power_limit_watts,
            sm_clock_mhz=clock,
            memory_clock_mhz=self.memory_clock_mhz,
            performance_state=self.performance_state,
            throttle_reasons=None if reasons is None else throttle_words(reasons),
        )

    def read_slow(self, calls: Calls) -> GpuSlowSample:
        """Raises GpuGoneError, DriverGoneError."""
        uuid, handle = self.facts.uuid, self.handle
        self._read_clocks(calls)
        fan = calls.number(uuid, "nvmlDeviceGetFanSpeed", handle)
        fields = calls.fields(uuid, handle, self._slow_fields)

        def value(field_id: int) -> float | None:
            return fields[field_id][0] if field_id in fields else None

        def whole(field_id: int) -> int | None:
            return int(fields[field_id][0]) if field_id in fields else None

        def flag(field_id: int) -> bool | None:
            return bool(fields[field_id][0]) if field_id in fields else None

        energy = value(_ENERGY_MILLIJOULES)
        return GpuSlowSample(
            uuid=uuid,
            fan_percent=None if fan is None else float(fan),
            memory_temperature_celsius=value(_MEMORY_TEMPERATURE) or None,  # some boards report 0 without a sensor
            pcie_generation=self.link.generation,
            pcie_width=self.link.width,
            pcie_received_bytes_per_second=self.link.received_bytes_per_second,
            pcie_sent_bytes_per_second=self.link.sent_bytes_per_second,
            nvlink_received_bytes_per_second=self._rate(_NVLINK_RECEIVED_KIB, fields),
            nvlink_sent_bytes_per_second=self._rate(_NVLINK_SENT_KIB, fields),
            ecc_corrected=whole(_ECC_CORRECTED),
            ecc_uncorrected=whole(_ECC_UNCORRECTED),
            row_remap_pending=flag(_REMAP_PENDING),
            row_remap_failed=flag(_REMAP_FAILED),
            energy_joules=None if energy is None else energy / 1000.0,
            pcie_replays=whole(_PCIE_REPLAYS),
            encoder_percent=self.encoder_percent,
            decoder_percent=self.decoder_percent,
        )

    def read_settings(self, calls: Calls) -> None:
        """Read what the fast tier reports but does not read. Raises GpuGoneError, DriverGoneError."""
        self._read_clocks(calls)
        self._read_power_limit(calls)

    def read_link(self, calls: Calls) -> None:
        """Read the PCIe link, and values that change or matter seldom: the video engines and the power limit. Blocks
        for 2 x 20 ms, the window of the throughput. Raises GpuGoneError, DriverGoneError."""
        uuid, handle = self.facts.uuid, self.handle
        self._read_power_limit(calls)
        encoder = calls.ask(uuid, "nvmlDeviceGetEncoderUtilization", handle)
        decoder = calls.ask(uuid, "nvmlDeviceGetDecoderUtilization", handle)
        # Each comes with the time over which it was measured.
        self.encoder_percent = None if encoder is None else _percent(encoder[0])
        self.decoder_percent = None if decoder is None else _percent(decoder[0])
        received = calls.number(uuid, "nvmlDeviceGetPcieThroughput", handle, _PCIE_RECEIVED)
        sent = calls.number(uuid, "nvmlDeviceGetPcieThroughput", handle, _PCIE_SENT)
        self.link = Link(
            generation=calls.number(uuid, "nvmlDeviceGetCurrPcieLinkGeneration", handle),
            width=calls.number(uuid, "nvmlDeviceGetCurrPcieLinkWidth", handle),
            received_bytes_per_second=None if received is None else received * 1000.0,
            sent_bytes_per_second=None if sent is None else sent * 1000.0,
        )

    def _read_clocks(self, calls: Calls) -> None:
        uuid, handle = self.facts.uuid, self.handle
        self.memory_clock_mhz = calls.number(uuid, "nvmlDeviceGetClockInfo", handle, _CLOCK_MEMORY)
        state = calls.number(uuid, "nvmlDeviceGetPerformanceState", handle)
        self.performance_state = state if state is not None and state <= _LAST_PERFORMANCE_STATE else None

    def _read_power_limit(self, calls: Calls) -> None:
        self.power_limit_watts = watts(calls.number(self.facts.uuid, "nvmlDeviceGetEnforcedPowerLimit", self.handle))

    def _power_watts(self, calls: Calls) -> float | None:
        if self._power_fields:
            answer = calls.fields(self.facts.uuid, self.handle, self._power_fields).get(FIELD_POWER_INSTANT)
            if answer is not None:
                return watts(answer[0])
        return watts(calls.number(self.facts.uuid, "nvmlDeviceGetPowerUsage", self.handle))

    def _rate(self, field_id: int, fields: dict[int, tuple[float, int]]) -> float | None:
        """Bytes per second since the previous reading of a counter in KiB, by the driver's timestamps. None for the
        first reading and after the counter decreased."""
        now = fields.get(field_id)
        before = self._counters.get(field_id)
        if now is None:
            return None
        self._counters[field_id] = now
        if before is None or now[1] <= before[1] or now[0] < before[0]:
            return None
        return (now[0] - before[0]) * 1024.0 / ((now[1] - before[1]) / 1e6)


def _percent(value: int) -> float | None:
    return float(value) if 0 <= value <= 100 else None


# nvml.h: nvmlTemperatureThresholds_t, NVML_FI_DEV_POWER_INSTANT.
_THRESHOLD_SHUTDOWN = 0
_THRESHOLD_SLOWDOWN = 1
FIELD_POWER_INSTANT = 186


class UnifiedMemory(NamedTuple):
    """The host's memory, which an integrated GPU has in place of its own."""

    total: int
    used: int


def read_facts(calls: Calls, index: int, uuid: str, handle: Any) -> GpuFacts:
    """The facts of the GPU behind ``handle``. Raises GpuGoneError, DriverGoneError."""
    pci = calls.ask(uuid, "nvmlDeviceGetPciInfo", handle)
    limits = calls.ask(uuid, "nvmlDeviceGetPowerManagementLimitConstraints", handle)
    capability = calls.ask(uuid, "nvmlDeviceGetCudaComputeCapability", handle)
    persistence = calls.number(uuid, "nvmlDeviceGetPersistenceMode", handle)
    mig = calls.ask(uuid, "nvmlDeviceGetMigMode", handle)
    memory = read_memory(calls, uuid, handle)
    instant = calls.fields(uuid, handle, [(FIELD_POWER_INSTANT, 0)])
    return GpuFacts(
        uuid=uuid,
        index=index,
        name=calls.text(uuid, "nvmlDeviceGetName", handle) or "NVIDIA GPU",
        pci_bus_id=str(pci.busId) if pci is not None else None,
        memory_total_bytes=memory.total if memory is not None else None,
        power_limit_default_watts=watts(calls.number(uuid, "nvmlDeviceGetPowerManagementDefaultLimit", handle)),
        power_limit_max_watts=watts(limits[1]) if limits is not None else None,
        temperature_slowdown_celsius=_threshold(calls, uuid, handle, _THRESHOLD_SLOWDOWN),
        temperature_shutdown_celsius=_threshold(calls, uuid, handle, _THRESHOLD_SHUTDOWN),
        pcie_generation_max=calls.number(uuid, "nvmlDeviceGetMaxPcieLinkGeneration", handle),
        pcie_width_max=calls.number(uuid, "nvmlDeviceGetMaxPcieLinkWidth", handle),
        compute_capability=f"{capability[0]}.{capability[1]}" if capability is not None else None,
        persistence_mode=None if persistence is None else bool(persistence),
        mig_mode=None if mig is None else bool(mig[0]),
        power_reading="instant" if instant else "driver",
        memory_is_unified=isinstance(memory, UnifiedMemory),
    )


def read_memory(calls: Calls, uuid: str, handle: Any) -> Any:
    """Total, used and, with the call's second version, reserved bytes; None if unknown. Only the second version's
    ``used`` excludes reserved memory. A GPU that has neither memory nor a window into it (BAR1) uses the host's. Raises
    GpuGoneError, DriverGoneError."""
    second = calls.nvml.nvmlMemory_v2
    if calls.answers(uuid, "nvmlDeviceGetMemoryInfo", second):
        memory = calls.ask(uuid, "nvmlDeviceGetMemoryInfo", handle, second)
        if memory is not None or calls.answers(uuid, "nvmlDeviceGetMemoryInfo", second):
            return memory
    memory = calls.ask(uuid, "nvmlDeviceGetMemoryInfo", handle)
    if memory is None and not calls.answers(uuid, "nvmlDeviceGetMemoryInfo"):
        calls.ask(uuid, "nvmlDeviceGetBAR1MemoryInfo", handle)
        if not calls.answers(uuid, "nvmlDeviceGetBAR1MemoryInfo"):
            host = psutil.virtual_memory()
            return UnifiedMemory(host.total, host.total - host.available)
    return memory


def watts(milliwatts: float | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000.0


def _threshold(calls: Calls, uuid: str, handle: Any, which: int) -> float | None:
    value = calls.number(uuid, "nvmlDeviceGetTemperatureThreshold", handle, which)
    return None if not value else float(value)
